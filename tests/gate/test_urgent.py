"""A request that has used a quarter of its objective has the whole device until it ends, whatever the budget is."""

from hypothesis import example, given
from hypothesis import strategies as st

from cotenant.gate.rules import GatePolicy, GateRules
from tests.gate.test_bounds import START, device, entries, gates
from tests.support import gate_sums as sums
from tests.support.gate_sums import MS, US, LaunchRequest

PREEMPTIBLE: LaunchRequest = (300 * US, 300 * US, 0, 0, 1, 40 * US, 1, 0)
SHORT: LaunchRequest = (10 * US, 10 * US, 0, 0, 1, 0, 1, 0)
WORK: LaunchRequest = (400 * MS, 400 * MS, 5 * US, 10 * US, 1, 0, 1, 0)
GENEROUS_PPM = 9_000_000
"""The delay of an online share of 10 %."""


def passes_next_to_a_request(
    age_ns: int, slo_ns: int, asked: LaunchRequest = PREEMPTIBLE, policy: GatePolicy = GatePolicy.FILL
) -> bool:
    """Return whether a launch passes next to a holder whose work runs, and whose request has this age."""
    file = device(GateRules(policy=policy, delay_ppm=GENEROUS_PPM, switch_ns=0, entries=entries(0, 5)))
    holder, low = gates(file, 2)
    low.share_by_mps(0)
    now = START + age_ns
    holder.oldest(START, slo_ns)
    holder.announce(WORK, now - US)
    holder.sync(0, 0, False, now - US)
    passes, *_ = low.admit(asked, now - MS, now)
    return bool(passes)


@given(slo_ms=st.integers(1, 10_000), part=st.floats(0.0, 40.0))
@example(slo_ms=13, part=0.24)
@example(slo_ms=13, part=0.26)
@example(slo_ms=13, part=3.0)
def test_launch_that_costs_something_passes_only_while_no_request_is_urgent(slo_ms: int, part: float) -> None:
    age_ns = round(part * slo_ms * MS)
    if age_ns - slo_ms * MS // 4 > 60_000 * MS:
        return
    assert passes_next_to_a_request(age_ns, slo_ms * MS) == (age_ns < slo_ms * MS // 4)


def test_request_without_objective_is_never_urgent() -> None:
    assert passes_next_to_a_request(500 * MS, 0)


def test_request_that_never_ends_is_ignored_after_fifty_objectives() -> None:
    assert not passes_next_to_a_request(40 * 10 * MS, 10 * MS)
    assert passes_next_to_a_request(51 * 10 * MS, 10 * MS)


def test_strict_gate_waits_for_an_urgent_request() -> None:
    assert not passes_next_to_a_request(10 * MS, 10 * MS, SHORT, GatePolicy.STRICT)


def test_launches_that_fit_a_gap_pass_next_to_an_urgent_request() -> None:
    file = device(GateRules(delay_ppm=GENEROUS_PPM, switch_ns=0, entries=entries(0, 5)))
    holder, low = gates(file, 2)
    now = START + 100 * MS
    holder.oldest(START, 100 * MS)
    holder.announce((10 * US, 10 * US, 900 * US, 1000 * US, 1, 0, 1, 0), now)  # its next launch comes in 900 us
    now += 20 * US
    passes, reason, *_ = low.admit(SHORT, now, now)
    assert (passes, reason) == (1, sums.GAP)
    low.submitted(SHORT, True, now)
    low.confirmed(SHORT[0], now + 10 * US)
    now += 20 * US
    assert not low.admit((*PREEMPTIBLE[:5], 0, 1, 0), now, now + 700 * US)[0], "it would not end in time"


def test_next_request_after_an_urgent_one_is_not_urgent() -> None:
    file = device(GateRules(delay_ppm=GENEROUS_PPM, switch_ns=0, entries=entries(0, 5)))
    holder, low = gates(file, 2)
    low.share_by_mps(0)
    now = START + 5 * MS
    for began, is_urgent in ((START, True), (now - MS, False), (0, False), (START, True)):
        holder.oldest(began, 13 * MS)
        holder.announce(WORK, now)
        holder.sync(0, 0, False, now)
        passes, *_ = low.admit(PREEMPTIBLE, now - MS, now + US)
        assert bool(passes) != is_urgent
        if passes:
            low.submitted(PREEMPTIBLE, True, now + US)
            low.confirmed(PREEMPTIBLE[0], now + 10 * US)
        now += 20 * US
