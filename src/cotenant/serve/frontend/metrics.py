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
    ("nv_inference_request_success", "Requests that were answered.", lambda stats: stats.succeeded.count),
    ("nv_inference_request_failure", "Requests that were rejected or failed.", lambda stats: stats.failed.count),
    ("nv_inference_count", "Rows that were executed.", lambda stats: stats.rows),
    ("nv_inference_exec_count", "Runs.", lambda stats: stats.runs),
    (
        "nv_inference_request_duration_us",
        "Time from arrival to answer, summed.",
        lambda stats: stats.succeeded.ns // MICROSECOND_NS,
    ),
    ("nv_inference_queue_duration_us", "Time in the queue, summed.", lambda stats: stats.queue.ns // MICROSECOND_NS),
    (
        "nv_inference_compute_infer_duration_us",
        "Time of its run, summed over requests.",
        lambda stats: stats.compute.ns // MICROSECOND_NS,
    ),
)


_COUNTERS: Final[tuple[tuple[str, str, Callable[[ModelStatistics], int]], ...]] = (
    ("offered", "Requests with an objective: a timeout, or the SLO of their model.", lambda stats: stats.offered),
    ("admitted", "Requests with an objective that were admitted.", lambda stats: stats.admitted),
    ("in_time", "Requests that were answered within their objective.", lambda stats: stats.in_time),
    ("cancelled", "Requests whose client disconnected.", lambda stats: stats.cancelled),
)
_ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_PLAN_GAUGES: Final[tuple[tuple[str, str, Callable[[ModelPlan], float]], ...]] = (
    ("batch", "Planned rows of a run.", lambda model_plan: model_plan.batch),
    ("units", "Planned units of a run.", lambda model_plan: model_plan.units),
    ("runs", "Planned runs per session.", lambda model_plan: model_plan.runs),
    ("rate", "Rows per second that the plan assumes.", lambda model_plan: model_plan.rate),
    ("expected_seconds", "Expected time of a planned run.", lambda model_plan: model_plan.expected_ns / SECOND_NS),
)

Sample: TypeAlias = tuple[str, float]
"""Labels and a value."""


def exposition(admin: AdminService, clients: Mapping[str, int]) -> bytes:
    """Return all metrics in the Prometheus text format; `clients` counts connections by listener."""
    lines: list[str] = []
    for name, kind, help_text, samples in _families(admin, clients):
        lines += (f"# HELP {name} {help_text}", f"# TYPE {name} {kind}")
        lines += (f"{name}{suffix} {value}" for suffix, value in samples)
    return ("\n".join(lines) + "\n").encode()


Family: TypeAlias = tuple[str, str, str, Iterable[Sample]]


