"""What does Prometheus see of a server? Its own figures, and Triton's names for those that mean the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from cotenant.domain.instant import MICROSECOND_NS, SECOND_NS
from cotenant.live.serve.engine import Engine
from cotenant.live.serve.figures import ModelFigures

_QUANTILES: Final = (0.5, 0.9, 0.99)
_ALIASES: Final[tuple[tuple[str, str, Callable[[ModelFigures], int]], ...]] = (
    ("nv_inference_request_success", "Requests that were answered.", lambda one: one.succeeded.count),
    ("nv_inference_request_failure", "Requests that were refused or failed.", lambda one: one.failed.count),
    ("nv_inference_count", "Rows that were run.", lambda one: one.rows),
    ("nv_inference_exec_count", "Runs.", lambda one: one.runs),
    (
        "nv_inference_request_duration_us",
        "Time from arrival to answer, summed.",
        lambda one: one.succeeded.ns // MICROSECOND_NS,
    ),
    ("nv_inference_queue_duration_us", "Time in the queue, summed.", lambda one: one.queue.ns // MICROSECOND_NS),
    (
        "nv_inference_compute_infer_duration_us",
        "Time of its run, summed over requests.",
        lambda one: one.compute.ns // MICROSECOND_NS,
    ),
)


def exposition(engine: Engine) -> bytes:
    """All figures as Prometheus reads them."""
    return ("\n".join(_lines(engine)) + "\n").encode()


def _lines(engine: Engine) -> Iterator[str]:
    versions = {name: engine.model(name).spec.version for name in engine.names()}
    figures = engine.figures
    labels = {name: f'model="{name}",version="{versions.get(name, "")}"' for name in figures}
    for metric, about, value in _ALIASES:
        yield f"# HELP {metric} {about}"
        yield f"# TYPE {metric} counter"
        for name, one in figures.items():
            yield f"{metric}{{{labels[name]}}} {value(one)}"
    waiting = engine.waiting
    for metric in ("nv_inference_pending_request_count", "cotenant_serve_waiting_requests"):
        yield f"# HELP {metric} Requests that wait to be run."
        yield f"# TYPE {metric} gauge"
        for name in figures:
            yield f"{metric}{{{labels[name]}}} {waiting.get(name, 0)}"
    yield "# HELP cotenant_serve_refused_total Requests that were refused, by reason."
    yield "# TYPE cotenant_serve_refused_total counter"
    for name, one in figures.items():
        for why, count in sorted(one.refused.items()):
            yield f'cotenant_serve_refused_total{{{labels[name]},reason="{why}"}} {count}'
    yield "# HELP cotenant_serve_cancelled_total Requests whose sender went away."
    yield "# TYPE cotenant_serve_cancelled_total counter"
    for name, one in figures.items():
        yield f"cotenant_serve_cancelled_total{{{labels[name]}}} {one.cancelled}"
    yield "# HELP cotenant_serve_latency_seconds Time from arrival to answer."
    yield "# TYPE cotenant_serve_latency_seconds summary"
    for name, one in figures.items():
        took = one.took.histogram()
        for quantile in _QUANTILES:
            seconds = took.quantile(quantile) / SECOND_NS
            yield f'cotenant_serve_latency_seconds{{{labels[name]},quantile="{quantile}"}} {seconds}'
        yield f"cotenant_serve_latency_seconds_sum{{{labels[name]}}} {took.total / SECOND_NS}"
        yield f"cotenant_serve_latency_seconds_count{{{labels[name]}}} {took.count}"
    yield "# HELP cotenant_serve_ready Whether requests are taken."
    yield "# TYPE cotenant_serve_ready gauge"
    yield f"cotenant_serve_ready {0 if engine.draining else 1}"
