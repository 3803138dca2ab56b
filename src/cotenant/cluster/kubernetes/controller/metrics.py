"""Metrics of the placement controller, which docs/reference/metrics.md lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from cotenant.cluster.model.cluster import ClusterCounts, JobState
from cotenant.node.daemon.metrics.families import gauge_of, histogram_of, text_of
from cotenant.units.histogram import Histogram


class PlacementMetrics(NamedTuple):
    """All metrics at one instant."""

    is_leader: bool
    counts: ClusterCounts
    silent: int
    round_ns: Histogram
    released: int
    refused: int
    evicted: int
    requests: int
    failed_requests: int
    queued_requests: int


def metrics_page(read: Callable[[], PlacementMetrics]) -> Iterator[bytes]:
    """Yield the text of /metrics family by family."""
    metrics = read()
    yield b""
    yield from text_of(_families(metrics))


def _families(metrics: PlacementMetrics) -> Iterator[Metric]:
    counts = metrics.counts
    yield GaugeMetricFamily("cotenant_controller_leader", "1 if this controller holds the Lease.", metrics.is_leader)
    nodes = gauge_of("controller_nodes", "Nodes of the cluster.", ("state",))
    nodes.add_metric(("reporting",), counts.nodes - metrics.silent)
    nodes.add_metric(("silent",), metrics.silent)
    yield nodes
    yield GaugeMetricFamily("cotenant_controller_gpus", "GPUs of all nodes.", counts.gpus)
    yield GaugeMetricFamily("cotenant_controller_gpus_open", "GPUs that could take an offline pod.", counts.open)
    yield GaugeMetricFamily("cotenant_controller_gpus_held", "GPUs that an offline pod holds.", counts.held)
    pods = gauge_of("controller_pods", "Offline pods that have not ended.", ("state",))
    known = dict(counts.jobs)
    for state in (JobState.WAITING, JobState.STARTING, JobState.RUNNING, JobState.STOPPING):
        pods.add_metric((state.value,), known.get(state, 0))
    yield pods
    for name, about, value in (
        ("controller_rounds", "Placement rounds.", counts.rounds),
        ("controller_placed", "Pods that rounds placed.", counts.placed),
        (
            "controller_discarded",
            "Pairings that were no longer valid at the commit.",
            counts.discarded,
        ),
        ("controller_released", "Pods whose gate was removed.", metrics.released),
        ("controller_refused", "Placements that the API refused.", metrics.refused),
        ("controller_evicted", "Pods whose eviction was accepted.", metrics.evicted),
        ("controller_requests", "Requests to the API, without lists and watches.", metrics.requests),
        ("controller_failed_requests", "Requests that failed and were repeated.", metrics.failed_requests),
    ):
        yield CounterMetricFamily(f"cotenant_{name}", about, value)
    queued = "Requests that wait for their turn."
    yield GaugeMetricFamily("cotenant_controller_queued_requests", queued, metrics.queued_requests)
    yield histogram_of("cotenant_controller_round_seconds", "Duration of placement rounds.", metrics.round_ns)
