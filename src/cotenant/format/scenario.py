"""What is a scenario file? A world as TOML: a node, populations of tenants, and what goes wrong."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from cotenant.domain.event import GateChange, NodeSettings, PriorityChanged, RulesChanged, TenantsPaused
from cotenant.domain.gate import GatePolicy
from cotenant.domain.tenant import Kind, Name, Priority, TenantSpec
from cotenant.errors import ConfigError
from cotenant.format.config import GpuConfig, NodeConfig
from cotenant.format.quantity import format_duration
from cotenant.format.toml import Count, DurationNs, Section, ShareOfWhole, SizeBytes, decode_toml, line_of


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
        )


class FaultConfig(Section, frozen=True):
    """The node daemon dies this many times, at a mean interval, and is away for a while."""

    node_kills: Count = Count(0)
    every: DurationNs = DurationNs(30_000_000_000)
    away: DurationNs = DurationNs(1_000_000_000)


class WishConfig(Section, frozen=True):
    """Somebody changes one thing while tenants run: pauses a tenant or lets it go on, its priority, or the rules.

    Without a name, `pause` is about all offline tenants.
    """

    at: DurationNs
    name: Name = ""
    pause: bool | None = None
    priority: Priority | None = None
    gate: Annotated[str, Meta(pattern=r"^(fill|strict|open)\Z")] | None = None
    bound: DurationNs | None = None

    def event(self, peer: int, uid: int) -> TenantsPaused | PriorityChanged | RulesChanged:
        """What the node is told, by this peer."""
        if self.pause is not None:
            names = (self.name,) if self.name else ()
            return TenantsPaused(peer, uid, True, names, not names, self.pause)
        if self.priority is not None:
            return PriorityChanged(peer, uid, True, self.name, self.priority)
        policy = None if self.gate is None else GatePolicy(self.gate)
        return RulesChanged(peer, True, GateChange(policy, None if self.bound is None else int(self.bound)))


class Scenario(Section, frozen=True):
    """A whole world; what happens in it is a function of this and the seed."""

    seed: int
    duration: DurationNs
    node: NodeConfig = NodeConfig()
    faults: FaultConfig = FaultConfig()
    gpu: tuple[GpuConfig, ...] = ()
    tenants: tuple[PopulationConfig, ...] = ()
    wishes: tuple[WishConfig, ...] = ()

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
        wanted = [wish.pause is not None, wish.priority is not None, (wish.gate, wish.bound) != (None, None)]
        if sum(wanted) != 1 or bool(wish.name) > wanted[0] + wanted[1] or (wanted[1] and not wish.name):
            remedy = "write one of: pause, with a name or for all offline tenants; name and priority; gate or bound"
            line = line_of(text, ["wishes", index, "at"])
            raise ConfigError(f"wishes[{index}]", wish.name, remedy, where=f"{where}:{line}")
    return scenario
