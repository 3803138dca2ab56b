"""What does Prometheus see of a server? Its own figures, and Triton's names for those that mean the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from cotenant.domain.instant import MICROSECOND_NS, SECOND_NS
from cotenant.domain.serveplan import ModelPlan
from cotenant.live.serve.engine import Engine
from cotenant.live.serve.figures import ModelFigures
from cotenant.live.serve.site import Site

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


_OWN: Final[tuple[tuple[str, str, Callable[[ModelFigures], int]], ...]] = (
    ("offered", "Requests that came with an objective: a timeout, or the SLO of their model.", lambda one: one.offered),
    ("admitted", "Of those with an objective, the ones that were taken.", lambda one: one.admitted),
    ("in_time", "Of those with an objective, the ones that were answered within it.", lambda one: one.in_time),
    ("cancelled", "Requests whose sender went away.", lambda one: one.cancelled),
)
_ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_PLANNED: Final[tuple[tuple[str, str, Callable[[ModelPlan], float]], ...]] = (
    ("batch", "Rows of a run, as planned.", lambda one: one.batch),
    ("units", "Units of the device that a run is to have.", lambda one: one.units),
    ("runs", "Runs in a session, as planned.", lambda one: one.runs),
    ("rate", "Rows a second that were planned for.", lambda one: one.rate),
    ("expected_seconds", "What a planned run is expected to take.", lambda one: one.expected_ns / SECOND_NS),
)

Sample: TypeAlias = tuple[str, float]
"""Labels, and a value."""


def exposition(site: Site, clients: Mapping[str, int]) -> bytes:
    """All figures as Prometheus reads them; clients are counted by door."""
    lines: list[str] = []
    for name, kind, about, samples in _families(site, clients):
        lines += (f"# HELP {name} {about}", f"# TYPE {name} {kind}")
        lines += (f"{name}{suffix} {value}" for suffix, value in samples)
    return ("\n".join(lines) + "\n").encode()


Family: TypeAlias = tuple[str, str, str, Iterable[Sample]]


def _families(site: Site, clients: Mapping[str, int]) -> Iterator[Family]:
    engine = site.engine
    versions = {name: engine.model(name).spec.version for name in engine.names()}
    figures = engine.figures
    labels = {name: f'model="{name}",version="{versions.get(name, "")}"' for name in figures}

    def each(value: Callable[[ModelFigures], float]) -> list[Sample]:
        return [(f"{{{labels[name]}}}", value(one)) for name, one in figures.items()]

    for metric, about, value in _ALIASES:
        yield metric, "counter", about, each(value)
    waiting = engine.waiting
    for metric in ("nv_inference_pending_request_count", "cotenant_serve_waiting_requests"):
        samples = [(f"{{{labels[name]}}}", waiting.get(name, 0)) for name in figures]
        yield metric, "gauge", "Requests that wait to be run.", samples
    for metric, about, value in _OWN:
        yield f"cotenant_serve_{metric}_total", "counter", about, each(value)
    refused = [
        (f'{{{labels[name]},reason="{why}"}}', count)
        for name, one in figures.items()
        for why, count in sorted(one.refused.items())
    ]
    yield "cotenant_serve_refused_total", "counter", "Requests that were refused, by reason.", refused
    yield from _attainment(labels, figures)
    yield from _latencies(labels, figures)
    yield from _runs(engine, labels)
    yield from _plan(engine)
    yield from _workers(engine)
    lag_s = engine.loop_lag_ns / SECOND_NS
    yield "cotenant_serve_loop_lag_seconds", "gauge", "How late the front end was of late, at worst.", [("", lag_s)]
    doors = [(f'{{door="{door}"}}', count) for door, count in clients.items()]
    yield "cotenant_serve_clients", "gauge", "Connections.", doors
    yield "cotenant_serve_ready", "gauge", "Whether models are loaded and requests are taken.", [("", int(site.ready))]


def _attainment(labels: Mapping[str, str], figures: Mapping[str, ModelFigures]) -> Iterator[Family]:
    """Since the start; over a window, divide the rates of the counters."""
    samples = []
    for name, one in figures.items():
        for word, count in (("admitted", one.admitted), ("offered", one.offered)):
            if count:
                samples.append((f'{{{labels[name]},of="{word}"}}', one.in_time / count))
    about = "Part of the admitted, or of all offered, that was answered within its objective."
    yield "cotenant_serve_attainment", "gauge", about, samples


def _latencies(labels: Mapping[str, str], figures: Mapping[str, ModelFigures]) -> Iterator[Family]:
    samples: list[Sample] = []
    lags: list[Sample] = []
    for name, one in figures.items():
        took = one.took.histogram()
        samples += (
            (f'{{{labels[name]},quantile="{quantile}"}}', took.quantile(quantile) / SECOND_NS)
            for quantile in _QUANTILES
        )
        samples.append((f"_sum{{{labels[name]}}}", took.total / SECOND_NS))
        samples.append((f"_count{{{labels[name]}}}", took.count))
        lags.append((f"_sum{{{labels[name]}}}", one.lag.ns / SECOND_NS))
        lags.append((f"_count{{{labels[name]}}}", one.lag.count))
    yield "cotenant_serve_latency_seconds", "summary", "Time from arrival to answer.", samples
    yield "cotenant_serve_answer_lag_seconds", "summary", "Time from the end of a run to the answer.", lags


def _runs(engine: Engine, labels: Mapping[str, str]) -> Iterator[Family]:
    samples: list[Sample] = []
    for name, one in engine.figures.items():
        for most in _ROWS:
            count = sum(sizes.count for rows, sizes in one.batches.items() if rows <= most)
            samples.append((f'_bucket{{{labels[name]},le="{most}"}}', count))
        samples.append((f'_bucket{{{labels[name]},le="+Inf"}}', one.runs))
        samples += ((f"_sum{{{labels[name]}}}", one.rows), (f"_count{{{labels[name]}}}", one.runs))
    yield "cotenant_serve_run_rows", "histogram", "Rows of a run.", samples
    units: dict[str, int] = dict.fromkeys(engine.figures, 0)
    runs = dict(units)
    for run in engine.under_way.values():
        units[run.model] += run.units
        runs[run.model] += 1
    for metric, about, found in (
        ("units_in_use", "Units of the device that runs have now.", units),
        ("runs_under_way", "Runs that have not ended.", runs),
    ):
        yield f"cotenant_serve_{metric}", "gauge", about, [(f"{{{labels[name]}}}", found[name]) for name in found]
    about = "Units that the device has: cores, or percent of a GPU."
    yield "cotenant_serve_units", "gauge", about, [("", engine.all_units)]


def _workers(engine: Engine) -> Iterator[Family]:
    found = engine.workers()
    if found is None:
        return
    for metric, kind, about, value in (
        ("workers", "gauge", "Worker processes, ready or not.", found.workers),
        ("worker_waits_total", "counter", "Runs that found no worker ready.", found.waits),
        ("worker_wait_seconds_total", "counter", "What runs waited for a worker.", found.waited_ns / SECOND_NS),
        (
            "worker_narrower_total",
            "counter",
            "Runs done by a narrower worker than they might have had.",
            found.narrower,
        ),
        ("worker_ends_total", "counter", "Workers that ended unasked, or could not start.", found.ended),
    ):
        yield f"cotenant_serve_{metric}", kind, about, [("", value)]


def _plan(engine: Engine) -> Iterator[Family]:
    plan = engine.plan()
    if plan is None:
        return
    for metric, about, value in _PLANNED:
        samples = [(f'{{model="{one.model}"}}', value(one)) for one in plan.models]
        yield f"cotenant_serve_plan_{metric}", "gauge", about, samples
    about = "Part of the device's space-time that the plan takes."
    yield "cotenant_serve_plan_used", "gauge", about, [("", plan.used)]
    about = "How long a session of the plan is."
    yield "cotenant_serve_plan_session_seconds", "gauge", about, [("", plan.session_ns / SECOND_NS)]
