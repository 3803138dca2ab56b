"""The rules of the gate in plain Python, one call at a time, as the reference for the C code."""

from __future__ import annotations

from typing import Final

from cotenant.gate.rules import GateEntry, GatePolicy
from tests.support.gate_parts import BLOCKS, cut
from tests.support.gate_shares import Shares
from tests.support.gate_sums import (
    AGAIN,
    BESIDE,
    BOUND,
    BURST,
    BUSY,
    CLEAN,
    CLEAN_FOR,
    CLEAN_LOOK,
    DEBT,
    DELAY_MOST,
    DEPTH,
    DUE,
    FAR,
    FREE,
    GAP,
    HARD_DEBT,
    IDLE_FIRST,
    LEAD,
    LEAST,
    LENT,
    LOOK,
    LOWER_BUSY_FORGET,
    LOWER_BUSY_LOOK,
    LOWER_BUSY_MOST,
    MS,
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
    LaunchRequest,
    Page,
    earned_in,
    granularity_of_launch,
    loss_at,
    pace_of,
    part_of,
    rank,
    with_ignored_priority,
)

EXPECTED: Final = 1000 * MS
"""How long after its last activity a higher priority is expected to launch again."""


class Tenant(Shares):
    """One process of a tenant: decides whether it may launch, and accounts for the launch."""

    # ---- admission

    asked: LaunchRequest
    """The launch about which it decides, or the part of it that is to be launched."""

    def part_bound(self, now: int) -> int:
        """Return the bound of one part; 0: no higher priority was active recently."""
        pages = [page for page in map(self.page_of, self.above) if page and page["sequence"]]
        is_expected = any(now - max(page["at_ns"], page["busy_ns"]) <= EXPECTED for page in pages)
        return max(min(DEPTH, self.rules.bound_ns), 1) if is_expected else 0

    def is_asking(self, page: Page, now: int) -> bool:
        return bool(page["wanted_ns"]) and abs(now - page["asked_ns"]) <= LOOK

    def submitted_ns(self, now: int) -> int:
        return max(self.page["busy_ns"] - now, 0) + sum(self.work_of(entry, now) for entry in self.beside)

    def work_of(self, entry: GateEntry, now: int) -> int:
        """Return the work of a peer; that of a lower priority does not count after a long wait without its end."""
        page, key = self.page_of(entry), (entry.slot, entry.generation)
        work = max(page["busy_ns"] - now, 0) if page else 0
        if not page or entry in self.equals:
            return work
        looked, waited = self.lower_busy.get(key, (0, 0))
        elapsed = max(now - looked, 0)
        waited = waited + elapsed if elapsed <= LOWER_BUSY_LOOK else max(waited - elapsed // LOWER_BUSY_FORGET, 0)
        self.lower_busy[key] = now, waited if work else 0
        return 0 if self.is_doubted(entry) else work

    def is_doubted(self, entry: GateEntry) -> bool:
        """Return whether the work that a tenant of lower priority shows no longer counts."""
        _, waited = self.lower_busy.get((entry.slot, entry.generation), (0, 0))
        return waited >= LOWER_BUSY_MOST

    def better_waits(self, sure: int, gap: int, since: int, now: int) -> bool:
        assert self.entry or self.above
        mine = rank(self.entry) if self.entry else 10
        for entry in [*self.above, *self.beside]:
            page = self.page_of(entry)
            is_equal_to_old = rank(entry) == mine and now - since >= RISK_AFTER
            if not page or rank(entry) > mine or is_equal_to_old or not self.is_asking(page, now):
                continue
            its = page["wanted_ns"] - 1
            if its <= gap and (rank(entry), -its, entry.slot) < (mine, -sure, self.slot):
                return True
        return False

    def pass_with(self, reason: int, request: LaunchRequest, now: int) -> Answer:
        expect = request[0]
        self.seen = {entry: self.device.pages[entry.slot]["sequence"] for entry in self.above}
        self.announce(request, now)
        until = min(self.page["busy_ns"] + STUCK_AFTER, now + FAR)
        self.page["admitted_until_ns"] = max(self.page["admitted_until_ns"], until)
        self.page["wanted_ns"] = 0
        if reason == RISK:
            self.charge(self.weight(expect) + 1, now)
        self.charge_share(request, now)
        if reason in {GAP, BESIDE} and self.cost():
            self.charge(self.cost(), now)
        self.has_switched = True
        if self.charged_until <= now:
            self.granularity = request[5]
        elif self.granularity:
            self.granularity = max(self.granularity, request[5]) if request[5] else 0
        if reason == GAP:
            self.page["filled_ns"] += expect
        if reason == LEAST and self.entry:
            used = earned_in(self.weight(expect) + 1, self.entry.guaranteed_ppm)
            self.page["min_share_ns"] = min(max(self.page["min_share_ns"], now) + used, now + FAR)
        self.charged_from, self.is_back = now, reason == RISK
        self.charged_until = 0 if reason == LEAST else self.page["busy_ns"]
        self.ended = self.ended if self.unconfirmed else now
        self.unconfirmed += 1
        self.unconfirmed_ns += self.weight(expect)
        self.page["admitted"] += 1
        self.page[f"passed {reason}"] += 1
        return 1, reason, now

    def is_deep(self, request: LaunchRequest, submitted: int, now: int) -> bool:
        gives_way = request[5] and (self.granularity or self.page["busy_ns"] <= now)
        depth = DEPTH + (part_of(self.bound_of(request), self.rules.delay_ppm) if gives_way else 0)
        return submitted > LEAD // 2 and submitted + request[0] > depth

    def decide_free(self, request: LaunchRequest, submitted: int, now: int) -> tuple[int, int]:
        debt, lead = self.debt(now), min(LEAD, self.rules.bound_ns)
        if debt > BURST:
            self.idle_debt = now
            return DEBT, now + debt - BURST
        bound = self.part_bound(now) if len(request) > BLOCKS and request[BLOCKS] else 0
        if submitted > lead and submitted + request[0] > (bound or self.bound_of(request)):
            return BOUND, now + submitted - lead
        return FREE, now

    def busy_of(self, page: Page, now: int) -> int:
        """Return when its work ends; work that was not seen to complete is assumed to run a while longer."""
        busy = page["busy_ns"]
        waited, work = now - max(page["waits_ns"], busy), min(max(busy - page["at_ns"], 0), FAR)
        is_awaited = page["waits_ns"] and waited <= min(16 * work + STUCK_AFTER, FAR)
        if busy > now or not (is_awaited or page["unfinished_ns"] > now):
            return busy
        return now + WAITED_FOR + min((now - busy) // 2, 2000 * MS)

    def cost(self) -> int:
        return 0 if self.has_switched else self.rules.switch_ns

    def spendable_at(self, loss: int, loss_ns: int, since: int, now: int) -> int:
        if self.rules.policy is not GatePolicy.FILL or not self.rules.delay_ppm:
            return NEVER
        earned, debt = earned_in(self.losses.scaled(loss), self.spared_ppm()), self.debt(now)
        first = self.idle_debt + IDLE_FIRST if self.idle_debt else 0
        if loss <= max(loss_ns // 4, min(loss_ns, 2**32 - 1) * min(self.rules.delay_ppm, DELAY_MOST) // PPM):
            return max(first, max(self.spent, now - SPARE) + earned, now + max(debt - BURST, 0))
        return max(first, max(self.spent, since) + earned, now + debt)

    def spend(self, loss: int, now: int) -> None:
        self.spent = max(self.spent, now - SPARE) + earned_in(self.losses.scaled(loss), self.spared_ppm())

    def decide_gap(self, request: LaunchRequest, holder: Page, quiet: int, since: int, now: int) -> tuple[int, int]:
        """Decide about a launch into a gap; the holder is the tenant that is expected back first."""
        expect, sure, _, _, may_fill, granularity, *_ = request
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
            loss = min(loss, max(self.loss_beside(request, now), 1)) if granularity and not cost else loss
            spend = self.spendable_at(loss, expect, since, now)
            if loss and spend > now:
                last = max(holder["busy_ns"] - holder["at_ns"], 0)
                return (TIGHT, min(spend, end + last)) if now < end else (DUE, min(spend, quiet))
        if self.is_deep(request, submitted, now):
            return BOUND, now + submitted - LEAD // 2
        if self.better_waits(sure, max(end - begin, 0), since, now):
            return OTHER, now + AGAIN
        if loss:
            self.spend(loss, now)
        return GAP, now

    def look(self, now: int) -> tuple[list[Page], list[Page], int]:
        """Return the higher priorities that have launched, those expected back, and the end of their work."""
        pages = [page for page in map(self.page_of, self.above) if page and page["sequence"]]
        expected = [page for page in pages if now < page["quiet_ns"] and not self.is_asking(page, now)]
        return pages, expected, max([now, *(self.busy_of(page, now) for page in pages)])

    def loss_beside(self, request: LaunchRequest, now: int) -> int:
        """Return what higher priorities lose to yielding blocks: half a block per kernel that they launch meanwhile."""
        pages, expected, busy = self.look(now)
        first = now + self.submitted_ns(now)
        begin = first if now < busy else max(min(page["next_ns"] for page in expected), first)
        over = max(first + request[0] - begin, 0)
        active = [page for page in pages if self.busy_of(page, now) > now or any(page is other for other in expected)]
        pieces = min(over, 2**32 - 1) * min(sum(map(pace_of, active)), 2**32 - 1) // 10**9
        return min(granularity_of_launch(pieces + 1, request[5]), over) + 1 if over else 0

    def decide_beside(self, request: LaunchRequest, since: int, now: int) -> tuple[int, int]:
        """Return BESIDE or the reason against it; TIGHT until the loss can be spared."""
        expect, sure, _, _, _, granularity, *_ = request
        if not granularity or not expect:
            return TIGHT, NEVER
        loss, submitted = self.loss_beside(request, now), self.submitted_ns(now)
        at = self.spendable_at(loss, expect, since, now)
        if at > now:
            return TIGHT, at
        if self.is_deep(request, submitted, now):
            return BOUND, now + submitted - LEAD // 2
        _, expected, busy = self.look(now)
        if now >= busy:
            gap = max(min(page["next_ns"] for page in expected) - now - submitted, 0)
            if self.better_waits(max(sure, expect), gap, since, now):
                return OTHER, now + AGAIN
        if loss:
            self.spend(loss, now)
        return BESIDE, now

    def decide(self, request: LaunchRequest, since: int, now: int) -> tuple[int, int]:
        """Return the reason, and until when to wait if the launch must wait."""
        pages, expected, busy = self.look(now)
        if any(page["clean_wanted_ns"] and now - page["clean_wanted_ns"] <= CLEAN_FOR for page in pages):
            return CLEAN, now + CLEAN_LOOK
        quiet = max([busy, *(page["quiet_ns"] for page in expected)])
        if not expected and busy == now:
            return self.decide_free(request, self.submitted_ns(now), now)
        if busy > now:
            reason, until = BUSY, busy
        elif self.rules.policy is not GatePolicy.FILL:
            reason, until = DUE, quiet
        else:
            holder = min(expected, key=lambda page: page["next_ns"])
            gap = holder["next_ns"] - now - self.submitted_ns(now) - 2 * self.cost()
            request = self.asked = cut(request, gap) if gap > 0 else request
            reason, until = self.decide_gap(request, holder, quiet, since, now)
        expect = request[0]
        if reason not in {BUSY, TIGHT, DUE}:
            return reason, until
        beside, at = self.decide_beside(request, since, now)
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

    def admit(self, request: LaunchRequest, since: int, now: int) -> Answer:
        self.asked = request
        if not self.must_ask():
            self.announce(request, now)
            self.page["wanted_ns"] = 0
            self.page[f"passed {TOP}"] += 1
            return 1, TOP, now
        if self.above and self.rules.policy is not GatePolicy.OPEN:
            request = self.asked = cut(request, self.part_bound(now))
        request = with_ignored_priority(request, self.rules.ignored_priority_ppm)
        expect, sure, _, _, may_fill, *_ = request
        is_full = self.is_full(request, now)
        competes = may_fill and not is_full and not self.is_paused
        self.page["wanted_ns"] = max(sure, expect) + 1 if competes else NEVER
        self.page["asked_ns"] = now
        self.settle(now)
        if self.is_paused:
            return 0, PAUSED, now + PAUSE_LOOK
        self.submitted_ns(now)
        if is_full:
            self.be_held(max(now - self.ended, 0), now)
            if self.is_ending or (now - since) // 8 < STUCK_AFTER // 8 + self.unconfirmed_ns:
                return 0, BOUND, self.room_at(request, now)
            self.page["stuck"] += 1
            self.is_lent = False
            return self.pass_with(STUCK, request, now)
        _, expected, busy = self.look(now)
        reason, until = self.decide_share(request, bool(expected) or busy > now, since, now)
        if reason:
            self.page["wanted_ns"] = NEVER
            return 0, reason, until
        if self.rules.policy is GatePolicy.OPEN or (not self.above and not self.is_ending):
            return self.pass_with(LENT if self.is_lent else FREE, request, now)
        reason, until = self.decide(request, since, now)
        is_due = self.entry and self.entry.guaranteed_ppm and self.page["min_share_ns"] - now <= BURST
        if reason >= BUSY and is_due and self.page["busy_ns"] - now <= LEAD:
            reason = LEAST
        return self.pass_with(reason, self.asked, now) if reason < BUSY else (0, reason, until)

    # ---- after the answer

    def take_off(self, expect: int, now: int) -> None:
        self.unconfirmed -= 1
        self.ended = now
        self.unconfirmed_ns = max(self.unconfirmed_ns - self.weight(expect), 0) if self.unconfirmed else 0
        if not self.unconfirmed:
            self.page["admitted_until_ns"] = min(self.page["admitted_until_ns"], now)
        until = now + self.unconfirmed_ns
        self.page["busy_ns"] = min(self.page["busy_ns"], until)
        if not self.is_back:
            self.charged_until = min(self.charged_until, until)

    def submitted(self, request: LaunchRequest, is_submitted: bool, now: int) -> None:
        if not self.unconfirmed:
            return
        if not is_submitted:
            self.charge_share(request, now, -1)
            self.take_off(request[0], now)
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
