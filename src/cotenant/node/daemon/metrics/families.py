"""The metric families of /metrics, which docs/reference/metrics.md lists; a test compares both.

Every family exists from the start, so that an alert rule finds a zero instead of no series. The values of labels are
bounded: tenants by the number of slots, and all others by closed lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cotenant.gate.grant import Kind
from cotenant.gate.request_buckets import bucket_of
from cotenant.node.daemon.metrics.values import GpuMetrics, NodeMetrics, TenantMetrics, WorkCounters
from cotenant.node.model.admission import Reason
from cotenant.node.model.control import AdjustCause
from cotenant.node.model.fault import Source
from cotenant.node.model.log_event import LogEventKind
from cotenant.node.model.protection import Health
from cotenant.node.policy.protect.errors import CLASSES
from cotenant.node.state.event_text import OTHER_FAULT
from cotenant.units.histogram import Histogram, bucket_middle
from cotenant.units.instant import SECOND_NS
from cotenant.units.share import WHOLE_PPM

_TURN_BOUNDS_NS: Final = (10**4, 10**5, 10**6, 10**7, 10**8, 10**9)
_WORK: Final[tuple[tuple[str, str, Callable[[WorkCounters], float]], ...]] = (
    (
        "device_seconds",
        "Expected device time of admitted launches.",
        lambda work: work.device_ns / SECOND_NS,
    ),
    ("launches", "Launches that the gate admitted.", lambda work: work.launches),
    ("waits", "Launches that waited at the gate.", lambda work: work.waits),
    ("waited_seconds", "Time that launches waited at the gate.", lambda work: work.waited_ns / SECOND_NS),
    ("denied_allocations", "Allocations refused because of the quota.", lambda work: work.denied),
    ("requests", "Requests that ended, reported or detected.", lambda work: work.requests),
    ("late_requests", "Requests that took longer than the objective.", lambda work: work.late),
    ("request_seconds", "Sum of request latencies.", lambda work: work.request_ns / SECOND_NS),
)
_TENANT_MEMORY: Final[tuple[tuple[str, str, Callable[[TenantMetrics], int | None]], ...]] = (
    (
        "measured",
        "Device memory that the device attributes to processes of the tenant.",
        lambda tenant: tenant.measured_bytes,
    ),
    ("unseen", "Device memory of the tenant that its hook did not see.", lambda tenant: tenant.unseen_bytes),
    ("over_quota", "Measured device memory beyond the quota.", lambda tenant: tenant.over_bytes),
    ("imported", "Memory of other tenants that the tenant has open.", lambda tenant: tenant.imported_bytes),
)
_LATENCY_BOUNDS_NS: Final = tuple(1 << bits for bits in range(17, 35))
"""From 131 us to 17 s; the pages have finer buckets, of which these are some bounds."""
_FAULT_SOURCES: Final = (Source.CUDA, Source.XID, Source.MPS, Source.HANG, Source.PAGES)
_TENANT_LABELS: Final = ("tenant", "gpu", "kind")
_GPU_LABELS: Final = ("gpu", "name")


class _SingleFamily(Collector):
    """A collector of one family, as the text encoder requires."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def page_of(collect: Callable[[], NodeMetrics]) -> Iterator[bytes]:
    """Yield the text of /metrics family by family, so that the server can do other work in between."""
    metrics = collect()
    yield b""
    yield from text_of(_families(metrics))


def text_of(families: Iterable[Metric]) -> Iterator[bytes]:
    """Yield each family in the text format of Prometheus."""
    for family in families:
        yield generate_latest(_SingleFamily(family))


def _families(metrics: NodeMetrics) -> Iterator[Metric]:
    """Yield the families in the order of docs/reference/metrics.md."""
    yield from _tenant_families(metrics.tenants)
    yield from _kind_families(metrics)
    yield from _gpu_families(metrics.gpus)
    yield from _node_families(metrics)


