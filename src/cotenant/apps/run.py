"""Wires `cotenant run`: register with the node, run the program, keep its place, say goodbye."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.apps.hook import Hooked
from cotenant.domain.event import NodeSettings
from cotenant.domain.gpu import Gpu
from cotenant.domain.plan import Reason
from cotenant.domain.tenant import COMMAND_LIMIT, Kind, TenantSpec, Terms
from cotenant.errors import PeerError, WorldError
from cotenant.format import wire
from cotenant.format.config import RunConfig
from cotenant.format.quantity import format_duration, format_share, format_size
from cotenant.live.client import Connection, NodeAwayError, tenants_of
from cotenant.live.clock import pause
from cotenant.live.directory import Places, lock_holder, make_directory
from cotenant.live.gate import GATE_VARIABLE
from cotenant.live.journal import last_settings
from cotenant.live.page import SLOT_VARIABLE, TERMS_VARIABLE, read_page, slot_text
from cotenant.live.process import Child, describe_ending, exec_failure_code, start_in_background

DEFAULT_PRIORITY: Final = {Kind.ONLINE: 2, Kind.OFFLINE: 7}
_MPS_PRIORITY: Final = "CUDA_MPS_CLIENT_PRIORITY"
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_BELOW_NORMAL: Final = "1"
_IDLE_EXIT_NS: Final = 300 * 10**9
_START_TRIES: Final = 600
_RESTART_TRIES: Final = 30
_PATIENT_TRIES: Final = 20
_RETRY_S: Final = 0.2
_LONGEST_RETRY_S: Final = 1.0
_HURRY_S: Final = 1.0
_JOIN_TRIES: Final = 3


def spec_of(config: RunConfig, command: Sequence[str], gpu: str = "") -> TenantSpec:
    """What the tenant asks for."""
    text = _wire_text(" ".join(command))
    priority = DEFAULT_PRIORITY[config.kind] if config.priority is None else config.priority
    return TenantSpec(
        kind=config.kind,
        priority=priority,
        name=config.name,
        slo_ns=int(config.slo),
        memory_bytes=int(config.memory),
        share_ppm=int(config.share),
        task=(_wire_text(config.task) or text)[:COMMAND_LIMIT],
        command=text[:COMMAND_LIMIT],
        gpu=gpu,
    )


def _wire_text(text: str) -> str:
    """Arguments may be any bytes; the wire carries text, so what is none is told as a question mark."""
    return text.encode("utf-8", "replace").decode()


class Membership:
    """Our place at the node: joins, resumes after a restart, and leaves."""

    def __init__(self, places: Places, spec: TenantSpec, say: Callable[[str], None]) -> None:
        """Join; raises `WorldError` when refused or when there is no node."""
        self._places = places
        self.spec = spec
        self._say = say
        self._complaint = ""
        self._connection: Connection | None = Connection(places.socket)
        self.tenant = ""
        self.terms: Terms
        self.page = -1
        self.gate: list[int] = []
        self._join(self._connection)

    def fileno(self) -> int:
        """Readable when the node says something or goes away; -1 while it is away."""
        return -1 if self._connection is None else self._connection.fileno()

    def lose(self) -> None:
        """The node went away: go on under the last terms."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def resume(self, *, join_anew: bool = True) -> bool:
        """Try once to take our place again, or another if it is gone."""
        try:
            connection = Connection(self._places.socket, _HURRY_S)
        except WorldError:
            return False
        try:
            answer, handed = connection.ask(wire.Resume(wire.VERSION, self.terms.slot, self.terms.generation))
            if isinstance(answer, wire.Welcome):
                self._accept(answer, handed)
            elif join_anew and isinstance(answer, wire.Refused) and answer.reject.reason is not Reason.ALREADY_HERE:
                self._join(connection)
                self._say(
                    f"the node no longer knew us ({answer.reject.detail}): joined anew as {self.tenant}; "
                    "the running program keeps no terms"
                )
            else:
                connection.close()
                return False
        except (WorldError, PeerError) as error:
            connection.close()
            if str(error) != self._complaint and not isinstance(error, NodeAwayError):
                self._complaint = str(error)
                self._say(f"{error}; going on without a slot and trying again")
            return False
        self._connection = connection
        return True

    def device(self) -> Gpu | None:
        """The device that we sit at; if we ever must join anew, it is the one we ask for: the program is there."""
        if self.terms.gpu < 0 or self._connection is None:
            return None
        answer, _ = self._connection.ask(wire.List(wire.VERSION))
        if not isinstance(answer, wire.Tenants) or self.terms.gpu >= len(answer.gpus):
            raise PeerError(f"the node does not say what its GPU {self.terms.gpu} is")
        device = answer.gpus[self.terms.gpu]
        self.spec = msgspec.structs.replace(self.spec, gpu=device.names(self.terms.gpu)[0])
        return device

    def leave(self, ending: str) -> None:
        """Say how it ended and wait until the slot is free.

        A node that is away or hangs will find out by itself; whatever it says, the program's exit code is what counts.
        """
        if self._connection is None and not self.resume(join_anew=False):
            return
        assert self._connection is not None
        self._connection.hurry(_HURRY_S)
        with contextlib.suppress(WorldError, PeerError):
            self._connection.ask(wire.Leave(ending))
        self.lose()

    def _join(self, connection: Connection) -> None:
        answer, handed = connection.ask(wire.Join(wire.VERSION, self.spec))
        if isinstance(answer, wire.Refused):
            raise WorldError(f"the node refused {self.spec.name or 'the tenant'}: {answer.reject.detail}")
        if not isinstance(answer, wire.Welcome):
            raise PeerError(f"the node answered {type(answer).__name__} to a join")
        self._accept(answer, handed)

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
        for descriptor in (*self.gate, *([self.page] if self.page >= 0 else [])):
            os.close(descriptor)
        self.page, *self.gate = handed
        self.tenant = answer.tenant
        self.terms = answer.terms


