"""The rules of the gate in plain Python, one tenant's call after the other: what the C code must say and show."""

from __future__ import annotations

from typing import Final

from cotenant.domain.gate import GatePolicy, GateRules, GateSeat

US: Final = 1000
MS: Final = 1000 * US
NEVER: Final = 2**64 - 1
TOP, FREE, GAP, LEAST, RISK, STUCK = range(6)
BUSY, TIGHT, DUE, BOUND, OTHER, PAUSED, CHANGED, DEBT = range(8, 16)
LEAD, DEPTH, LOOK = 60 * US, 100 * US, 50 * US
RISK_AFTER, BURST, HARD_DEBT, STUCK_AFTER = 10 * MS, 30 * MS, 120 * MS, 100 * MS
DEBT_MOST = FAR = 60_000 * MS
CLOSED, AGAIN, PAUSE_LOOK, PATIENCE_LEAST, WAITED_FOR = 2000 * MS, 2 * US, 5 * MS, 250 * US, 50 * US
SPARE = 20 * MS
RECENT, PPM = 32, 10**6

Wish = tuple[int, int, int, int, int]
"""expect, sure, low, high, may_fill"""
Page = dict[str, int]
Answer = tuple[int, int, int]

WORDS: Final = ("sequence", "at_ns", "quiet_ns", "next_ns", "busy_ns", "generation")
WISHES: Final = ("latest_ns", "waits_ns", "wanted_ns", "asked_ns")
COUNTS: Final = (
    *("launches", "device_ns", "filled_ns", "waits", "waited_ns", "overruns", "overrun_ns", "admitted", "submitted"),
    *("late", "late_ns", "stale", "foreseen", "early", "miss_ns", "confirmed", "stuck"),
)