def _tenant_families(tenants: Iterable[TenantMetrics]) -> Iterator[Metric]:
    labelled = [((tenant.name, _gpu_label(tenant.gpu), tenant.kind.value), tenant) for tenant in tenants]
    for name, about, value in _WORK:
        counter = CounterMetricFamily(
            f"cotenant_tenant_{name}", f"{about} Starts at zero with each tenant.", None, _TENANT_LABELS
        )
        for labels, tenant in labelled:
            counter.add_metric(labels, value(tenant.work))
        yield counter
    restarts = CounterMetricFamily(
        "cotenant_tenant_restarts", "Restarts of the program in its slot.", None, _TENANT_LABELS
    )
    held = gauge_of("tenant_memory_held_bytes", "Device memory that the tenant holds, by the ledger.", _TENANT_LABELS)
    quota = gauge_of(
        "tenant_memory_quota_bytes", "Device memory that the tenant may hold; 0: no limit.", _TENANT_LABELS
    )
    memory = [
        (gauge_of(f"tenant_memory_{name}_bytes", about, _TENANT_LABELS), read) for name, about, read in _TENANT_MEMORY
    ]
    paused = gauge_of("tenant_paused", "1 if the tenant is paused by an operator.", _TENANT_LABELS)
    phase = gauge_of("tenant_phase", "1 for the tenant's present phase.", (*_TENANT_LABELS, "phase"))
    for labels, tenant in labelled:
        restarts.add_metric(labels, tenant.restarts)
        held.add_metric(labels, tenant.held_bytes)
        quota.add_metric(labels, tenant.quota_bytes)
        for gauge, read in memory:
            if (amount := read(tenant)) is not None:
                gauge.add_metric(labels, amount)
        paused.add_metric(labels, tenant.paused)
        phase.add_metric((*labels, tenant.phase.value), 1)
    yield from (restarts, held, quota, *(gauge for gauge, _ in memory), paused, phase)
    yield from _latency_families(labelled)


def _latency_families(labelled: Iterable[tuple[tuple[str, ...], TenantMetrics]]) -> Iterator[Metric]:
    """Yield the objectives and the latency histograms of online tenants."""
    slo = gauge_of("tenant_slo_seconds", "Latency objective of tenants that have one.", _TENANT_LABELS)
    about = "Latency of requests of online tenants, reported or detected."
    latency = HistogramMetricFamily("cotenant_tenant_latency_seconds", about, labels=_TENANT_LABELS)
    for labels, tenant in labelled:
        if tenant.slo_ns:
            slo.add_metric(labels, tenant.slo_ns / SECOND_NS)
        if tenant.latencies:
            cumulative = [(bound_ns, sum(tenant.latencies[: bucket_of(bound_ns)])) for bound_ns in _LATENCY_BOUNDS_NS]
            buckets = [(repr(bound_ns / SECOND_NS), float(count)) for bound_ns, count in cumulative]
            total = ("+Inf", float(sum(tenant.latencies)))
            latency.add_metric(labels, [*buckets, total], tenant.work.request_ns / SECOND_NS)
    yield from (slo, latency)


def _kind_families(metrics: NodeMetrics) -> Iterator[Metric]:
    """Yield the sums over a kind, which include departed tenants."""
    sums = {(gpu, kind): WorkCounters() for gpu in range(len(metrics.gpus)) for kind in Kind}
    for key, work in metrics.departed.items():
        sums[key] = sums.get(key, WorkCounters()).add(work)
    for tenant in metrics.tenants:
        key = (tenant.gpu, tenant.kind)
        sums[key] = sums.get(key, WorkCounters()).add(tenant.work)
    for name, about, value in _WORK:
        text = f"{about} Sum over all tenants of a kind since the node started, departed ones included."
        counter = CounterMetricFamily(f"cotenant_kind_{name}", text, None, ("gpu", "kind"))
        for (gpu, kind), work in sums.items():
            counter.add_metric((_gpu_label(gpu), kind.value), value(work))
        yield counter


def _gpu_families(gpus: Iterable[GpuMetrics]) -> Iterator[Metric]:
    labelled = [((str(index), gpu.name), gpu) for index, gpu in enumerate(gpus)]
    state = gauge_of("gpu_state", "1 for the state that the device is in, 0 for the others.", (*_GPU_LABELS, "state"))
    for labels, gpu in labelled:
        for health in Health:
            state.add_metric((*labels, health.value), gpu.health is health)
    yield state
    for name, about, read in (
        (
            "utilization_ratio",
            "Fraction of time in which the device was busy.",
            lambda gpu: _ratio(gpu.sample.utilization_ppm),
        ),
        ("sm_activity_ratio", "Fraction of SMs that had work.", lambda gpu: _ratio(gpu.sample.sm_activity_ppm)),
        ("clock_ratio", "SM clock as a fraction of the highest.", lambda gpu: _ratio(gpu.sample.clock_ppm)),
        (
            "memory_used_bytes",
            "Device memory in use, as the device reports it.",
            lambda gpu: _if_reported(gpu.sample.memory_used_bytes),
        ),
        (
            "memory_total_bytes",
            "Device memory.",
            lambda gpu: _if_reported(max(gpu.sample.memory_bytes, gpu.memory_bytes)),
        ),
        ("memory_held_bytes", "Device memory that tenants hold, by the ledger.", lambda gpu: gpu.held_bytes),
        ("memory_foreign_bytes", "Device memory of processes that belong to no tenant.", lambda gpu: gpu.foreign_bytes),
        (
            "memory_unmatched_bytes",
            "Device memory of processes that the node cannot find.",
            lambda gpu: gpu.unmatched_bytes,
        ),
        ("memory_unaccounted_bytes", "Device memory in use that no tenant's ledger accounts for.", _unaccounted),
        (
            "online_share_ratio",
            "Share of the device for active online tenants, if it is adjusted.",
            lambda gpu: _ratio(gpu.online_ppm),
        ),
        ("mps_ready", "1 if an MPS server serves the device.", lambda gpu: gpu.is_mps_ready),
    ):
        gauge = gauge_of(f"gpu_{name}", about, _GPU_LABELS)
        for labels, gpu in labelled:
            if (value := read(gpu)) is not None:
                gauge.add_metric(labels, value)
        yield gauge
    evictions = CounterMetricFamily("cotenant_gpu_evictions", "Tenants that were asked to end.", None, _GPU_LABELS)
    for labels, gpu in labelled:
        evictions.add_metric(labels, gpu.evictions)
    yield evictions


