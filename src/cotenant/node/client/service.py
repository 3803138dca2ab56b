"""`cotenant node status`, `stop` and `reload`: the commands about the daemon of a directory."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from typing import Final

from cotenant.errors import ConfigError, PeerError, SetupError, WorldError
from cotenant.node import wire
from cotenant.node.client.connection import Connection, NodeUnavailableError, ask_as_operator
from cotenant.node.directories import Directories, lock_holder, verified_lock_holder
from cotenant.runner.clock import monotonic_ns
from cotenant.units.instant import SECOND_NS, Duration
from cotenant.units.text import round_duration

_REPORT_EVERY_S: Final = 2.0


def node_status(directories: Directories) -> wire.NodeStatus | None:
    """Return the state of the daemon; None if no node runs. Raises `WorldError` if one runs and does not answer."""
    try:
        with Connection(directories.tenant_socket) as connection:
            answer, _ = connection.ask(wire.GetStatus(wire.VERSION))
    except NodeUnavailableError:
        pid = lock_holder(directories.lock)
        if pid is None or verified_lock_holder(directories.lock) is None:
            return None
        raise WorldError(
            f"a node runs (pid {pid}) and does not answer at {directories.operator_socket}; see its log, or restart it"
        ) from None
    if isinstance(answer, wire.ProtocolViolation):
        raise PeerError(f"the node does not answer requests about itself: {answer.detail}; restart it")
    if not isinstance(answer, wire.NodeStatus):
        raise PeerError(f"the node answered {type(answer).__name__} to a request for its status")
    return answer


def stop_node(directories: Directories, timeout_ns: Duration, report: Callable[[str], None]) -> bool:
    """Ask the node to end and wait until it has; return False if none runs.

    The signal goes to a pidfd that was opened before the lock was checked again, so that it cannot reach a process that
    only has the number of a node that ended.
    """
    if directories.lock.exists() and not os.access(directories.lock, os.R_OK):
        raise SetupError(f"the node at {directories.runtime} belongs to another user, who alone may stop it; ask them")
    pid = verified_lock_holder(directories.lock)
    if pid is None:
        return False
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if verified_lock_holder(directories.lock) != pid:
            return False
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        except PermissionError:
            raise SetupError(
                f"the node (pid {pid}) belongs to another user, who alone may stop it; ask them, or use sudo"
            ) from None
        except ProcessLookupError:
            return True
        _wait_for_end(pidfd, pid, timeout_ns, report)
    finally:
        os.close(pidfd)
    return True


def _wait_for_end(pidfd: int, pid: int, timeout_ns: Duration, report: Callable[[str], None]) -> None:
    began_ns = monotonic_ns()
    while not select.select([pidfd], [], [], min(_REPORT_EVERY_S, timeout_ns / SECOND_NS))[0]:
        waited_ns = monotonic_ns() - began_ns
        if waited_ns >= timeout_ns:
            raise WorldError(f"the node (pid {pid}) has not ended within {round_duration(timeout_ns)}; see its log")
        report(f"waiting for the node (pid {pid}) to end, {round_duration(waited_ns)} so far")


def reload_node(directories: Directories) -> wire.ReloadResult:
    """Make the node read its config again; raise `ConfigError` if the new config is invalid, so nothing changed."""
    answer = ask_as_operator(directories, wire.Reload(wire.VERSION))
    match answer:
        case wire.ReloadResult(error=""):
            return answer
        case wire.ReloadResult(config=config, error=error):
            raise ConfigError("config", config, f"the node keeps its present config: {error}")
        case wire.Refusal(reject=reject):
            raise WorldError(f"the node refused: {reject.detail}")
        case wire.ProtocolViolation(detail=detail):
            raise PeerError(f"the node cannot reload: {detail}; restart it")
    raise PeerError(f"the node answered {type(answer).__name__} to a reload")
