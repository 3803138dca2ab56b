"""Wires a program's place at the node: found or started, joined, kept while the node is away, and left."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.domain.event import NodeSettings
from cotenant.domain.gpu import Gpu
from cotenant.domain.plan import Reason, Reject
from cotenant.domain.tenant import Kind, TenantSpec, Terms
from cotenant.errors import PeerError, WorldError
from cotenant.format import wire
from cotenant.format.quantity import format_duration, format_share, format_size, round_duration
from cotenant.live.client import Connection, NodeAwayError, NodeSilentError, tenants_of
from cotenant.live.clock import monotonic_ns, pause
from cotenant.live.directory import Places, lock_holder, make_directory
from cotenant.live.journal import last_settings
from cotenant.live.page import read_page, slot_text
from cotenant.live.process import Signals, start_in_background

_IDLE_EXIT_NS: Final = 300 * 10**9
_START_TRIES: Final = 600
_RESTART_TRIES: Final = 30
_PATIENT_TRIES: Final = 20
_HURRY_S: Final = 1.0
_JOIN_TRIES: Final = 3
_JOIN_S: Final = 60.0  # others may have to make room first, for which the node takes 15 s unless told otherwise
_TELL_S: Final = 2.0


class RefusedError(WorldError):
    """The node decided against us; the reason and when to try again are in `reject`."""

    def __init__(self, who: str, reject: Reject) -> None:
        """Say whom it refused, and why."""
        again = f"; worth another try in {round_duration(reject.retry_after_ns)}" if reject.retry_after_ns else ""
        self.what = f"the node refused {who}: {reject.detail}"
        super().__init__(self.what + again)
        self.reject = reject


class StoppedError(WorldError):
    """While we waited for the node, somebody told us to end."""


class Membership:
    """Our place at the node: joins, resumes after a restart, and leaves."""

    def __init__(self, places: Places, spec: TenantSpec, say: Callable[[str], None], signals: Signals | None) -> None:
        """Join; raises `RefusedError` when refused and `WorldError` when there is no node.

        `signals` may tell us to end meanwhile: then `StoppedError`.
        """
        self._places = places
        self.spec = spec
        self.say = say
        self._complaint = ""
        self._connection: Connection | None = Connection(places.socket)
        self._asked: Connection | None = None
        """On which we have asked for our place again, and have no answer yet."""
        self._forgotten = ""
        """Why the node no longer knows us, once we have asked it for another place."""
        self.tenant = ""
        self.terms: Terms
        self.page = -1
        self.gate: list[int] = []
        self.ledger: list[int] = []
        self.environment: dict[str, str] = {}
        self.evicted = ""
        """Why the node gave our place away while it could not be heard."""
        self._device: Gpu | None = None
        try:
            self._join(self._connection, signals)
        except BaseException:
            self.lose()
            raise

    def fileno(self) -> int:
        """Readable when the node says something or goes away; -1 while it is away."""
        return -1 if self._connection is None else self._connection.fileno()

    def lose(self) -> None:
        """The node went away: go on under the last terms."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def pushed(self, *, readable: bool) -> list[wire.Push]:
        """What the node said unasked; it may also be that it went away."""
        if self._connection is None:
            return []
        try:
            return self._connection.pushed(readable=readable)
        except (WorldError, PeerError) as error:
            if isinstance(error, PeerError):
                self.say(str(error))
            self.lose()
            return []

    def tell(self, request: wire.Request) -> bool:
        """Say something that has no answer; whether there was somebody to say it to."""
        if self._connection is None:
            return False
        try:
            self._connection.tell(request)
        except WorldError:
            self.lose()
            return False
        return True

    def descriptors(self) -> list[int]:
        """What the program is to inherit."""
        return [self.page, *self.gate, *self.ledger]

    def resume(self, *, join_anew: bool = True) -> bool:
        """Try to take our place again, or another if it is gone; whether we have one.

        A node that is slow to answer was asked all the same, and gives us the place: to hang up would be to lose it. So
        the question stays, and the next try waits for its answer.
        """
        try:
            connection = self._ask_again()
        except WorldError:
            return False
        try:
            answer, handed = connection.answer()
            is_anew = self._forgotten != ""
            if isinstance(answer, wire.Refused) and not is_anew and join_anew and _is_forgotten(answer.reject):
                self._forgotten, is_anew = answer.reject.detail, True
                answer, handed = connection.ask(wire.Join(wire.VERSION, self.spec))
            if isinstance(answer, wire.Refused) and not is_anew:
                if answer.reject.reason is Reason.EVICTED:
                    self.evicted = answer.reject.detail
                self._hang_up()
                return False
            self._settle(answer, handed)
        except NodeSilentError as error:
            self._complain(error)
            return False
        except (WorldError, PeerError) as error:
            self._hang_up()
            if not isinstance(error, NodeAwayError):
                self._complain(error)
            return False
        if is_anew:
            self.say(
                f"the node no longer knew us ({self._forgotten}): joined anew as {self.tenant}; "
                "the running program keeps no terms"
            )
        self._connection, self._asked, self._forgotten = connection, None, ""
        return True

    def _ask_again(self) -> Connection:
        """The connection on which we have asked for our place, now or before."""
        if self._asked is None:
            self._asked = Connection(self._places.socket, _HURRY_S)
            try:
                self._asked.tell(wire.Resume(wire.VERSION, self.terms.slot, self.terms.generation))
            except WorldError:
                self._hang_up()
                raise
        return self._asked

    def _hang_up(self) -> None:
        if self._asked is not None:
            self._asked.close()
        self._asked, self._forgotten = None, ""

    def _complain(self, error: Exception) -> None:
        if str(error) != self._complaint:
            self._complaint = str(error)
            self.say(f"{error}; going on without a slot and trying again")

    def device(self) -> Gpu | None:
        """The device that we sit at; if we ever must join anew, it is the one we ask for: the program is there."""
        if self.terms.gpu >= 0 and self._connection is not None:
            try:
                answer, _ = self._connection.ask(wire.List(wire.VERSION))
            except WorldError:
                self.lose()
                return self._device
            if not isinstance(answer, wire.Tenants) or self.terms.gpu >= len(answer.gpus):
                raise PeerError(f"the node does not say what its GPU {self.terms.gpu} is")
            self._device = answer.gpus[self.terms.gpu]
            self.spec = msgspec.structs.replace(self.spec, gpu=self._device.names(self.terms.gpu)[0])
        return self._device

    def leave(self, ending: str) -> None:
        """Say how it ended and wait until the slot is free.

        A node that is away or hangs will find out by itself; whatever it says, the program's exit code is what counts.
        """
        if self._connection is None and not self.resume(join_anew=False):
            self._hang_up()
            return
        assert self._connection is not None
        self._connection.hurry(_HURRY_S)
        with contextlib.suppress(WorldError, PeerError):
            self._connection.ask(wire.Leave(ending))
        self.lose()

    def close(self) -> None:
        """Let go of what the node handed over."""
        for descriptor in self.descriptors() if self.page >= 0 else ():
            os.close(descriptor)
        self.page, self.gate, self.ledger = -1, [], []

    def _join(self, connection: Connection, signals: Signals | None) -> None:
        connection.tell(wire.Join(wire.VERSION, self.spec))
        if self.spec.kind is Kind.ONLINE and self.spec.memory_bytes:
            self._await(connection, signals)
        self._settle(*connection.answer())

    def _settle(self, answer: wire.Answer, handed: list[int]) -> None:
        if isinstance(answer, wire.Refused):
            raise RefusedError(self.spec.name or "the tenant", answer.reject)
        if not isinstance(answer, wire.Welcome):
            raise PeerError(f"the node answered {type(answer).__name__} to a join")
        self._accept(answer, handed)

    def _await(self, connection: Connection, signals: Signals | None) -> None:
        """Until the node says something; if that takes long, it makes others go first."""
        if not wait_for(connection.fileno(), _TELL_S, signals):
            self.say("waiting for the node: it may have to make room first")
            wait_for(connection.fileno(), _JOIN_S, signals)

    def _accept(self, answer: wire.Welcome, handed: list[int]) -> None:
        if not handed:
            raise PeerError("the node's welcome came without a terms page")
        try:
            said = read_page(handed[0])
            if said is None or slot_text(said) != slot_text(answer.terms):  # the priority may have changed already
                raise PeerError("the terms page does not say what the welcome says")
        except PeerError:
            for descriptor in handed:
                os.close(descriptor)
            raise
        self.close()
        self.page, self.gate, self.ledger = handed[0], handed[1:3], handed[3:]
        self.environment = answer.environment
        self.tenant = answer.tenant
        self.terms = answer.terms


