"""Wires a running program to what may happen to it: the node's word, signals, its own end, a hook that looks."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cotenant.apps.hook import Hooked
from cotenant.apps.membership import Membership
from cotenant.apps.suspend import Mover
from cotenant.domain.instant import Duration, Instant
from cotenant.format import wire
from cotenant.format.quantity import format_duration
from cotenant.live.clock import monotonic_ns
from cotenant.live.guard import Child
from cotenant.live.process import Signals
from cotenant.machine.ending import AT_ONCE_NS, Ending, Step

_RETRY_S: Final = 0.2
_LONGEST_RETRY_S: Final = 1.0
_REST_S: Final = 0.05
_UNKILLABLE_NS: Final = 5 * 10**9
_ENDS: Final = (signal.SIGTERM, signal.SIGINT)


class Ended(NamedTuple):
    """How it came to an end."""

    code: int
    is_asked: bool
    """Whether we were told to end it."""
    signal: wire.Signal | None
    """The node's word, where the node ended it."""


class Attendant:
    """Looks after one program at a time, and between two of them after the place at the node."""

    def __init__(
        self, membership: Membership, signals: Signals, hooked: Hooked | None, mover: Mover, grace_ns: Duration
    ) -> None:
        """With the grace that the program has between a request to end and its end."""
        self._membership = membership
        self._signals = signals
        self._hooked = hooked
        self._mover = mover
        self._grace_ns = grace_ns
        self._say = membership.say
        self._patience_s = _RETRY_S
        self._begin(None)

    def attend(self, child: Child) -> Ended:
        """Until the program has ended, and all of it that must."""
        self._begin(child)
        while child.code is None or not self._is_over(child):
            self._turn()
        let_go = not self._ending.is_begun
        child.release(let_go=let_go)
        self._mover.forget()
        return Ended(child.code, self._ending.is_own, self._told)

    def rest(self, until_ns: Instant) -> Ended | None:
        """Between two programs: until this instant, or until we are told to end."""
        self._begin(None)
        while not self._ending.is_begun:
            if monotonic_ns() >= until_ns:
                return None
            self._turn(until_ns)
        return Ended(0, self._ending.is_own, self._told)

    def _begin(self, child: Child | None) -> None:
        self._child = child
        self._ending = Ending(self._grace_ns)
        self._told: wire.Signal | None = None
        self._number: int = signal.SIGTERM
        self._killed_ns: Instant | None = None

    def _turn(self, until_ns: Instant | None = None) -> None:
        """One thing at a time: wait for it, and see to it."""
        for push in self._membership.pushed(readable=False):
            self._obey(push)
        self._do(self._ending.wake(now=monotonic_ns()))
        away = self._membership.fileno() < 0
        ready = self._wait(until_ns)
        if self._signals.fileno() in ready:
            self._take_signals()
        if self._child is not None and self._child.code is None and self._child.fileno() in ready:
            self._child.hear()
        if self._mover.fileno() in ready:
            self._report(self._mover.finish())
        if self._hooked is not None and self._child is not None and not ready:
            self._hooked.look(self._child.guard)
        if away:
            back = self._take_place_again()
            self._patience_s = _RETRY_S if back else min(2 * self._patience_s, _LONGEST_RETRY_S)
            if self._membership.evicted and self._told is None:
                self._obey(wire.Signal("kill", self._membership.evicted, again=False))
        elif self._membership.fileno() in ready:
            for push in self._membership.pushed(readable=True):
                self._obey(push)
        if not away and self._membership.fileno() < 0:
            self._ending.left_alone(now=monotonic_ns())

    def _take_place_again(self) -> bool:
        """A node that no longer knew us knows no more that our memory is on the host, and never calls it back."""
        before = self._membership.terms
        back = self._membership.resume()
        terms = self._membership.terms
        is_anew = (terms.slot, terms.generation) != (before.slot, before.generation)
        if back and is_anew and self._mover.is_aside:
            self._mover.restore()
        return back

    def _wait(self, until_ns: Instant | None) -> list[int]:
        poller = select.poll()
        watched = [self._signals.fileno(), self._membership.fileno(), self._mover.fileno()]
        is_running = self._child is not None and self._child.code is None
        watched += [self._child.fileno()] if self._child is not None and is_running else []
        for descriptor in watched:
            if descriptor >= 0:
                poller.register(descriptor, select.POLLIN)
        waits_s = [self._patience_s] if self._membership.fileno() < 0 else []
        waits_s += [self._hooked.look_s] if self._hooked is not None and is_running else []
        waits_s += [_REST_S] if self._child is not None and not is_running else []
        for instant in (until_ns, self._ending.next_wakeup()):
            waits_s += [] if instant is None else [max(0, instant - monotonic_ns()) / 1e9]
        timeout_ms = None if not waits_s else int(min(waits_s) * 1000) + 1
        return [descriptor for descriptor, _ in poller.poll(timeout_ms)]

    def _take_signals(self) -> None:
        for number, has_it in self._signals.read():
            if number in _ENDS:
                if not self._ending.is_own:
                    self._number = number
                    name = signal.Signals(number).name
                    self._say(f"{name}: the program has {format_duration(self._grace_ns)} to end; once more to hurry")
                with_node = self._membership.fileno() >= 0
                self._do(self._ending.wanted(has_it=has_it, with_node=with_node, now=monotonic_ns()))
            elif not has_it and self._child is not None:
                self._child.send_signal(number)

    def _obey(self, push: wire.Push) -> None:
        match push:
            case wire.Signal(kind=kind, why=why):
                if not self._ending.is_own and (self._told is None or kind == "kill"):
                    verb = "asks the program to end" if kind == "term" else "ends the program"
                    self._say(f"the node {verb}: {why}")
                self._told = push
                self._do(self._ending.told(kind))
            case wire.Suspend(why=why):
                self._say(f"the program's memory moves to the host: {why}")
                self._mover.suspend(self._family())
            case wire.Restore():
                self._mover.restore()

    def _report(self, done: wire.Suspended | wire.Restored) -> None:
        if not done.ok:
            self._say(f"the program's memory did not move: {done.detail}")
        elif isinstance(done, wire.Restored):
            self._say("the program's memory is back on the device")
        self._membership.tell(done)

    def _family(self) -> Sequence[int]:
        if self._child is None:
            return []
        return [*([] if self._child.code is not None else [self._child.pid]), *self._child.others()]

    def _do(self, steps: Sequence[Step]) -> None:
        deeds: dict[Step, Callable[[], object]] = {
            Step.ASK_NODE: lambda: self._quit(self._grace_ns or AT_ONCE_NS),
            Step.HURRY_NODE: lambda: self._quit(AT_ONCE_NS),
            Step.SIGNAL: self._signal,
            Step.SIGNAL_REST: lambda: self._send_rest(signal.SIGTERM),
            Step.KILL: self._kill,
        }
        for step in steps:
            deeds[step]()

    def _quit(self, grace_ns: Duration) -> None:
        if not self._membership.tell(wire.Quit(grace_ns)):
            self._ending.left_alone(now=monotonic_ns())

    def _signal(self) -> None:
        if self._child is not None:
            self._child.send_signal(self._number)

    def _kill(self) -> None:
        self._killed_ns = monotonic_ns()
        if self._child is not None and self._ending.is_begun:
            self._child.end_all()
        else:
            self._send_rest(signal.SIGKILL)

    def _is_over(self, child: Child) -> bool:
        """The program ended: whether nothing of it is left that must not go on."""
        rest = self._rest(child)
        if not rest:
            return True
        if self._killed_ns is not None and monotonic_ns() - self._killed_ns > _UNKILLABLE_NS:
            self._say(f"process {rest[0]} cannot be ended")
            return True
        steps = self._ending.program_ended(now=monotonic_ns())
        if steps and not self._ending.is_begun:
            self._say(f"the program ended and left {len(rest)} of its processes on the GPU: ending them")
        self._do(steps)
        return False

    def _rest(self, child: Child) -> list[int]:
        """All that it left behind if it had to end; if it ended by itself, only what may use the device."""
        others = child.others()
        return others if self._ending.is_begun else [pid for pid in others if self._mover.uses_driver(pid)]

    def _send_rest(self, number: int) -> None:
        for pid in self._rest(self._child) if self._child is not None else ():
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                continue
