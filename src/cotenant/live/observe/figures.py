"""Which figures does a node show? All of them at one instant, as plain values: /metrics is made from these."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from cotenant.domain.histogram import Histogram
from cotenant.domain.protect import GpuSample, Health, Stage
from cotenant.domain.tenant import Kind


class Work(NamedTuple):
    """What a tenant did, or all of a kind did, by what their gate's pages and their ledger count."""

    device_ns: int = 0
    launches: int = 0
    waits: int = 0
    waited_ns: int = 0
    denied: int = 0
    requests: int = 0
    late: int = 0
    """Of the requests, those beyond the objective."""
    request_ns: int = 0

    def plus(self, other: Work) -> Work:
        """Both together."""
        return Work(*(one + two for one, two in zip(self, other, strict=True)))


class TenantFigures(NamedTuple):
    """One who is here."""

    name: str
    gpu: int
    kind: Kind
    stage: Stage
    paused: bool
    restarts: int
    quota_bytes: int
    held_bytes: int
    work: Work
    slo_ns: int = 0
    latencies: tuple[int, ...] = ()
    """How many requests took how long, by the buckets of domain/control.py; empty: nothing is known of any."""


class GpuFigures(NamedTuple):
    """One device."""

    name: str
    health: Health
    memory_bytes: int
    sample: GpuSample
    held_bytes: int
    evictions: int
    is_mps_ready: bool
    online_ppm: int = -1
    """What its online tenants keep of it while they are active; -1: that is not adjusted."""


class NodeFigures(NamedTuple):
    """The node."""

    version: str
    slots: int
    turns: int
    turn_ns: Histogram
    journal_bytes: int
    log_dropped: int
    tenants: tuple[TenantFigures, ...]
    gpus: tuple[GpuFigures, ...]
    departed: Mapping[tuple[int, Kind], Work]
    """What those who left did, so that sums over a kind never go back."""
    happenings: Mapping[str, int]
    refusals: Mapping[str, int]
    faults: Mapping[str, int]
    adjustments: Mapping[str, int] = MappingProxyType({})
    """How often what online tenants keep was changed, by the cause."""
