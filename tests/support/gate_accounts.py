"""The gate's accounting in plain Python: page contents, charges and debts of a tenant."""

from __future__ import annotations

from cotenant.gate.rules import GateEntry, GatePolicy, GateRules
from tests.support.gate_losses import Losses
from tests.support.gate_sums import (
    DEBT_MOST,
    DELAY_MOST,
    DUTY,
    DUTY_LEAST,
    DUTY_START,
    FAR,
    HELD_FOR,
    HELD_MOST,
    NEVER,
    PATIENCE_LEAST,
    PPM,
    RECENT,
    LaunchRequest,
    Page,
    earned_in,
    granularity_of_launch,
    new_page,
    rank,
    tenths_of,
)


class Device:
    """The pages of a device: the tenant table, the arbitration page, and a page for each process."""

    def __init__(self, slots: int) -> None:
        self.rules, self.writes, self.debt_ns = GateRules(entries=()), 0, 0
        self.charged_ns = 0
        self.pages = [new_page() for _ in range(slots)]

    def write(self, rules: GateRules) -> None:
        self.rules, self.writes = rules, self.writes + 1


class Ledger:
    """One process of a tenant: the tenants that it knows, its page, and what higher priorities lost to it."""

    def __init__(self, device: Device, slot: int, generation: int) -> None:
        self.device, self.slot, self.generation = device, slot, generation
        self.writes, self.orphan = -1, new_page()
        self.above: list[GateEntry] = []
        self.seen: dict[GateEntry, int] = {}
        self.unconfirmed = self.unconfirmed_ns = 0
        self.charged_from = self.charged_until = self.owed = 0
        self.is_back = self.has_switched = False
        self.spent = self.granularity = self.duty_from = self.duty_active = self.idle_debt = 0
        self.duty_ppm = DUTY_START
        self.is_lent = False
        self.held = self.held_at = self.ended = 0
        self.losses = Losses()
        self.lower_busy: dict[tuple[int, int], tuple[int, int]] = {}
        self.must_ask()

    # ---- the tenant table

    def must_ask(self) -> bool:
        rules = self.device.rules
        if self.writes != self.device.writes:
            self.writes = self.device.writes
            self.entry = next(
                (s for s in rules.entries if (s.slot, s.generation) == (self.slot, self.generation)), None
            )
            priority = rank(self.entry) if self.entry else 10
            others = [s for s in rules.entries if s is not self.entry]
            known = {(s.slot, s.generation): seen for s, seen in self.seen.items()}
            self.above = [s for s in others if rank(s) < priority]
            self.beside = [s for s in others if rank(s) >= priority]
            pages = self.device.pages
            self.seen = {s: known.get((s.slot, s.generation), pages[s.slot]["sequence"]) for s in self.above}
            self.losses.entry({(s.slot, s.generation): pages[s.slot] for s in self.above})
            beside = {(s.slot, s.generation) for s in self.beside}
            self.lower_busy = {key: seen for key, seen in self.lower_busy.items() if key in beside}
            self.duty_from = 0
            self.page = pages[self.slot] if self.entry else self.orphan
            if self.entry and self.page["generation"] != self.generation:
                kept = {"sequence": self.page["sequence"], "asked_ns": self.page["asked_ns"]}
                self.page.update(new_page() | kept | {"generation": self.generation})
        self.rules, self.is_paused = rules, bool(self.entry and self.entry.paused)
        self.is_ending = bool(self.entry and self.entry.ending)
        self.limit, self.is_static = (self.entry.limit_ppm, self.entry.static) if self.entry else (0, False)
        self.equals = [s for s in self.beside if rank(s) == (rank(self.entry) if self.entry else 10)]
        asks = self.is_paused or self.is_ending or bool(rules.policy is not GatePolicy.OPEN and self.above)
        asks = asks or (self.limit > 0 and self.is_static) or any(self.limit or s.limit_ppm for s in self.equals)
        if not asks:
            self.unconfirmed = self.unconfirmed_ns = self.charged_until = self.owed = 0
        return asks

    def page_of(self, entry: GateEntry) -> Page | None:
        page = self.device.pages[entry.slot]
        return page if page["generation"] == entry.generation else None

    # ---- the tenant's own page

    def patience(self, low: int, high: int) -> int:
        most, spread = self.rules.patience_ns, max(high - low, 0)
        if high and most and spread > most:
            return max(most // (spread // most), PATIENCE_LEAST)
        return max(most if not high or spread > most // 4 else 4 * spread, PATIENCE_LEAST)

    def be_active(self, now: int) -> None:
        page, marked = self.page, self.page["active_counted_ns"]
        if marked and now > marked:
            page["active_ns"] += min(now - marked, max(page["busy_ns"] - marked, self.rules.patience_ns))
        page["active_counted_ns"] = now

    def announce(self, request: LaunchRequest, now: int) -> None:
        expect, _, low, high, _, _, pieces, *_ = request
        page, far = self.page, now + FAR
        if page["at_ns"] and page["next_ns"] > page["at_ns"]:
            page["forecasts"] += 1
            page["early"] += now < page["next_ns"]
            page["miss_ns"] += abs(now - page["next_ns"])
        page["launches"] += 1
        page["device_ns"] += expect
        page["kernel_count"] += pieces or 1
        page["unfinished_ns"] = page["unfinished_ns"] if expect else far
        self.be_active(now)
        self.losses.announced(expect, now)
        page["busy_ns"] = min(max(page["busy_ns"], now) + expect, far)
        page["next_ns"] = min(now + low, far)
        page["latest_ns"], page["waits_ns"] = min(now + high, far), 0
        page["quiet_ns"] = min(page["next_ns"] + self.patience(low, high), far)
        page["at_ns"] = now
        page["sequence"] += 1
        page[f"recent {page['sequence'] % RECENT}"] = now

    def sync(self, low: int, high: int, is_drained: bool, now: int) -> None:
        page, far = self.page, now + FAR
        if page["active_counted_ns"]:
            self.be_active(now)
            page["active_counted_ns"] = 0 if is_drained else now
        if is_drained:
            present = [page, *filter(None, map(self.page_of, [*self.above, *self.beside]))]
            asked_until = max(other["admitted_until_ns"] for other in present)
            self.losses.drained(page, asked_until, now)
            if page["waits_ns"]:
                self.be_held(max(now - max(page["busy_ns"], page["waits_ns"]), 0), now)
        busy = now if is_drained else max(page["busy_ns"], now)
        if is_drained:
            page["busy_ns"], page["unfinished_ns"] = busy, 0
        page["latest_ns"], page["waits_ns"] = min(busy + high, far), 0 if is_drained else now
        page["next_ns"] = min(busy + low, far)
        page["quiet_ns"] = min(busy + low + self.patience(low, high), far)

    def be_held(self, held: int, now: int) -> None:
        """Record for how long equals held up its work; the longest recent hold is kept."""
        must_share = (self.limit and self.is_static) or any(self.limit or s.limit_ppm for s in self.equals)
        if self.limit and must_share and (held >= self.held or now - self.held_at > HELD_FOR):
            self.held, self.held_at = min(held, HELD_MOST), now

    # ---- the debt

    def debt(self, now: int) -> int:
        """Return the debt; a charge by a tenant that has left is forgiven, and one of lower priority has no effect."""
        present = [self.page, *filter(None, map(self.page_of, [*self.above, *self.equals]))]
        return max(max(page["owes_ns"] for page in present) - now, 0)

    def spared_ppm(self) -> int:
        """Return the part of the time that higher priorities may lose: a fraction of their active time."""
        delay = self.rules.delay_ppm
        return max(min(delay, DELAY_MOST) * self.duty_ppm // PPM, 1) if delay else 0

    def count_duty(self, now: int) -> None:
        if now - self.duty_from < DUTY:
            return
        self.losses.look(self.device.charged_ns)
        active = sum(page["active_ns"] for page in filter(None, map(self.page_of, self.above)))
        if self.duty_from:
            more, span = max(active - self.duty_active, 0), now - self.duty_from
            duty = PPM if more >= span else more * 1000 // (span // 1000)
            before = duty if self.duty_ppm in {DUTY_LEAST, DUTY_START} else self.duty_ppm
            self.duty_ppm = max((before + duty) // 2, DUTY_LEAST)
        self.duty_from, self.duty_active = now, active

    def charge(self, thought: int, now: int) -> None:
        lost = self.losses.scaled(thought)
        owes = now + min(self.debt(now) + earned_in(lost, self.spared_ppm()), DEBT_MOST)
        self.device.debt_ns = self.page["owes_ns"] = owes
        self.device.charged_ns += min(thought, FAR)
        self.page["overruns"] += 1
        self.page["overrun_ns"] += lost

    def first_back(self) -> int:
        """Return when the first tenant of higher priority launched since this launch was admitted."""
        first = NEVER
        for entry, seen in self.seen.items():
            page = self.page_of(entry)
            if page and page["sequence"] != seen:
                oldest = max(seen + 1, page["sequence"] - RECENT + 2)
                first = min(first, max(page.get(f"recent {oldest % RECENT}", 0), self.charged_from))
        return first

    def pieces_back(self) -> int:
        """Return the kernels that higher priorities launched since this launch was admitted, while its work ran."""
        pieces = 0
        for entry, seen in self.seen.items():
            page = self.page_of(entry)
            if page and page["sequence"] != seen:
                known = min(page["sequence"] - seen, RECENT - 2)
                latest = [page.get(f"recent {(page['sequence'] - i) % RECENT}", 0) for i in range(known)]
                launches = sum(at < self.charged_until for at in latest)
                launches = page["sequence"] - seen if launches == known else launches
                pieces += launches * tenths_of(page) // 10
        return pieces

    def settle(self, now: int) -> None:
        self.count_duty(now)
        back = self.first_back()
        if back != NEVER:
            if back < self.charged_until and not self.is_back:
                lost = self.charged_until - back
                if self.granularity:
                    lost = min(lost, granularity_of_launch(self.pieces_back(), self.granularity))
                    self.charged_from = back + lost
                self.charge(lost, now)
            self.is_back, self.has_switched = self.is_back or not self.granularity, False
            for entry in self.above:
                page = self.page_of(entry)
                self.seen[entry] = page["sequence"] if page else self.seen[entry]
        if self.owed:
            self.charge(self.owed, now)
        self.owed = 0
