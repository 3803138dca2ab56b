"""Simulated tenants: populations with a random-number generator each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from cotenant.gate.grant import Grant
from cotenant.node.model.admission import Reject
from cotenant.node.model.event import (
    Event,
    PeerLost,
    TenantJoined,
    TenantLeft,
    TenantRestored,
    TenantResumed,
    TenantSuspended,
)
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.sim.listener import PeerMessage
from cotenant.node.sim.node import SimNode
from cotenant.node.sim.scenario import CommandConfig, FaultConfig, PopulationConfig
from cotenant.node.wire import Push, Restore, Signal, Suspend
from cotenant.runner.sim_loop import SimLoop
from cotenant.units.instant import MILLISECOND_NS, Instant
from cotenant.units.share import WHOLE_PPM

RETRY_NS: Final = 200 * MILLISECOND_NS
"""Retry interval of a tenant while the node is down."""
_REACTION_NS: Final = 300 * MILLISECOND_NS
"""Time that a program takes to exit or to move its memory once it is asked to."""
_UID: Final = 1000


class SimTenant:
    """A program under `cotenant run`: joins, stays, then leaves or crashes; resumes after a restart of the node."""

    __slots__ = (
        *("_jitter", "_resume_pending", "_crashes", "_loop", "_node", "_peer", "_pid", "_spec", "_stay_ns"),
        *("_is_stubborn", "_end_scheduled", "ending", "grant"),
    )

    def __init__(
        self, world: tuple[SimLoop, SimNode], spec: TenantSpec, pid: int, life: tuple[int, bool, float, bool]
    ) -> None:
        """Bind the tenant to the simulation.

        `life` is its duration, whether it crashes, its retry jitter, and whether only a kill ends it.
        """
        self._loop, self._node = world
        self._spec = spec
        self._pid = pid
        self._stay_ns, self._crashes, self._jitter, self._is_stubborn = life
        self._peer = 0
        self._resume_pending = False
        self._end_scheduled = False  # whether the end of the program is scheduled
        self.grant: Grant | None = None
        self.ending = ""

    def arrive(self, _: Any, now: Instant) -> None:
        """Join, or wait until the node runs."""
        if not self._node.up:
            self._retry(self.arrive, now)
            return
        self._peer = self._node.listener.connect(self._receive)
        self._node.deliver(TenantJoined(self._peer, self._pid, _UID, self._spec), now)

    @property
    def _has_no_grant(self) -> bool:
        return self.grant is None and not self.ending

    def on_node_death(self, now: Instant) -> None:
        """Schedule a resume, unless one is scheduled since an earlier crash."""
        if not self._resume_pending:
            self._resume_pending = True
            self._loop.at(now + int(RETRY_NS * self._jitter), self.resume, None)

    def resume(self, _: Any, now: Instant) -> None:
        """Resume the slot as soon as the node runs."""
        if self.ending or self.grant is None:
            return
        if not self._node.up:
            self._retry(self.resume, now)
            return
        self._resume_pending = False
        self._peer = self._node.listener.connect(self._receive)
        slot, generation = self.grant.slot, self.grant.generation
        self._node.deliver(TenantResumed(self._peer, self._pid, _UID, slot, generation), now)
        if self._has_no_grant:  # the slot was released meanwhile: join as a new tenant
            self._node.deliver(TenantJoined(self._peer, self._pid, _UID, self._spec), now)

    def end(self, _: Any, now: Instant) -> None:
        """End the program; after a crash the connection closes without a message."""
        if self.ending:
            return
        if not self._crashes:
            self._leave("exit 0", now)
            return
        self.ending = "crash"
        peer, self._peer = self._peer, 0
        self._node.listener.disconnect(peer)
        self._node.deliver(PeerLost(peer), now)

    def _receive(self, message: PeerMessage) -> None:
        now = self._loop.now()
        if isinstance(message, Grant):
            self.grant = message
            if not self._end_scheduled:
                self._end_scheduled = True
                self._loop.at(now + self._stay_ns, self.end, None)
        elif isinstance(message, Reject):
            if message.retry_after_ns:
                self._loop.at(now + message.retry_after_ns, self.arrive, None)
            elif self.grant is None:
                self.ending = f"refused: {message.reason.value}"
            self.grant = None
        elif isinstance(message, Signal | Suspend | Restore):
            self._loop.at(now + _REACTION_NS, self._react, (self._peer, message))

    def _react(self, request: tuple[int, Push], now: Instant) -> None:
        """React to the node's request, unless its connection is closed."""
        peer, message = request
        if self.ending or peer != self._peer:
            return
        match message:
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
        self._node.listener.disconnect(peer)

    def _retry(self, step: Any, now: Instant) -> None:
        self._loop.at(now + int(RETRY_NS * (0.5 + self._jitter)), step, None)


class Traffic:
    """All tenants of a scenario, and the crashes of the node."""

    def __init__(self, loop: SimLoop, node: SimNode, seed: int) -> None:
        """Begin without scheduled events."""
        self._loop = loop
        self._node = node
        self._seed = seed
        self.tenants: list[SimTenant] = []

    def add(self, population: PopulationConfig) -> None:
        """Schedule the arrivals of one population; its random numbers depend only on the seed and its name."""
        rng = random.Random(f"{self._seed}/{population.name}")
        spec = population.spec()
        when = self._loop.now()
        for _ in range(population.count):
            when += int(rng.expovariate(1 / max(population.arrive, 1)))
            stay_ns = int(rng.expovariate(1 / max(population.stay, 1)))
            crashes = rng.random() * WHOLE_PPM < population.crash
            life = (stay_ns, crashes, rng.random(), population.stubborn)
            tenant = SimTenant((self._loop, self._node), spec, 1000 + len(self.tenants), life)
            self.tenants.append(tenant)
            self._loop.at(when, tenant.arrive, None)

    def kill_node(self, faults: FaultConfig) -> None:
        """Schedule the crashes and restarts of the node."""
        rng = random.Random(f"{self._seed}/node kills")
        when = self._loop.now()
        for _ in range(faults.node_kills):
            when += int(rng.expovariate(1 / max(faults.every, 1)))
            self._loop.at(when, self._kill, None)
            self._loop.at(when + faults.away, self._node.start, None)
            when += faults.away

    def command(self, command: CommandConfig) -> None:
        """Schedule a command; it is lost if the node is down then."""
        self._loop.at(self._loop.now() + command.at, self._send_command, command)

    def device_fault(self, events: Sequence[tuple[Instant, Event]]) -> None:
        """Schedule events of a device; they are lost if the node is down then."""
        for when, event in events:
            self._loop.at(self._loop.now() + when, self._node.deliver, event)

    def _send_command(self, command: CommandConfig, now: Instant) -> None:
        peer = self._node.listener.connect(lambda _: None)
        self._node.deliver(command.event(peer, _UID), now)
        self._node.listener.disconnect(peer)

    def _kill(self, _: Any, now: Instant) -> None:
        self._node.kill()
        for tenant in self._present():
            tenant.on_node_death(now)

    def _present(self) -> Sequence[SimTenant]:
        return [tenant for tenant in self.tenants if tenant.grant is not None and not tenant.ending]
