"""Scenario files: a node, populations of tenants, commands and faults as TOML."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from cotenant.errors import ConfigError
from cotenant.gate.grant import Kind
from cotenant.gate.rules import GatePolicy
from cotenant.node.config.file import GpuConfig, NodeConfig
from cotenant.node.model.event import (
    Event,
    EvictionRequested,
    GateChange,
    GpuFaulted,
    GpuLost,
    GpuRecovered,
    GpuSampled,
    MpsStatusChanged,
    NodeSettings,
    ObjectiveChanged,
    PriorityChanged,
    RulesChanged,
    ShareChanged,
    TenantsPaused,
)
from cotenant.node.model.protection import GpuSample, OnPressure
from cotenant.node.model.tenant import GpuCount, Name, Priority, TenantSpec
from cotenant.units.instant import SECOND_NS
from cotenant.units.share import WHOLE_PPM
from cotenant.units.text import format_duration
from cotenant.units.toml import Count, DurationNs, Section, ShareOfWhole, SizeBytes, decode_toml, line_of

CommandEvent: TypeAlias = (
    TenantsPaused | PriorityChanged | ShareChanged | ObjectiveChanged | RulesChanged | EvictionRequested
)


class PopulationConfig(Section, frozen=True):
    """Tenants of one kind: how many, how often they arrive, how long they stay, and how many crash."""

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
    """Whether the tenants exit only when they are killed."""
    gpus: GpuCount = 1
    """The number of devices of each tenant."""

    def spec(self) -> TenantSpec:
        """Return the spec with which each of these tenants joins."""
        return TenantSpec(
            kind=self.kind,
            priority=self.priority,
            slo_ns=int(self.slo),
            memory_bytes=int(self.memory),
            share_ppm=int(self.share),
            task=self.name,
            command=f"{self.name} --work",
            on_pressure=self.on_pressure,
            gpu_count=self.gpus,
        )


class FaultConfig(Section, frozen=True):
    """Crashes of the daemon: their number, mean interval and downtime."""

    node_kills: Count = Count(0)
    every: DurationNs = DurationNs(30_000_000_000)
    away: DurationNs = DurationNs(1_000_000_000)


class CommandConfig(Section, frozen=True):
    """One operator command at run time: pause, evict or change a tenant, or change the rules.

    Without a name, `pause` applies to all offline tenants.
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

    def event(self, peer: int, uid: int) -> CommandEvent:
        """Return the command as an event from this peer."""
        if self.evict:
            return EvictionRequested(peer, uid, True, (self.name,))
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


class DeviceFaultConfig(Section, frozen=True):
    """A fault of a device: lost or recovered, MPS exited or ready, an Xid, or full memory.

    Used memory is sampled every second for its duration, with memory of online and offline tenants.
    """

    at: DurationNs
    gpu: Count = Count(0)
    lost: bool | None = None
    mps_gone: bool | None = None
    xid: Count | None = None
    memory_used: ShareOfWhole | None = None
    lasts: DurationNs = DurationNs(1_000_000_000)

    def events(self, memory_bytes: int) -> list[tuple[int, Event]]:
        """Return the events and their instants for a device of this memory size."""
        at, gpu = int(self.at), int(self.gpu)
        if self.lost is not None:
            return [(at, GpuLost(gpu) if self.lost else GpuRecovered(gpu))]
        if self.mps_gone is not None:
            return [(at, MpsStatusChanged(gpu, not self.mps_gone))]
        if self.xid is not None:
            return [(at, GpuFaulted(gpu, int(self.xid)))]
        used_bytes = memory_bytes * int(self.memory_used or 0) // WHOLE_PPM
        sample = GpuSample(memory_used_bytes=used_bytes, memory_bytes=memory_bytes, online_memory_bytes=1)
        sample = msgspec.structs.replace(sample, offline_memory_bytes=1)
        return [(when, GpuSampled(gpu, sample)) for when in range(at, at + int(self.lasts), SECOND_NS)]


class Scenario(Section, frozen=True):
    """A simulated run, which is a function of the scenario and the seed."""

    seed: int
    duration: DurationNs
    node: NodeConfig = NodeConfig()
    faults: FaultConfig = FaultConfig()
    gpu: tuple[GpuConfig, ...] = ()
    tenants: tuple[PopulationConfig, ...] = ()
    commands: tuple[CommandConfig, ...] = ()
    device_faults: tuple[DeviceFaultConfig, ...] = ()

    def settings(self) -> NodeSettings:
        """Return the settings of the node."""
        return self.node.settings(tuple(gpu.gpu() for gpu in self.gpu))


def decode_scenario(text: str, where: str) -> Scenario:
    """Decode a scenario; each error names its line and field."""
    scenario = decode_toml(text, Scenario, where)
    for index, population in enumerate(scenario.tenants):
        if population.slo and population.kind is Kind.OFFLINE:
            remedy = 'an offline tenant has no latency objective; add kind = "online" or omit slo'
            line = line_of(text, ["tenants", index, "slo"])
            slo = format_duration(population.slo)
            raise ConfigError(f"tenants[{index}].slo", slo, remedy, where=f"{where}:{line}")
    for index, command in enumerate(scenario.commands):
        tenant_changes = [
            command.evict,
            *(value is not None for value in (command.priority, command.share, command.slo)),
        ]
        is_about_tenant = any(tenant_changes)
        is_about_rules = (command.gate, command.bound) != (None, None)
        changes = [*tenant_changes, command.pause is not None, is_about_rules]
        if sum(changes) != 1 or (is_about_tenant and not command.name) or (is_about_rules and command.name):
            remedy = "write one of: pause, alone or with a name; name and priority, share, slo or evict; gate or bound"
            line = line_of(text, ["commands", index, "at"])
            raise ConfigError(f"commands[{index}]", command.name, remedy, where=f"{where}:{line}")
    for index, device_fault in enumerate(scenario.device_faults):
        kinds = (device_fault.lost, device_fault.mps_gone, device_fault.xid, device_fault.memory_used)
        if sum(value is not None for value in kinds) != 1 or device_fault.gpu >= len(scenario.gpu):
            remedy = "write one of: lost, mps_gone, xid, memory_used; and the number of a GPU of this scenario"
            line = line_of(text, ["device_faults", index, "at"])
            raise ConfigError(f"device_faults[{index}].gpu", device_fault.gpu, remedy, where=f"{where}:{line}")
    return scenario
