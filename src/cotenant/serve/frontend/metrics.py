"""Prometheus metrics of the server, including Triton's names where the meaning is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from cotenant.serve.frontend.admin import AdminService
from cotenant.serve.frontend.engine import Engine
from cotenant.serve.frontend.statistics import ModelStatistics
from cotenant.serve.model.plan import ModelPlan
from cotenant.units.instant import MICROSECOND_NS, SECOND_NS

_QUANTILES: Final = (0.5, 0.9, 0.99)
_ALIASES: Final[tuple[tuple[str, str, Callable[[ModelStatistics], int]], ...]] = (
    ("nv_inference_request_success", "Requests that were answered.", lambda one: one.succeeded.count),
    ("nv_inference_request_failure", "Requests that were rejected or failed.", lambda one: one.failed.count),
    ("nv_inference_count", "Rows that were executed.", lambda one: one.rows),
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


_OWN: Final[tuple[tuple[str, str, Callable[[ModelStatistics], int]], ...]] = (
    ("offered", "Requests with an objective: a timeout, or the SLO of their model.", lambda one: one.offered),
    ("admitted", "Requests with an objective that were admitted.", lambda one: one.admitted),
    ("in_time", "Requests that were answered within their objective.", lambda one: one.in_time),
    ("cancelled", "Requests whose client disconnected.", lambda one: one.cancelled),
)
_ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_PLANNED: Final[tuple[tuple[str, str, Callable[[ModelPlan], float]], ...]] = (
    ("batch", "Planned rows of a run.", lambda one: one.batch),
    ("units", "Planned units of a run.", lambda one: one.units),
    ("runs", "Planned runs per session.", lambda one: one.runs),
    ("rate", "Rows per second that the plan assumes.", lambda one: one.rate),
    ("expected_seconds", "Expected time of a planned run.", lambda one: one.expected_ns / SECOND_NS),
)

Sample: TypeAlias = tuple[str, float]
"""Labels and a value."""


def exposition(admin: AdminService, clients: Mapping[str, int]) -> bytes:
    """Return all metrics in the Prometheus text format; `clients` counts connections by listener."""
    lines: list[str] = []
    for name, kind, about, samples in _families(admin, clients):
        lines += (f"# HELP {name} {about}", f"# TYPE {name} {kind}")
        lines += (f"{name}{suffix} {value}" for suffix, value in samples)
    return ("\n".join(lines) + "\n").encode()


Family: TypeAlias = tuple[str, str, str, Iterable[Sample]]


def _families(admin: AdminService, clients: Mapping[str, int]) -> Iterator[Family]:
    engine = admin.engine
    versions = {name: engine.model(name).spec.version for name in engine.names()}
    statistics = engine.statistics
    labels = {name: f'model="{name}",version="{versions.get(name, "")}"' for name in statistics}

    def each(value: Callable[[ModelStatistics], float]) -> list[Sample]:
        return [(f"{{{labels[name]}}}", value(one)) for name, one in statistics.items()]

    for metric, about, value in _ALIASES:
        yield metric, "counter", about, each(value)
    waiting = engine.waiting
    for metric in ("nv_inference_pending_request_count", "cotenant_serve_waiting_requests"):
        samples = [(f"{{{labels[name]}}}", waiting.get(name, 0)) for name in statistics]
        yield metric, "gauge", "Queued requests.", samples
    for metric, about, value in _OWN:
        yield f"cotenant_serve_{metric}_total", "counter", about, each(value)
    refused = [
        (f'{{{labels[name]},reason="{why}"}}', count)
        for name, one in statistics.items()
        for why, count in sorted(one.refused.items())
    ]
    yield "cotenant_serve_refused_total", "counter", "Requests that were rejected, by reason.", refused
    yield from _attainment(labels, statistics)
    yield from _latencies(labels, statistics)
    yield from _runs(engine, labels)
    yield from _plan(engine)
    yield from _workers(engine)
    lag_s = engine.loop_lag_ns / SECOND_NS
    yield "cotenant_serve_loop_lag_seconds", "gauge", "Recent maximum delay of the event loop.", [("", lag_s)]
    listeners = [(f'{{listener="{name}"}}', count) for name, count in clients.items()]
    yield "cotenant_serve_clients", "gauge", "Open client connections, by listener.", listeners
    yield (
        "cotenant_serve_ready",
        "gauge",
        "Whether models are loaded and requests are accepted.",
        [("", int(admin.ready))],
    )


def _attainment(labels: Mapping[str, str], statistics: Mapping[str, ModelStatistics]) -> Iterator[Family]:
    """Attainment since the start; over a window, divide the rates of the counters."""
    samples = []
    for name, one in statistics.items():
        for word, count in (("admitted", one.admitted), ("offered", one.offered)):
            if count:
                samples.append((f'{{{labels[name]},of="{word}"}}', one.in_time / count))
    about = "Fraction of the admitted, or of all offered, requests that was answered within its objective."
    yield "cotenant_serve_attainment", "gauge", about, samples


def _latencies(labels: Mapping[str, str], statistics: Mapping[str, ModelStatistics]) -> Iterator[Family]:
    samples: list[Sample] = []
    lags: list[Sample] = []
    for name, one in statistics.items():
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
    for name, one in engine.statistics.items():
        for most in _ROWS:
            count = sum(sizes.count for rows, sizes in one.batches.items() if rows <= most)
            samples.append((f'_bucket{{{labels[name]},le="{most}"}}', count))
        samples.append((f'_bucket{{{labels[name]},le="+Inf"}}', one.runs))
        samples += ((f"_sum{{{labels[name]}}}", one.rows), (f"_count{{{labels[name]}}}", one.runs))
    yield "cotenant_serve_run_rows", "histogram", "Rows of a run.", samples
    units: dict[str, int] = dict.fromkeys(engine.statistics, 0)
    runs = dict(units)
    for run in engine.active_runs.values():
        units[run.model] += run.units
        runs[run.model] += 1
    for metric, about, found in (
        ("units_in_use", "Units of the device that runs use now.", units),
        ("active_runs", "Active runs.", runs),
    ):
        yield f"cotenant_serve_{metric}", "gauge", about, [(f"{{{labels[name]}}}", found[name]) for name in found]
    about = "Units of the device: cores, or percent of a GPU."
    yield "cotenant_serve_units", "gauge", about, [("", engine.all_units)]


def _workers(engine: Engine) -> Iterator[Family]:
    found = engine.workers()
    if found is None:
        return
    for metric, kind, about, value in (
        ("workers", "gauge", "Worker processes, ready or not.", found.workers),
        ("worker_waits_total", "counter", "Runs that found no worker ready.", found.waits),
        ("worker_wait_seconds_total", "counter", "Time that runs waited for a worker.", found.waited_ns / SECOND_NS),
        (
            "worker_narrower_total",
            "counter",
            "Runs on a narrower worker than requested.",
            found.narrower,
        ),
        ("worker_ends_total", "counter", "Workers that ended unexpectedly or could not start.", found.ended),
    ):
        yield f"cotenant_serve_{metric}", kind, about, [("", value)]


def _plan(engine: Engine) -> Iterator[Family]:
    plan = engine.plan()
    if plan is None:
        return
    for metric, about, value in _PLANNED:
        samples = [(f'{{model="{one.model}"}}', value(one)) for one in plan.models]
        yield f"cotenant_serve_plan_{metric}", "gauge", about, samples
    about = "Fraction of the device's units and time that the plan takes."
    yield "cotenant_serve_plan_used", "gauge", about, [("", plan.used)]
    about = "Length of a session of the plan."
    yield "cotenant_serve_plan_session_seconds", "gauge", about, [("", plan.session_ns / SECOND_NS)]