def join(places: Places, spec: TenantSpec, arguments: Sequence[str], say: Callable[[str], None]) -> Membership:
    """Become a tenant, of a node of our own if none answers. A node may end between two words; then once more."""
    for tries in range(_JOIN_TRIES):
        ensure_node(places, arguments, say)
        try:
            return Membership(places, spec, say)
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
    for gpu in () if settings.gpus[0].called else settings.gpus:  # those that were found are found again
        flags += ["--gpu", f"{gpu.name}={format_size(gpu.memory_bytes)}"]
    return flags


def run_tenant(
    membership: Membership,
    command: Sequence[str],
    variables: Mapping[str, str],
    say: Callable[[str], None],
    hooked: Hooked | None = None,
) -> int:
    """Run a program as this tenant, with some variables added to its environment; returns its exit code."""
    spec = membership.spec
    if membership.terms.gpu < 0 and (spec.memory_bytes or spec.share_ppm):
        say("the node knows no GPU: memory and share are noted, not reserved; start it with --gpu NAME=MEMORY")
    environ = {
        **_behind_others(spec.kind),
        **os.environ,
        **variables,
        **_on_its_device(membership, variables),
        TERMS_VARIABLE: str(membership.page),
        SLOT_VARIABLE: slot_text(membership.terms),
        GATE_VARIABLE: ",".join(map(str, membership.gate)),
        "COTENANT_TENANT": membership.tenant,
    }
    if hooked is not None:
        environ |= hooked.variables(environ, membership.page, membership.gate)
    try:
        child = Child(command, environ, [membership.page, *membership.gate])
    except OSError as error:
        membership.leave(f"could not start: {error.strerror}")
        say(f"cannot run {command[0]!r}: {error.strerror}")
        return exec_failure_code(error)
    _attend(child, membership, hooked)
    code = child.wait()
    unseen = "; the hook saw nothing of its GPU use" if hooked is not None and hooked.unseen else ""
    membership.leave(describe_ending(code) + unseen)
    return code


def _on_its_device(membership: Membership, variables: Mapping[str, str]) -> dict[str, str]:
    """Show the program the device at whose gate it sits, and no other, unless its environment made the choice."""
    if _VISIBLE in os.environ and _VISIBLE not in variables:
        return {}
    device = membership.device()
    return {} if device is None else {_VISIBLE: device.visible(membership.terms.gpu)}


def _behind_others(kind: Kind) -> dict[str, str]:
    """Under MPS an offline tenant's blocks come after all others': what runs gives way block by block."""
    return {_MPS_PRIORITY: _BELOW_NORMAL} if kind is Kind.OFFLINE else {}


def _attend(child: Child, membership: Membership, hooked: Hooked | None) -> None:
    """Until the program ends: when the node goes away, keep trying to come back, ever less often."""
    patience_s = _RETRY_S
    while True:
        watched = [child.fileno()]
        if membership.fileno() >= 0:
            watched.append(membership.fileno())
        poller = select.poll()
        for descriptor in watched:
            poller.register(descriptor, select.POLLIN)
        away = membership.fileno() < 0
        waits_s = ([patience_s] if away else []) + ([] if hooked is None else [hooked.look_s])
        ready = [descriptor for descriptor, _ in poller.poll(int(min(waits_s) * 1000) if waits_s else None)]
        if child.fileno() in ready:
            return
        if hooked is not None and not ready:
            hooked.look(child.pid)
        if away:
            patience_s = _RETRY_S if membership.resume() else min(2 * patience_s, _LONGEST_RETRY_S)
        elif membership.fileno() in ready:
            membership.lose()


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return f"no log at {log}"
    return lines[-1] if lines else f"its log {log} is empty"