def earned_in(amount: int, ppm: int) -> int:
    return min(amount * PPM // min(ppm, PPM), DEBT_MOST) if ppm else CLOSED


def loss_of(holder: Page, until: int, now: int) -> int:
    """What the holder loses in the mean if our work ends then: it comes at any instant from earliest to latest."""
    begin = max(holder["next_ns"], now)
    over, width = max(until - begin, 0), max(holder["latest_ns"] - begin, now - holder["next_ns"], 0)
    if over >= width:
        return over - width // 2
    return over * over // width // 2 if over < 2**32 - 1 else over // 2


class Device:
    """The file: what the node says, the floor, and a page for each slot."""

    def __init__(self, slots: int) -> None:
        self.rules, self.writes, self.debt_ns = GateRules(seats=()), 0, 0
        self.pages = [new_page() for _ in range(slots)]

    def write(self, rules: GateRules) -> None:
        self.rules, self.writes = rules, self.writes + 1


def new_page() -> Page:
    return dict.fromkeys((*WORDS, *WISHES, *COUNTS, *(f"passed {reason}" for reason in range(16))), 0)


class Tenant:
    """One process of a tenant."""

    def __init__(self, device: Device, slot: int, generation: int) -> None:
        self.device, self.slot, self.generation = device, slot, generation
        self.writes, self.orphan = -1, new_page()
        self.above: list[GateSeat] = []
        self.seen: dict[GateSeat, int] = {}
        self.unconfirmed = self.unconfirmed_ns = 0
        self.charged_from = self.charged_until = self.owed = self.least_until = 0
        self.is_back = self.has_switched = False
        self.spent = 0
        self.must_ask()

    # ---- the roster

    def must_ask(self) -> bool:
        rules = self.device.rules
        if self.writes != self.device.writes:
            self.writes = self.device.writes
            self.seat = next((s for s in rules.seats if (s.slot, s.generation) == (self.slot, self.generation)), None)
            priority = self.seat.priority if self.seat else 10
            others = [s for s in rules.seats if s is not self.seat]
            known = {(s.slot, s.generation): seen for s, seen in self.seen.items()}
            self.above = [s for s in others if s.priority < priority]
            self.beside = [s for s in others if s.priority >= priority]
            pages = self.device.pages
            self.seen = {s: known.get((s.slot, s.generation), pages[s.slot]["sequence"]) for s in self.above}
            self.page = pages[self.slot] if self.seat else self.orphan
            if self.seat and self.page["generation"] != self.generation:
                kept = {"sequence": self.page["sequence"], "asked_ns": self.page["asked_ns"]}
                self.page.update(new_page() | kept | {"generation": self.generation})
        self.rules, self.is_paused = rules, bool(self.seat and self.seat.paused)
        asks = self.is_paused or bool(rules.policy is not GatePolicy.OPEN and self.above)
        if not asks:
            self.unconfirmed = self.unconfirmed_ns = self.charged_until = self.owed = 0
        return asks

    def page_of(self, seat: GateSeat) -> Page | None:
        page = self.device.pages[seat.slot]
        return page if page["generation"] == seat.generation else None

    # ---- what the own page says

    def patience(self, low: int, high: int) -> int:
        most, spread = self.rules.patience_ns, max(high - low, 0)
        return max(most if not high or spread > most // 4 else 4 * spread, PATIENCE_LEAST)

    def announce(self, wish: Wish, now: int) -> None:
        expect, _, low, high, _ = wish
        page, far = self.page, now + FAR
        if page["at_ns"] and page["next_ns"] > page["at_ns"]:
            page["foreseen"] += 1
            page["early"] += now < page["next_ns"]
            page["miss_ns"] += abs(now - page["next_ns"])
        page["launches"] += 1
        page["device_ns"] += expect
        page["busy_ns"] = min(max(page["busy_ns"], now) + expect, far)
        page["next_ns"] = min(now + low, far)
        page["latest_ns"], page["waits_ns"] = min(now + high, far), 0
        page["quiet_ns"] = min(page["next_ns"] + self.patience(low, high), far)
        page["at_ns"] = now
        page["sequence"] += 1
        page[f"recent {page['sequence'] % RECENT}"] = now

    def rest(self, low: int, high: int, is_drained: bool, now: int) -> None:
        page, far = self.page, now + FAR
        busy = now if is_drained else max(page["busy_ns"], now)
        if is_drained:
            page["busy_ns"] = busy
        page["latest_ns"], page["waits_ns"] = min(busy + high, far), 0 if is_drained else now
        page["next_ns"] = min(busy + low, far)
        page["quiet_ns"] = min(busy + low + self.patience(low, high), far)

    # ---- the debt

    def debt(self, now: int) -> int:
        return max(self.device.debt_ns - now, 0)

    def charge(self, lost: int, now: int) -> None:
        self.device.debt_ns = now + min(self.debt(now) + earned_in(lost, self.rules.delay_ppm), DEBT_MOST)
        self.page["overruns"] += 1
        self.page["overrun_ns"] += lost

    def first_back(self) -> int:
        """When the first of those above launched since we were admitted."""
        first = NEVER
        for seat, seen in self.seen.items():
            page = self.page_of(seat)
            if page and page["sequence"] != seen:
                oldest = max(seen + 1, page["sequence"] - RECENT + 2)
                first = min(first, max(page.get(f"recent {oldest % RECENT}", 0), self.charged_from))
        return first

    def settle(self, now: int) -> None:
        back = self.first_back()
        if back != NEVER:
            if back < self.charged_until and not self.is_back:
                self.charge(self.charged_until - back, now)
            self.is_back, self.has_switched = True, False
            for seat in self.above:
                page = self.page_of(seat)
                self.seen[seat] = page["sequence"] if page else self.seen[seat]
        if self.owed:
            self.charge(self.owed, now)
        self.owed = 0

    # ---- may it go?

    def is_asking(self, page: Page, now: int) -> bool:
        return bool(page["wanted_ns"]) and abs(now - page["asked_ns"]) <= LOOK

    def submitted_ns(self, now: int) -> int:
        pages = [self.page, *filter(None, map(self.page_of, self.beside))]
        return sum(max(page["busy_ns"] - now, 0) for page in pages)

    def better_waits(self, sure: int, room: int, since: int, now: int) -> bool:
        assert self.seat or self.above
        mine = self.seat.priority if self.seat else 10
        for seat in [*self.above, *self.beside]:
            page = self.page_of(seat)
            is_equal_to_old = seat.priority == mine and now - since >= RISK_AFTER
            if not page or seat.priority > mine or is_equal_to_old or not self.is_asking(page, now):
                continue
            its = page["wanted_ns"] - 1
            if its <= room and (seat.priority, -its, seat.slot) < (mine, -sure, self.slot):
                return True
        return False

    def weight(self, expect: int) -> int:
        return expect or self.rules.bound_ns

    def admit(self, reason: int, wish: Wish, now: int) -> Answer:
        expect = wish[0]
        self.seen = {seat: self.device.pages[seat.slot]["sequence"] for seat in self.above}
        self.announce(wish, now)
        self.page["wanted_ns"] = 0
        if reason == RISK:
            self.charge(self.weight(expect) + 1, now)
        if reason == GAP and self.cost():
            self.charge(self.cost(), now)
        self.has_switched = True
        if reason == GAP:
            self.page["filled_ns"] += expect
        if reason == LEAST and self.seat:
            used = earned_in(self.weight(expect) + 1, self.seat.least_ppm)
            self.least_until = max(self.least_until, now) + used
        self.charged_from, self.is_back = now, reason == RISK
        self.charged_until = 0 if reason == LEAST else self.page["busy_ns"]
        self.unconfirmed += 1
        self.unconfirmed_ns += self.weight(expect)
        self.page["admitted"] += 1
        self.page[f"passed {reason}"] += 1
        return 1, reason, now

    def decide_free(self, expect: int, submitted: int, now: int) -> tuple[int, int]:
        debt, lead = self.debt(now), min(LEAD, self.rules.bound_ns)
        if debt > BURST and self.rules.delay_ppm:
            return DEBT, now + debt - BURST
        if submitted > lead and submitted + expect > self.rules.bound_ns:
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
        earned, debt = earned_in(loss, self.rules.delay_ppm), self.debt(now)
        if loss <= worth // 4:
            return max(max(self.spent, now - SPARE) + earned, now + max(debt - BURST, 0))
        return max(max(self.spent, since) + earned, now + debt)

    def spend(self, loss: int, now: int) -> None:
        self.spent = max(self.spent, now - SPARE) + earned_in(loss, self.rules.delay_ppm)

    def decide_gap(self, wish: Wish, holder: Page, quiet: int, since: int, now: int) -> tuple[int, int]:
        """The holder is the one that is expected back first."""
        expect, sure, _, _, may_fill = wish
        sure, end = max(sure, expect), holder["next_ns"]
        submitted, debt = self.submitted_ns(now), self.debt(now)
        cost, loss = self.cost(), 0
        begin = now + submitted + 2 * cost
        if not may_fill:
            return DUE, quiet
        if debt > HARD_DEBT:
            return DEBT, now + debt - HARD_DEBT
        if cost or begin + sure > end:
            mean, worst = loss_of(holder, begin + expect, now), loss_of(holder, begin + sure, now)
            loss = mean - mean // 4 + worst // 4 + cost + 1
            spend = self.spendable_at(loss, expect, since, now)
            if spend > now:
                last = max(holder["busy_ns"] - holder["at_ns"], 0)
                return (TIGHT, min(spend, end + last)) if now < end else (DUE, min(spend, quiet))
        if submitted > LEAD // 2 and submitted + expect > DEPTH:
            return BOUND, now + submitted - LEAD // 2
        if self.better_waits(sure, max(end - begin, 0), since, now):
            return OTHER, now + AGAIN
        if loss:
            self.spend(loss, now)
        return GAP, now

    def decide(self, wish: Wish, since: int, now: int) -> tuple[int, int]:
        """The reason, and until when to wait if it is one to wait."""
        expect = wish[0]
        pages = [page for page in map(self.page_of, self.above) if page and page["sequence"]]
        expected = [page for page in pages if now < page["quiet_ns"] and not self.is_asking(page, now)]
        busy = max([now, *(self.busy_of(page, now) for page in pages)])
        quiet = max([busy, *(page["quiet_ns"] for page in expected)])
        if not expected and busy == now:
            return self.decide_free(expect, self.submitted_ns(now), now)
        if busy > now:
            reason, until = BUSY, busy
        elif self.rules.policy is not GatePolicy.FILL:
            reason, until = DUE, quiet
        else:
            reason, until = self.decide_gap(wish, min(expected, key=lambda page: page["next_ns"]), quiet, since, now)
        if reason not in {BUSY, TIGHT, DUE} or self.submitted_ns(now):
            return reason, until
        risk = max(self.spendable_at(self.weight(expect) + 1, 0, since, now), 0 if expect else since + RISK_AFTER)
        if risk > now:
            return reason, min(until, risk)
        self.spend(self.weight(expect) + 1, now)
        return RISK, now

    def ask(self, wish: Wish, since: int, now: int) -> Answer:
        expect, sure, _, _, may_fill = wish
        if not self.must_ask():
            self.announce(wish, now)
            self.page["wanted_ns"] = 0
            self.page[f"passed {TOP}"] += 1
            return 1, TOP, now
        is_full = self.unconfirmed > 1 and self.unconfirmed_ns + self.weight(expect) > self.rules.bound_ns
        competes = may_fill and not is_full and not self.is_paused
        self.page["wanted_ns"] = max(sure, expect) + 1 if competes else NEVER
        self.page["asked_ns"] = now
        self.settle(now)
        if self.is_paused:
            return 0, PAUSED, now + PAUSE_LOOK
        if is_full:
            if (now - since) // 8 < STUCK_AFTER // 8 + self.unconfirmed_ns:
                return 0, BOUND, max(self.page["busy_ns"], now + AGAIN)
            self.page["stuck"] += 1
            return self.admit(STUCK, wish, now)
        reason, until = self.decide(wish, since, now)
        is_due = self.seat and self.seat.least_ppm and self.least_until - now <= BURST
        if reason >= BUSY and is_due and self.page["busy_ns"] <= now:
            reason = LEAST
        return self.admit(reason, wish, now) if reason < BUSY else (0, reason, until)

    # ---- after the answer

    def take_off(self, expect: int, now: int) -> None:
        self.unconfirmed -= 1
        self.unconfirmed_ns = max(self.unconfirmed_ns - self.weight(expect), 0) if self.unconfirmed else 0
        if not self.unconfirmed:
            self.page["busy_ns"] = min(self.page["busy_ns"], now)
            if not self.is_back:
                self.charged_until = min(self.charged_until, now)

    def submitted(self, wish: Wish, is_submitted: bool, now: int) -> None:
        if not self.unconfirmed:
            return
        if not is_submitted:
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
