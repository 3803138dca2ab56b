"""Metrics of the cluster controller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from cotenant.cluster.model.cluster import ClusterCounts, JobState
from cotenant.node.daemon.metrics.families import gauge_of, histogram_of, text_of
from cotenant.units.histogram import Histogram


class ControllerMetrics(NamedTuple):
    """All metrics at one instant."""

    counts: ClusterCounts
    turn_ns: Histogram
    journal_bytes: int
    connections: int
    refused: int


def page_of(look: Callable[[], ControllerMetrics]) -> Iterator[bytes]:
    """The text of /metrics, family by family: the client that serves it can do other things between two of them."""
    figures = look()
    yield b""
    yield from text_of(_families(figures))


def _families(figures: ControllerMetrics) -> Iterator[Metric]:
    """In the order of docs/how-to/run-a-cluster.md."""
    counts = figures.counts
    nodes = gauge_of("cluster_nodes", "Nodes of the cluster.", ("state",))
    nodes.add_metric(("heard",), counts.nodes - counts.silent)
    nodes.add_metric(("silent",), counts.silent)
    yield nodes
    yield GaugeMetricFamily("cotenant_cluster_gpus", "GPUs of all nodes.", counts.gpus)
    yield GaugeMetricFamily("cotenant_cluster_gpus_open", "GPUs that would take a job now.", counts.open)
    yield GaugeMetricFamily("cotenant_cluster_gpus_held", "GPUs that a job has.", counts.held)
    jobs = gauge_of("cluster_jobs", "Jobs that are remembered.", ("state",))
    known = dict(counts.jobs)
    for state in JobState:
        jobs.add_metric((state.value,), known.get(state, 0))
    yield jobs
    for name, about, value in (
        ("rounds", "Rounds of placement.", counts.rounds),
        ("placed", "Attempts that rounds placed.", counts.placed),
        ("discarded", "Pairings that no longer held when they were to be committed.", counts.discarded),
        ("moved", "Running jobs that were moved to where they gain.", counts.moved),
    ):
        yield CounterMetricFamily(f"cotenant_cluster_{name}", about, value)
    yield histogram_of("cotenant_cluster_turn_seconds", "How long turns of the controller took.", figures.turn_ns)
    yield GaugeMetricFamily("cotenant_cluster_journal_bytes", "Size of the present segment.", figures.journal_bytes)
    yield GaugeMetricFamily("cotenant_cluster_connections", "Connections to the controller.", figures.connections)
    yield CounterMetricFamily(
        "cotenant_cluster_refused", "Peers that broke the protocol or wanted what is not theirs.", figures.refused
    )
