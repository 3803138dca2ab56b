"""The rules of the gate in plain Python, one tenant's call after the other: what the C code must say and show."""

from __future__ import annotations

from cotenant.domain.gate import GatePolicy
from tests.property.gate_shares import Shares
from tests.property.gate_sums import (
    AGAIN,
    BESIDE,
    BOUND,
    BURST,
    BUSY,
    DEBT,
    DELAY_MOST,
    DEPTH,
    DUE,
    FAR,
    FREE,
    GAP,
    HARD_DEBT,
    LEAD,
    LEAST,
    LENT,
    LOOK,
    NEVER,
    OTHER,
    PAUSE_LOOK,
    PAUSED,
    PPM,
    RISK,
    RISK_AFTER,
    SPARE,
    STUCK,
    STUCK_AFTER,
    TIGHT,
    TOP,
    WAITED_FOR,
    Answer,
    Page,
    Wish,
    earned_in,
    loss_at,
    pace_of,
    part_of,
    rank,
    yielded,
)


class Tenant(Shares):
    """One process of a tenant: may it launch, and what follows."""

    # ---- may it go?

    def is_asking(self, page: Page, now: int) -> bool:
        return bool(page["wanted_ns"]) and abs(now - page["asked_ns"]) <= LOOK

    def submitted_ns(self, now: int) -> int:
        pages = [self.page, *filter(None, map(self.page_of, self.beside))]
        return sum(max(page["busy_ns"] - now, 0) for page in pages)

    def better_waits(self, sure: int, room: int, since: int, now: int) -> bool:
        assert self.seat or self.above
        mine = rank(self.seat) if self.seat else 10
        for seat in [*self.above, *self.beside]:
            page = self.page_of(seat)
            is_equal_to_old = rank(seat) == mine and now - since >= RISK_AFTER
            if not page or rank(seat) > mine or is_equal_to_old or not self.is_asking(page, now):
                continue
            its = page["wanted_ns"] - 1
            if its <= room and (rank(seat), -its, seat.slot) < (mine, -sure, self.slot):
                return True
        return False

    def admit(self, reason: int, wish: Wish, now: int) -> Answer:
        expect = wish[0]
        self.seen = {seat: self.device.pages[seat.slot]["sequence"] for seat in self.above}
        self.announce(wish, now)
        self.device.below_ns = max(self.device.below_ns, self.page["busy_ns"])
        self.page["wanted_ns"] = 0
        if reason == RISK:
            self.charge(self.weight(expect) + 1, now)
        self.charge_share(wish, now)
        if reason in {GAP, BESIDE} and self.cost():
            self.charge(self.cost(), now)
        self.has_switched = True
        if self.charged_until <= now:
            self.grain = wish[5]
        elif self.grain:
            self.grain = max(self.grain, wish[5]) if wish[5] else 0
        if reason == GAP:
            self.page["filled_ns"] += expect
        if reason == LEAST and self.seat:
            used = earned_in(self.weight(expect) + 1, self.seat.least_ppm)
            self.page["least_ns"] = min(max(self.page["least_ns"], now) + used, now + FAR)
        self.charged_from, self.is_back = now, reason == RISK
        self.charged_until = 0 if reason == LEAST else self.page["busy_ns"]
        self.ended = self.ended if self.unconfirmed else now
        self.unconfirmed += 1
        self.unconfirmed_ns += self.weight(expect)
        self.page["admitted"] += 1
        self.page[f"passed {reason}"] += 1
        return 1, reason, now

    def is_deep(self, wish: Wish, submitted: int, now: int) -> bool:
        gives_way = wish[5] and (self.grain or self.page["busy_ns"] <= now)
        depth = DEPTH + (part_of(self.bound_of(wish), self.rules.delay_ppm) if gives_way else 0)
        return submitted > LEAD // 2 and submitted + wish[0] > depth

    def decide_free(self, wish: Wish, submitted: int, now: int) -> tuple[int, int]:
        debt, lead = self.debt(now), min(LEAD, self.rules.bound_ns)
        if debt > BURST:
            return DEBT, now + debt - BURST
        if submitted > lead and submitted + wish[0] > self.bound_of(wish):
            return BOUND, now + submitted - lead
        return FREE, now

    def busy_of(self, page: Page, now: int) -> int:
        """When its work is over; work that its host still waits for is not, for a while."""
        busy = page["busy_ns"]
        return now + WAITED_FOR if page["waits_ns"] and busy <= now < busy + self.rules.patience_ns else busy

    def cost(self) -> int:
        return 0 if self.has_switched else self.rules.switch_ns

    def spendable_at(self, loss: int, worth: int, since: int, now: int) -> int:
        if self.rules.policy is not GatePolicy.FILL or not self.rules.delay_ppm:
            return NEVER
        earned, debt = earned_in(self.losses.scaled(loss), self.spared_ppm()), self.debt(now)
        if loss <= max(worth // 4, min(worth, 2**32 - 1) * min(self.rules.delay_ppm, DELAY_MOST) // PPM):
            return max(max(self.spent, now - SPARE) + earned, now + max(debt - BURST, 0))
        return max(max(self.spent, since) + earned, now + debt)

    def spend(self, loss: int, now: int) -> None:
        self.spent = max(self.spent, now - SPARE) + earned_in(self.losses.scaled(loss), self.spared_ppm())

    def decide_gap(self, wish: Wish, holder: Page, quiet: int, since: int, now: int) -> tuple[int, int]:
        """The holder is the one that is expected back first."""
        expect, sure, _, _, may_fill, grain, *_ = wish
        sure, end = max(sure, expect), holder["next_ns"]
        submitted, debt = self.submitted_ns(now), self.debt(now)
        cost, loss = self.cost(), 0
        begin = now + submitted + 2 * cost
        if not may_fill:
            return DUE, quiet
        if debt > HARD_DEBT:
            return DEBT, now + debt - HARD_DEBT
        if cost or begin + sure > end:
            mean, worst = loss_at(holder, begin + expect, now), loss_at(holder, begin + sure, now)
            loss = mean - mean // 4 + worst // 4 + cost + 1
            loss = min(loss, max(self.loss_beside(wish, now), 1)) if grain and not cost else loss
            spend = self.spendable_at(loss, expect, since, now)
            if loss and spend > now:
                last = max(holder["busy_ns"] - holder["at_ns"], 0)
                return (TIGHT, min(spend, end + last)) if now < end else (DUE, min(spend, quiet))
        if self.is_deep(wish, submitted, now):
            return BOUND, now + submitted - LEAD // 2
        if self.better_waits(sure, max(end - begin, 0), since, now):
            return OTHER, now + AGAIN
        if loss:
            self.spend(loss, now)
        return GAP, now

    def look(self, now: int) -> tuple[list[Page], list[Page], int]:
        """Those above that have launched, those of them that are expected back, and when their work is over."""
        pages = [page for page in map(self.page_of, self.above) if page and page["sequence"]]
        expected = [page for page in pages if now < page["quiet_ns"] and not self.is_asking(page, now)]
        return pages, expected, max([now, *(self.busy_of(page, now) for page in pages)])

    def loss_beside(self, wish: Wish, now: int) -> int:
        """What those above lose to blocks that give way: half of one for each of their kernels that come meanwhile."""
        pages, expected, busy = self.look(now)
        first = now + self.submitted_ns(now)
        begin = first if now < busy else max(min(page["next_ns"] for page in expected), first)
        over = max(first + wish[0] - begin, 0)
        active = [page for page in pages if self.busy_of(page, now) > now or any(page is other for other in expected)]
        pieces = min(over, 2**32 - 1) * min(sum(map(pace_of, active)), 2**32 - 1) // 10**9
        return min(yielded(pieces + 1, wish[5]), over) + 1 if over else 0

    def decide_beside(self, wish: Wish, since: int, now: int) -> tuple[int, int]:
        """BESIDE, or what keeps it from that; TIGHT until it can be spared."""
        expect, sure, _, _, _, grain, *_ = wish
        if not grain or not expect:
            return TIGHT, NEVER
        loss, submitted = self.loss_beside(wish, now), self.submitted_ns(now)
        at = self.spendable_at(loss, expect, since, now)
        if at > now:
            return TIGHT, at
        if self.is_deep(wish, submitted, now):
            return BOUND, now + submitted - LEAD // 2
        _, expected, busy = self.look(now)
        if now >= busy:
            room = max(min(page["next_ns"] for page in expected) - now - submitted, 0)
            if self.better_waits(max(sure, expect), room, since, now):
                return OTHER, now + AGAIN
        if loss:
            self.spend(loss, now)
        return BESIDE, now

    def decide(self, wish: Wish, since: int, now: int) -> tuple[int, int]:
        """The reason, and until when to wait if it is one to wait."""
        expect = wish[0]
        _, expected, busy = self.look(now)
        quiet = max([busy, *(page["quiet_ns"] for page in expected)])
        if not expected and busy == now:
            return self.decide_free(wish, self.submitted_ns(now), now)
        if busy > now:
            reason, until = BUSY, busy
        elif self.rules.policy is not GatePolicy.FILL:
            reason, until = DUE, quiet
        else:
            reason, until = self.decide_gap(wish, min(expected, key=lambda page: page["next_ns"]), quiet, since, now)
        if reason not in {BUSY, TIGHT, DUE}:
            return reason, until
        beside, at = self.decide_beside(wish, since, now)
        if beside != TIGHT:
            return beside, at
        until = min(until, at)
        if self.submitted_ns(now):
            return reason, until
        risk = max(self.spendable_at(self.weight(expect) + 1, 0, since, now), 0 if expect else since + RISK_AFTER)
        if risk > now:
            return reason, min(until, risk)
        self.spend(self.weight(expect) + 1, now)
        return RISK, now

    def ask(self, wish: Wish, since: int, now: int) -> Answer:
        expect, sure, _, _, may_fill, *_ = wish
        if not self.must_ask():
            self.announce(wish, now)
            self.page["wanted_ns"] = 0
            self.page[f"passed {TOP}"] += 1
            return 1, TOP, now
        is_full = self.is_full(wish, now)
        competes = may_fill and not is_full and not self.is_paused
        self.page["wanted_ns"] = max(sure, expect) + 1 if competes else NEVER
        self.page["asked_ns"] = now
        self.settle(now)
        if self.is_paused:
            return 0, PAUSED, now + PAUSE_LOOK
        if is_full:
            self.be_held(max(now - self.ended, 0), now)
            if self.is_ending or (now - since) // 8 < STUCK_AFTER // 8 + self.unconfirmed_ns:
                return 0, BOUND, self.room_at(wish, now)
            self.page["stuck"] += 1
            self.is_lent = False
            return self.admit(STUCK, wish, now)
        _, expected, busy = self.look(now)
        reason, until = self.decide_share(wish, bool(expected) or busy > now, since, now)
        if reason:
            self.page["wanted_ns"] = NEVER
            return 0, reason, until
        if self.rules.policy is GatePolicy.OPEN or (not self.above and not self.is_ending):
            return self.admit(LENT if self.is_lent else FREE, wish, now)
        reason, until = self.decide(wish, since, now)
        is_due = self.seat and self.seat.least_ppm and self.page["least_ns"] - now <= BURST
        if reason >= BUSY and is_due and self.page["busy_ns"] - now <= LEAD:
            reason = LEAST
        return self.admit(reason, wish, now) if reason < BUSY else (0, reason, until)

    # ---- after the answer

    def take_off(self, expect: int, now: int) -> None:
        self.unconfirmed -= 1
        self.ended = now
        self.unconfirmed_ns = max(self.unconfirmed_ns - self.weight(expect), 0) if self.unconfirmed else 0
        if not self.unconfirmed:
            self.page["busy_ns"] = min(self.page["busy_ns"], now)
            if not self.is_back:
                self.charged_until = min(self.charged_until, now)

    def submitted(self, wish: Wish, is_submitted: bool, now: int) -> None:
        if not self.unconfirmed:
            return
        if not is_submitted:
            self.charge_share(wish, now, -1)
            self.take_off(wish[0], now)
            return
        self.page["submitted"] += 1
        first = self.first_back()
        if first != NEVER:
            self.page["late"] += 1
            self.page["late_ns"] += max(now - first, 0)

    def confirmed(self, expect: int, now: int) -> None:
        if self.unconfirmed:
            self.page["confirmed"] += 1
            self.take_off(expect, now)

    def prolong(self, until: int) -> None:
        self.page["busy_ns"] = max(self.page["busy_ns"], until)
        if self.charged_until and until > self.charged_until:
            self.owed += until - self.charged_until if self.is_back else 0
            self.charged_until = until

    def waited(self, since: int, now: int) -> None:
        self.page["wanted_ns"] = 0
        self.page["waits"] += 1
        self.page["waited_ns"] += max(now - since, 0)
