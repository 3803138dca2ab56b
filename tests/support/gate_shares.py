"""The rules of shares in plain Python: use, limit and order among equals."""

from __future__ import annotations

from tests.support.gate_accounts import Ledger
from tests.support.gate_sums import (
    AGAIN,
    AHEAD,
    ASLEEP,
    FAR,
    HELD_FOR,
    KEPT_OUT,
    LATE,
    LEAD,
    LEAST_PART,
    LIMIT,
    LIMIT_LOOK,
    LIMIT_POLL,
    PPM,
    SHARE,
    STUCK_AFTER,
    WINDOW,
    LaunchRequest,
    Page,
    earned_in,
    part_of,
)


class Shares(Ledger):
    """One process of a tenant: the launches that its share allows."""

    def weight(self, expect: int) -> int:
        return expect or self.rules.bound_ns

    def book(self, use: int, now: int) -> None:
        """Account for work used, or returned if negative."""
        earned = earned_in(abs(use), self.limit)
        held = self.held if now - self.held_at <= HELD_FOR else 0
        level = max(self.page["paid_ns"], now - WINDOW - 2 * held) if self.page["paid_ns"] else now
        self.page["paid_ns"] = min(level + earned, now + FAR) if use >= 0 else max(level - earned, 0)
        self.page["paid_ppm"] = self.page["paid_ppm"] or self.limit

    def use_of(self, request: LaunchRequest) -> int:
        return min(self.weight(request[0]), FAR) * max(PPM - request[7], 0) // PPM

    def charge_share(self, request: LaunchRequest, now: int, sign: int = 1) -> None:
        if self.limit and not self.is_lent:
            self.book(sign * self.use_of(request), now)
            self.page["part_ppm"] = max(PPM - request[7], 0) if sign > 0 else self.page["part_ppm"]

    def measured(self, charged: int, used: int, now: int) -> None:
        if self.limit and charged != used:
            self.book(used - charged, now)

    def over_until(self, now: int) -> int:
        page = self.page
        if page["paid_ppm"] != self.limit:
            debt = max(page["paid_ns"] - now, 0)
            if debt and page["paid_ppm"]:
                page["paid_ns"] = now + earned_in(debt * page["paid_ppm"] // PPM, self.limit)
            page["paid_ppm"] = self.limit
        ahead = max(page["paid_ns"] - now, 0)
        is_over = ahead > AHEAD or (page["over_ns"] > 0 and ahead > 0)
        page["over_ns"] = now + ahead if is_over else 0
        return page["over_ns"]

    def over_by(self) -> int:
        """Return when the work of this tenant and of its equals ends or ended."""
        return max([self.page["busy_ns"], *(page["busy_ns"] for page in map(self.page_of, self.equals) if page)])

    def wants_now(self, page: Page, until: int, now: int) -> bool:
        is_asking = page["wanted_ns"] and -LIMIT_LOOK <= now - page["asked_ns"] <= ASLEEP
        is_waiting = page["waits_ns"] and now - max(page["waits_ns"], self.over_by()) <= LATE
        is_coming = now < page["quiet_ns"] and page["next_ns"] < until
        return bool(page["busy_ns"] > now or is_asking or is_waiting or is_coming)

    def is_wanted(self, request: LaunchRequest, now: int) -> bool:
        until = max(self.page["busy_ns"], now) + self.weight(request[0])
        for entry in self.equals:
            page = self.page_of(entry)
            if entry.paused or not (entry.limit_ppm or self.limit) or not page or not page["sequence"]:
                continue
            is_over = entry.limit_ppm and (page["over_ns"] > now or page["paid_ns"] - now > AHEAD)
            if not is_over and self.wants_now(page, until, now):
                return True
        return False

    def decide_share(self, request: LaunchRequest, is_active: bool, since: int, now: int) -> tuple[int, int]:
        """Return the reason to wait and until when; 0: no reason."""
        self.is_lent = False
        if self.is_ending or request[7] >= PPM:
            return 0, now
        until = self.over_until(now) if self.limit else now + LIMIT_LOOK
        if not until:
            return 0, now
        if self.limit and self.is_static:
            return LIMIT, until
        is_old = not self.limit and now - since >= STUCK_AFTER + KEPT_OUT * min(self.weight(request[0]), FAR)
        if not is_active and not is_old and self.is_wanted(request, now):
            return (LIMIT if self.limit else SHARE), min(until, now + LIMIT_LOOK)
        self.is_lent = self.limit > 0
        return 0, now

    def bound_of(self, request: LaunchRequest) -> int:
        bound, delay = self.rules.bound_ns, self.rules.delay_ppm
        return bound + part_of(4 * bound, delay) if request[5] else bound

    def is_full(self, request: LaunchRequest, now: int) -> bool:
        """Return whether the submitted work forbids a further launch."""
        if self.is_ending:
            return self.unconfirmed > 0 or self.page["busy_ns"] > now
        submitted = self.unconfirmed_ns + self.weight(request[0])
        if self.above:
            return self.unconfirmed > 1 and submitted > self.bound_of(request)
        taken = min(submitted, FAR) * max(PPM - request[7], LEAST_PART) // PPM
        return bool(self.beside) and self.unconfirmed > 1 and taken > max(self.rules.bound_ns, AHEAD)

    def room_at(self, request: LaunchRequest, now: int) -> int:
        if self.above or self.is_ending:
            ahead = 0 if self.is_ending else LEAD
            return max(self.page["busy_ns"] - ahead, now + AGAIN)
        taken = min(self.unconfirmed_ns, FAR) * max(PPM - request[7], 0) // PPM if request[0] else 0
        return now + max(taken // 2, LIMIT_POLL)
