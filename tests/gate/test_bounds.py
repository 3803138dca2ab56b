"""Higher-priority tenants lose a bounded time, and every waiting tenant launches eventually."""

import functools
import struct
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant import _native
from cotenant.gate import tenant_table
from cotenant.gate.grant import Kind
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules
from cotenant.node.client.run import spec_of
from cotenant.node.config.file import RunConfig
from cotenant.node.model.event import NodeSettings, NodeStarted, TenantJoined
from cotenant.node.model.gpu import Gpu
from cotenant.node.state.node import NodeMachine
from cotenant.node.state.tenant_tables import entry_of
from cotenant.units.toml import ShareOfWhole
from tests.support import gate_sums as sums
from tests.support.effort import examples
from tests.support.gate_sums import MS, US, LaunchRequest

START = 1_000_000_000
CLAIM_AT = tenant_table.TABLE_BYTES


def device(rules: GateRules) -> memoryview:
    file = tenant_table.device_memory()
    tenant_table.write_tenant_table(file, rules)
    return file


def entries(*priorities: int, guaranteed_ppm: int = 0) -> tuple[GateEntry, ...]:
    return tuple(
        GateEntry(slot, 1, priority, online=not priority, guaranteed_ppm=guaranteed_ppm if priority else 0)
        for slot, priority in enumerate(priorities)
    )


def gates(file: memoryview, count: int) -> list[_native.Gate]:
    return [_native.Gate(file, slot, 1) for slot in range(count)]


def read(file: memoryview, slot: int, name: str) -> int:
    start = tenant_table.page_offset(slot)
    word = tenant_table.read_page(bytes(file[start : start + tenant_table.PAGE_BYTES]))[name]
    assert isinstance(word, int)
    return word


@functools.cache
def debt_word_offset() -> int:
    """Return the offset of the word in which a page stores the debt of its tenant."""
    for offset in range(0, tenant_table.PAGE_BYTES, 8):
        page = bytearray(tenant_table.PAGE_BYTES)
        struct.pack_into("<Q", page, offset, 7)
        if tenant_table.read_page(page)["owes_ns"] == 7:
            return offset
    pytest.fail("no word of a page is what its tenant owes")


lengths_ns = st.sampled_from([10 * US, 90 * US, 400 * US, 5 * MS, 90 * MS])


@dataclass
class Losses:
    """The time that higher-priority tenants lost: charged, actual, and the maximum that the rules allow."""

    charged_ns: int
    true_ns: int
    most_ns: int
    in_flight_ns: int


