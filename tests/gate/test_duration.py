"""Kernel times are moving averages that follow the kernel and the clock, and neighbours only give bounds."""

from hypothesis import given
from hypothesis import strategies as st

from cotenant import _native
from cotenant.gate import tenant_table
from cotenant.gate.learned_times import KernelLayout, LearnedTimes
from cotenant.gate.rules import GateRules
from tests.gate.test_bounds import START, device, entries, gates, read
from tests.support import gate_sums as sums
from tests.support.gate_sums import MS, US

FULL = 1_000_000
lengths_ns = st.integers(1 * US, 50 * MS)


def learned(*lengths: int, clock_ppm: int = 0, is_bound: bool = False) -> _native.Duration:
    duration = _native.Duration()
    for length in lengths:
        duration.learn(length, clock_ppm, is_bound)
    return duration


@given(first=lengths_ns, second=lengths_ns)
def test_changed_kernel_is_learned_within_a_few_measurements(first: int, second: int) -> None:
    duration = learned(*[first] * 1000, *[second] * 40)
    assert abs(duration.expected(0)[0] - second) <= max(second // 4, 16)


@given(length=lengths_ns, clock_ppm=st.integers(200_000, FULL))
def test_times_scale_with_the_clock(length: int, clock_ppm: int) -> None:
    duration = learned(*[length] * 8)
    slower = duration.expected(clock_ppm)[0]
    assert abs(slower - length * FULL // clock_ppm) <= 1
    same = learned(*[slower] * 8, clock_ppm=clock_ppm)
    assert abs(same.expected(0)[0] - length) <= max(length // 1000, 2), "measured at that clock, it is the same kernel"


@given(lengths=st.lists(lengths_ns, min_size=3, max_size=20))
def test_measurements_next_to_neighbours_are_bounds(lengths: list[int]) -> None:
    bound = learned(*lengths, is_bound=True)
    expect, upper, longest, doubtful = bound.expected(0)
    assert min(lengths) <= expect <= max(lengths)
    assert expect == upper == longest
    assert not doubtful, "it takes no longer than that"
    shorter = learned(*[max(lengths) * 2] * 8)
    for length in lengths:
        shorter.learn(length, 0, True)
    assert shorter.expected(0)[0] <= max(lengths), "the kernel alone takes no longer than next to neighbours"


def test_few_or_contradictory_measurements_are_doubtful() -> None:
    assert learned().expected(0) == (0, 0, 0, True)
    assert learned(MS, MS).expected(0)[3]
    assert not learned(*[MS] * 8).expected(0)[3]
    assert learned(*[100 * US, 3 * MS] * 20).expected(0)[3], "it varies by more than its mean"
    contradicted = learned(*[100 * US] * 8)
    for _ in range(8):
        contradicted.learn(MS, 0, True)
    assert contradicted.expected(0)[3], "it never was as short next to neighbours"


def test_unseen_grid_is_estimated_from_the_nearest_grid_of_the_function() -> None:
    layouts = [KernelLayout("gemm", 160, 80), KernelLayout("gemm", 800, 80), KernelLayout("other", 160, 80)]
    times = LearnedTimes(layouts)
    assert times.estimate(1, 0)[0] == 0
    times.profile(0, 100 * US, 100 * US, 100 * US)
    expect, upper, _, doubtful = times.estimate(1, 0)
    assert (expect, upper, doubtful) == (500 * US, MS, 1), "ten waves instead of two"
    assert times.estimate(2, 0)[0] == 0, "another function says nothing"


def test_unknown_work_and_a_waiting_host_count_until_they_are_seen_to_end() -> None:
    file = device(GateRules(entries=entries(0, 5)))
    holder, low = gates(file, 2)
    kernel = (50 * US, 50 * US, 0, 0, 1, 0, 1, 0)
    holder.announce((0, 0, 20 * MS, 21 * MS, 1, 0, 1, 0), START)
    later = START + 500 * MS
    assert low.admit(kernel, later, later)[1] == sums.BUSY, "unknown work"
    holder.sync(20 * MS, 21 * MS, True, later)
    now = later + 100 * MS
    assert low.admit(kernel, now, now)[:2] == (1, sums.FREE)
    low.submitted(kernel, True, now)
    low.confirmed(kernel[0], now + MS)
    holder.announce((100 * US, 100 * US, 20 * MS, 21 * MS, 1, 0, 1, 0), now + 2 * MS)
    holder.sync(20 * MS, 21 * MS, False, now + 2 * MS)
    assert low.admit(kernel, now + 90 * MS, now + 90 * MS)[1] == sums.BUSY, "its host waits for it"
    assert low.admit(kernel, now + 900 * MS, now + 900 * MS)[:2] == (1, sums.FREE), "a stopped host is not waited for"
    assert read(file, 0, "unfinished_ns") == 0


def test_doubtful_work_ends_with_an_event_or_lapses() -> None:
    file = device(GateRules(entries=entries(0, 5)))
    holder, low = gates(file, 2)
    kernel = (50 * US, 50 * US, 0, 0, 1, 0, 1, 0)
    doubtful = (100 * US, 100 * US, 0, 0, 1, 0, 1, 0, 1)
    holder.announce(doubtful, START)
    now = START + 50 * MS
    assert low.admit(kernel, now, now)[1] == sums.BUSY
    holder.completed(now)
    assert low.admit(kernel, now, now)[:2] == (1, sums.FREE)
    low.submitted(kernel, True, now)
    low.confirmed(kernel[0], now + MS)
    holder.announce(doubtful, now + MS)
    now += 200 * MS
    assert low.admit(kernel, now, now)[:2] == (1, sums.FREE), "an event may never come"


def test_clock_is_published_without_a_change_of_the_rules() -> None:
    file = device(GateRules(entries=entries(0, 5)))
    holder, _ = gates(file, 2)
    assert holder.clock_ppm() == 0
    tenant_table.set_clock(file, 600_000)
    assert holder.clock_ppm() == 600_000
    tenant_table.write_tenant_table(file, GateRules(entries=entries(0, 5)))
    assert holder.clock_ppm() == 600_000
