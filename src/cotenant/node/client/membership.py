"""The slot of a program at the node: join, keep the slot across restarts of the node, and leave."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import ConfigError, CotenantError, PeerError, SetupError, WorldError
from cotenant.gate.grant import Grant, Kind
from cotenant.node import wire
from cotenant.node.client.configured import is_operators_node, operator_remedy
from cotenant.node.client.connection import (
    FINAL_REASONS,
    TIMEOUT_S,
    Connection,
    NodeTimeoutError,
    NodeUnavailableError,
    list_tenants,
)
from cotenant.node.directories import Directories, lock_holder, make_directory
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.event import NodeSettings
from cotenant.node.model.tenant import TenantSpec
from cotenant.runner.clock import monotonic_ns, pause
from cotenant.runner.process import Signals, start_in_background
from cotenant.units.text import format_duration, format_share, format_size, round_duration

_IDLE_EXIT_NS: Final = 300 * 10**9
_START_TRIES: Final = 600
_RESTART_TRIES: Final = 30
_REPORT_AFTER_TRIES: Final = 20
_SHORT_TIMEOUT_S: Final = 1.0
_JOIN_TRIES: Final = 3
_JOIN_TIMEOUT_S: Final = 60.0  # the node may evict others first, for which it takes 15 s by default
_REPORT_WAIT_AFTER_S: Final = 2.0


class RefusedError(WorldError):
    """The node refused the request; `reject` has the reason and when to try again."""

    def __init__(self, subject: str, reject: Reject, *, is_final: bool = False) -> None:
        """`subject` names the refused tenant or request; `is_final`: no node of these devices can ever accept it."""
        again = f"; try again in {round_duration(reject.retry_after_ns)}" if reject.retry_after_ns else ""
        self.message = f"the node refused {subject}: {reject.detail}"
        super().__init__(self.message + again)
        self.reject = reject
        if is_final or reject.reason in FINAL_REASONS:
            self.exit_code = ConfigError.exit_code


class StoppedError(WorldError):
    """`cotenant run` was asked to end while it waited for the node."""


class Membership:
    """A slot at the node: joins, resumes after a restart, and leaves."""

    def __init__(
        self, directories: Directories, spec: TenantSpec, report: Callable[[str], None], signals: Signals | None
    ) -> None:
        """Join; raises `RefusedError` when refused and `WorldError` when there is no node.

        Raises `StoppedError` if `signals` asks to end meanwhile.
        """
        self._directories = directories
        self.spec = spec
        self.report = report
        self._last_error = ""
        self._connection: Connection | None = Connection(directories.tenant_socket)
        self._resume_connection: Connection | None = None
        """The connection with an unanswered request to resume the slot."""
        self._rejoin_reason = ""
        """The node's reason for not resuming the slot; set before another slot is requested."""
        self.tenant = ""
        self.grant: Grant
        self.environment: dict[str, str] = {}
        self.evicted = ""
        """Why the node released the slot while it was unreachable."""
        try:
            self._join(self._connection, signals)
        except BaseException:
            self.disconnect()
            raise

    def fileno(self) -> int:
        """Return the descriptor that is readable when the node sends a message or closes; -1 while disconnected."""
        return -1 if self._connection is None else self._connection.fileno()

    def disconnect(self) -> None:
        """Close the connection to the node; the program continues under its last grant."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def receive_pushed(self, *, readable: bool) -> list[wire.Push]:
        """Return the messages that the node pushed; the connection may be lost."""
        if self._connection is None:
            return []
        try:
            return self._connection.receive_pushed(readable=readable)
        except (WorldError, PeerError) as error:
            if isinstance(error, PeerError):
                self.report(str(error))
            self.disconnect()
            return []

    def send(self, request: wire.Request) -> bool:
        """Send a message that has no answer; return whether it was sent."""
        if self._connection is None:
            return False
        try:
            self._connection.send(request)
        except WorldError:
            self.disconnect()
            return False
        return True

    def resume(self, *, join_anew: bool = True) -> bool:
        """Try to resume the slot, or to join anew if the node has no record of it; return whether there is a slot.

        A slow node has received the request and will grant the slot; a disconnect would lose it. So the request stays
        open, and the next attempt waits for its answer.
        """
        try:
            connection = self._connection_for_resume()
        except WorldError:
            return False
        try:
            answer, _ = connection.answer()
            is_anew = self._rejoin_reason != ""
            if isinstance(answer, wire.Refusal) and not is_anew and join_anew and _may_join_anew(answer.reject):
                self._rejoin_reason, is_anew = answer.reject.detail, True
                answer, _ = connection.ask(wire.Join(wire.VERSION, self.spec))
            if isinstance(answer, wire.Refusal) and not is_anew:
                if answer.reject.reason is Reason.EVICTED:
                    self.evicted = answer.reject.detail
                self._cancel_resume()
                return False
            self._accept_answer(answer)
        except NodeTimeoutError as error:
            self._report_once(error)
            return False
        except (WorldError, PeerError) as error:
            self._cancel_resume()
            if not isinstance(error, NodeUnavailableError):
                self._report_once(error)
            return False
        if is_anew:
            self.report(
                f"the node had no record of this tenant ({self._rejoin_reason}): joined again as {self.tenant}; "
                "the running program has no valid grant"
            )
        connection.set_timeout(TIMEOUT_S)  # the default again; a new connection would lose the slot
        self._connection, self._resume_connection, self._rejoin_reason = connection, None, ""
        return True

    def _connection_for_resume(self) -> Connection:
        """Return the connection with the request for the slot; send the request if it was not sent before."""
        if self._resume_connection is None:
            self._resume_connection = Connection(self._directories.tenant_socket, _SHORT_TIMEOUT_S)
            try:
                self._resume_connection.send(wire.Resume(wire.VERSION, self.grant.slot, self.grant.generation))
            except WorldError:
                self._cancel_resume()
                raise
        return self._resume_connection

    def _cancel_resume(self) -> None:
        if self._resume_connection is not None:
            self._resume_connection.close()
        self._resume_connection, self._rejoin_reason = None, ""

    def _report_once(self, error: Exception) -> None:
        if str(error) != self._last_error:
            self._last_error = str(error)
            self.report(f"{error}; continuing without a slot and retrying")

    def pin_device(self) -> None:
        """Let a later join ask for the devices that were granted now, because the program uses them."""
        gpus = self.grant.gpus
        if not gpus or self._connection is None:
            return
        try:
            answer, _ = self._connection.ask(wire.ListTenants(wire.VERSION))
        except WorldError:
            self.disconnect()
            return
        if not isinstance(answer, wire.TenantList) or max(gpus) >= len(answer.gpus):
            raise PeerError(f"the node does not list its GPU {max(gpus)}")
        names = ",".join(answer.gpus[gpu].names(gpu)[0] for gpu in gpus)
        self.spec = msgspec.structs.replace(self.spec, gpu=names)

    def leave(self, ending: str) -> None:
        """Report how the program ended, and wait until the slot is free.

        A node that is down or hangs detects the end by itself; its answer does not change the program's exit code.
        """
        if self._connection is None and not self.resume(join_anew=False):
            self._cancel_resume()
            return
        assert self._connection is not None
        self._connection.set_timeout(_SHORT_TIMEOUT_S)
        with contextlib.suppress(WorldError, PeerError):
            self._connection.ask(wire.Leave(ending))
        self.disconnect()

    def _join(self, connection: Connection, signals: Signals | None) -> None:
        connection.send(wire.Join(wire.VERSION, self.spec))
        if self.spec.kind is Kind.ONLINE and self.spec.memory_bytes:
            self._wait_for_answer(connection, signals)
        self._accept_answer(connection.answer()[0])

    def _accept_answer(self, answer: wire.Answer) -> None:
        if isinstance(answer, wire.Refusal):
            is_final = answer.reject.reason is Reason.NO_MEMORY and self._is_larger_than_every_gpu()
            raise RefusedError(self.spec.name or "the tenant", answer.reject, is_final=is_final)
        if not isinstance(answer, wire.Welcome):
            raise PeerError(f"the node answered {type(answer).__name__} to a join")
        self.environment = answer.environment
        self.tenant = answer.tenant
        self.grant = answer.grant

    def _is_larger_than_every_gpu(self) -> bool:
        if not self.spec.memory_bytes:
            return False
        with contextlib.suppress(CotenantError):
            gpus = list_tenants(self._directories).gpus
            return bool(gpus) and self.spec.memory_bytes > max(gpu.memory_bytes for gpu in gpus)
        return False

    def _wait_for_answer(self, connection: Connection, signals: Signals | None) -> None:
        """Wait for a message of the node; report a long wait, in which the node may evict other tenants."""
        if not wait_for(connection.fileno(), _REPORT_WAIT_AFTER_S, signals):
            self.report("waiting for the node: it may have to evict other tenants first")
            wait_for(connection.fileno(), _JOIN_TIMEOUT_S, signals)


def _may_join_anew(reject: Reject) -> bool:
    """Return whether another slot may be requested: the old one was neither released nor is it in use."""
    return reject.reason not in (Reason.EVICTED, Reason.ALREADY_HERE)


def wait_for(descriptor: int, wait_s: float, signals: Signals | None) -> bool:
    """Return whether the descriptor became readable in time (-1: only wait); raise `StoppedError` if asked to end."""
    poller = select.poll()
    for pollable in (descriptor, -1 if signals is None else signals.fileno()):
        if pollable >= 0:
            poller.register(pollable, select.POLLIN)
    until_ns = monotonic_ns() + int(wait_s * 1e9)
    while (remaining_ns := until_ns - monotonic_ns()) > 0:
        ready = [pollable for pollable, _ in poller.poll(remaining_ns / 1e6 + 1)]
        if signals is not None and signals.fileno() in ready and signals.has_end_request():
            raise StoppedError("asked to end before the program got a slot")
        if descriptor in ready:
            return True
    return False


def join(
    directories: Directories,
    spec: TenantSpec,
    arguments: Sequence[str] | None,
    report: Callable[[str], None],
    signals: Signals | None,
) -> Membership:
    """Join a node; start one if none answers. If the node ends meanwhile, try again.

    `arguments` are passed to a node that must be started; None: do not start a node.
    """
    for tries in range(_JOIN_TRIES):
        if arguments is not None:
            ensure_node(directories, arguments, report)
        try:
            return Membership(directories, spec, report, signals)
        except NodeUnavailableError:
            if tries == _JOIN_TRIES - 1:
                raise
    raise AssertionError("the last try returns or raises")


def ensure_node(directories: Directories, arguments: Sequence[str], report: Callable[[str], None]) -> None:
    """Start a node if none answers, and report it.

    A node that an operator configured or started is never replaced: its options are not known here. A socket without a
    node means that the node died and was not stopped: a service manager gets a moment to restart it. If `cotenant run`
    had started it, the new node has the devices and rules of the last one, which its journal contains.
    """
    if _answers(directories):
        return
    flags = _flags_after_death(directories, report) if directories.tenant_socket.exists() else []
    if flags is None:
        return
    remedy = operator_remedy(directories, os.environ, os.geteuid())
    if remedy:
        raise WorldError(remedy)
    make_directory(directories.runtime, "directories.runtime")
    make_directory(directories.state, "directories.state")
    command = ["node", "--idle-exit", format_duration(_IDLE_EXIT_NS), *arguments, *flags]
    process = start_in_background(command, directories.log)
    for tries in range(_START_TRIES):
        exit_code = process.poll()
        try:
            serving_pid = list_tenants(directories).pid
        except NodeUnavailableError:
            # The node that won the lock of the directory may take a while to read its journal before it answers.
            if exit_code is not None and lock_holder(directories.lock) is None:
                failure = WorldError(f"a node could not be started: {_last_line(directories.log)}")
                if exit_code in (ConfigError.exit_code, SetupError.exit_code):
                    failure.exit_code = exit_code
                raise failure from None
            if tries == _REPORT_AFTER_TRIES:
                report("waiting for the node to read its journal")
            pause(0.1)
        else:
            if serving_pid == process.pid:
                report(
                    f"no node was running: started one (pid {process.pid}, log {directories.log}; it exits when idle)"
                )
            return
    raise WorldError(f"a node was started but does not answer at {directories.tenant_socket}; see {directories.log}")


def _flags_after_death(directories: Directories, report: Callable[[str], None]) -> list[str] | None:
    """Return the flags with which a node of `cotenant run` that died is started again; None: it runs again."""
    report("the node died; waiting a moment for it to be restarted")
    for _ in range(_RESTART_TRIES):
        pause(0.1)
        if _answers(directories):
            return None
    if directories.runtime.stat().st_uid != os.geteuid():
        raise WorldError(
            f"the node at {directories.tenant_socket} is down; ask its owner to restart it, or use --runtime-dir"
        )
    from cotenant.node.journal import last_settings  # noqa: PLC0415  slow to import

    settings = last_settings(directories.journal)
    if is_operators_node(settings, _IDLE_EXIT_NS):
        raise WorldError(
            f"the node at {directories.tenant_socket} died, and `cotenant run` does not replace a node that it did not "
            "start; start it again with `cotenant node` and its options, or use --runtime-dir and --state-dir"
        )
    return _flags_of(settings)


def _answers(directories: Directories) -> bool:
    try:
        Connection(directories.tenant_socket).close()
    except NodeUnavailableError:
        return False
    return True


def _flags_of(settings: NodeSettings | None) -> list[str]:
    """Return the flags with which a new node keeps the settings of the previous one."""
    if settings is None or not settings.gpus:
        return []
    flags = ["--slots", str(settings.slots), "--place", settings.place, "--admit", settings.admit]
    gate = settings.gate
    flags += ["--gate", gate.policy.value, "--bound", format_duration(gate.bound_ns)]
    flags += ["--delay", format_share(gate.delay_ppm), "--patience", format_duration(gate.patience_ns)]
    flags += ["--switch", format_duration(gate.switch_ns), "--spin", format_share(gate.spin_ppm)]
    flags += ["--sms", format_share(gate.sm_ppm or 0), "--calibrate", "yes" if settings.uses_calibration else "no"]
    control = settings.control
    flags += ["--adjust", control.adjust, "--adjust-period", format_duration(control.period_ns)]
    for flag, ppm in (
        ("--slo-quantile", control.quantile_ppm),
        ("--slo-headroom", control.headroom_ppm),
        ("--min-online-share", control.min_online_ppm),
        ("--max-online-share", control.max_online_ppm),
    ):
        flags += [flag, format_share(ppm)]
    flags += ["--mps", "on"] if settings.is_mps else []
    flags += ["--mps-share", "on" if control.mps_share else "off"]
    flags += ["--unmet", "refuse"] if settings.refuse_unmet else []
    flags += ["--on-bypass", settings.on_bypass.value]
    for gpu in () if settings.gpus[0].called else settings.gpus:  # discovered GPUs are discovered again
        flags += ["--gpu", f"{gpu.name}={format_size(gpu.memory_bytes)}"]
    return flags


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return f"no log at {log}"
    return lines[-1] if lines else f"its log {log} is empty"
