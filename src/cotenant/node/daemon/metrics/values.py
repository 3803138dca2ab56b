"""The values of all metrics of a node at one instant, from which /metrics is rendered."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from cotenant.gate.grant import Kind
from cotenant.node.model.protection import ExitPhase, GpuSample, Health
from cotenant.units.histogram import Histogram


class WorkCounters(NamedTuple):
    """The work of a tenant, or of all tenants of a kind, from gate pages and ledger."""

    device_ns: int = 0
    launches: int = 0
    waits: int = 0
    waited_ns: int = 0
    denied: int = 0
    requests: int = 0
    late: int = 0
    """Requests that exceeded the objective."""
    request_ns: int = 0

    def add(self, other: WorkCounters) -> WorkCounters:
        """Return the sum."""
        return WorkCounters(*(own + others for own, others in zip(self, other, strict=True)))


class TenantMetrics(NamedTuple):
    """The metrics of a present tenant."""

    name: str
    gpu: int
    kind: Kind
    phase: ExitPhase
    paused: bool
    restarts: int
    quota_bytes: int
    held_bytes: int
    work: WorkCounters
    slo_ns: int = 0
    latencies: tuple[int, ...] = ()
    """Latency histogram in the buckets of node/model/control.py; empty: no request."""
    measured_bytes: int | None = None
    """What the device attributes to the tenant; None: unknown."""
    unseen_bytes: int = 0
    over_bytes: int = 0
    imported_bytes: int = 0


class GpuMetrics(NamedTuple):
    """The metrics of a device."""

    name: str
    health: Health
    memory_bytes: int
    sample: GpuSample
    held_bytes: int
    evictions: int
    is_mps_ready: bool
    online_ppm: int = -1
    """Share for active online tenants; -1: not adjusted."""
    foreign_bytes: int = 0
    unmatched_bytes: int = 0


class NodeMetrics(NamedTuple):
    """The metrics of a node."""

    version: str
    slots: int
    turns: int
    turn_ns: Histogram
    journal_bytes: int
    log_dropped: int
    tenants: tuple[TenantMetrics, ...]
    gpus: tuple[GpuMetrics, ...]
    departed: Mapping[tuple[int, Kind], WorkCounters]
    """Work of departed tenants, so that sums over a kind never decrease."""
    log_events: Mapping[str, int]
    refusals: Mapping[str, int]
    faults: Mapping[str, int]
    adjustments: Mapping[str, int] = MappingProxyType({})
    """Changes of the online share, by cause."""
