"""The agent of a node: reports its state, carries out orders, and keeps its lease."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import msgspec

from cotenant.cluster.daemon.attempt_record import write_lease
from cotenant.cluster.daemon.attempts import Attempts
from cotenant.cluster.daemon.launch import Launch
from cotenant.cluster.daemon.offers import Offers
from cotenant.cluster.model.event import AckEnd, NodeReport, StartJob, StopJob
from cotenant.errors import CotenantError
from cotenant.node import wire
from cotenant.node.client.connection import list_tenants
from cotenant.node.directories import Directories
from cotenant.runner.atomic_file import read_limited, write_atomically
from cotenant.runner.clock import monotonic_ns
from cotenant.runner.ports import Clock
from cotenant.units.instant import MILLISECOND_NS, Duration, Instant

_TEND_NS: Final = 200 * MILLISECOND_NS
_NODE_S: Final = 2.0
_REPORTS_PER_LEASE: Final = 4
_GRACES: Final = 3
"""A program's own grace is at most this part of the cluster's: the rest is for the kill, and for what is late."""
_DIGITS: Final = 20

Order: TypeAlias = StartJob | StopJob | AckEnd


class ControllerPort(Protocol):
    """Connection to the controller, as an agent uses it."""

    leased_until: Instant | None
    lease_ns: Duration
    grace_ns: Duration

    def tell(self, report: NodeReport) -> None:
        """Report, now or as soon as the controller is there."""
        ...


class Site(msgspec.Struct, frozen=True):
    """Name, directories and periods of an agent."""

    name: str
    """In the cluster."""
    epoch: int
    node: Directories
    """The directories of this machine's node."""
    lease: Path
    """The file that supervisors go by."""
    period_ns: Duration
    """Between two reports, at most."""


class Agent:
    """Woken by the event loop; `take` receives orders."""

    def __init__(
        self,
        site: Site,
        attempts: Attempts,
        offers: Offers,
        launch: Launch,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        """The clock is the one that supervisors go by, too."""
        self._site = site
        self._attempts = attempts
        self._offers = offers
        self._launch = launch
        self._clock = clock
        self._longest_grace_ns = launch.grace_ns
        self._say = say
        self._controller: ControllerPort | None = None
        self._roll: wire.TenantList | None = None
        self._seen = 0
        self._leased: Instant | None = None
        self._report_ns = clock.now()
        self._tend_ns = clock.now()
        self._complaint = ""

    def bind(self, controller: ControllerPort) -> None:
        """Report to this controller."""
        self._controller = controller

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
        """Do what the controller wants, once; the report that follows says what became of it."""
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
        """Tell the controller all that is here."""
        now = self._clock.now()
        assert self._controller is not None
        every_ns = min(self._site.period_ns, self._controller.lease_ns // _REPORTS_PER_LEASE or self._site.period_ns)
        self._report_ns = now + every_ns
        self._ask_node()
        if self._roll is None:
            gpus = self._offers.unattended()
        else:
            gpus = self._offers.reports(self._roll, self._attempts.tenants(), monotonic_ns())
        report = NodeReport(self._site.name, self._site.epoch, gpus, self._attempts.reports(now), self._seen)
        self._controller.tell(report)

    def _start(self, order: StartJob) -> None:
        record = self._attempts.record_of(order.attempt)
        gpus = [] if self._roll is None else self._roll.gpus
        made, refusal = self._launch.order(order, gpus, record)
        if self._attempts.accept(made, refusal):
            self._attempts.tend(self._clock.now())

    def _renew(self) -> None:
        """Let the supervisors know for how long they may go on."""
        controller = self._controller
        if controller is None or controller.leased_until is None or controller.leased_until == self._leased:
            return
        self._leased = controller.leased_until
        self._launch.grace_ns = min(self._longest_grace_ns, controller.grace_ns // _GRACES)
        write_lease(self._site.lease, controller.leased_until, controller.grace_ns)

    def _ask_node(self) -> None:
        try:
            self._roll = list_tenants(self._site.node, _NODE_S)
        except CotenantError as error:
            self._roll = None
            if str(error) != self._complaint:
                self._complaint = str(error)
                self._say(f"nothing is offered: {error}")
        else:
            self._complaint = ""


def next_epoch(file: Path, least: int) -> int:
    """Grows with every start; `least` is larger than any before even where the file was lost, if clocks are right."""
    said = read_limited(file, _DIGITS)
    before = int(said) if said is not None and said.isdigit() else 0
    epoch = max(before + 1, least)
    write_atomically(file, str(epoch).encode())
    return epoch
