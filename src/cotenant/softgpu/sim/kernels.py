"""Simulation of kernel streams of several hosts on one device.

An event loop without an object per kernel. A gate per host, given by the caller, admits launches.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from cotenant import _native
from cotenant.softgpu.sim.device import FULL_SPEED, DeviceConfig
from cotenant.softgpu.sim.host import (
    AHEAD_LIMIT,
    AT_GATE,
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
    Host,
    LaunchGate,
)
from cotenant.softgpu.sim.results import ClientTotals, DeviceRun, co_running_ns
from cotenant.units.share import WHOLE_PPM

_OPS: Final = 8192
_STEP_BITS: Final = 24
_STEP_MASK: Final = (1 << _STEP_BITS) - 1
_PART_MASK: Final = (1 << 15) - 1
_IS_PART: Final = 1 << 14
"""Numbers of parts have this bit, those of the operations of a launch do not."""
_HOST_SHIFT: Final = 40


class _WindowEdge(msgspec.Struct, frozen=True):
    """Counters at an edge of the measured window."""

    at_ns: int
    busy_ns: int
    sm_ns: int
    rows: tuple[tuple[int, int, int, int, int], ...]


class DeviceSimulation:
    """Hosts on one device. The measured window follows the first host."""

    def __init__(
        self, config: DeviceConfig, clients: Sequence[Client], gates: Sequence[LaunchGate], costs: Costs, seed: int
    ) -> None:
        """Start all hosts at instant 0; ties go to the first."""
        self._ticks: list[tuple[int, int, Callable[[int], None]]] = []
        self._records_gaps = True
        self._device = _native.Device(
            msgspec.structs.asdict(config), (len(clients), len(clients), 64 * len(clients), 1, 2 * _OPS, 4 * _OPS), 0
        )
        self._costs = costs
        self._sm_count = config.sm_count
        self._sleeps = random.Random(seed)
        self._hosts: list[Host] = []
        self._begin: _WindowEdge | None = None
        self._gaps_before = 0
        for index, (client, gate) in enumerate(zip(clients, gates, strict=True)):
            host = Host(client, gate, index, config, costs)
            host.client = self._device.client_add(0, client.group)
            context = self._device.context_create(0, host.client, client.sm_cap)
            host.streams = [self._device.stream_create(0, context, 0, client.priority) for _ in range(host.kinds)]
            self._hosts.append(host)

    def every(self, period_ns: int, call: Callable[[int], None]) -> None:
        """Call this at every multiple of a period, before all other events of that instant."""
        self._ticks.append((period_ns, period_ns, call))

    def play(self, until_ns: int = NEVER_NS - 1) -> DeviceRun:
        """Run until the first host has finished, or until an instant."""
        first = self._hosts[0]
        if not first.warm:
            self._begin = self._window_edge(0)
        return self._result(self._run(until_ns, first))

    def play_for(self, for_ns: int, warm_ns: int = 0) -> DeviceRun:
        """Run for a time, with a window that begins after `warm_ns`.

        Gaps are not recorded, because such runs are long.
        """
        self._records_gaps = False
        self._run(warm_ns, None)
        self._begin = self._window_edge(warm_ns)
        return self._result(self._run(for_ns, None))

    def set_speed(self, now_ns: int, speed_ppm: int) -> None:
        """Change the clock of the device to a fraction of the highest one."""
        self._device.set_speed(now_ns, max(speed_ppm * FULL_SPEED // WHOLE_PPM, 1))

    def requests_of(self, index: int) -> tuple[array[int], array[int]]:
        """Return when each finished request of a host was due, and when it ended."""
        host = self._hosts[index]
        return host.dues, host.ends

    def starts_of(self, index: int) -> array[int]:
        """Return when each finished request of a host began, which is later than it was due if others went first."""
        return self._hosts[index].starts

    def done_ns(self) -> list[int]:
        """Return the completed kernel time by host."""
        return [host.done_ns for host in self._hosts]

    def busy_ns(self, index: int) -> int:
        """Return how long a host has had blocks on the device."""
        return self._device.count_client(self._hosts[index].client)["busy_ns"]

    def _run(self, until_ns: int, until_host: Host | None) -> int:
        """Run until an instant, including its events, or until this host has finished."""
        hosts, device, step_host = self._hosts, self._device, self._step
        tick_ns = self._next_tick_ns()
        now_ns = 0
        while until_host is None or until_host.state != THROUGH:
            now_ns, next_host, awaited = tick_ns, None, False
            for host in hosts:
                if host.at_ns < now_ns:
                    now_ns, next_host = host.at_ns, host
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
            if now_ns > until_ns or (next_host is None and tick_ns == NEVER_NS):
                return self._settle(until_ns)
            if next_host is None:
                tick_ns = self._tick(now_ns)
            else:
                step_host(next_host, now_ns)
        return now_ns

    def _settle(self, until_ns: int) -> int:
        self._device.advance(until_ns)
        self._collect()
        return until_ns

    def _next_tick_ns(self) -> int:
        return min((at_ns for at_ns, _, _ in self._ticks), default=NEVER_NS)

    def _tick(self, now_ns: int) -> int:
        """Call everything that is due, in the order of registration, and return when the next call is due."""
        self._settle(now_ns)
        for index, (at_ns, period_ns, call) in enumerate(self._ticks):
            if at_ns <= now_ns:
                self._ticks[index] = (at_ns + period_ns, period_ns, call)
                call(now_ns)
        for host in self._hosts:  # a waiting host may see what a call changed at its next poll
            if host.state == AT_GATE and host.gate.spins:
                host.at_ns = min(host.at_ns, now_ns + self._costs.poll_ns)
        return self._next_tick_ns()

    # ---- a host at an instant ---------------------------------------------------------------------------------------

    def _step(self, host: Host, now_ns: int) -> None:
        state = host.state
        if state == SUBMITTING:
            self._submit(host, now_ns)
        elif state <= AT_GATE:
            self._request_launch(host, now_ns)
        elif state == ENTERING:
            self._enter(host, now_ns)
        elif state == RETURNING:
            self._return(host, now_ns)

    def _request_launch(self, host: Host, now_ns: int) -> None:
        if host.state == READY:
            if host.outstanding >= AHEAD_LIMIT:
                self._device.advance(now_ns)
                self._collect()
                if host.outstanding >= AHEAD_LIMIT:
                    host.state, host.at_ns, host.awaits = AT_LIMIT, NEVER_NS, True
                    return
            host.since_ns = now_ns
            if not host.rest_blocks:
                host.asked_ns = now_ns
                if not host.step % host.request_steps:
                    host.started_ns = now_ns
                    host.gate.began(host.due_ns)
        gate = host.gate
        if gate.confirms or host.ended:
            self._confirm(host, now_ns)
        at_ns = gate.ask(host.step, host.since_ns, now_ns)
        if at_ns > now_ns:
            if host.state == READY:
                host.waits += 1
                host.state = AT_GATE
            if gate.sleeps:
                at_ns += self._overshoot_ns()
            host.at_ns = max(at_ns, now_ns + self._costs.poll_ns)
            host.awaits = gate.spins and host.outstanding > 0
            return
        host.waited_ns += now_ns - host.since_ns
        host.state, host.at_ns, host.awaits = SUBMITTING, now_ns + self._costs.call_ns, False
        self._notify_spinners(host, now_ns)

    def _confirm(self, host: Host, now_ns: int) -> None:
        """Report completed launches to the gate."""
        self._device.advance(now_ns)
        self._collect()
        ended, visible_ns = host.ended, now_ns - self._costs.query_ns
        while ended and ended[0][0] <= visible_ns:
            end_ns, step, begin_ns = ended.popleft()
            host.gate.ended(step, end_ns - begin_ns, now_ns)

    def _submit(self, host: Host, now_ns: int) -> None:
        device, streams, step = self._device, host.streams, host.step
        ops, sm_cap = host.ops[step], self._sm_cap(host.gate.sm_ppm)
        if self._records_gaps and host is self._hosts[0]:
            device.advance(now_ns)
            self._collect()
            if not host.outstanding:
                host.gaps.append((host.idle_from_ns, now_ns))
        if host.gate.part_blocks or host.rest_blocks:
            self._submit_part(host, now_ns, sm_cap)
            return
        last = len(ops) - 1
        confirmed = last if host.gate.confirms or host.gate.learns else -1
        for index, (op, stream, _) in enumerate(ops):
            tag = host.tag | (index == confirmed) << 39 | (index << _STEP_BITS if last else 0) | step
            if len(op) == 2:
                device.copy(now_ns, streams[stream], op[0], op[1], tag)
            else:
                if host.data_factor != 1.0:
                    op = (op[0], max(round(op[1] * host.data_factor), 1), *op[2:])  # noqa: PLW2901 - the same kernel
                device.launch(now_ns, streams[stream], op, tag, sm_cap)  # type: ignore[arg-type]
        host.outstanding += last + 1
        self._finish_submission(host, now_ns)

    def _submit_part(self, host: Host, now_ns: int, sm_cap: int) -> None:
        """Submit the next part of a kernel; after the last one, the launch is over for the host."""
        ((kernel, stream, device_ns),) = host.ops[host.step]
        blocks = host.rest_blocks or kernel[0]
        rest_blocks = blocks - (host.gate.part_blocks or blocks)
        # Of the kernel's time, which adds up to exactly that.
        done_ns = device_ns * (kernel[0] - rest_blocks) // kernel[0] - device_ns * (kernel[0] - blocks) // kernel[0]
        number = host.part_number = _IS_PART | (host.part_number + 1) % _IS_PART
        host.part_times[number] = done_ns << 1 | (not rest_blocks)
        is_confirmed = host.gate.confirms or host.gate.learns
        tag = host.tag | is_confirmed << 39 | number << _STEP_BITS | host.step
        part = (blocks - rest_blocks, max(round(kernel[1] * host.data_factor), 1), *kernel[2:])
        self._device.launch(now_ns, host.streams[stream], part, tag, sm_cap)  # type: ignore[arg-type]
        host.outstanding += 1
        host.rest_blocks = rest_blocks
        if not rest_blocks:
            self._finish_submission(host, now_ns)
            return
        host.gate.submitted(now_ns)
        host.state, host.at_ns = READY, now_ns

    def _finish_submission(self, host: Host, now_ns: int) -> None:
        step = host.step
        host.gate.submitted(now_ns)
        host.at_ns = max(now_ns, host.asked_ns + host.interval_ns())
        if step == host.last_step:
            host.state = ENTERING
        else:
            host.step = step + 1
            host.state = READY

    def _sm_cap(self, sm_ppm: int) -> int:
        """Return this part of the SMs, at least one."""
        return max(sm_ppm * self._sm_count // WHOLE_PPM, 1) if sm_ppm else 0

    def _enter(self, host: Host, now_ns: int) -> None:
        """Enter the synchronizing call."""
        host.gate.waits(now_ns)
        self._device.advance(now_ns)
        self._collect()
        if host.outstanding:
            host.state, host.at_ns, host.awaits = IN_SYNC, NEVER_NS, True
        else:
            host.state, host.at_ns = RETURNING, now_ns + self._costs.sync_ns
        self._notify_spinners(host, now_ns)

    def _return(self, host: Host, now_ns: int) -> None:
        """Finish a request and schedule the next."""
        if host.gate.confirms or host.ended:
            self._confirm(host, now_ns)
        wakes = host.gate.drained(now_ns)
        host.request += 1
        if not host.training:
            host.dues.append(host.due_ns)
            host.starts.append(host.started_ns)
            host.ends.append(now_ns)
            host.gate.served(host.due_ns, now_ns)
        host.begin_request()
        if host.request == host.warm and host is self._hosts[0]:
            self._begin = self._window_edge(now_ns)
            self._gaps_before = len(host.gaps)
        if host.request >= host.requests:
            host.state, host.at_ns = THROUGH, NEVER_NS
        else:
            host.due_ns = host.next_due_ns(now_ns)
            host.state, host.at_ns = READY, max(host.due_ns, now_ns)
        self._notify_spinners(host, now_ns)
        if wakes:
            self._wake_sleepers(now_ns)

    def _notify_spinners(self, host: Host, now_ns: int) -> None:
        """Let spinning hosts observe the change at their next poll."""
        visible_ns = now_ns + self._costs.poll_ns
        for other in self._hosts:
            if other.state == AT_GATE and other is not host and other.gate.spins and other.at_ns > visible_ns:
                other.at_ns = visible_ns

    def _wake_sleepers(self, now_ns: int) -> None:
        for other in self._hosts:
            if other.state == AT_GATE and other.gate.sleeps:
                other.at_ns = min(other.at_ns, now_ns + self._overshoot_ns())

    def _overshoot_ns(self) -> int:
        costs = self._costs
        if not costs.wake_spread_ns:
            return costs.wake_ns
        return costs.wake_ns + round(self._sleeps.expovariate(1 / costs.wake_spread_ns))

    # ---- completions ------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        hosts = self._hosts
        for record in self._device.drain():
            tag, end_ns = record[1], record[10]
            host = hosts[tag >> _HOST_SHIFT]
            step = tag & _STEP_MASK
            index = tag >> _STEP_BITS & _PART_MASK
            host.outstanding -= 1
            if index and index in host.part_times:
                part_time, index = host.part_times.pop(index), 0
                host.kernels += part_time & 1
                host.done_ns += part_time >> 1
            else:
                host.kernels += 1
                host.done_ns += host.ops[step][index][2]
            if self._records_gaps and host.gate.confirms:
                host.runs.append((record[9], end_ns))
            if not index:
                host.begin_ns = record[9]
            if tag >> 39 & 1:
                host.ended.append((end_ns, step, host.begin_ns if index else record[9]))
            if not host.outstanding:
                host.idle_from_ns = end_ns
            if host.awaits:
                self._on_completion(host, end_ns)

    def _on_completion(self, host: Host, end_ns: int) -> None:
        costs = self._costs
        if host.state == IN_SYNC:
            if not host.outstanding:
                host.state, host.at_ns, host.awaits = RETURNING, end_ns + costs.sync_ns, False
        elif host.state == AT_LIMIT:
            host.state, host.at_ns, host.awaits = READY, end_ns, False
        else:
            host.at_ns = min(host.at_ns, end_ns + costs.query_ns)
            host.awaits = host.outstanding > 0

    def _window_edge(self, now_ns: int) -> _WindowEdge:
        device = self._device
        device.advance(now_ns)
        self._collect()
        rows = tuple(
            (host.kernels, host.done_ns, device.count_client(host.client)["delayed_ns"], host.waits, host.waited_ns)
            for host in self._hosts
        )
        counted = device.count()
        return _WindowEdge(now_ns, counted["busy_ns"], counted["sm_ns"], rows)

    def _result(self, now_ns: int) -> DeviceRun:
        end = self._window_edge(now_ns)
        begin = self._begin or end
        tallies = []
        for host, before, after in zip(self._hosts, begin.rows, end.rows, strict=True):
            kernels, done_ns, delayed_ns, waits, waited_ns = (b - a for a, b in zip(before, after, strict=True))
            latencies = tuple(
                end - due for due, end in zip(host.dues[host.warm :], host.ends[host.warm :], strict=True)
            )
            tallies.append(
                ClientTotals(
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
        return DeviceRun(
            begin_ns=begin.at_ns,
            end_ns=end.at_ns,
            busy_ns=end.busy_ns - begin.busy_ns,
            sm_ns=end.sm_ns - begin.sm_ns,
            clients=tuple(tallies),
            gaps_ns=gaps,
            co_running_ns=sum(co_running_ns(host.runs, gaps, begin.at_ns, end.at_ns) for host in self._hosts[1:]),
        )