def _node_families(metrics: NodeMetrics) -> Iterator[Metric]:
    info = gauge_of("node_info", "Always 1; the label is the version of the node.", ("version",))
    info.add_metric((metrics.version,), 1)
    yield info
    yield CounterMetricFamily("cotenant_node_turns", "Turns of the node, over all its starts.", metrics.turns)
    yield histogram_of("cotenant_node_turn_seconds", "Duration of the node's turns.", metrics.turn_ns)
    yield GaugeMetricFamily(
        "cotenant_node_journal_bytes", "Size of the journal's present segment.", metrics.journal_bytes
    )
    yield CounterMetricFamily(
        "cotenant_node_log_lost_lines", "Log lines that could not be written.", metrics.log_dropped
    )
    yield GaugeMetricFamily("cotenant_node_slots", "Maximum number of tenants.", metrics.slots)
    tenants = gauge_of("node_tenants", "Present tenants.", ("kind",))
    for kind in Kind:
        tenants.add_metric((kind.value,), sum(tenant.kind is kind for tenant in metrics.tenants))
    yield tenants
    for name, about, label, counts in (
        (
            "events",
            "Events, as `cotenant events` prints them.",
            "event",
            _counts_of_all(LogEventKind, metrics.log_events),
        ),
        ("refusals", "Joins and commands that were refused.", "reason", _counts_of_all(Reason, metrics.refusals)),
        ("faults", "Errors of tenants and devices.", "class", _fault_counts(metrics.faults)),
        (
            "adjustments",
            "Changes of the online share of a device.",
            "cause",
            _counts_of_all(AdjustCause, metrics.adjustments),
        ),
    ):
        counter = CounterMetricFamily(f"cotenant_node_{name}", about, None, (label,))
        for value, count in counts.items():
            counter.add_metric((value,), count)
        yield counter


def gauge_of(name: str, about: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    """Return a gauge without samples."""
    return GaugeMetricFamily(f"cotenant_{name}", about, None, labels)


def _gpu_label(gpu: int) -> str:
    return str(gpu) if gpu >= 0 else "none"


def _ratio(ppm: int) -> float | None:
    return None if ppm < 0 else ppm / WHOLE_PPM


def _if_reported(amount: int) -> int | None:
    return None if amount < 0 else amount


def _unaccounted(gpu: GpuMetrics) -> int | None:
    used_bytes = gpu.sample.memory_used_bytes
    return None if used_bytes < 0 else max(0, used_bytes - gpu.held_bytes)


def histogram_of(name: str, about: str, histogram: Histogram) -> HistogramMetricFamily:
    """Return the histogram in coarser buckets; a value within 1/128 of a bound may be counted on its other side."""
    buckets = []
    for bound_ns in _TURN_BOUNDS_NS:
        below = sum(times for bucket, times in histogram.buckets if bucket_middle(bucket) <= bound_ns)
        buckets.append((repr(bound_ns / SECOND_NS), float(below)))
    return HistogramMetricFamily(name, about, [*buckets, ("+Inf", float(histogram.count))], histogram.total / SECOND_NS)


def _counts_of_all(kinds: type[Enum], counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts with zero for every missing key."""
    return {kind.value: counts.get(kind.value, 0) for kind in kinds}


def _fault_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of all error classes that a tenant or a device can have."""
    names = [error.name for error in CLASSES if error.source in _FAULT_SOURCES]
    return {name: counts.get(name, 0) for name in (*names, OTHER_FAULT)}
