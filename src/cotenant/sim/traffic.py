"""Who comes, how long do they stay, and how do they end? Populations of tenants with a stream of chance each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from cotenant.domain.event import (
    Event,
    PeerLost,
    TenantJoined,
    TenantLeft,
    TenantRestored,
    TenantResumed,
    TenantSuspended,
)
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import MILLISECOND_NS, Instant
from cotenant.domain.plan import Reject
from cotenant.domain.tenant import TenantSpec, Terms
from cotenant.format.scenario import FaultConfig, PopulationConfig, WishConfig
from cotenant.format.wire import Push, Restore, Signal, Suspend
from cotenant.sim.door import Heard
from cotenant.sim.loop import SimLoop
from cotenant.sim.node import SimNode

RETRY_NS: Final = 200 * MILLISECOND_NS
"""How often a tenant whose node is away tries again."""
_OBEY_NS: Final = 300 * MILLISECOND_NS
"""How long a program takes to end once it is asked to, or to move its memory."""
_UID: Final = 1000


class SimTenant:
    """A program under `cotenant run`: joins, stays, and leaves or dies; comes back to a node that restarted."""

    __slots__ = (
        *("_chance", "_coming_back", "_crashes", "_loop", "_node", "_peer", "_pid", "_spec", "_stay_ns"),
        *("_is_stubborn", "_stays", "ending", "terms"),
    )

    def __init__(
        self, world: tuple[SimLoop, SimNode], spec: TenantSpec, pid: int, life: tuple[int, bool, float, bool]
    ) -> None:
        """Bind it to its world.

        `life` is how long it stays, whether it crashes, its share of retry jitter, and whether only a kill ends it.
        """
        self._loop, self._node = world
        self._spec = spec
        self._pid = pid
        self._stay_ns, self._crashes, self._chance, self._is_stubborn = life
        self._peer = 0
        self._coming_back = False
        self._stays = False  # whether its end is decided
        self.terms: Terms | None = None
        self.ending = ""

    def arrive(self, _: Any, now: Instant) -> None:
        """Join, or wait for a node to join."""
        if not self._node.up:
            self._retry(self.arrive, now)
            return
        self._peer = self._node.door.connect(self._hear)
        self._node.deliver(TenantJoined(self._peer, self._pid, _UID, self._spec), now)

    @property
    def _homeless(self) -> bool:
        return self.terms is None and not self.ending

    def node_died(self, now: Instant) -> None:
        """Set out to come back, unless already on the way since an earlier death."""
        if not self._coming_back:
            self._coming_back = True
            self._loop.at(now + int(RETRY_NS * self._chance), self.come_back, None)

    def come_back(self, _: Any, now: Instant) -> None:
        """The node died: resume the slot as soon as it answers."""
        if self.ending or self.terms is None:
            return
        if not self._node.up:
            self._retry(self.come_back, now)
            return
        self._coming_back = False
        self._peer = self._node.door.connect(self._hear)
        slot, generation = self.terms.slot, self.terms.generation
        self._node.deliver(TenantResumed(self._peer, self._pid, _UID, slot, generation), now)
        if self._homeless:  # came back too late: start over as a new tenant
            self._node.deliver(TenantJoined(self._peer, self._pid, _UID, self._spec), now)

    def end(self, _: Any, now: Instant) -> None:
        """The program ends; with a crash nobody says so, the connection just closes."""
        if self.ending:
            return
        if not self._crashes:
            self._leave("exit 0", now)
            return
        self.ending = "crash"
        peer, self._peer = self._peer, 0
        self._node.door.disconnect(peer)
        self._node.deliver(PeerLost(peer), now)

    def _hear(self, said: Heard) -> None:
        now = self._loop.now()
        if isinstance(said, Terms):
            self.terms = said
            if not self._stays:
                self._stays = True
                self._loop.at(now + self._stay_ns, self.end, None)
        elif isinstance(said, Reject):
            if said.retry_after_ns:
                self._loop.at(now + said.retry_after_ns, self.arrive, None)
            elif self.terms is None:
                self.ending = f"refused: {said.reason.value}"
            self.terms = None
        elif isinstance(said, Signal | Suspend | Restore):
            self._loop.at(now + _OBEY_NS, self._obey, (self._peer, said))

    def _obey(self, told: tuple[int, Push], now: Instant) -> None:
        """Do as the node says, as a parent does: unless that node is gone."""
        peer, said = told
        if self.ending or peer != self._peer:
            return
        match said:
            case Signal(kind="kill"):
                self._leave("exit 137", now)
            case Signal():
                if not self._is_stubborn:
                    self._leave("exit 143", now)
            case Suspend():
                self._node.deliver(TenantSuspended(peer, ok=True), now)
            case Restore():
                self._node.deliver(TenantRestored(peer, ok=True), now)

    def _leave(self, ending: str, now: Instant) -> None:
        self.ending = ending
        peer, self._peer = self._peer, 0
        self._node.deliver(TenantLeft(peer, ending), now)
        self._node.door.disconnect(peer)

    def _retry(self, step: Any, now: Instant) -> None:
        self._loop.at(now + int(RETRY_NS * (0.5 + self._chance)), step, None)


class Traffic:
    """All tenants of a scenario, and the deaths of the node."""

    def __init__(self, loop: SimLoop, node: SimNode, seed: int) -> None:
        """Nothing is scheduled yet."""
        self._loop = loop
        self._node = node
        self._seed = seed
        self.tenants: list[SimTenant] = []

    def add(self, population: PopulationConfig) -> None:
        """Schedule the arrivals of one population; its chances depend on the seed and its name alone."""
        chance = random.Random(f"{self._seed}/{population.name}")
        spec = population.spec()
        when = self._loop.now()
        for _ in range(population.count):
            when += int(chance.expovariate(1 / max(population.arrive, 1)))
            stay_ns = int(chance.expovariate(1 / max(population.stay, 1)))
            crashes = chance.random() * WHOLE_PPM < population.crash
            life = (stay_ns, crashes, chance.random(), population.stubborn)
            tenant = SimTenant((self._loop, self._node), spec, 1000 + len(self.tenants), life)
            self.tenants.append(tenant)
            self._loop.at(when, tenant.arrive, None)

    def kill_node(self, faults: FaultConfig) -> None:
        """Schedule the node's deaths and returns."""
        chance = random.Random(f"{self._seed}/node kills")
        when = self._loop.now()
        for _ in range(faults.node_kills):
            when += int(chance.expovariate(1 / max(faults.every, 1)))
            self._loop.at(when, self._kill, None)
            self._loop.at(when + faults.away, self._node.start, None)
            when += faults.away

    def wish(self, wish: WishConfig) -> None:
        """Schedule what somebody changes; of a node that is away then, nobody can wish anything."""
        self._loop.at(self._loop.now() + wish.at, self._tell, wish)

    def trouble(self, events: Sequence[tuple[Instant, Event]]) -> None:
        """Schedule what happens to a device; of a node that is away then, nobody tells it."""
        for when, event in events:
            self._loop.at(self._loop.now() + when, self._node.deliver, event)

    def _tell(self, wish: WishConfig, now: Instant) -> None:
        peer = self._node.door.connect(lambda _: None)
        self._node.deliver(wish.event(peer, _UID), now)
        self._node.door.disconnect(peer)

    def _kill(self, _: Any, now: Instant) -> None:
        self._node.kill()
        for tenant in self._alive():
            tenant.node_died(now)

    def _alive(self) -> Sequence[SimTenant]:
        return [tenant for tenant in self.tenants if tenant.terms is not None and not tenant.ending]
