"""Composition of the cluster controller: authority, recovery from the journal, listener, event loop."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from cotenant import __version__
from cotenant.cluster.config import ClusterConfig
from cotenant.cluster.daemon.admin_service import AdminService
from cotenant.cluster.daemon.authority import Authority, open_authority
from cotenant.cluster.daemon.directories import ControllerPaths, controller_paths
from cotenant.cluster.daemon.identity import Identity, read_identity, server_context
from cotenant.cluster.daemon.listener import BACKLOG, ControllerListener
from cotenant.cluster.daemon.metrics import ControllerMetrics, page_of
from cotenant.cluster.daemon.observer import ControllerObserver
from cotenant.cluster.daemon.registry import CertificateRegistry
from cotenant.cluster.host import ClusterHost, recover_cluster
from cotenant.cluster.journal import ClusterJournalReader
from cotenant.cluster.model.cluster import ClusterSettings
from cotenant.cluster.model.event import ClusterEvent, ClusterStarted, ClusterWoke
from cotenant.cluster.policy import LIVE, ROUNDS
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.cluster.wire import Role
from cotenant.errors import ConfigError, InvariantError, WorldError
from cotenant.node.daemon.log import NodeLog
from cotenant.node.daemon.metrics.http import CONNECTIONS, MetricsListener
from cotenant.node.directories import Directories, make_directory, restrict_directory, take_lock
from cotenant.runner.address import join_address, listen_at, split_address
from cotenant.runner.clock import LiveClock, load_clock, local_time, unix_ns
from cotenant.runner.host import Divergence
from cotenant.runner.journal_file import FileJournal, Recovery
from cotenant.runner.live_loop import LiveLoop, stop_on_signals
from cotenant.runner.process import name_process
from cotenant.units.instant import SECOND_NS, Instant

_OWN_DESCRIPTORS: Final = 32 + CONNECTIONS
_MOST_CONNECTIONS: Final = 16_384
_FEWEST_CONNECTIONS: Final = 32
_DAYS: Final = 365.0
_LOOK_AGAIN_NS: Final = 3600 * SECOND_NS
_HERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  the process that listens everywhere is reached here
_SKIPPED_ATTEMPTS: Final = 1_000_000
"""What a damaged journal has forgotten may have used numbers: they are never used again."""


class ControllerHandle(NamedTuple):
    """A composed controller that does not run yet."""

    loop: LiveLoop[ClusterEvent]
    transport: ControllerListener
    machine: ClusterMachine
    address: str
    settle: Callable[[], None]
    """Leave a snapshot, so that the next start reads that alone, whichever version it is. Only in good order: what a
    turn left half done must not become what is believed."""
    close: Callable[[], None]


def serve_cluster(config: ClusterConfig, directories: Directories, log: NodeLog, *, accept_damage: bool) -> None:
    """Be the controller of this directory until told to stop."""
    name_process("cotenant-controller")
    controller = open_controller(config, directories, log, accept_damage=accept_damage)
    stop_on_signals(controller.loop, controller.loop.stop)
    log.report(f"the controller serves at {controller.address}; nodes join with a token: cotenant cluster token")
    try:
        controller.loop.run()
        controller.settle()
    finally:
        controller.close()
    log.report("the controller stopped")


def open_controller(
    config: ClusterConfig, directories: Directories, log: NodeLog, *, accept_damage: bool = False
) -> ControllerHandle:
    """Recover, listen, and tell the machine that it runs; where that fails, nothing is left open."""
    if config.place not in LIVE:
        why = "is of simulations only, since live nodes share space and not time; " if config.place in ROUNDS else ""
        raise ConfigError("cluster.place", config.place, f"{why}write one of: {', '.join(LIVE)}")
    split_address(config.listen, "cluster.listen")
    with contextlib.ExitStack() as opened:
        own = _take_directory(directories, opened)
        listener = opened.enter_context(listen_at(config.listen, "cluster.listen", BACKLOG))
        address = _address_of(config, listener)
        figures = None
        if config.metrics:
            figures = opened.enter_context(listen_at(config.metrics, "cluster.metrics", CONNECTIONS))
        machine, clock = _recover(own, log.report, config.settings() if accept_damage else None)
        authority = open_authority(own.folder, unix_ns())
        admin = AdminService(authority, CertificateRegistry(own.registry), machine, clock, address)
        loop: LiveLoop[ClusterEvent] = LiveLoop(clock, ClusterWoke())
        opened.callback(loop.close)
        credentials = _Credentials(own, authority, listener, clock)
        loop.add_timer(credentials)
        journal = FileJournal(own.journal, int(config.journal_limit), is_synced=True)
        opened.callback(journal.close)
        transport = ControllerListener(loop, clock, listener, credentials.context, admin, _connections(), log.report)
        opened.callback(transport.close)
        if figures is not None:

            def look() -> ControllerMetrics:
                turns = loop.turn_ns.histogram()
                return ControllerMetrics(
                    machine.counts(), turns, journal.size_bytes, transport.connections, transport.refused
                )

            shown = MetricsListener(loop, clock, figures, lambda: page_of(look))
            opened.callback(shown.close)
            log.report(f"figures for Prometheus: {shown.address}")
        loop.bind(ClusterHost(machine, transport, journal, ControllerObserver(_teller(config, log)).saw))
        loop.post(ClusterStarted(config.settings(), __version__, unix_ns()))

        def settle() -> None:
            journal.begin_segment(clock.now(), machine.snapshot())

        return ControllerHandle(loop, transport, machine, address, settle, opened.pop_all().close)
    raise InvariantError("a controller was opened and not returned")


def _take_directory(directories: Directories, opened: contextlib.ExitStack) -> ControllerPaths:
    """Make it, and become the one controller that uses it."""
    own = controller_paths(directories)
    make_directory(directories.state, "directories.state")
    make_directory(own.folder, "directories.state")
    opened.callback(os.close, take_lock(own.lock, "a controller"))
    restrict_directory(own.folder, "directories.state")
    return own


def _teller(config: ClusterConfig, log: NodeLog) -> Callable[[str], None]:
    """Says what happened with its time, which a line of JSON has anyway."""
    return log.report if config.log == "json" else lambda line: log.report(f"{local_time(unix_ns())} {line}")


class _Credentials:
    """Certificates of the controller and the operator: issued at the start, and renewed before they expire."""

    def __init__(self, own: ControllerPaths, authority: Authority, listener: socket.socket, clock: LiveClock) -> None:
        host, port = listener.getsockname()[:2]
        # The operator is on this machine, where an address for others may lead nowhere.
        self._address = join_address(_HERE.get(host, host), port)
        self._own, self._authority = own, authority
        self.context = server_context(self._make(Role.CONTROLLER, "controller"))
        self._make(Role.OPERATOR, "operator")
        self._due = clock.now() + _LOOK_AGAIN_NS

    def next_wakeup(self) -> Instant | None:
        """Now and then: a controller may run for longer than a certificate counts."""
        return self._due

    def wake(self, now: Instant) -> None:
        """Renew what is old; connections that are there go on."""
        self._due = now + _LOOK_AGAIN_NS
        if read_identity(self._own.controller).is_old(unix_ns()):
            self.context.load_cert_chain(self._make(Role.CONTROLLER, "controller").path)
            self._make(Role.OPERATOR, "operator")

    def _make(self, role: Role, name: str) -> Identity:
        path = self._own.controller if role is Role.CONTROLLER else self._own.operator
        return self._authority.identity(role, name, self._address, path, _DAYS, unix_ns())


def _recover(
    own: ControllerPaths, say: Callable[[str], None], accepting: ClusterSettings | None
) -> tuple[ClusterMachine, LiveClock]:
    """The machine as the journal left it. What it promised is never guessed: a journal that cannot be read is said.

    With settings, it goes on from a damaged one. Then a job that waits by the record may run somewhere, on a node that
    has not come back yet, so no round is held before every lease must have run out.
    """
    recovery = Recovery(own.journal, ClusterJournalReader)
    machine = ClusterMachine()
    try:
        recover_cluster(machine, recovery.turns())
    except (Divergence, InvariantError) as error:
        raise WorldError(
            f"the journal {own.journal} does not replay with version {__version__} ({error}): another version wrote it "
            "and was killed; start that version once and stop it by SIGTERM, which leaves a snapshot, then this one"
        ) from None
    clock = load_clock(own.clock, recovery.last_instant)
    if not recovery.damage:
        finding = recovery.truncate_torn_tail()
    elif accepting is not None:
        known = machine.snapshot()
        wait_ns = max(one.lease_ns + one.grace_ns for one in (known.settings, accepting))
        head = msgspec.structs.replace(
            known, next_attempt=known.next_attempt + _SKIPPED_ATTEMPTS, no_round_before=clock.now() + wait_ns
        )
        finding = recovery.restart_from(head, recovery.damage)
        finding += f"; for {wait_ns / SECOND_NS:g} s, in which what it has lost may still run, no job is started"
        machine = ClusterMachine()
        machine.handle(head, now=recovery.last_instant)
    else:
        raise WorldError(
            f"the journal {own.journal} {recovery.damage}; restore it from a copy, or forget what comes after that "
            "with --accept-damage: jobs submitted since then are lost, and those that run without a record are ended"
        )
    if finding:
        say(finding)
    return machine, clock


def _address_of(config: ClusterConfig, listener: socket.socket) -> str:
    """What nodes and users are told: as configured, else where it listens, by the host's name if that is everywhere."""
    if config.address:
        split_address(config.address, "cluster.address")
        return config.address
    host, port = listener.getsockname()[:2]
    return join_address(socket.gethostname() if host in _HERE else host, port)


def _connections() -> int:
    """How many connections there can be, after asking for as many descriptors as the system allows us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_CONNECTIONS + _OWN_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    left = _MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else soft - _OWN_DESCRIPTORS
    if left < _FEWEST_CONNECTIONS:
        needed = _FEWEST_CONNECTIONS + _OWN_DESCRIPTORS
        raise WorldError(f"a controller needs {needed} open files and {hard} are allowed; raise the limit (ulimit -Hn)")
    return min(left, _MOST_CONNECTIONS)
