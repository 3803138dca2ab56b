"""What do the windows of a device lead to? Remembers who is there and what was foreseen; a policy decides.

Not a part of the node's own machine: ten windows a second would flood the journal. Only its decisions are events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from cotenant.domain.control import Adjustment, Cause, ControlLimits, DeviceWindow
from cotenant.domain.day import Program
from cotenant.domain.instant import Instant
from cotenant.domain.protect import clipped
from cotenant.domain.use import TaskUse
from cotenant.machine.days import Days
from cotenant.machine.needs import Needs
from cotenant.policy.adjust import POLICIES
from cotenant.policy.adjust.verdict import Adjuster, Foreseen, Verdict
from cotenant.policy.limit.share import Equal, Shares, shares_among
from cotenant.policy.predict.load import Load


class _Desk:
    """What is known of one device."""

    __slots__ = ("adjuster", "equals", "here", "known", "loads", "needs", "programs", "shares")

    def __init__(self, adjuster: Adjuster, needs: Needs) -> None:
        self.adjuster = adjuster
        self.needs = needs
        self.here: dict[int, int] = {}
        self.loads: dict[int, Load] = {}
        self.programs: Mapping[int, Program] = {}
        self.shares: Shares = ()
        self.equals: tuple[Equal, ...] = ()
        self.known: frozenset[int] = frozenset()

    def division(self, window: DeviceWindow) -> tuple[Shares, bool]:
        """How equals would divide the device now, and whether they must though the policy changes nothing.

        They must where one of them came, left, has another priority or limit, or is known by now. Not whenever needs
        change: they always do.
        """
        promised = Counter(one.priority for one in window.tenants if one.promised)
        tenants = [one for one in window.tenants if promised[one.priority] > 1]
        equals = tuple(Equal(one.slot, one.generation, one.priority, one.promised, one.limit_ppm) for one in tenants)
        needs = self.adjuster.needs()
        known = frozenset(slot for slot, need_ppm in needs.items() if need_ppm > 0)
        is_other = equals != self.equals or (bool(self.shares) and known != self.known)
        self.equals, self.known = equals, known
        shares = shares_among(equals, needs)
        return shares, is_other and shares != self.shares


class Control:
    """The adjustment of all devices of a node."""

    def __init__(self, limits: ControlLimits, days: Days | None = None) -> None:
        """Know nobody, and of programs that were here before their days; `limits.adjust` names the policy."""
        self._limits = limits
        self._days = days or Days()
        self._desks: dict[int, _Desk] = {}
        self._restored: dict[int, int] = {}

    def restore(self, gpu: int, online_ppm: int) -> None:
        """What a device's online tenants keep already, before the first window of it is seen."""
        self._restored[gpu] = online_ppm

    def remember(self, now: Instant) -> None:
        """Take what everybody's days were like up to now into the days, as when they leave."""
        for desk in self._desks.values():
            self._learn_days(desk, desk.loads, now)

    def seen(
        self,
        window: DeviceWindow,
        now: Instant,
        uses: Mapping[int, TaskUse] | None = None,
        programs: Mapping[int, Program] | None = None,
    ) -> Adjustment | None:
        """What one window changes, if anything; by slot, what profiles say of tenants, and which programs they are."""
        promised = {tenant.slot: tenant for tenant in window.tenants if tenant.promised}
        if not promised or not self._limits.enabled:
            gone = self._desks.pop(window.gpu, None)
            if gone is not None:
                self._learn_days(gone, gone.loads, now)
            return None
        desk = self._desks.get(window.gpu)
        is_unsaid = desk is None and window.gpu not in self._restored
        if desk is None:
            online_ppm = self._restored.pop(window.gpu, self._limits.most_ppm)
            desk = self._desks[window.gpu] = _Desk(
                POLICIES[self._limits.adjust](self._limits, online_ppm), Needs(self._limits)
            )
        self._forget_others(desk, {slot: tenant.generation for slot, tenant in promised.items()}, now)
        desk.programs = programs or {}
        foreseen, ahead_ns = {}, self._days.ahead_ns
        for slot, tenant in promised.items():
            load = desk.loads.get(slot) or self._days.load(desk.programs.get(slot), self._limits.period_ns)
            desk.loads[slot] = load = load.after(tenant.requests, window.begin_ns + ahead_ns)
            need_ppm = desk.needs.of(tenant, window, load, (uses or {}).get(slot), desk.adjuster.online_ppm)
            at_peak_ppm, mild_ppm = desk.needs.at_peak_ppm(slot), desk.needs.mild_ppm(slot)
            foreseen[slot] = Foreseen(load.next_window(window.end_ns + ahead_ns), need_ppm, at_peak_ppm, mild_ppm)
        verdict = desk.adjuster.step(window, foreseen, now)
        if verdict is None and is_unsaid:  # from here on this counts, whatever the rules of the node say
            first = next(iter(promised.values()))
            told = "nobody knows yet what it needs"
            verdict = Verdict(desk.adjuster.online_ppm, Cause.JOINED, told, first.slot, first.generation)
        shares, must_divide = desk.division(window)
        if verdict is None and must_divide:
            told = f"{len(shares)} equals have to share it now" if shares else "nobody is left to share it with"
            verdict = Verdict(desk.adjuster.online_ppm, Cause.DIVIDED, told)
        if verdict is None:
            return None
        desk.shares = shares
        return Adjustment(
            window.gpu,
            verdict.online_ppm,
            verdict.cause,
            clipped(verdict.detail),
            shares,
            verdict.slot,
            verdict.generation,
        )

    def online_ppm(self, gpu: int) -> int | None:
        """What online work of a device keeps; None: nothing is adjusted there."""
        desk = self._desks.get(gpu)
        return None if desk is None else desk.adjuster.online_ppm

    def why(self, gpu: int) -> str:
        """Why it is as it is."""
        desk = self._desks.get(gpu)
        if desk is None:
            return "no online tenant with an objective is there"
        divided_among = f"; {len(desk.shares)} equals divide the device" if desk.shares else ""
        return f"{desk.adjuster.why()}{divided_among}"

    def _forget_others(self, desk: _Desk, here: dict[int, int], now: Instant) -> None:
        """The last windows of whoever had a slot before say nothing about who has it now; days are their program's."""
        gone = [slot for slot, generation in desk.here.items() if here.get(slot) != generation]
        self._learn_days(desk, gone, now)
        for slot in gone:
            desk.loads.pop(slot, None)
        desk.here = here

    def _learn_days(self, desk: _Desk, slots: Iterable[int], now: Instant) -> None:
        for slot in slots:
            if slot in desk.loads:
                self._days.saw(desk.programs.get(slot), desk.loads[slot], self._limits.period_ns, now)
