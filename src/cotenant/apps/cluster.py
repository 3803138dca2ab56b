"""Wires a cluster's brain: its authority, its recovery from the journal, its door, until it is stopped."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from cotenant import __version__
from cotenant.domain.cluster import ClusterSettings
from cotenant.domain.clusters import ClusterEvent, ClusterStarted, ClusterWoke
from cotenant.domain.instant import SECOND_NS, Instant
from cotenant.errors import ConfigError, InvariantError, WorldError
from cotenant.format.cluster_wire import Role
from cotenant.format.config_cluster import ClusterConfig
from cotenant.format.journal import ClusterReader
from cotenant.host import ClusterHost, Divergence, recover_cluster
from cotenant.live.address import joined, listen_at, split_address
from cotenant.live.clock import LiveClock, clock_kept_in, time_of_day, unix_ns
from cotenant.live.cluster.authority import Authority, open_authority
from cotenant.live.cluster.clerk import Clerk
from cotenant.live.cluster.door import BACKLOG, BrainDoor
from cotenant.live.cluster.figures import Figures, page_of
from cotenant.live.cluster.identity import Identity, read_identity, server_context
from cotenant.live.cluster.places import BrainPlaces, brain_places
from cotenant.live.cluster.register import Register
from cotenant.live.cluster.witness import BrainWitness
from cotenant.live.directory import Places, close_directory, make_directory, take_lock
from cotenant.live.journal import FileJournal, Recovery
from cotenant.live.loop import EventLoop
from cotenant.live.observe.http import CONNECTIONS, MetricsDoor
from cotenant.live.observe.log import NodeLog
from cotenant.live.process import name_process
from cotenant.live.stopping import stop_on_signals
from cotenant.machine.cluster import ClusterMachine
from cotenant.policy.place.rounds import LIVE, ROUNDS

_OWN_DESCRIPTORS: Final = 32 + CONNECTIONS
_MOST_CONNECTIONS: Final = 16_384
_FEWEST_CONNECTIONS: Final = 32
_DAYS: Final = 365.0
_LOOK_AGAIN_NS: Final = 3600 * SECOND_NS
_HERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  whoever listens everywhere is reached here
_SKIPPED_ATTEMPTS: Final = 1_000_000
"""What a damaged journal has forgotten may have used numbers: they are never used again."""


class Brain(NamedTuple):
    """A brain that is wired and not yet running."""

    loop: EventLoop[ClusterEvent]
    door: BrainDoor
    machine: ClusterMachine
    address: str
    settle: Callable[[], None]
    """Leave a snapshot, so that the next start reads that alone, whichever version it is. Only in good order: what a
    turn left half done must not become what is believed."""
    close: Callable[[], None]


def serve_cluster(config: ClusterConfig, places: Places, log: NodeLog, *, accept_damage: bool) -> None:
    """Be the brain of this directory until told to stop."""
    name_process("cotenant-brain")
    brain = open_brain(config, places, log, accept_damage=accept_damage)
    stop_on_signals(brain.loop, brain.loop.stop)
    log.say(f"the brain serves at {brain.address}; nodes join with a token: cotenant cluster token")
    try:
        brain.loop.run()
        brain.settle()
    finally:
        brain.close()
    log.say("the brain stopped")


def open_brain(config: ClusterConfig, places: Places, log: NodeLog, *, accept_damage: bool = False) -> Brain:
    """Recover, listen, and tell the machine that it runs; where that fails, nothing is left open."""
    if config.place not in LIVE:
        why = "is of simulations only, since live nodes share space and not time; " if config.place in ROUNDS else ""
        raise ConfigError("cluster.place", config.place, f"{why}write one of: {', '.join(LIVE)}")
    split_address(config.listen, "cluster.listen")
    with contextlib.ExitStack() as opened:
        own = _take_directory(places, opened)
        listener = opened.enter_context(listen_at(config.listen, "cluster.listen", BACKLOG))
        address = _address_of(config, listener)
        figures = None
        if config.metrics:
            figures = opened.enter_context(listen_at(config.metrics, "cluster.metrics", CONNECTIONS))
        machine, clock = _recover(own, log.say, config.settings() if accept_damage else None)
        authority = open_authority(own.folder, unix_ns())
        clerk = Clerk(authority, Register(own.register), machine, clock, address)
        loop: EventLoop[ClusterEvent] = EventLoop(clock, ClusterWoke())
        opened.callback(loop.close)
        credentials = _Credentials(own, authority, listener, clock)
        loop.add_timed(credentials)
        journal = FileJournal(own.journal, int(config.journal_limit), is_synced=True)
        opened.callback(journal.close)
        door = BrainDoor(loop, clock, listener, credentials.context, clerk, _connections(), log.say)
        opened.callback(door.close)
        if figures is not None:

            def look() -> Figures:
                turns = loop.turn_ns.histogram()
                return Figures(machine.counts(), turns, journal.size_bytes, door.connections, door.refused)

            shown = MetricsDoor(loop, clock, figures, lambda: page_of(look))
            opened.callback(shown.close)
            log.say(f"figures for Prometheus: {shown.address}")
        loop.bind(ClusterHost(machine, door, journal, BrainWitness(_teller(config, log)).saw))
        loop.post(ClusterStarted(config.settings(), __version__, unix_ns()))

        def settle() -> None:
            journal.begin_segment(clock.now(), machine.snapshot())

        return Brain(loop, door, machine, address, settle, opened.pop_all().close)
    raise InvariantError("a brain was opened and not returned")


def _take_directory(places: Places, opened: contextlib.ExitStack) -> BrainPlaces:
    """Make it, and become the one brain that uses it."""
    own = brain_places(places)
    make_directory(places.state, "directories.state")
    make_directory(own.folder, "directories.state")
    opened.callback(os.close, take_lock(own.lock, "a brain"))
    close_directory(own.folder, "directories.state")
    return own


def _teller(config: ClusterConfig, log: NodeLog) -> Callable[[str], None]:
    """Says what happened with its time, which a line of JSON has anyway."""
    return log.say if config.log == "json" else lambda line: log.say(f"{time_of_day(unix_ns())} {line}")


class _Credentials:
    """The brain's own certificate and the operator's: made when it starts, and anew before they end."""

    def __init__(self, own: BrainPlaces, authority: Authority, listener: socket.socket, clock: LiveClock) -> None:
        host, port = listener.getsockname()[:2]
        # The operator is on this machine, where an address for others may lead nowhere.
        self._address = joined(_HERE.get(host, host), port)
        self._own, self._authority = own, authority
        self.context = server_context(self._make(Role.BRAIN, "brain"))
        self._make(Role.OPERATOR, "operator")
        self._due = clock.now() + _LOOK_AGAIN_NS

    def next_wakeup(self) -> Instant | None:
        """Now and then: a brain may run for longer than a certificate counts."""
        return self._due

    def wake(self, now: Instant) -> None:
        """Renew what is old; connections that are there go on."""
        self._due = now + _LOOK_AGAIN_NS
        if read_identity(self._own.brain).is_old(unix_ns()):
            self.context.load_cert_chain(self._make(Role.BRAIN, "brain").path)
            self._make(Role.OPERATOR, "operator")

    def _make(self, role: Role, name: str) -> Identity:
        path = self._own.brain if role is Role.BRAIN else self._own.operator
        return self._authority.identity(role, name, self._address, path, _DAYS, unix_ns())


def _recover(
    own: BrainPlaces, say: Callable[[str], None], accepting: ClusterSettings | None
) -> tuple[ClusterMachine, LiveClock]:
    """The machine as the journal left it. What it promised is never guessed: a journal that cannot be read is said.

    With settings, it goes on from a damaged one. Then a job that waits by the record may run somewhere, on a node that
    has not come back yet, so no round is held before every lease must have run out.
    """
    recovery = Recovery(own.journal, ClusterReader)
    machine = ClusterMachine()
    try:
        recover_cluster(machine, recovery.turns())
    except (Divergence, InvariantError) as error:
        raise WorldError(
            f"the journal {own.journal} does not replay with version {__version__} ({error}): another version wrote it "
            "and was killed; start that version once and stop it by SIGTERM, which leaves a snapshot, then this one"
        ) from None
    clock = clock_kept_in(own.clock, recovery.last_instant)
    if not recovery.damage:
        finding = recovery.mend()
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
    return joined(socket.gethostname() if host in _HERE else host, port)


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
        raise WorldError(f"a brain needs {needed} open files and {hard} are allowed; raise the limit (ulimit -Hn)")
    return min(left, _MOST_CONNECTIONS)
