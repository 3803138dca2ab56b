"""What do the windows of a device lead to? Remembers who is there and what was foreseen; a policy decides.

Not a part of the node's own machine: ten windows a second would flood the journal. Only its decisions are events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from cotenant.domain.control import Adjustment, Cause, ControlLimits, DeviceWindow
from cotenant.domain.instant import Instant
from cotenant.domain.protect import clipped
from cotenant.domain.use import TaskUse
from cotenant.machine.needs import Needs
from cotenant.policy.adjust import POLICIES
from cotenant.policy.adjust.verdict import Adjuster, Foreseen, Verdict
from cotenant.policy.limit.share import Equal, Shares, shares_among
from cotenant.policy.predict.load import Load


class _Desk:
    """What is known of one device."""

    __slots__ = ("adjuster", "equals", "here", "known", "loads", "needs", "shares")

    def __init__(self, adjuster: Adjuster, needs: Needs) -> None:
        self.adjuster = adjuster
        self.needs = needs
        self.here: dict[int, int] = {}
        self.loads: dict[int, Load] = {}
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

    def __init__(self, limits: ControlLimits) -> None:
        """Know nobody; `limits.adjust` names the policy."""
        self._limits = limits
        self._desks: dict[int, _Desk] = {}
        self._restored: dict[int, int] = {}

    def restore(self, gpu: int, online_ppm: int) -> None:
        """What a device's online tenants keep already, before the first window of it is seen."""
        self._restored[gpu] = online_ppm

    def seen(self, window: DeviceWindow, now: Instant, uses: Mapping[int, TaskUse] | None = None) -> Adjustment | None:
        """What one window changes, if anything; `uses` are what profiles say of the tenants, by slot."""
        promised = {tenant.slot: tenant for tenant in window.tenants if tenant.promised}
        if not promised or not self._limits.enabled:
            self._desks.pop(window.gpu, None)
            return None
        desk = self._desks.get(window.gpu)
        is_unsaid = desk is None and window.gpu not in self._restored
        if desk is None:
            online_ppm = self._restored.pop(window.gpu, self._limits.most_ppm)
            desk = self._desks[window.gpu] = _Desk(
                POLICIES[self._limits.adjust](self._limits, online_ppm), Needs(self._limits)
            )
        self._forget_others(desk, {slot: tenant.generation for slot, tenant in promised.items()})
        foreseen = {}
        for slot, tenant in promised.items():
            load = desk.loads.get(slot, Load()).after(tenant.requests, window.begin_ns)
            desk.loads[slot] = load
            need_ppm = desk.needs.of(tenant, window, load, (uses or {}).get(slot), desk.adjuster.online_ppm)
            at_peak_ppm, mild_ppm = desk.needs.at_peak_ppm(slot), desk.needs.mild_ppm(slot)
            foreseen[slot] = Foreseen(load.next_window(window.end_ns), need_ppm, at_peak_ppm, mild_ppm)
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

    def _forget_others(self, desk: _Desk, here: dict[int, int]) -> None:
        """The load of whoever had a slot before says nothing about who has it now."""
        for slot, generation in desk.here.items():
            if here.get(slot) != generation:
                desk.loads.pop(slot, None)
        desk.here = here
