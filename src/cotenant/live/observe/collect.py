"""What does /metrics say? Every figure has its family here; docs/metrics.md names the same, which a test holds.

Every family is there from the start, with its samples as far as there is anything to count: a rule that watches for one
finds zero, not nothing. Labels are bounded: tenants by the slots and gone with them, all else by closed lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cotenant.domain.control import Cause, bucket_of
from cotenant.domain.fault import Source
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.happening import What
from cotenant.domain.histogram import Histogram, bucket_middle
from cotenant.domain.instant import SECOND_NS
from cotenant.domain.plan import Reason
from cotenant.domain.protect import Health
from cotenant.domain.tenant import Kind
from cotenant.live.observe.figures import GpuFigures, NodeFigures, TenantFigures, Work
from cotenant.machine.telling import OTHER_FAULT
from cotenant.policy.protect.errors import CLASSES

_TURN_BOUNDS_NS: Final = (10**4, 10**5, 10**6, 10**7, 10**8, 10**9)
_WORK: Final[tuple[tuple[str, str, Callable[[Work], float]], ...]] = (
    (
        "device_seconds",
        "Device time of what passed the gate, as expected then.",
        lambda work: work.device_ns / SECOND_NS,
    ),
    ("launches", "Launches that passed the gate.", lambda work: work.launches),
    ("waits", "Launches that did not pass the gate at once.", lambda work: work.waits),
    ("waited_seconds", "For how long launches waited at the gate.", lambda work: work.waited_ns / SECOND_NS),
    ("denied_allocations", "Allocations refused because of the quota.", lambda work: work.denied),
    ("requests", "Requests that ended, told or seen.", lambda work: work.requests),
    ("late_requests", "Requests that took longer than the objective.", lambda work: work.late),
    ("request_seconds", "How long requests took, in sum.", lambda work: work.request_ns / SECOND_NS),
)
_LATENCY_BOUNDS_NS: Final = tuple(1 << bits for bits in range(17, 35))
"""From 131 us to 17 s: the pages count in finer buckets, some of whose bounds these are."""
_COUNTED: Final = (Source.CUDA, Source.XID, Source.MPS, Source.HANG)
_TENANT_LABELS: Final = ("tenant", "gpu", "kind")
_GPU_LABELS: Final = ("gpu", "name")


class _Alone(Collector):
    """One family, as what makes text of families wants it."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def page_of(look: Callable[[], NodeFigures]) -> Iterator[bytes]:
    """The text of /metrics, family by family: whoever serves it can do other things between two of them."""
    figures = look()
    yield b""
    yield from text_of(_families(figures))


def text_of(families: Iterable[Metric]) -> Iterator[bytes]:
    """Each family as Prometheus reads it."""
    for family in families:
        yield generate_latest(_Alone(family))


def _families(figures: NodeFigures) -> Iterator[Metric]:
    """In the order of docs/metrics.md."""
    yield from _of_tenants(figures.tenants)
    yield from _of_kinds(figures)
    yield from _of_gpus(figures.gpus)
    yield from _of_node(figures)


def _of_tenants(tenants: Iterable[TenantFigures]) -> Iterator[Metric]:
    labelled = [((tenant.name, _place(tenant.gpu), tenant.kind.value), tenant) for tenant in tenants]
    for name, about, value in _WORK:
        counter = CounterMetricFamily(
            f"cotenant_tenant_{name}", f"{about} Begins anew with each tenant.", None, _TENANT_LABELS
        )
        for labels, tenant in labelled:
            counter.add_metric(labels, value(tenant.work))
        yield counter
    restarts = CounterMetricFamily(
        "cotenant_tenant_restarts", "How often the program was started again in its slot.", None, _TENANT_LABELS
    )
    held = gauge_of("tenant_memory_held_bytes", "Device memory that it holds, by the ledger.", _TENANT_LABELS)
    quota = gauge_of("tenant_memory_quota_bytes", "Device memory that it may hold; 0: no limit.", _TENANT_LABELS)
    paused = gauge_of("tenant_paused", "1: somebody paused it.", _TENANT_LABELS)
    stage = gauge_of("tenant_stage", "1, for the stage that it is in.", (*_TENANT_LABELS, "stage"))
    for labels, tenant in labelled:
        restarts.add_metric(labels, tenant.restarts)
        held.add_metric(labels, tenant.held_bytes)
        quota.add_metric(labels, tenant.quota_bytes)
        paused.add_metric(labels, tenant.paused)
        stage.add_metric((*labels, tenant.stage.value), 1)
    yield from (restarts, held, quota, paused, stage)
    yield from _of_latencies(labelled)


