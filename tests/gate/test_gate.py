"""The gate agrees with its reference model and keeps its invariants for any tenants, forecasts and instants."""

import struct
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from cotenant import _native
from cotenant.gate import tenant_table
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules
from tests.support import gate_model as model
from tests.support import gate_parts
from tests.support import gate_sums as sums
from tests.support.effort import examples
from tests.support.gate_accounts import Device
from tests.support.gate_sums import MS, US, Answer, LaunchRequest, Page

SLOTS, DEBT_AT = 5, tenant_table.TABLE_BYTES + 64

few_ns = st.sampled_from([20 * US, 0, 1, US, 70 * US, 150 * US, 600 * US, 3 * MS, 40 * MS])
steps_ns = st.sampled_from([2 * US, 0, 1, 15 * US, 50 * US, 90 * US, 400 * US, 2 * MS, 11 * MS])
grains_ns = st.sampled_from([0, 0, 0, 1, US, 5 * US, 100 * US, 3 * MS])
counts = st.sampled_from([1, 1, 0, 7, 60])
frees = st.sampled_from([0, 0, 400_000, 1_000_000])
kernels = st.builds(
    lambda expect, more, low, spread, may_fill, granularity, pieces, free: (
        *(expect, expect + more, low, low and low + spread),
        *(int(may_fill != 0), granularity, pieces, free),
    ),
    few_ns,
    st.sampled_from([0, 0, 1, 10 * US]),
    st.sampled_from([900 * US, 0, 200 * US, 5 * MS]),
    few_ns,
    st.integers(0, 6),
    grains_ns,
    counts,
    frees,
)
any_requests = st.tuples(few_ns, few_ns, few_ns, few_ns, st.integers(0, 1), grains_ns, counts, frees)
sliceable = st.builds(
    lambda request, blocks, wave: (*request, 0, blocks, wave),
    st.one_of(kernels, any_requests),
    st.sampled_from([1, 80, 84, 800, 2000, 100_000]),
    st.sampled_from([80, 80, 160, 1, 0]),
)
requests = st.one_of(kernels, kernels, kernels, any_requests, sliceable, sliceable)
short = st.builds(
    lambda expect, granularity: (expect, expect, 0, 0, 1, granularity, 1, 0),
    st.sampled_from([20 * US, 25 * US, 60 * US]),
    st.sampled_from([0, 0, 2 * US]),
)
rarely = st.integers(0, 5).map(lambda drawn: drawn == 5)
limits = st.sampled_from([0, 0, 0, 300_000, 1, 1_000_000])
entries = st.tuples(
    st.integers(0, 3), rarely, st.sampled_from([0, 0, 0, 0, 50_000, 1_000_000]), rarely, limits, st.booleans()
)
Drawn = list[tuple[int, bool, int, bool, int, bool]]
gaps_ns = st.sampled_from([200 * US, 900 * US, 70 * US])
rules = st.builds(
    GateRules,
    st.sampled_from([GatePolicy.FILL, GatePolicy.FILL, GatePolicy.STRICT, GatePolicy.OPEN]),
    st.sampled_from([500 * US, 0, 40 * US, 5 * MS]),
    st.sampled_from([20_000, 0, 1, 500_000, 4_000_000]),
    st.sampled_from([2 * MS, 0, 300 * US]),
    st.sampled_from([0, 0, 30 * US]),
    ignored_priority_ppm=st.sampled_from([0, 0, 400_000, 1_000_000]),
)


@dataclass
class Pair:
    """A tenant in two implementations: the C code and the reference model."""

    key: tuple[int, int]
    """Slot and generation."""
    native: Any
    plain: model.Tenant
    since_ns: int | None = None
    request: LaunchRequest | None = None
    """The launch that waits."""
    pending: list[LaunchRequest] = field(default_factory=list)
    """Launches that were admitted under a higher priority and not confirmed yet."""
    is_rebound: bool = False
    """Whether the bound changed since: a launch of unknown length counts as the old or the new bound."""


