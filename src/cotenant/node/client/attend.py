"""Supervises a running program: messages of the node, signals, the program's exit, and checks of the hook."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cotenant.node import wire
from cotenant.node.client.guard import Child
from cotenant.node.client.hook_setup import HookedProgram
from cotenant.node.client.membership import Membership
from cotenant.node.client.suspend import MemoryMover
from cotenant.node.state.program_exit import AT_ONCE_NS, ExitStep, ProgramExit
from cotenant.runner.clock import monotonic_ns
from cotenant.runner.process import Signals
from cotenant.units.instant import Duration, Instant
from cotenant.units.text import format_duration

_RETRY_S: Final = 0.2
_LONGEST_RETRY_S: Final = 1.0
_CHECK_REMAINING_S: Final = 0.05
_UNKILLABLE_NS: Final = 5 * 10**9
_ENDS: Final = (signal.SIGTERM, signal.SIGINT)


class ProgramEnd(NamedTuple):
    """The end of a program."""

    code: int
    is_asked: bool
    """Whether `cotenant run` was asked to end it."""
    signal: wire.Signal | None
    """The message by which the node ended it, if any."""


class ProgramSupervisor:
    """Supervises one program at a time, and keeps the slot between two programs."""

    def __init__(
        self,
        membership: Membership,
        signals: Signals,
        hooked: HookedProgram | None,
        mover: MemoryMover,
        grace_ns: Duration,
    ) -> None:
        """`grace_ns` is the time between a request to end and the kill."""
        self._membership = membership
        self._signals = signals
        self._hooked = hooked
        self._mover = mover
        self._grace_ns = grace_ns
        self._report = membership.report
        self._retry_s = _RETRY_S
        self._begin(None)

    def supervise(self, child: Child) -> ProgramEnd:
        """Return when the program and the processes that must end with it have ended."""
        self._begin(child)
        while child.code is None or not self._is_over(child):
            self._turn()
        keep_running = not self._ending.is_begun
        child.release(keep_running=keep_running)
        self._mover.forget()
        return ProgramEnd(child.code, self._ending.is_own, self._received_signal)

    def wait_until(self, until_ns: Instant) -> ProgramEnd | None:
        """Wait between two programs until this instant; return the end if asked to end meanwhile."""
        self._begin(None)
        while not self._ending.is_begun:
            if monotonic_ns() >= until_ns:
                return None
            self._turn(until_ns)
        return ProgramEnd(0, self._ending.is_own, self._received_signal)

    def _begin(self, child: Child | None) -> None:
        self._child = child
        self._ending = ProgramExit(self._grace_ns)
        self._received_signal: wire.Signal | None = None
        self._end_signal: int = signal.SIGTERM
        self._killed_ns: Instant | None = None

    def _turn(self, until_ns: Instant | None = None) -> None:
        """Wait for the next event and handle it."""
        for push in self._membership.receive_pushed(readable=False):
            self._handle_push(push)
        self._run_steps(self._ending.wake(now=monotonic_ns()))
        was_disconnected = self._membership.fileno() < 0
        ready = self._wait(until_ns)
        if self._signals.fileno() in ready:
            self._handle_signals()
        if self._child is not None and self._child.code is None and self._child.fileno() in ready:
            self._child.receive()
        if self._mover.fileno() in ready:
            self._send_result(self._mover.finish())
        if self._hooked is not None and self._hooked.fileno() in ready:
            self._hooked.receive()
        if self._hooked is not None and self._child is not None and not ready:
            self._hooked.check(self._child.guard)
        if was_disconnected:
            is_back = self._resume_slot()
            self._retry_s = _RETRY_S if is_back else min(2 * self._retry_s, _LONGEST_RETRY_S)
            if self._membership.evicted and self._received_signal is None:
                self._handle_push(wire.Signal("kill", self._membership.evicted, may_restart=False))
        elif self._membership.fileno() in ready:
            for push in self._membership.receive_pushed(readable=True):
                self._handle_push(push)
        if not was_disconnected and self._membership.fileno() < 0:
            self._ending.node_lost(now=monotonic_ns())

    def _resume_slot(self) -> bool:
        """Resume the slot. A node that admitted the tenant anew does not know of suspended memory, so restore it."""
        before = self._membership.grant
        is_back = self._membership.resume()
        grant = self._membership.grant
        is_anew = (grant.slot, grant.generation) != (before.slot, before.generation)
        if is_back and is_anew and self._mover.is_suspended:
            self._mover.restore()
        return is_back

    def _wait(self, until_ns: Instant | None) -> list[int]:
        poller = select.poll()
        descriptors = [self._signals.fileno(), self._membership.fileno(), self._mover.fileno()]
        is_running = self._child is not None and self._child.code is None
        descriptors += [self._hooked.fileno()] if self._hooked is not None else []
        descriptors += [self._child.fileno()] if self._child is not None and is_running else []
        for descriptor in descriptors:
            if descriptor >= 0:
                poller.register(descriptor, select.POLLIN)
        waits_s = [self._retry_s] if self._membership.fileno() < 0 else []
        waits_s += [self._hooked.poll_s] if self._hooked is not None and is_running else []
        waits_s += [_CHECK_REMAINING_S] if self._child is not None and not is_running else []
        for instant in (until_ns, self._ending.next_wakeup()):
            waits_s += [] if instant is None else [max(0, instant - monotonic_ns()) / 1e9]
        timeout_ms = None if not waits_s else int(min(waits_s) * 1000) + 1
        return [descriptor for descriptor, _ in poller.poll(timeout_ms)]

    def _handle_signals(self) -> None:
        for number, has_it in self._signals.read():
            if number in _ENDS:
                if not self._ending.is_own:
                    self._end_signal = number
                    name = signal.Signals(number).name
                    self._report(
                        f"{name}: the program has {format_duration(self._grace_ns)} to end; send it again to hurry"
                    )
                with_node = self._membership.fileno() >= 0
                self._run_steps(
                    self._ending.exit_requested(already_signalled=has_it, with_node=with_node, now=monotonic_ns())
                )
            elif not has_it and self._child is not None:
                self._child.send_signal(number)

    def _handle_push(self, push: wire.Push) -> None:
        match push:
            case wire.Signal(kind=kind, why=why):
                if not self._ending.is_own and (self._received_signal is None or kind == "kill"):
                    verb = "asks the program to end" if kind == "term" else "ends the program"
                    self._report(f"the node {verb}: {why}")
                self._received_signal = push
                self._run_steps(self._ending.node_requests(kind))
            case wire.Suspend(why=why):
                self._report(f"the program's memory moves to the host: {why}")
                self._mover.suspend(self._running_pids())
            case wire.Restore():
                self._mover.restore()

    def _send_result(self, result: wire.SuspendResult | wire.RestoreResult) -> None:
        if not result.ok:
            self._report(f"the program's memory could not be moved: {result.detail}")
        elif isinstance(result, wire.RestoreResult):
            self._report("the program's memory is back on the device")
        self._membership.send(result)

    def _running_pids(self) -> Sequence[int]:
        if self._child is None:
            return []
        return [*([] if self._child.code is not None else [self._child.pid]), *self._child.others()]

    def _run_steps(self, steps: Sequence[ExitStep]) -> None:
        handlers: dict[ExitStep, Callable[[], object]] = {
            ExitStep.ASK_NODE: lambda: self._quit(self._grace_ns or AT_ONCE_NS),
            ExitStep.HURRY_NODE: lambda: self._quit(AT_ONCE_NS),
            ExitStep.SIGNAL: self._signal,
            ExitStep.SIGNAL_REST: lambda: self._signal_remaining(signal.SIGTERM),
            ExitStep.KILL: self._kill,
        }
        for step in steps:
            handlers[step]()

    def _quit(self, grace_ns: Duration) -> None:
        if not self._membership.send(wire.Quit(grace_ns)):
            self._ending.node_lost(now=monotonic_ns())

    def _signal(self) -> None:
        if self._child is not None:
            self._child.send_signal(self._end_signal)

    def _kill(self) -> None:
        self._killed_ns = monotonic_ns()
        if self._child is not None and self._ending.is_begun:
            self._child.end_all()
        else:
            self._signal_remaining(signal.SIGKILL)

    def _is_over(self, child: Child) -> bool:
        """Return whether no process is left that must end, after the program has ended."""
        remaining = self._remaining(child)
        if not remaining:
            return True
        if self._killed_ns is not None and monotonic_ns() - self._killed_ns > _UNKILLABLE_NS:
            self._report(f"process {remaining[0]} cannot be ended")
            return True
        steps = self._ending.program_ended(now=monotonic_ns())
        if steps and not self._ending.is_begun:
            self._report(f"the program ended and left processes on the GPU, which are ended now: {len(remaining)}")
        self._run_steps(steps)
        return False

    def _remaining(self, child: Child) -> list[int]:
        """Return the remaining processes; after a voluntary exit only those that may use the device."""
        others = child.others()
        return others if self._ending.is_begun else [pid for pid in others if self._mover.uses_driver(pid)]

    def _signal_remaining(self, number: int) -> None:
        for pid in self._remaining(self._child) if self._child is not None else ():
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                continue