def _of_latencies(labelled: Iterable[tuple[tuple[str, ...], TenantFigures]]) -> Iterator[Metric]:
    """What the objective is, and how long requests took: enough for any quantile over any time."""
    slo = gauge_of("tenant_slo_seconds", "Latency objective, of those who have one.", _TENANT_LABELS)
    about = "How long requests took, told or seen; of online tenants."
    took = HistogramMetricFamily("cotenant_tenant_latency_seconds", about, labels=_TENANT_LABELS)
    for labels, tenant in labelled:
        if tenant.slo_ns:
            slo.add_metric(labels, tenant.slo_ns / SECOND_NS)
        if tenant.latencies:
            below = [(bound_ns, sum(tenant.latencies[: bucket_of(bound_ns)])) for bound_ns in _LATENCY_BOUNDS_NS]
            buckets = [(repr(bound_ns / SECOND_NS), float(count)) for bound_ns, count in below]
            all_of_them = ("+Inf", float(sum(tenant.latencies)))
            took.add_metric(labels, [*buckets, all_of_them], tenant.work.request_ns / SECOND_NS)
    yield from (slo, took)


def _of_kinds(figures: NodeFigures) -> Iterator[Metric]:
    """Sums that those who leave do not take along."""
    sums = {(gpu, kind): Work() for gpu in range(len(figures.gpus)) for kind in Kind}
    for place, work in figures.departed.items():
        sums[place] = sums.get(place, Work()).plus(work)
    for tenant in figures.tenants:
        place = (tenant.gpu, tenant.kind)
        sums[place] = sums.get(place, Work()).plus(tenant.work)
    for name, about, value in _WORK:
        text = f"{about} Of all tenants of a kind since the node started, also of those who left."
        counter = CounterMetricFamily(f"cotenant_kind_{name}", text, None, ("gpu", "kind"))
        for (gpu, kind), work in sums.items():
            counter.add_metric((_place(gpu), kind.value), value(work))
        yield counter


def _of_gpus(gpus: Iterable[GpuFigures]) -> Iterator[Metric]:
    labelled = [((str(index), gpu.name), gpu) for index, gpu in enumerate(gpus)]
    state = gauge_of("gpu_state", "1 for the state that the device is in, 0 for the others.", (*_GPU_LABELS, "state"))
    for labels, gpu in labelled:
        for health in Health:
            state.add_metric((*labels, health.value), gpu.health is health)
    yield state
    for name, about, known in (
        (
            "utilization_ratio",
            "Part of the time in which the device was busy.",
            lambda gpu: _ratio(gpu.sample.utilization_ppm),
        ),
        ("sm_activity_ratio", "Part of the SMs that had work.", lambda gpu: _ratio(gpu.sample.sm_activity_ppm)),
        ("clock_ratio", "SM clock, of the highest that the device has.", lambda gpu: _ratio(gpu.sample.clock_ppm)),
        ("memory_used_bytes", "Device memory in use, by the device.", lambda gpu: _known(gpu.sample.memory_used_bytes)),
        ("memory_total_bytes", "Device memory.", lambda gpu: _known(max(gpu.sample.memory_bytes, gpu.memory_bytes))),
        ("memory_held_bytes", "Device memory that tenants hold, by the ledger.", lambda gpu: gpu.held_bytes),
        ("memory_unaccounted_bytes", "Device memory in use that no tenant's ledger accounts for.", _unaccounted),
        (
            "online_share_ratio",
            "Part of the device that online tenants keep while active, where that is adjusted.",
            lambda gpu: _ratio(gpu.online_ppm),
        ),
        ("mps_ready", "1: an MPS server serves the device.", lambda gpu: gpu.is_mps_ready),
    ):
        gauge = gauge_of(f"gpu_{name}", about, _GPU_LABELS)
        for labels, gpu in labelled:
            if (value := known(gpu)) is not None:
                gauge.add_metric(labels, value)
        yield gauge
    evictions = CounterMetricFamily("cotenant_gpu_evictions", "Tenants that were asked to end.", None, _GPU_LABELS)
    for labels, gpu in labelled:
        evictions.add_metric(labels, gpu.evictions)
    yield evictions


