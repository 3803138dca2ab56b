"""Tests of the metrics of bench `goodput`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.serve.model.goodput import Goodput, GoodputRecorder, RequestOutcome
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from cotenant_lab.bench.goodput.bench import without
from cotenant_lab.bench.goodput.metrics import LoadTrial, cells_of, policies_of

MS = MILLISECOND_NS


@given(st.lists(st.tuples(st.sampled_from(list(RequestOutcome)), st.integers(0, 100 * MS))))
def test_every_request_is_counted_once(ends: list[tuple[RequestOutcome, int]]) -> None:
    recorder = GoodputRecorder("m", 50 * MS)
    for outcome, latency_ns in ends:
        recorder.record_send(latency_ns // 50)
        recorder.record_end(outcome, latency_ns)
    found = recorder.goodput(SECOND_NS)
    assert found.offered == len(ends)
    assert found.offered == found.answered + found.refused + found.failed + found.expired + found.unsent
    assert found.in_time == sum(one is RequestOutcome.ANSWERED and took <= 50 * MS for one, took in ends)
    assert found.refused_late == sum(one is RequestOutcome.REFUSED and took > 50 * MS for one, took in ends)
    assert found.late_sends == sum(took // 50 > MS for _, took in ends)
    assert 0 <= found.attainment <= 1
    assert found.admitted + (found.refused - found.refused_late) + found.unsent == found.offered


def counted(model: str, offered: int, in_time: int, refused: int = 0) -> Goodput:
    recorder = GoodputRecorder(model, 10 * MS)
    for place in range(offered):
        if place < in_time:
            recorder.record_end(RequestOutcome.ANSWERED, MS)
        elif place < in_time + refused:
            recorder.record_end(RequestOutcome.REFUSED, MS)
        else:
            recorder.record_end(RequestOutcome.ANSWERED, 20 * MS)
    return recorder.goodput(SECOND_NS)


def trial(policy: str, load: float, in_time: int, bound_rps: float = 100.0) -> LoadTrial:
    models = (counted("a", 100, in_time, 100 - in_time), counted("b", 100, 0 if policy == "plain" else in_time))
    simulated_rps = None if policy == "plain" else 3.0 * in_time
    left_rps = None if policy == "plain" else bound_rps / 2
    return LoadTrial(policy, "poisson", load, models, bound_rps, 2 * bound_rps, simulated_rps, 0.1, 0.3, 1.5, left_rps)


def test_cells_compare_with_the_default_of_the_same_round() -> None:
    rounds = [(20, 5, 40.0), (30, 10, 60.0), (60, 30, 200.0)]
    tries = [
        one for ours, plain, bound in rounds for one in (trial("plain", 1.3, plain), trial("ours", 1.3, ours, bound))
    ]
    plain, ours = cells_of(tries, "plain")
    assert (plain.policy, ours.policy) == ("plain", "ours")
    assert ours.goodput_rps == 60
    assert (ours.goodput_vs_bound, ours.goodput_vs_greedy_bound) == (1.0, 0.5)
    assert (ours.goodput_vs_left_bound, plain.goodput_vs_left_bound) == (2.0, None)
    assert (ours.send_core_part, ours.front_core_part, ours.slower) == (0.1, 0.3, 1.5)
    assert (ours.simulated_rps, plain.simulated_rps) == (90.0, None)
    assert ours.goodput_vs_default == 6.0  # 8, 6 and 4
    assert plain.goodput_vs_default == 1.0
    assert (ours.offered, ours.in_time, ours.refused) == (600, 220, 190)
    assert ours.late == 600 - 220 - 190
    assert ours.slo_attainment_admitted == pytest.approx(220 / 410, abs=1e-4)
    assert (ours.fairness, plain.fairness) == (1.0, 0.5)


def test_hold_is_goodput_at_the_highest_load_over_the_best() -> None:
    cells = cells_of([trial("p", load, count) for load, count in ((0.5, 40), (1.0, 50), (1.2, 45))], "p")
    (found,) = policies_of(cells)
    assert (found.best_rps, found.goodput_hold, found.goodput_vs_bound) == (100.0, 0.9, 0.8)
    assert found.goodput_vs_default is None  # no load was above what can be answered


def test_arrivals_pause_before_the_measured_time() -> None:
    assert without(range(10), 3, 6) == (0, 1, 2, 6, 7, 8, 9)
    assert without((), 3, 6) == ()