def _is_forgotten(reject: Reject) -> bool:
    """Whether another place may be asked for: nobody gave ours away, or holds it."""
    return reject.reason not in (Reason.EVICTED, Reason.ALREADY_HERE)


def wait_for(descriptor: int, wait_s: float, signals: Signals | None) -> bool:
    """Whether it became readable in time (with -1: wait); raises `StoppedError` when we are told to end meanwhile."""
    poller = select.poll()
    for watched in (descriptor, -1 if signals is None else signals.fileno()):
        if watched >= 0:
            poller.register(watched, select.POLLIN)
    until_ns = monotonic_ns() + int(wait_s * 1e9)
    while (left_ns := until_ns - monotonic_ns()) > 0:
        ready = [found for found, _ in poller.poll(left_ns / 1e6 + 1)]
        if signals is not None and signals.fileno() in ready and signals.told_to_end():
            raise StoppedError("told to end before there was a place for the program")
        if descriptor in ready:
            return True
    return False


def join(
    places: Places,
    spec: TenantSpec,
    arguments: Sequence[str] | None,
    say: Callable[[str], None],
    signals: Signals | None,
) -> Membership:
    """Become a tenant, of a node of our own if none answers. A node may end between two words; then once more.

    `arguments` are those of a node that must be started; None: none is.
    """
    for tries in range(_JOIN_TRIES):
        if arguments is not None:
            ensure_node(places, arguments, say)
        try:
            return Membership(places, spec, say, signals)
        except NodeAwayError:
            if tries == _JOIN_TRIES - 1:
                raise
    raise AssertionError("the last try returns or raises")


