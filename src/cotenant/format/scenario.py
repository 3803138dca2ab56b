"""What is a scenario file? A world as TOML: a node, populations of tenants, and what goes wrong."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from cotenant.domain.event import (
    Event,
    EvictAsked,
    GateChange,
    GpuBack,
    GpuFaulted,
    GpuLost,
    GpuSeen,
    MpsSeen,
    NodeSettings,
    ObjectiveChanged,
    PriorityChanged,
    RulesChanged,
    ShareChanged,
    TenantsPaused,
)
from cotenant.domain.gate import GatePolicy
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import SECOND_NS
from cotenant.domain.protect import GpuSample, OnPressure
from cotenant.domain.tenant import Kind, Name, Priority, TenantSpec
from cotenant.errors import ConfigError
from cotenant.format.config import GpuConfig, NodeConfig
from cotenant.format.quantity import format_duration
from cotenant.format.toml import Count, DurationNs, Section, ShareOfWhole, SizeBytes, decode_toml, line_of

Wish: TypeAlias = TenantsPaused | PriorityChanged | ShareChanged | ObjectiveChanged | RulesChanged | EvictAsked


class PopulationConfig(Section, frozen=True):
    """Tenants of one sort: how many, how often, for how long, and how many of them crash."""

    name: Annotated[Name, Meta(min_length=1)]
    count: Count
    kind: Kind = Kind.OFFLINE
    priority: Priority = 5
    slo: DurationNs = DurationNs(0)
    memory: SizeBytes = SizeBytes(0)
    share: ShareOfWhole = ShareOfWhole(0)
    arrive: DurationNs = DurationNs(1_000_000_000)
    stay: DurationNs = DurationNs(10_000_000_000)
    crash: ShareOfWhole = ShareOfWhole(0)
    on_pressure: OnPressure = OnPressure.EVICT
    stubborn: bool = False
    """Whether they end only when they are killed."""

    def spec(self) -> TenantSpec:
        """What each of them asks for."""
        return TenantSpec(
            kind=self.kind,
            priority=self.priority,
            slo_ns=int(self.slo),
            memory_bytes=int(self.memory),
            share_ppm=int(self.share),
            task=self.name,
            command=f"{self.name} --work",
            on_pressure=self.on_pressure,
        )


class FaultConfig(Section, frozen=True):
    """The node daemon dies this many times, at a mean interval, and is away for a while."""

    node_kills: Count = Count(0)
    every: DurationNs = DurationNs(30_000_000_000)
    away: DurationNs = DurationNs(1_000_000_000)


class WishConfig(Section, frozen=True):
    """Somebody changes one thing while tenants run: pauses, evicts or changes a tenant, or changes the rules.

    Without a name, `pause` is about all offline tenants.
    """

    at: DurationNs
    name: Name = ""
    pause: bool | None = None
    priority: Priority | None = None
    share: ShareOfWhole | None = None
    slo: DurationNs | None = None
    gate: Annotated[str, Meta(pattern=r"^(fill|strict|open)\Z")] | None = None
    bound: DurationNs | None = None
    evict: bool = False

    def event(self, peer: int, uid: int) -> Wish:
        """What the node is told, by this peer."""
        if self.evict:
            return EvictAsked(peer, uid, True, (self.name,))
        if self.pause is not None:
            names = (self.name,) if self.name else ()
            return TenantsPaused(peer, uid, True, names, not names, self.pause)
        if self.priority is not None:
            return PriorityChanged(peer, uid, True, self.name, self.priority)
        if self.share is not None:
            return ShareChanged(peer, uid, True, self.name, int(self.share))
        if self.slo is not None:
            return ObjectiveChanged(peer, uid, True, self.name, int(self.slo))
        policy = None if self.gate is None else GatePolicy(self.gate)
        return RulesChanged(peer, True, GateChange(policy, None if self.bound is None else int(self.bound)))


class TroubleConfig(Section, frozen=True):
    """Something happens to a device: it is lost or back, its MPS server is, it reports an Xid, or its memory fills.

    Used memory is seen every second for as long as it lasts, with online and offline tenants holding some of it.
    """

    at: DurationNs
    gpu: Count = Count(0)
    lost: bool | None = None
    mps_gone: bool | None = None
    xid: Count | None = None
    memory_used: ShareOfWhole | None = None
    lasts: DurationNs = DurationNs(1_000_000_000)

    def events(self, memory_bytes: int) -> list[tuple[int, Event]]:
        """What the node is told, and when, of a device with so much memory."""
        at, gpu = int(self.at), int(self.gpu)
        if self.lost is not None:
            return [(at, GpuLost(gpu) if self.lost else GpuBack(gpu))]
        if self.mps_gone is not None:
            return [(at, MpsSeen(gpu, not self.mps_gone))]
        if self.xid is not None:
            return [(at, GpuFaulted(gpu, int(self.xid)))]
        used_bytes = memory_bytes * int(self.memory_used or 0) // WHOLE_PPM
        sample = GpuSample(memory_used_bytes=used_bytes, memory_bytes=memory_bytes, online_memory_bytes=1)
        sample = msgspec.structs.replace(sample, offline_memory_bytes=1)
        return [(when, GpuSeen(gpu, sample)) for when in range(at, at + int(self.lasts), SECOND_NS)]


class Scenario(Section, frozen=True):
    """A whole world; what happens in it is a function of this and the seed."""

    seed: int
    duration: DurationNs
    node: NodeConfig = NodeConfig()
    faults: FaultConfig = FaultConfig()
    gpu: tuple[GpuConfig, ...] = ()
    tenants: tuple[PopulationConfig, ...] = ()
    wishes: tuple[WishConfig, ...] = ()
    troubles: tuple[TroubleConfig, ...] = ()

    def settings(self) -> NodeSettings:
        """The node as its machine is told."""
        return self.node.settings(tuple(gpu.gpu() for gpu in self.gpu))


def decode_scenario(text: str, where: str) -> Scenario:
    """Read a scenario; every mistake names its line and field."""
    scenario = decode_toml(text, Scenario, where)
    for index, population in enumerate(scenario.tenants):
        if population.slo and population.kind is Kind.OFFLINE:
            remedy = 'an offline tenant has no latency objective; add kind = "online" or leave slo away'
            line = line_of(text, ["tenants", index, "slo"])
            slo = format_duration(population.slo)
            raise ConfigError(f"tenants[{index}].slo", slo, remedy, where=f"{where}:{line}")
    for index, wish in enumerate(scenario.wishes):
        about_one = [wish.evict, *(value is not None for value in (wish.priority, wish.share, wish.slo))]
        is_about_one = any(about_one)
        is_about_rules = (wish.gate, wish.bound) != (None, None)
        wanted = [*about_one, wish.pause is not None, is_about_rules]
        if sum(wanted) != 1 or (is_about_one and not wish.name) or (is_about_rules and wish.name):
            remedy = "write one of: pause, alone or with a name; name and priority, share, slo or evict; gate or bound"
            line = line_of(text, ["wishes", index, "at"])
            raise ConfigError(f"wishes[{index}]", wish.name, remedy, where=f"{where}:{line}")
    for index, trouble in enumerate(scenario.troubles):
        named = (trouble.lost, trouble.mps_gone, trouble.xid, trouble.memory_used)
        if sum(value is not None for value in named) != 1 or trouble.gpu >= len(scenario.gpu):
            remedy = "write one of: lost, mps_gone, xid, memory_used; and the number of a GPU of this scenario"
            line = line_of(text, ["troubles", index, "at"])
            raise ConfigError(f"troubles[{index}].gpu", trouble.gpu, remedy, where=f"{where}:{line}")
    return scenario