def _families(admin: AdminService, clients: Mapping[str, int]) -> Iterator[Family]:
    engine = admin.engine
    versions = {name: engine.model(name).spec.version for name in engine.names()}
    statistics = engine.statistics
    labels = {name: f'model="{name}",version="{versions.get(name, "")}"' for name in statistics}

    def sample_each(value: Callable[[ModelStatistics], float]) -> list[Sample]:
        return [(f"{{{labels[name]}}}", value(stats)) for name, stats in statistics.items()]

    for metric, help_text, value in _ALIASES:
        yield metric, "counter", help_text, sample_each(value)
    waiting = engine.waiting
    for metric in ("nv_inference_pending_request_count", "cotenant_serve_waiting_requests"):
        samples = [(f"{{{labels[name]}}}", waiting.get(name, 0)) for name in statistics]
        yield metric, "gauge", "Queued requests.", samples
    for metric, help_text, value in _COUNTERS:
        yield f"cotenant_serve_{metric}_total", "counter", help_text, sample_each(value)
    refused = [
        (f'{{{labels[name]},reason="{reason}"}}', count)
        for name, stats in statistics.items()
        for reason, count in sorted(stats.refused.items())
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
    for name, stats in statistics.items():
        for word, count in (("admitted", stats.admitted), ("offered", stats.offered)):
            if count:
                samples.append((f'{{{labels[name]},of="{word}"}}', stats.in_time / count))
    help_text = "Fraction of the admitted, or of all offered, requests that was answered within its objective."
    yield "cotenant_serve_attainment", "gauge", help_text, samples


def _latencies(labels: Mapping[str, str], statistics: Mapping[str, ModelStatistics]) -> Iterator[Family]:
    samples: list[Sample] = []
    lags: list[Sample] = []
    for name, stats in statistics.items():
        latency = stats.latencies.histogram()
        samples += (
            (f'{{{labels[name]},quantile="{quantile}"}}', latency.quantile(quantile) / SECOND_NS)
            for quantile in _QUANTILES
        )
        samples.append((f"_sum{{{labels[name]}}}", latency.total / SECOND_NS))
        samples.append((f"_count{{{labels[name]}}}", latency.count))
        lags.append((f"_sum{{{labels[name]}}}", stats.lag.ns / SECOND_NS))
        lags.append((f"_count{{{labels[name]}}}", stats.lag.count))
    yield "cotenant_serve_latency_seconds", "summary", "Time from arrival to answer.", samples
    yield "cotenant_serve_answer_lag_seconds", "summary", "Time from the end of a run to the answer.", lags


def _runs(engine: Engine, labels: Mapping[str, str]) -> Iterator[Family]:
    samples: list[Sample] = []
    for name, stats in engine.statistics.items():
        for limit in _ROWS:
            count = sum(sizes.count for rows, sizes in stats.batches.items() if rows <= limit)
            samples.append((f'_bucket{{{labels[name]},le="{limit}"}}', count))
        samples.append((f'_bucket{{{labels[name]},le="+Inf"}}', stats.runs))
        samples += ((f"_sum{{{labels[name]}}}", stats.rows), (f"_count{{{labels[name]}}}", stats.runs))
    yield "cotenant_serve_run_rows", "histogram", "Rows of a run.", samples
    units: dict[str, int] = dict.fromkeys(engine.statistics, 0)
    runs = dict(units)
    for run in engine.active_runs.values():
        units[run.model] += run.units
        runs[run.model] += 1
    for metric, help_text, counts in (
        ("units_in_use", "Units of the device that runs use now.", units),
        ("active_runs", "Active runs.", runs),
    ):
        yield f"cotenant_serve_{metric}", "gauge", help_text, [(f"{{{labels[name]}}}", counts[name]) for name in counts]
    help_text = "Units of the device: cores, or percent of a GPU."
    yield "cotenant_serve_units", "gauge", help_text, [("", engine.all_units)]


def _workers(engine: Engine) -> Iterator[Family]:
    statistics = engine.workers()
    if statistics is None:
        return
    for metric, kind, help_text, value in (
        ("workers", "gauge", "Worker processes, ready or not.", statistics.workers),
        ("worker_waits_total", "counter", "Runs that found no worker ready.", statistics.waits),
        (
            "worker_wait_seconds_total",
            "counter",
            "Time that runs waited for a worker.",
            statistics.waited_ns / SECOND_NS,
        ),
        (
            "worker_narrower_total",
            "counter",
            "Runs on a narrower worker than requested.",
            statistics.narrower,
        ),
        ("worker_ends_total", "counter", "Workers that ended unexpectedly or could not start.", statistics.ended),
    ):
        yield f"cotenant_serve_{metric}", kind, help_text, [("", value)]


def _plan(engine: Engine) -> Iterator[Family]:
    plan = engine.plan()
    if plan is None:
        return
    for metric, help_text, value in _PLAN_GAUGES:
        samples = [(f'{{model="{model_plan.model}"}}', value(model_plan)) for model_plan in plan.models]
        yield f"cotenant_serve_plan_{metric}", "gauge", help_text, samples
    help_text = "Fraction of the device's units and time that the plan takes."
    yield "cotenant_serve_plan_used", "gauge", help_text, [("", plan.used)]
    help_text = "Length of a session of the plan."
    yield "cotenant_serve_plan_session_seconds", "gauge", help_text, [("", plan.session_ns / SECOND_NS)]