def ensure_node(places: Places, arguments: Sequence[str], say: Callable[[str], None]) -> None:
    """Start a node when none answers, and say so.

    A socket without a node behind it means that the node died rather than stopped: whoever watches over it gets a
    moment to bring it back, and a node of ours shares the same devices by the same rules, as its journal has them.
    """
    if _answers(places):
        return
    flags: list[str] = []
    if places.socket.exists():
        say("the node died; waiting a moment for it to be restarted")
        for _ in range(_RESTART_TRIES):
            pause(0.1)
            if _answers(places):
                return
        if places.runtime.stat().st_uid != os.geteuid():
            raise WorldError(f"the node at {places.socket} is down; ask its owner to restart it, or use --runtime")
        flags = _flags_of(last_settings(places.journal))
    make_directory(places.runtime, "directories.runtime")
    make_directory(places.state, "directories.state")
    command = ["node", "--idle-exit", format_duration(_IDLE_EXIT_NS), *arguments, *flags]
    process = start_in_background(command, places.log)
    for tries in range(_START_TRIES):
        ended = process.poll()
        try:
            serving = tenants_of(places.socket).pid
        except NodeAwayError:
            # Whoever won a race for the directory may take a while to read its journal before it answers.
            if ended is not None and lock_holder(places.lock) is None:
                raise WorldError(f"a node could not be started: {_last_line(places.log)}") from None
            if tries == _PATIENT_TRIES:
                say("waiting for the node to read its journal")
            pause(0.1)
        else:
            if serving == process.pid:
                say(f"no node was running: started one (pid {process.pid}, log {places.log}; it ends itself when idle)")
            return
    raise WorldError(f"a node was started but does not answer at {places.socket}; see {places.log}")


def _answers(places: Places) -> bool:
    try:
        Connection(places.socket).close()
    except NodeAwayError:
        return False
    return True


def _flags_of(settings: NodeSettings | None) -> list[str]:
    """What a node must be started with to keep the promises of the one before it."""
    if settings is None or not settings.gpus:
        return []
    flags = ["--slots", str(settings.slots), "--place", settings.place, "--admit", settings.admit]
    gate = settings.gate
    flags += ["--gate", gate.policy.value, "--bound", format_duration(gate.bound_ns)]
    flags += ["--delay", format_share(gate.delay_ppm), "--patience", format_duration(gate.patience_ns)]
    flags += ["--switch", format_duration(gate.switch_ns), "--spin", format_share(gate.spin_ppm)]
    control = settings.control
    flags += ["--adjust", control.adjust, "--adjust-period", format_duration(control.period_ns)]
    for flag, ppm in (
        ("--slo-quantile", control.quantile_ppm),
        ("--slo-headroom", control.headroom_ppm),
        ("--online-least", control.least_ppm),
        ("--online-most", control.most_ppm),
    ):
        flags += [flag, format_share(ppm)]
    flags += ["--mps", "on"] if settings.is_mps else []
    flags += ["--mps-share", "on" if control.mps_share else "off"]
    flags += ["--unmet", "refuse"] if settings.refuse_unmet else []
    for gpu in () if settings.gpus[0].called else settings.gpus:  # those that were found are found again
        flags += ["--gpu", f"{gpu.name}={format_size(gpu.memory_bytes)}"]
    return flags


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return f"no log at {log}"
    return lines[-1] if lines else f"its log {log} is empty"