def max_duty_ppm(actives: list[tuple[int, int]]) -> int:
    """Return the largest fraction of an interval of at least `sums.DUTY` for which the holder was active."""
    parts = [
        min((until_active - from_active) * sums.PPM // (until - begin), sums.PPM)
        for number, (begin, from_active) in enumerate(actives)
        for until, until_active in actives[number + 1 :]
        if until - begin >= sums.DUTY
    ]
    return max([sums.DUTY_LEAST, *parts])


def play(  # a holder with wrong forecasts, and lower-priority tenants that always want to launch
    rules: GateRules,
    lies: list[tuple[int, int]],
    kernels: list[int],
    late_ns: int = 0,
    granularity_ns: int = 0,
    *,
    rests: bool = False,
    forgiving: bool = False,
) -> Losses:
    file = device(rules)
    holder, *below = gates(file, len(rules.entries))
    slots = range(1, len(rules.entries))
    now, back, waiting, true_ns = START, START, [START] * len(below), 0
    is_running = dict.fromkeys(slots, False)
    actives, low_ns = [], 0
    for turn in range(400):
        if now >= back:
            low_ns, really_ns = lies[turn % len(lies)]
            holder.announce((20 * US, 20 * US, low_ns, low_ns + 100 * US, 1, 0, 1), now)
            back = now + really_ns
            true_ns += sum(max(read(file, slot, "busy_ns") - now, 0) for slot in slots if is_running[slot])
            is_running = dict.fromkeys(slots, False)  # the first return counts: from then on all of it is lost
        elif rests and now >= read(file, 0, "busy_ns"):
            holder.sync(low_ns, low_ns + 100 * US, True, now)
        actives.append((now, read(file, 0, "active_ns")))
        soonest = back
        for slot, gate, expect in zip(slots, below, kernels, strict=True):
            if forgiving:
                for other in slots:
                    struct.pack_into("<Q", file, tenant_table.page_offset(other) + debt_word_offset(), 0)
            if read(file, slot, "busy_ns") <= now:
                while read(file, slot, "confirmed") < read(file, slot, "submitted"):
                    gate.confirmed(expect, now)
            request: LaunchRequest = (expect, expect, 0, 0, 1, granularity_ns and min(granularity_ns, expect), 1, 0)
            passes, _, until, *_ = gate.admit(request, waiting[slot - 1], now)
            if passes:
                gate.submitted(request, True, now)
                if late_ns:
                    gate.prolong(read(file, slot, "busy_ns") + late_ns)
                waiting[slot - 1], is_running[slot] = now, True
            soonest = min(soonest, max(until, now + 7 * US))
        now = soonest
    longest, bound_ns = max(kernels), rules.bound_ns
    in_flight = max(bound_ns, 2 * longest, sums.LEAD + longest) + late_ns * max(2, bound_ns // min(kernels) + 1)
    assert read(file, 0, "active_ns") <= now - START
    spared_ppm = rules.delay_ppm * max_duty_ppm(actives) // sums.PPM
    most = (now - START + sums.HARD_DEBT) * spared_ppm // sums.PPM
    most += len(below) * (in_flight + rules.switch_ns) + sum(read(file, slot, "overruns") for slot in slots)
    charged = sum(read(file, slot, "overrun_ns") for slot in slots)
    return Losses(charged, true_ns, most, len(below) * in_flight)


@settings(max_examples=examples(20, 400))
@given(
    delay_ppm=st.sampled_from([1_000, 20_000, 300_000]),
    bound_ns=st.sampled_from([0, 500 * US, 20 * MS]),
    switch_ns=st.sampled_from([0, 0, 40 * US]),
    lies=st.lists(st.tuples(st.sampled_from([0, 200 * US, 50 * MS]), lengths_ns), min_size=3, max_size=6),
    kernels=st.lists(lengths_ns, min_size=2, max_size=3),
    late_ns=st.sampled_from([0, 0, 300 * US]),
    granularity_ns=st.sampled_from([0, 0, 3 * US, 100 * US, 2 * MS]),
    rests=st.booleans(),
)
def test_loss_of_higher_priorities_is_bounded_for_any_forecast(
    delay_ppm: int,
    bound_ns: int,
    switch_ns: int,
    lies: list[tuple[int, int]],
    kernels: list[int],
    late_ns: int,
    granularity_ns: int,
    rests: bool,
) -> None:
    """A holder that announces one interval and comes back after another.

    Each charge adds lost/rate to the debt, and time pays it off. Gaps are closed above HARD of debt, so when a tenant
    passes, the debt is HARD at most; and what it can be charged before it passes again is what it has in flight.
    So after T, with n tenants below, charged <= rate * (T + HARD) + n * in flight + a nanosecond for each rounding.
    The rate is a part of the time for which the holder is active: of as much as it ever was in 50 ms or more.
    """
    below = [5] * len(kernels)
    rules = GateRules(GatePolicy.FILL, bound_ns, delay_ppm, switch_ns=switch_ns, entries=entries(0, *below))
    losses = play(rules, lies, kernels, late_ns, granularity_ns, rests=rests)
    assert losses.charged_ns <= losses.most_ns
    if granularity_ns:  # then a return does not lose all the rest
        return
    assert losses.true_ns <= losses.charged_ns + losses.in_flight_ns, "losses are charged at the next admission"


def test_without_the_debt_the_bound_does_not_hold() -> None:
    rules = GateRules(GatePolicy.FILL, 500 * US, 1_000, entries=entries(0, 5, 5))
    lies, kernels = [(50 * MS, 400 * US), (0, 5 * MS)], [400 * US, 5 * MS]
    assert play(rules, lies, kernels).charged_ns <= play(rules, lies, kernels).most_ns
    losses = play(rules, lies, kernels, forgiving=True)
    assert losses.charged_ns > losses.most_ns


@settings(max_examples=examples(30, 600))
@given(
    data=st.data(),
    policy=st.sampled_from([GatePolicy.FILL, GatePolicy.STRICT]),
    debt_ns=st.sampled_from([0, 20 * MS, 500 * MS, 59_000 * MS]),
    expect=st.sampled_from([0, 30 * US, 700 * US, 30 * MS]),
    may_fill=st.integers(0, 1),
)
def test_every_waiting_tenant_launches_eventually(
    data: st.DataObject, policy: GatePolicy, debt_ns: int, expect: int, may_fill: int
) -> None:
    """All other tenants stop at the same instant, in any state.

    The tenant may have to wait for their work, for their return, for the debt and for work in flight: each wait is
    finite, and there are only a few, except for work of unknown length: it counts for a minute at most.
    """
    file = device(GateRules(policy, switch_ns=data.draw(st.sampled_from([0, 30 * US])), entries=entries(0, 3, 5, 5)))
    *others, last = gates(file, 4)
    now = START
    times = st.sampled_from([0, 10 * US, 400 * US, 3 * MS])
    launches = st.lists(st.tuples(st.integers(0, 2), times, times, times), max_size=9)
    for index, step_ns, length_ns, low_ns in data.draw(launches):
        now += step_ns
        others[index].admit((length_ns, length_ns, low_ns, low_ns + 50 * US, 1), now, now)
    struct.pack_into("<Q", file, tenant_table.page_offset(3) + debt_word_offset(), now + debt_ns)
    since, request = now, (expect, expect, 0, 0, may_fill, 0, 1)
    reasons = []
    for _ in range(100):
        passes, reason, until, *_ = last.admit(request, since, now)
        reasons.append(reason)
        if passes:
            break
        assert now < until <= now + sums.FAR
        now = until
    else:
        pytest.fail(f"it waits for ever: {reasons}")


CLAIMS = [*((START // 1024 + ticks) << 24 | 2 for ticks in (20, 1_000_000)), 2**64 - 1, 77]


@pytest.mark.parametrize("claim", CLAIMS)
def test_claim_of_a_dead_tenant_or_invalid_claim_lapses(claim: int) -> None:
    file = device(GateRules(switch_ns=0, entries=entries(0, 5, 5)))
    _, one, other = gates(file, 3)
    struct.pack_into("<Q", file, CLAIM_AT, claim)
    request = (20 * US, 20 * US, 0, 0, 1, 0, 1)
    now, asks = START, 0
    while not (answer := other.admit(request, now, now))[0]:
        assert answer[1] == sums.OTHER
        now, asks = answer[2] if asks < 20 else now + MS, asks + 1
        assert now < START + 2000 * MS
    assert one.admit(request, now, now)[:2] == (1, sums.FREE), "the tenant that passed released its claim"


def test_equal_tenants_with_equal_kernels_alternate() -> None:
    """Each once held the other for the better one, and neither went."""
    file = device(GateRules(switch_ns=0, entries=entries(0, 5, 5)))
    holder, one, other = gates(file, 3)
    holder.announce((10 * US, 10 * US, 500 * US, 600 * US, 1, 0, 1), START)
    request, now = (40 * US, 40 * US, 0, 0, 1, 0, 1), START + 10 * US
    for gate in (one, other):
        assert gate.admit(request, START, START)[1] == sums.BUSY
    assert other.admit(request, START, now)[:2] == (0, sums.OTHER)
    assert one.admit(request, START, now)[:2] == (1, sums.GAP)
    assert other.admit(request, START, now + 20 * US)[:2] == (1, sums.GAP)


def test_paused_or_non_filling_tenant_blocks_no_gap() -> None:
    for paused, may_fill in ((True, 1), (False, 0)):
        first, second, third = entries(0, 4, 5)
        held = GateEntry(second.slot, 1, second.priority, online=False, paused=paused)
        file = device(GateRules(switch_ns=0, entries=(first, held, third)))
        holder, kept, low = gates(file, 3)
        holder.announce((10 * US, 10 * US, 500 * US, 600 * US, 1, 0, 1), START)
        now = START + 10 * US
        assert not kept.admit((5 * US, 5 * US, 0, 0, may_fill, 0, 1), START, now)[0]
        assert low.admit((40 * US, 40 * US, 0, 0, 1, 0, 1), START, now)[:2] == (1, sums.GAP)


def test_longer_kernels_of_an_equal_do_not_starve_a_short_one() -> None:
    file = device(GateRules(switch_ns=0, entries=entries(0, 5, 5)))
    holder, long, short = gates(file, 3)
    now = START
    holder.announce((10 * US, 10 * US, 500 * US, 600 * US, 1, 0, 1), now)
    long.admit((60 * US, 60 * US, 0, 0, 1, 0, 1), now, now)
    now += 10 * US
    request = (20 * US, 20 * US, 0, 0, 1, 0, 1)
    assert short.admit(request, now, now)[1] == sums.OTHER
    assert short.admit(request, now - sums.RISK_AFTER, now)[1] == sums.GAP


def test_unknown_kernels_pass_two_at_a_time() -> None:
    file = device(GateRules(switch_ns=0, entries=entries(0, 5)))
    _, low = gates(file, 2)
    unknown = (0, 0, 0, 0, 0, 0, 1)
    assert [low.admit(unknown, START, START)[1] for _ in range(3)] == [sums.FREE, sums.FREE, sums.BOUND]
    low.confirmed(0, START)
    assert low.admit(unknown, START, START)[1] == sums.FREE


def test_new_tenant_does_not_inherit_the_page_of_its_slot() -> None:
    rules = GateRules(GatePolicy.STRICT, entries=entries(0, 5))
    file = device(rules)
    old, low = gates(file, 2)
    old.announce((30_000 * MS, 30_000 * MS, 0, 0, 1, 0, 1), START)
    request = (20 * US, 20 * US, 0, 0, 1, 0, 1)
    assert low.admit(request, START, START)[1] == sums.BUSY
    tenant_table.write_tenant_table(
        file, GateRules(GatePolicy.STRICT, entries=(GateEntry(0, 2, 0, online=True), rules.entries[1]))
    )
    assert low.admit(request, START, START)[1] == sums.FREE, "no higher priority is active yet"
    launches = read(file, 0, "sequence")
    _native.Gate(file, 0, 2)
    assert low.admit(request, START, START)[1] == sums.FREE, "it is there, and has launched nothing"
    assert (read(file, 0, "sequence"), read(file, 0, "launches")) == (launches, 0)
    assert old.admit(request, START, START)[1] != sums.TOP, "another tenant has its slot, and is above it"


def test_holder_is_inactive_while_disconnected() -> None:
    rules = GateRules(entries=entries(0, 5))
    file = device(rules)
    one = _native.Gate(file, 0, 1)
    request = (300 * US, 300 * US, 0, 0, 1, 0, 1)
    for number in range(100):
        one.announce(request, START + number * 100 * US)
    assert read(file, 0, "active_ns") == 9900 * US
    work_ns = read(file, 0, "busy_ns") - (START + 9900 * US)
    one.announce(request, START + 60_000 * MS)  # a minute later, and it never waited for its work
    assert read(file, 0, "active_ns") == 9900 * US + max(work_ns, rules.patience_ns)


def test_preemptible_kernel_leaves_the_gap_to_a_higher_priority() -> None:
    file = device(GateRules(switch_ns=0, entries=entries(0, 4, 5)))
    holder, better, low = gates(file, 3)
    for number in range(40):
        holder.announce((10 * US, 10 * US, 100 * US, 110 * US, 1, 0, 1), START + number * 100 * US)
    now, request = START + 3910 * US, (400 * US, 400 * US, 0, 0, 0, 2 * US, 1)
    assert low.admit(request, now, now)[:2] == (1, sums.BESIDE)
    low.submitted(request, False, now)
    assert better.admit((40 * US, 40 * US, 0, 0, 1, 0, 1), START, now - 5 * US)[1] == sums.BUSY
    assert low.admit(request, now, now)[:2] == (0, sums.OTHER)


def test_graph_kernels_of_a_new_tenant_are_counted_from_its_launches() -> None:
    """The slot had a tenant with many short launches before, which must not count for the new tenant."""
    file = device(GateRules(switch_ns=0, entries=entries(0, 5)))
    holder, low = gates(file, 2)
    for number in range(1000):
        holder.announce((US, US, 0, 0, 1, 0, 1), START + number * US)
    renewed = (GateEntry(0, 2, 0, online=True), entries(0, 5)[1])
    tenant_table.write_tenant_table(file, GateRules(switch_ns=0, entries=renewed))
    newcomer, now = _native.Gate(file, 0, 2), START + 100 * MS
    assert low.admit((300 * US, 300 * US, 0, 0, 1, 10 * US, 1), now, now)[1] == sums.FREE
    newcomer.announce((50 * US, 50 * US, 0, 0, 1, 0, 20), now + 100 * US)
    low.admit((300 * US, 300 * US, 0, 0, 1, 10 * US, 1), now + 110 * US, now + 110 * US)
    assert read(file, 1, "overrun_ns") == 20 * 10 * US // 2


def test_offline_tenant_gets_its_share_next_to_a_busy_online_tenant() -> None:
    """From `--share` to the launches: an online tenant whose work never ends leaves no gap, and is never quiet."""
    node = NodeMachine()
    node.handle(NodeStarted(NodeSettings(2, 0, gpus=(Gpu("a", 1 << 30),)), "", 0), now=0)
    shares = (ShareOfWhole(0), ShareOfWhole(200_000))
    for peer, (kind, share) in enumerate(zip((Kind.ONLINE, Kind.OFFLINE), shares, strict=True)):
        node.handle(TenantJoined(peer, peer, 0, spec_of(RunConfig(kind=kind, share=share), ["job"])), now=0)
    file = device(GateRules(entries=tuple(entry_of(view.tenant) for view in node.tenants())))
    holder, below = gates(file, 2)
    length_ns, span_ns, launched_ns = 700 * US, 2_000 * MS, 0
    request: LaunchRequest = (length_ns, length_ns, 0, 0, 1, 0, 1, 0)
    now, since, holder_at, ends = START, START, START, START
    while now < START + span_ns:
        if now >= holder_at:
            holder.announce((MS, MS, MS, MS + 10 * US, 1, 0, 1), now)
            holder_at = now + MS
        if launched_ns and ends <= now and read(file, 1, "confirmed") < read(file, 1, "submitted"):
            below.confirmed(length_ns, now)
        passes, _, until, *_ = below.admit(request, since, now)
        if passes:
            below.submitted(request, True, now)
            launched_ns, since, ends = launched_ns + length_ns, now, read(file, 1, "busy_ns")
        now = min(holder_at, max(until, now + 50 * US))
    # What it may have in advance is the burst's part; what it may lack is a kernel, and what it waits to ask again.
    assert 0 <= launched_ns - span_ns // 5 + 2 * length_ns <= sums.BURST // 5 + 3 * length_ns
