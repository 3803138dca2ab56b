"""Kernel streams of several hosts on one device: who launches when, what waits, what it costs whom.

A loop over instants without an object per kernel. Who may launch is asked of a door that is given from outside.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from cotenant import _native
from cotenant.sim.device import DeviceConfig
from cotenant.sim.kernels_host import (
    AHEAD_LIMIT,
    AT_DOOR,
    AT_LIMIT,
    ENTERING,
    IN_SYNC,
    NEVER_NS,
    READY,
    RETURNING,
    SUBMITTING,
    THROUGH,
    Client,
    Costs,
    Door,
    Host,
)
from cotenant.sim.kernels_played import Played, Tally, beside_ns

_OPS: Final = 8192
_STEP_BITS: Final = 24
_STEP_MASK: Final = (1 << _STEP_BITS) - 1
_HOST_SHIFT: Final = 40


class _Mark(msgspec.Struct, frozen=True):
    """The books at an edge of the window."""

    at_ns: int
    busy_ns: int
    sm_ns: int
    rows: tuple[tuple[int, int, int, int, int], ...]


class World:
    """Hosts before one device. The first is the one that the window is about."""

    def __init__(
        self, config: DeviceConfig, clients: Sequence[Client], doors: Sequence[Door], costs: Costs, seed: int
    ) -> None:
        """Everybody begins at instant 0; ties go to the first."""
        self._ticks: list[tuple[int, int, Callable[[int], None]]] = []
        self._keeps = True
        self._device = _native.Device(
            msgspec.structs.asdict(config), (len(clients), len(clients), 64 * len(clients), 1, 2 * _OPS, 4 * _OPS), 0
        )
        self._costs = costs
        self._sleeps = random.Random(seed)
        self._hosts: list[Host] = []
        self._begin: _Mark | None = None
        self._gaps_before = 0
        for index, (client, door) in enumerate(zip(clients, doors, strict=True)):
            host = Host(client, door, index, config, costs)
            host.client = self._device.client_add(0, client.group)
            context = self._device.context_create(0, host.client, client.sm_cap)
            host.streams = [self._device.stream_create(0, context, 0, client.priority) for _ in range(host.kinds)]
            self._hosts.append(host)

    def every(self, period_ns: int, call: Callable[[int], None]) -> None:
        """Call this at every whole multiple of a period, before anything else that happens at that instant."""
        self._ticks.append((period_ns, period_ns, call))

    def play(self, until_ns: int = NEVER_NS - 1) -> Played:
        """Until the first host is through, or until an instant."""
        first = self._hosts[0]
        if not first.warm:
            self._begin = self._mark(0)
        return self._played(self._run(until_ns, first))

    def play_for(self, for_ns: int, warm_ns: int = 0) -> Played:
        """For so long, whoever is through before; the window begins after a while. Gaps are not kept: runs are long."""
        self._keeps = False
        self._run(warm_ns, None)
        self._begin = self._mark(warm_ns)
        return self._played(self._run(for_ns, None))

    def requests_of(self, place: int) -> tuple[array[int], array[int]]:
        """Of a host: when each of its requests so far was due, and when it ended."""
        host = self._hosts[place]
        return host.dues, host.ends

    def done_ns(self) -> list[int]:
        """Kernel time completed so far, by host."""
        return [host.done_ns for host in self._hosts]

    def busy_ns(self, place: int) -> int:
        """For how long a host has had blocks on the device so far."""
        return self._device.count_client(self._hosts[place].client)["busy_ns"]

    def _run(self, until_ns: int, stops: Host | None) -> int:
        """Until an instant and all that happens at it, or until this one is through."""
        hosts, device, act = self._hosts, self._device, self._act
        tick_ns = self._next_tick_ns()
        now_ns = 0
        while stops is None or stops.state != THROUGH:
            now_ns, who, awaited = tick_ns, None, False
            for host in hosts:
                if host.at_ns < now_ns:
                    now_ns, who = host.at_ns, host
                if host.awaits:
                    awaited = True
            if awaited:
                change_ns = device.next_change()
                if change_ns is not None and change_ns <= now_ns:
                    if change_ns > until_ns:
                        return self._settle(until_ns)
                    device.advance(change_ns)
                    self._collect()
                    continue
            if now_ns > until_ns or (who is None and tick_ns == NEVER_NS):
                return self._settle(until_ns)
            if who is None:
                tick_ns = self._tick(now_ns)
            else:
                act(who, now_ns)
        return now_ns

    def _settle(self, until_ns: int) -> int:
        self._device.advance(until_ns)
        self._collect()
        return until_ns

    def _next_tick_ns(self) -> int:
        return min((at_ns for at_ns, _, _ in self._ticks), default=NEVER_NS)

    def _tick(self, now_ns: int) -> int:
        """Everything that is due now, in the order in which it was asked for; when the next one is."""
        self._settle(now_ns)
        for place, (at_ns, period_ns, call) in enumerate(self._ticks):
            if at_ns <= now_ns:
                self._ticks[place] = (at_ns + period_ns, period_ns, call)
                call(now_ns)
        for host in self._hosts:  # what a call has changed, a host that waits may see at its next look
            if host.state == AT_DOOR and host.door.looks:
                host.at_ns = min(host.at_ns, now_ns + self._costs.poll_ns)
        return self._next_tick_ns()

    # ---- a host at an instant ---------------------------------------------------------------------------------------

    def _act(self, host: Host, now_ns: int) -> None:
        state = host.state
        if state == SUBMITTING:
            self._submit(host, now_ns)
        elif state <= AT_DOOR:
            self._ask(host, now_ns)
        elif state == ENTERING:
            self._enter(host, now_ns)
        elif state == RETURNING:
            self._return(host, now_ns)

    def _ask(self, host: Host, now_ns: int) -> None:
        if host.state == READY:
            if host.outstanding >= AHEAD_LIMIT:
                self._device.advance(now_ns)
                self._collect()
                if host.outstanding >= AHEAD_LIMIT:
                    host.state, host.at_ns, host.awaits = AT_LIMIT, NEVER_NS, True
                    return
            host.since_ns = now_ns
            if not host.step:
                host.door.began(host.due_ns, now_ns)
        door = host.door
        if door.confirms or host.ended:
            self._confirm(host, now_ns)
        at_ns = door.ask(host.step, host.since_ns, now_ns)
        if at_ns > now_ns:
            if host.state == READY:
                host.waits += 1
                host.state = AT_DOOR
            if door.sleeps:
                at_ns += self._overshoot_ns()
            host.at_ns = max(at_ns, now_ns + self._costs.poll_ns)
            host.awaits = door.looks and host.outstanding > 0
            return
        host.waited_ns += now_ns - host.since_ns
        host.state, host.at_ns, host.awaits = SUBMITTING, now_ns + self._costs.call_ns, False
        self._seen_by_others(host, now_ns)

    def _confirm(self, host: Host, now_ns: int) -> None:
        """Tell the door of what has ended."""
        self._device.advance(now_ns)
        self._collect()
        ended, seen_ns = host.ended, now_ns - self._costs.query_ns
        while ended and ended[0][0] <= seen_ns:
            host.door.ended(ended.popleft()[1], now_ns)

    def _submit(self, host: Host, now_ns: int) -> None:
        device, streams, step = self._device, host.streams, host.step
        ops = host.ops[step]
        if self._keeps and host is self._hosts[0]:
            device.advance(now_ns)
            self._collect()
            if not host.outstanding:
                host.gaps.append((host.idle_from_ns, now_ns))
        last = len(ops) - 1
        confirmed = last if host.door.confirms else -1
        for index, (op, stream, _) in enumerate(ops):
            tag = host.tag | (index == confirmed) << 39 | (index << _STEP_BITS if last else 0) | step
            if len(op) == 2:
                device.copy(now_ns, streams[stream], op[0], op[1], tag)
            else:
                device.launch(now_ns, streams[stream], op, tag)  # type: ignore[arg-type]
        host.outstanding += last + 1
        host.door.submitted(now_ns)
        host.at_ns = max(now_ns, host.since_ns + host.interval_ns())
        if step == host.last_step:
            host.state = ENTERING
        else:
            host.step = step + 1
            host.state = READY

    def _enter(self, host: Host, now_ns: int) -> None:
        """The call that waits for everything."""
        host.door.waits(now_ns)
        self._device.advance(now_ns)
        self._collect()
        if host.outstanding:
            host.state, host.at_ns, host.awaits = IN_SYNC, NEVER_NS, True
        else:
            host.state, host.at_ns = RETURNING, now_ns + self._costs.sync_ns
        self._seen_by_others(host, now_ns)

    def _return(self, host: Host, now_ns: int) -> None:
        """One request is over; the next is due at some instant."""
        if host.door.confirms or host.ended:
            self._confirm(host, now_ns)
        rings = host.door.drained(now_ns)
        host.request += 1
        if not host.training:
            host.dues.append(host.due_ns)
            host.ends.append(now_ns)
            host.door.served(host.due_ns, now_ns)
        host.step = 0
        if host.request == host.warm and host is self._hosts[0]:
            self._begin = self._mark(now_ns)
            self._gaps_before = len(host.gaps)
        if host.request >= host.requests:
            host.state, host.at_ns = THROUGH, NEVER_NS
        else:
            host.due_ns = host.next_due_ns(now_ns)
            host.state, host.at_ns = READY, max(host.due_ns, now_ns)
        self._seen_by_others(host, now_ns)
        if rings:
            self._ring(now_ns)

    def _seen_by_others(self, host: Host, now_ns: int) -> None:
        """Whoever spins sees it at its next look."""
        seen_ns = now_ns + self._costs.poll_ns
        for other in self._hosts:
            if other.state == AT_DOOR and other is not host and other.door.looks and other.at_ns > seen_ns:
                other.at_ns = seen_ns

    def _ring(self, now_ns: int) -> None:
        for other in self._hosts:
            if other.state == AT_DOOR and other.door.sleeps:
                other.at_ns = min(other.at_ns, now_ns + self._overshoot_ns())

    def _overshoot_ns(self) -> int:
        costs = self._costs
        if not costs.wake_spread_ns:
            return costs.wake_ns
        return costs.wake_ns + round(self._sleeps.expovariate(1 / costs.wake_spread_ns))

    # ---- what the device says ---------------------------------------------------------------------------------------

    def _collect(self) -> None:
        hosts = self._hosts
        for record in self._device.drain():
            tag, end_ns = record[1], record[10]
            host = hosts[tag >> _HOST_SHIFT]
            step = tag & _STEP_MASK
            index = tag >> _STEP_BITS & 0x7FFF
            host.outstanding -= 1
            host.kernels += 1
            host.done_ns += host.ops[step][index][2]
            if self._keeps and host.door.confirms:
                host.runs.append((record[9], end_ns))
            if tag >> 39 & 1:
                host.ended.append((end_ns, step))
            if not host.outstanding:
                host.idle_from_ns = end_ns
            if host.awaits:
                self._awaited(host, end_ns)

    def _awaited(self, host: Host, end_ns: int) -> None:
        costs = self._costs
        if host.state == IN_SYNC:
            if not host.outstanding:
                host.state, host.at_ns, host.awaits = RETURNING, end_ns + costs.sync_ns, False
        elif host.state == AT_LIMIT:
            host.state, host.at_ns, host.awaits = READY, end_ns, False
        else:
            host.at_ns = min(host.at_ns, end_ns + costs.query_ns)
            host.awaits = host.outstanding > 0

    def _mark(self, now_ns: int) -> _Mark:
        device = self._device
        device.advance(now_ns)
        self._collect()
        rows = tuple(
            (host.kernels, host.done_ns, device.count_client(host.client)["delayed_ns"], host.waits, host.waited_ns)
            for host in self._hosts
        )
        counted = device.count()
        return _Mark(now_ns, counted["busy_ns"], counted["sm_ns"], rows)

    def _played(self, now_ns: int) -> Played:
        end = self._mark(now_ns)
        begin = self._begin or end
        tallies = []
        for host, before, after in zip(self._hosts, begin.rows, end.rows, strict=True):
            kernels, done_ns, delayed_ns, waits, waited_ns = (b - a for a, b in zip(before, after, strict=True))
            latencies = tuple(
                end - due for due, end in zip(host.dues[host.warm :], host.ends[host.warm :], strict=True)
            )
            tallies.append(
                Tally(
                    requests=len(latencies),
                    latencies_ns=latencies,
                    kernels=kernels,
                    done_ns=done_ns,
                    delayed_ns=delayed_ns,
                    waits=waits,
                    waited_ns=waited_ns,
                )
            )
        gaps = tuple(self._hosts[0].gaps[self._gaps_before :])
        return Played(
            begin_ns=begin.at_ns,
            end_ns=end.at_ns,
            busy_ns=end.busy_ns - begin.busy_ns,
            sm_ns=end.sm_ns - begin.sm_ns,
            clients=tuple(tallies),
            gaps_ns=gaps,
            beside_ns=sum(beside_ns(host.runs, gaps, begin.at_ns, end.at_ns) for host in self._hosts[1:]),
        )
