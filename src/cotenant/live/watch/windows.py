"""How do the requests of online tenants go? Looks at their pages many times a second, and has the shares adjusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from cotenant.domain.control import ControlLimits, DeviceWindow, Dial
from cotenant.domain.day import Program
from cotenant.domain.event import Event, NodeSettings, SharesAdjusted
from cotenant.domain.instant import Instant
from cotenant.domain.tenant import Kind, Tenant, TenantView
from cotenant.domain.use import TaskUse
from cotenant.live.clock import monotonic_ns
from cotenant.machine.control import Control
from cotenant.machine.days import Days
from cotenant.machine.seats import user_limit_ppm
from cotenant.machine.windows import Occupant, Page, Windows


class Known(Protocol):
    """What the node's machine knows; only looked at."""

    turn: int
    settings: NodeSettings

    def tenants(self) -> list[TenantView]:
        """Everybody who holds a slot."""
        ...


class Readable(Protocol):
    """Where a tenant's page is read."""

    def page(self, gpu: int, slot: int) -> Page:
        """What the tenant in a slot says of its work; nothing where there is no room for it."""
        ...


class Objectives:
    """Wakes by itself while an online tenant with an objective is on a device; else not at all.

    The instants of windows are the system's own, for those in the pages are.
    """

    def __init__(
        self,
        known: Known,
        gates: Readable,
        dials: Callable[[], Mapping[int, Dial]],
        post: Callable[[Event], None],
        clock: Callable[[], Instant] = monotonic_ns,
        days: Days | None = None,
    ) -> None:
        """Look at nothing yet; what `dials` says already holds, and adjusting goes on from there.

        The days are those of programs that were here before, and lead from our clock to the time of day.
        """
        self._known = known
        self._gates = gates
        self._dials = dials
        self._post = post
        self._clock = clock
        self._days = days or Days()
        self._turn = -1
        self._due: Instant = 0
        self._occupants: dict[int, list[Occupant]] = {}
        self._uses: dict[int, dict[int, TaskUse]] = {}
        self._programs: dict[int, dict[int, Program]] = {}
        self._windows: dict[int, Windows] = {}
        self._limits: ControlLimits | None = None
        self._control = Control(ControlLimits(), self._days)

    @property
    def is_watching(self) -> bool:
        """Whether an objective is to be kept on any device."""
        return bool(self._occupants)

    def remember(self) -> None:
        """Take what was seen of everybody's days up to now into the days."""
        self._control.remember(self._clock())

    def next_wakeup(self) -> Instant | None:
        """The next look, while anybody needs one."""
        self._refresh()
        return self._due if self._occupants else None

    def wake(self, now: Instant) -> None:
        """Look at every device on which an objective is to be kept."""
        self._due = now + self._known.settings.control.period_ns
        at_ns = self._clock()
        for gpu, occupants in self._occupants.items():
            looks = self._windows.get(gpu)
            if looks is None:
                looks = self._windows[gpu] = Windows(gpu, at_ns)
            window = looks.window(at_ns, occupants, self._pages(gpu, occupants))
            adjustment = self._control.seen(window, at_ns, self._uses.get(gpu), self._programs.get(gpu))
            if adjustment is not None:
                self._post(SharesAdjusted(adjustment))

    def _pages(self, gpu: int, occupants: list[Occupant]) -> dict[int, Page]:
        pages = {occupant.slot: self._gates.page(gpu, occupant.slot) for occupant in occupants}
        return {slot: page for slot, page in pages.items() if page}

    def _refresh(self) -> None:
        """After any turn that may have changed who is there, or by which limits."""
        if self._turn == self._known.turn:
            return
        self._turn = self._known.turn
        limits = self._known.settings.control
        if limits != self._limits:
            self._limits = limits
            self.remember()
            self._control = Control(limits, self._days)
            for gpu, dial in self._dials().items():
                self._control.restore(gpu, dial.online_ppm)
        by_gpu: dict[int, list[Occupant]] = {}
        self._uses, self._programs = {}, {}
        for view in self._known.tenants():
            terms = view.tenant.terms
            is_online = terms.kind is Kind.ONLINE
            is_promised = is_online and not view.tenant.paused  # one that a person holds back is late by their will
            slo_ns = terms.slo_ns if is_promised else 0
            limit_ppm = user_limit_ppm(view.tenant)
            occupant = Occupant(terms.slot, terms.generation, is_online, slo_ns, terms.priority, limit_ppm)
            by_gpu.setdefault(terms.gpu, []).append(occupant)
            if view.tenant.spec.use is not None:
                self._uses.setdefault(terms.gpu, {})[terms.slot] = view.tenant.spec.use
            program = _program_of(view.tenant)
            if is_online and program is not None:
                self._programs.setdefault(terms.gpu, {})[terms.slot] = program
        before = set(self._occupants)
        self._occupants = {
            gpu: occupants
            for gpu, occupants in by_gpu.items()
            if gpu >= 0 and limits.enabled and any(occupant.slo_ns for occupant in occupants)
        }
        self._windows = {gpu: looks for gpu, looks in self._windows.items() if gpu in self._occupants}
        for gpu in before - set(self._occupants):  # whoever comes next is not judged by those who left
            at_ns = self._clock()
            self._control.seen(DeviceWindow(gpu, at_ns, at_ns), at_ns)


def _program_of(tenant: Tenant) -> Program | None:
    """By its task, as profiles are; else by the name that it asked for; None: it may be anybody."""
    task = tenant.spec.task or tenant.spec.name
    return Program(tenant.uid, task) if task else None