def _of_node(figures: NodeFigures) -> Iterator[Metric]:
    info = gauge_of("node_info", "1, for the version of the node.", ("version",))
    info.add_metric((figures.version,), 1)
    yield info
    yield CounterMetricFamily("cotenant_node_turns", "Turns of the node, over all its starts.", figures.turns)
    yield histogram_of("cotenant_node_turn_seconds", "How long turns of the node took.", figures.turn_ns)
    yield GaugeMetricFamily("cotenant_node_journal_bytes", "Size of the present segment.", figures.journal_bytes)
    yield CounterMetricFamily("cotenant_node_log_lost_lines", "Log lines nobody took.", figures.log_dropped)
    yield GaugeMetricFamily("cotenant_node_slots", "Tenants that there can be at once.", figures.slots)
    tenants = gauge_of("node_tenants", "Tenants that are here.", ("kind",))
    for kind in Kind:
        tenants.add_metric((kind.value,), sum(tenant.kind is kind for tenant in figures.tenants))
    yield tenants
    for name, about, label, counts in (
        ("events", "What happened, as `cotenant events` tells it.", "event", _all(What, figures.happenings)),
        ("refusals", "Joins and wishes that were refused.", "reason", _all(Reason, figures.refusals)),
        ("faults", "Errors of tenants and devices.", "class", _faults(figures.faults)),
        (
            "adjustments",
            "Changes of what online tenants keep of a device.",
            "cause",
            _all(Cause, figures.adjustments),
        ),
    ):
        counter = CounterMetricFamily(f"cotenant_node_{name}", about, None, (label,))
        for word, count in counts.items():
            counter.add_metric((word,), count)
        yield counter


def gauge_of(name: str, about: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    """A gauge without samples yet."""
    return GaugeMetricFamily(f"cotenant_{name}", about, None, labels)


def _place(gpu: int) -> str:
    return str(gpu) if gpu >= 0 else "none"


def _ratio(ppm: int) -> float | None:
    return None if ppm < 0 else ppm / WHOLE_PPM


def _known(amount: int) -> int | None:
    return None if amount < 0 else amount


def _unaccounted(gpu: GpuFigures) -> int | None:
    used_bytes = gpu.sample.memory_used_bytes
    return None if used_bytes < 0 else max(0, used_bytes - gpu.held_bytes)


def histogram_of(name: str, about: str, seen: Histogram) -> HistogramMetricFamily:
    """By coarser bounds than ours; a value within 1/128 of a bound may be counted on its other side."""
    buckets = []
    for bound_ns in _TURN_BOUNDS_NS:
        below = sum(times for bucket, times in seen.buckets if bucket_middle(bucket) <= bound_ns)
        buckets.append((repr(bound_ns / SECOND_NS), float(below)))
    return HistogramMetricFamily(name, about, [*buckets, ("+Inf", float(seen.count))], seen.total / SECOND_NS)


def _all(words: type[Enum], counts: Mapping[str, int]) -> dict[str, int]:
    """Zero for every word that was not counted yet."""
    return {word.value: counts.get(word.value, 0) for word in words}


def _faults(counts: Mapping[str, int]) -> dict[str, int]:
    """By the table of error classes: those that a tenant or a device can have, whether they were seen or not."""
    names = [each.name for each in CLASSES if each.source in _COUNTED]
    return {name: counts.get(name, 0) for name in (*names, OTHER_FAULT)}