class File:
    """The gate file of a device for both implementations, and its tenants."""

    def __init__(self) -> None:
        self.bytes = tenant_table.device_memory()
        self.device = Device(SLOTS)
        self.rules = GateRules(entries=())
        self.pairs: dict[int, Pair] = {}

    def write(self, new: GateRules) -> None:
        for pair in self.pairs.values():
            is_same = (new.bound_ns, new.delay_ppm) == (self.rules.bound_ns, self.rules.delay_ppm)
            pair.is_rebound = bool(pair.pending) and (pair.is_rebound or not is_same)
        self.rules = new
        self.device.write(new)
        tenant_table.write_tenant_table(self.bytes, new)

    def join(self, slot: int, generation: int) -> None:
        native = _native.Gate(self.bytes, slot, generation)
        self.pairs[slot] = Pair((slot, generation), native, model.Tenant(self.device, slot, generation))

    def page(self, slot: int) -> dict[str, Any]:
        start = tenant_table.page_offset(slot)
        return tenant_table.read_page(bytes(self.bytes[start : start + tenant_table.PAGE_BYTES]))

    def debt_ns(self) -> int:
        return int(struct.unpack_from("<Q", self.bytes, DEBT_AT)[0])

    def admit(self, slot: int, request: LaunchRequest, now: int) -> Answer:
        pair = self.pairs[slot]
        pair.since_ns = now if pair.since_ns is None else pair.since_ns
        pair.request = request
        *decision, expect_ns, _, part_blocks = pair.native.admit(request, pair.since_ns, now)
        answer: Answer = (decision[0], decision[1], decision[2])
        assert answer == pair.plain.admit(request, pair.since_ns, now)
        part = pair.plain.asked
        if answer[0]:
            assert (expect_ns, part_blocks) == (part[0], part[-1] if len(part) > gate_parts.BLOCKS + 2 else 0)
        return answer

    def check_same(self) -> None:
        assert self.debt_ns() == self.device.debt_ns
        for slot, plain in enumerate(self.device.pages):
            page = self.page(slot)
            page |= {f"passed {reason}": count for reason, count in enumerate(page["passed"])}
            shown = {name: value for name, value in plain.items() if not name.startswith("recent")}
            assert {name: page[name] for name in shown} == shown, slot
            assert page["recent_ns"] == [plain.get(f"recent {number}", 0) for number in range(sums.RECENT)]
            assert page["stale"] == 0
            assert sum(page["overrun"]) == page["overruns"]
            assert sum(page["waited"]) == page["waits"]


