"""What is a scenario file? A world as TOML: a node, populations of tenants, and what goes wrong."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from cotenant.domain.event import NodeSettings
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


class Scenario(Section, frozen=True):
    """A whole world; what happens in it is a function of this and the seed."""

    seed: int
    duration: DurationNs
    node: NodeConfig = NodeConfig()
    faults: FaultConfig = FaultConfig()
    gpu: tuple[GpuConfig, ...] = ()
    tenants: tuple[PopulationConfig, ...] = ()

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
    return scenario
