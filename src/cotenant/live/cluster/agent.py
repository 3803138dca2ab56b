"""How does this machine do what the brain wants? It reports what is here, takes orders, and keeps its lease."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import msgspec

from cotenant.domain.clusters import AckEnd, NodeTold, StartJob, StopJob
from cotenant.domain.instant import MILLISECOND_NS, Duration, Instant
from cotenant.errors import CotenantError
from cotenant.format import wire
from cotenant.live.client import tenants_of
from cotenant.live.clock import monotonic_ns
from cotenant.live.cluster.attempts import Attempts
from cotenant.live.cluster.launch import Launch
from cotenant.live.cluster.offers import Offers
from cotenant.live.cluster.record import write_lease
from cotenant.live.whole import read_small, write_whole
from cotenant.port import Clock

_TEND_NS: Final = 200 * MILLISECOND_NS
_NODE_S: Final = 2.0
_REPORTS_PER_LEASE: Final = 4
_GRACES: Final = 3
"""A program's own grace is at most this part of the cluster's: the rest is for the kill, and for what is late."""
_DIGITS: Final = 20

Order: TypeAlias = StartJob | StopJob | AckEnd


class Brain(Protocol):
    """The link to the brain, as far as an agent uses it."""

    leased_until: Instant | None
    lease_ns: Duration
    grace_ns: Duration

    def tell(self, report: NodeTold) -> None:
        """Report, now or as soon as the brain is there."""
        ...


class Site(msgspec.Struct, frozen=True):
    """Where an agent is, and what it is called."""

    name: str
    """In the cluster."""
    epoch: int
    socket: Path
    """At which this machine's node answers."""
    lease: Path
    """The file that keepers go by."""
    period_ns: Duration
    """Between two reports, at most."""


class Agent:
    """Woken by a loop; `take` is where orders come in."""

    def __init__(
        self,
        site: Site,
        attempts: Attempts,
        offers: Offers,
        launch: Launch,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        """The clock is the one that keepers go by, too."""
        self._site = site
        self._attempts = attempts
        self._offers = offers
        self._launch = launch
        self._clock = clock
        self._longest_grace_ns = launch.grace_ns
        self._say = say
        self._brain: Brain | None = None
        self._roll: wire.Tenants | None = None
        self._seen = 0
        self._leased: Instant | None = None
        self._report_ns = clock.now()
        self._tend_ns = clock.now()
        self._complaint = ""

    def bind(self, brain: Brain) -> None:
        """Report to this brain."""
        self._brain = brain

    def next_wakeup(self) -> Instant | None:
        """When to look after the attempts, or to report."""
        return min(self._tend_ns, self._report_ns)

    def wake(self, now: Instant) -> None:
        """Look after the attempts; report what is new at once, and everything every now and then."""
        self._tend_ns = now + _TEND_NS
        self._renew()
        if self._attempts.tend(now) or now >= self._report_ns:
            self.report()

    def take(self, order: Order) -> None:
        """Do what the brain wants, once; the report that follows says what became of it."""
        self._renew()
        if isinstance(order, StartJob) and order.epoch != self._site.epoch:
            return  # it is meant for an agent before this one
        is_new = order.attempt.number > self._seen
        self._seen = max(self._seen, order.attempt.number)
        match order:
            case StartJob():
                if is_new:  # else it is here, or was, or a later word of it has come before
                    self._start(order)
            case StopJob(attempt=attempt, why=why):
                self._attempts.stop(attempt, why)
            case AckEnd(attempt=attempt):
                self._attempts.forget(attempt)
        self._report_ns = self._clock.now()

    def report(self) -> None:
        """Tell the brain all that is here."""
        now = self._clock.now()
        assert self._brain is not None
        every_ns = min(self._site.period_ns, self._brain.lease_ns // _REPORTS_PER_LEASE or self._site.period_ns)
        self._report_ns = now + every_ns
        self._ask_node()
        if self._roll is None:
            gpus = self._offers.unattended()
        else:
            gpus = self._offers.reports(self._roll, self._attempts.tenants(), monotonic_ns())
        told = NodeTold(self._site.name, self._site.epoch, gpus, self._attempts.reports(now), self._seen)
        self._brain.tell(told)

    def _start(self, order: StartJob) -> None:
        record = self._attempts.record_of(order.attempt)
        gpus = [] if self._roll is None else self._roll.gpus
        made, refusal = self._launch.order(order, gpus, record)
        if self._attempts.accept(made, refusal):
            self._attempts.tend(self._clock.now())

    def _renew(self) -> None:
        """Let the keepers know for how long they may go on."""
        brain = self._brain
        if brain is None or brain.leased_until is None or brain.leased_until == self._leased:
            return
        self._leased = brain.leased_until
        self._launch.grace_ns = min(self._longest_grace_ns, brain.grace_ns // _GRACES)
        write_lease(self._site.lease, brain.leased_until, brain.grace_ns)

    def _ask_node(self) -> None:
        try:
            self._roll = tenants_of(self._site.socket, _NODE_S)
        except CotenantError as error:
            self._roll = None
            if str(error) != self._complaint:
                self._complaint = str(error)
                self._say(f"nothing is offered: {error}")
        else:
            self._complaint = ""


def next_epoch(file: Path, least: int) -> int:
    """Grows with every start; `least` is larger than any before even where the file was lost, if clocks are right."""
    said = read_small(file, _DIGITS)
    before = int(said) if said is not None and said.isdigit() else 0
    epoch = max(before + 1, least)
    write_whole(file, str(epoch).encode())
    return epoch