class GateMachine(RuleBasedStateMachine):
    """After any launch, wait, death or rule change both implementations agree and the guarantees hold."""

    @initialize(new=rules, drawn=st.lists(entries, min_size=2, max_size=SLOTS), confirms=st.integers(0, 3))
    def begin(self, new: GateRules, drawn: Drawn, confirms: int) -> None:
        self.confirms = confirms > 0
        self.file, self.now, self.generations = File(), 1_000_000_000, [0] * SLOTS
        self.set_entries(new, drawn)

    @rule(new=rules, drawn=st.lists(entries, min_size=2, max_size=SLOTS), renew=st.booleans())
    def change(self, new: GateRules, drawn: Drawn, renew: bool) -> None:
        if renew:
            self.set_entries(new, drawn)
        else:
            self.file.write(msgspec.structs.replace(new, entries=self.file.rules.entries))

    def set_entries(self, new: GateRules, drawn: Drawn) -> None:
        """Write entries for the first slots; running tenants stay, the other slots get a new generation."""
        coming = [slot for slot in range(len(drawn)) if slot not in self.file.pairs]
        for slot in coming:
            self.generations[slot] += 1
        placed = [
            GateEntry(
                slot, self.generations[slot], priority * (slot > 0), slot == 0, paused, least, ending, limit, static
            )
            for slot, (priority, paused, least, ending, limit, static) in enumerate(drawn)
        ]
        self.file.write(msgspec.structs.replace(new, entries=tuple(placed)))
        for slot in coming:
            self.file.join(slot, self.generations[slot])
        self.file.check_same()

    @rule(slot=st.integers(0, SLOTS - 1))
    def die(self, slot: int) -> None:
        if slot in self.file.pairs and len(self.file.pairs) > 2:
            del self.file.pairs[slot]

    @rule(launches=st.lists(st.tuples(st.integers(0, SLOTS - 1), steps_ns, requests), min_size=1, max_size=8))
    def launch_in_turn(self, launches: list[tuple[int, int, LaunchRequest]]) -> None:
        for number, step_ns, request in launches:
            slot = sorted(self.file.pairs)[number % len(self.file.pairs)]
            self.now += step_ns
            self.launch(slot, self.file.pairs[slot].request or request)

    @rule(number=st.integers(0, SLOTS - 1), request=requests, times=st.integers(1, 6))
    def keep_launching(self, number: int, request: LaunchRequest, times: int) -> None:
        """Launch repeatedly, as a host without other work does: each time it waits as long as the gate requires."""
        slot = sorted(self.file.pairs)[number % len(self.file.pairs)]
        for _ in range(times):
            self.now = max(self.now, self.launch(slot, self.file.pairs[slot].request or request))

    @rule(gap_ns=gaps_ns, others=st.lists(short, max_size=4), turned=st.booleans())
    def open_a_gap(self, gap_ns: int, others: list[LaunchRequest], turned: bool) -> None:
        """The others ask while the holder is busy, and again, in either order, when its work has ended."""
        holder, *slots = sorted(self.file.pairs)
        calm = [
            msgspec.structs.replace(entry, paused=False, guaranteed_ppm=0, ending=False, limit_ppm=0)
            for entry in self.file.rules.entries
        ]
        self.file.write(GateRules(switch_ns=0, entries=tuple(calm)))
        self.now += 200 * MS
        self.launch(holder, (20 * US, 20 * US, gap_ns, gap_ns + 100 * US, 1, 0, 1, 0))
        asking = list(zip(slots, others, strict=False))
        for slot, request in asking:
            self.launch(slot, self.file.pairs[slot].request or request)
        self.now = max(self.now, self.file.page(holder)["busy_ns"])
        for slot, request in reversed(asking) if turned else asking:
            self.launch(slot, self.file.pairs[slot].request or request)

    def launch(self, slot: int, request: LaunchRequest) -> int:
        pair = self.file.pairs[slot]
        while self.confirms and pair.pending and self.file.page(slot)["busy_ns"] <= self.now:
            self.confirm(slot)
        before = {entry: self.file.page(entry.slot) for entry in self.file.rules.entries}
        own = next((sums.rank(entry) for entry in before if (entry.slot, entry.generation) == pair.key), 10)
        present = [page for entry, page in before.items() if page["generation"] == entry.generation]
        owes = [page for entry, page in before.items() if page in present and sums.rank(entry) <= own]
        debt_ns = max(max(page["owes_ns"] for page in [pair.plain.orphan, *owes]) - self.now, 0)
        passes, reason, until_ns = self.file.admit(slot, request, self.now)
        if passes and reason != sums.TOP:
            self.check_part(request, pair.plain.asked, present)
            request = pair.plain.asked[: gate_parts.BLOCKS - 1]
        self.check_promises(slot, request, before, debt_ns, (passes, reason, until_ns))
        if passes:
            pair.pending = [*pair.pending, request] if reason != sums.TOP else []  # one at the top is not counted
            pair.since_ns = pair.request = None
        self.file.check_same()
        return until_ns

    def check_promises(
        self, slot: int, request: LaunchRequest, before: dict[GateEntry, Page], debt_ns: int, answer: Answer
    ) -> None:
        """From the pages before the answer alone, and not from how it is found."""
        passes, reason, until_ns = answer
        pair, rules, now = self.file.pairs[slot], self.file.rules, self.now
        mine = next(
            (entry for entry in before if (entry.slot, entry.generation) == (slot, self.generations[slot])), None
        )
        priority = sums.rank(mine) if mine else 10
        valid = {
            entry: page for entry, page in before.items() if page["generation"] == entry.generation and entry != mine
        }
        above = [page for entry, page in valid.items() if sums.rank(entry) < priority]
        active = [page for page in above if sums.is_active(page, rules.patience_ns, now)]
        if mine and mine.paused:
            assert (passes, reason) == (0, sums.PAUSED)
            return
        above_it = [entry for entry in before if entry != mine and sums.rank(entry) < priority]
        is_ending = mine is not None and mine.ending
        if mine and is_ending:
            self.check_ending(before[mine]["busy_ns"], len(above_it), answer)
        is_held = self.check_share(mine, request, before, answer)
        if rules.policy is GatePolicy.OPEN or not above_it:
            assert is_ending or is_held or (passes, reason) == (1, sums.TOP)
            return
        assert passes == (reason < sums.BUSY)
        if not passes:
            assert now < until_ns <= now + sums.FAR
            return
        if active and rules.policy is GatePolicy.STRICT:
            assert reason in {sums.LEAST, sums.STUCK}
        own = before[mine]["busy_ns"] if mine else pair.plain.orphan["busy_ns"] - request[0]
        beside = [
            page["busy_ns"]
            for entry, page in valid.items()
            if sums.rank(entry) == priority or (sums.rank(entry) > priority and not pair.plain.is_doubted(entry))
        ]
        outstanding = sum(max(busy_ns - now, 0) for busy_ns in [own, *beside])
        expect, sure = request[0], max(request[:2])
        if reason == sums.GAP:
            assert request[4]
            assert all(page["busy_ns"] <= now for page in active)
            expected = [page for page in active if page["quiet_ns"] > now]
            if any(now + outstanding + sure > page["next_ns"] for page in expected):  # then it is to be spared
                assert debt_ns <= sums.BURST
                assert rules.delay_ppm
            self.check_depth(request, outstanding)
            end_ns = max(min(page["next_ns"] for page in expected), now + outstanding)
            self.check_best(slot, priority, sure, end_ns - now - outstanding)
        if reason == sums.FREE:
            assert not active
            assert outstanding + expect <= max(
                sums.bound_of(rules, request[5]), min(sums.LEAD, rules.bound_ns) + expect
            )
            assert debt_ns <= sums.BURST
        if reason == sums.BESIDE:
            self.check_beside(request, active, debt_ns, outstanding)
        if reason == sums.RISK:
            assert debt_ns == 0
            assert outstanding == 0
        if reason != sums.STUCK and not pair.is_rebound:
            assert len(pair.pending) < 2 or sum(w[0] for w in pair.pending) + expect <= sums.bound_of(rules, request[5])

    def check_part(self, request: LaunchRequest, part: LaunchRequest, present: list[Page]) -> None:
        """A part has whole waves, less blocks than the launch, and is within the bound or the shortest possible."""
        if len(part) <= gate_parts.BLOCKS + 2:
            return
        blocks, wave = request[gate_parts.BLOCKS :]
        assert 0 < part[-1] < blocks
        assert part[-1] % max(wave, 1) == 0
        assert part[0] <= min(sums.DEPTH, self.file.rules.bound_ns) or part[-1] == max(wave, 1)
        assert any(page["sequence"] for page in present), "no tenant of higher priority has ever launched"

    def check_depth(self, request: LaunchRequest, outstanding: int) -> None:
        most = sums.depth_of(self.file.rules, request[5])
        assert outstanding + request[0] <= max(most, sums.LEAD // 2 + request[0])

    def check_share(
        self, mine: GateEntry | None, request: LaunchRequest, before: dict[GateEntry, Page], answer: Answer
    ) -> bool:
        """Whether shares concern it; one that has had its share passes only where that was lent."""
        rank = sums.rank(mine) if mine else 10
        equals = [entry for entry in before if entry != mine and sums.rank(entry) == rank]
        limit = mine.limit_ppm if mine else 0
        if not any(limit or entry.limit_ppm for entry in equals) and not (mine and limit and mine.static):
            assert answer[1] not in {sums.LIMIT, sums.SHARE}
            return False
        if mine and limit and answer[0] and not mine.ending and request[7] < sums.PPM and answer[1] != sums.STUCK:
            page = before[mine] if before[mine]["generation"] == mine.generation else sums.new_page()
            is_over = page["paid_ppm"] == limit and page["paid_ns"] > self.now + sums.AHEAD
            assert not (is_over and mine.static)
            assert not is_over or self.file.page(mine.slot)["paid_ns"] == page["paid_ns"]
        assert not limit or answer[1] != sums.SHARE
        return True

    def check_beside(self, request: LaunchRequest, active: list[Page], debt_ns: int, outstanding: int) -> None:
        """It gives way block by block, those above are there and can spare it, and little else is submitted."""
        assert request[5]
        assert request[0]
        assert active
        assert self.file.rules.delay_ppm
        assert debt_ns <= sums.BURST
        self.check_depth(request, outstanding)

    def check_ending(self, busy_ns: int, above: int, answer: Answer) -> None:
        """An ending tenant has one launch at a time; alone or under the open policy it waits for nothing else."""
        passes, reason, _ = answer
        if busy_ns > self.now:
            assert (passes, reason) == (0, sums.BOUND)
        elif self.file.rules.policy is GatePolicy.OPEN:
            assert reason in {sums.FREE, sums.BOUND}
        elif not above:
            assert reason in {sums.FREE, sums.BOUND, sums.DEBT, sums.OTHER, sums.LEAST}
        assert reason not in {sums.TOP, sums.STUCK}

    def check_best(self, slot: int, priority: int, sure: int, gap_ns: int) -> None:
        """No waiting tenant that fits precedes it: by priority, then by length, then by slot."""
        rules, pair = self.file.rules, self.file.pairs[slot]
        gap_ns -= 2 * rules.switch_ns
        is_old = pair.since_ns is not None and self.now - pair.since_ns >= sums.RISK_AFTER
        for entry in rules.entries:
            other = self.file.pairs.get(entry.slot)
            if entry.slot == slot or other is None or other.request is None:
                continue
            page = self.file.page(entry.slot)
            longest = max(other.request[:2])
            is_there = entry.generation == self.generations[entry.slot]
            is_waiting = is_there and page["wanted_ns"] == longest + 1 and self.now - page["asked_ns"] <= sums.LOOK
            if is_waiting and longest <= gap_ns and not (is_old and sums.rank(entry) == priority):
                assert (priority, -sure, slot) < (sums.rank(entry), -longest, entry.slot)

    @rule(slot=st.integers(0, SLOTS - 1), low=few_ns, high=few_ns, drained=st.booleans())
    def sync(self, slot: int, low: int, high: int, drained: bool) -> None:
        for form in self.forms(slot):
            form.sync(low, high, drained, self.now)
        self.file.check_same()

    @rule(slot=st.integers(0, SLOTS - 1), request=requests)
    def announce_as_the_hook_does(self, slot: int, request: LaunchRequest) -> None:
        must_ask = [form.must_ask() for form in self.forms(slot)]
        assert len(set(must_ask)) <= 1
        if must_ask and not must_ask[0]:
            self.file.pairs[slot].pending = []
            for form in self.forms(slot):
                form.announce(request, self.now)
        self.file.check_same()

    @rule(slot=st.integers(0, SLOTS - 1), failed=st.integers(0, 4))
    def submit(self, slot: int, failed: int) -> None:
        pair = self.file.pairs.get(slot)
        if pair and pair.pending:
            for form in self.forms(slot):
                form.submitted(pair.pending[-1], failed > 0, self.now)
            if not failed:
                pair.pending.pop()
        self.file.check_same()

    @rule(slot=st.integers(0, SLOTS - 1))
    def confirm(self, slot: int) -> None:
        pair = self.file.pairs.get(slot)
        if pair and pair.pending:
            expect_ns = pair.pending.pop(0)[0]
            for form in self.forms(slot):
                form.confirmed(expect_ns, self.now)
        self.file.check_same()

    @rule(slot=st.integers(0, SLOTS - 1), more_ns=few_ns)
    def prolong(self, slot: int, more_ns: int) -> None:
        for form in self.forms(slot):
            form.prolong(self.now + more_ns)
        self.file.check_same()

    @rule(slot=st.integers(0, SLOTS - 1), charged_ns=few_ns, used_ns=few_ns)
    def measure(self, slot: int, charged_ns: int, used_ns: int) -> None:
        for form in self.forms(slot):
            form.measured(charged_ns, used_ns, self.now)
        self.file.check_same()

    @rule(slot=st.integers(0, SLOTS - 1))
    def give_up(self, slot: int) -> None:
        pair = self.file.pairs.get(slot)
        if pair and pair.since_ns is not None:
            for form in self.forms(slot):
                form.waited(pair.since_ns, self.now)
            pair.since_ns = pair.request = None
        self.file.check_same()

    def forms(self, slot: int) -> list[Any]:
        pair = self.file.pairs.get(slot)
        return [pair.native, pair.plain] if pair else []


def test_gate_agrees_with_its_reference_model() -> None:
    run_state_machine_as_test(GateMachine, settings=settings(max_examples=examples(40, 1000), stateful_step_count=30))


@pytest.mark.parametrize("ignored_ppm, passes", [(0, True), (50_000, True), (1_000_000, False)])
def test_kernel_that_gives_way_passes_only_where_priorities_are_effective(ignored_ppm: int, passes: bool) -> None:
    """A kernel of 2 ms whose blocks take 1 us, next to a holder with work for 5 ms, with a permitted delay of 100 %."""
    memory = tenant_table.device_memory()
    entries = (GateEntry(0, 1, 0, online=True), GateEntry(1, 1, 5, online=False))
    rules = GateRules(GatePolicy.FILL, 500 * US, 1_000_000, 2 * MS, 0, entries=entries)
    tenant_table.write_tenant_table(memory, msgspec.structs.replace(rules, ignored_priority_ppm=ignored_ppm))
    holder, lower = (_native.Gate(memory, slot, 1) for slot in (0, 1))
    now = 1_000_000_000
    for _ in range(100):
        now += 6 * MS
        holder.admit((5 * MS, 5 * MS, 6 * MS, 6 * MS + 50 * US, 1, 0, 1, 0), now, now)
    kernel = (2 * MS, 2 * MS, 0, 0, 1, US, 1, 0)
    lower.admit(kernel, now, now)  # it learns of the holder's activity
    assert bool(lower.admit(kernel, now + 2 * MS, now + 2 * MS)[0]) == passes


def test_kernel_that_fits_only_on_average_does_not_pass_with_deep_debt() -> None:
    """Found by chance: a kernel that gives way, and whose mean just fits the gap, went in for nothing."""
    state = GateMachine()
    rules = GateRules(GatePolicy.FILL, 500000, 20000, 2000000, 0)
    top, below = (0, False, 0, False, 0, False), (1, False, 0, False, 0, False)
    state.begin(new=rules, drawn=[top, top], confirms=0)
    state.change(drawn=[top, below, top], new=rules, renew=True)
    for number, expect in ((1, 600000), (0, 20000)):
        state.keep_launching(number=number, times=1, request=(expect, expect, 900000, 920000, 0, 0, 1, 0))
    state.open_a_gap(gap_ns=200000, others=[(25000, 25000, 0, 0, 1, 0, 1, 0)], turned=False)
    state.confirm(slot=1)
    state.keep_launching(number=1, times=1, request=(150000, 160000, 900000, 920000, 1, 1, 1, 0))
    state.teardown()
