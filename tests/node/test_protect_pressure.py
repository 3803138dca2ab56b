"""Choice of tenants under memory pressure, back-off and hang detection: tables, then properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.gate.grant import Kind
from cotenant.node.model.protection import OnPressure, ProtectLimits
from cotenant.node.policy.protect.backoff import delay_ns
from cotenant.node.policy.protect.hang import is_hung
from cotenant.node.policy.protect.pressure import Candidate, victims
from cotenant.units.instant import SECOND_NS

LARGEST = (1 << 63) - 1


def offline(slot: int, priority: int, held: int, joined: int, mode: OnPressure = OnPressure.EVICT) -> Candidate:
    return Candidate(slot, Kind.OFFLINE, priority, held, mode, joined)


# name: the tenants, the bytes needed, the slots of the victims
CASES: dict[str, tuple[list[Candidate], int, list[int] | None]] = {
    "nothing is needed": ([offline(0, 7, 4, 1)], 0, []),
    "the lowest priority first": ([offline(0, 7, 4, 9), offline(1, 9, 4, 1)], 4, [1]),
    "then the youngest": ([offline(0, 7, 4, 1), offline(1, 7, 4, 2)], 3, [1]),
    "then a tenant that is only suspended": (
        [offline(0, 7, 4, 1), offline(1, 7, 4, 1, OnPressure.SUSPEND)],
        3,
        [1],
    ),
    "as many as it takes": ([offline(0, 7, 4, 1), offline(1, 7, 4, 2), offline(2, 7, 4, 3)], 7, [2, 1]),
    "a large one spares a small one": ([offline(0, 7, 8, 1), offline(1, 7, 1, 2)], 8, [0]),
    "a tenant without memory stays": ([offline(0, 9, 0, 5), offline(1, 7, 4, 1)], 4, [1]),
    "online never": ([Candidate(0, Kind.ONLINE, 9, 100, OnPressure.EVICT, 1), offline(1, 0, 4, 1)], 5, None),
}


@pytest.mark.parametrize("name", CASES)
def test_expected_victims_are_chosen_in_any_order(name: str) -> None:
    tenants, needed, expected = CASES[name]
    assert victims(tenants, needed) == expected
    assert victims(tenants[::-1], needed) == expected


candidates = st.lists(
    st.builds(
        Candidate,
        st.integers(0, 50),
        st.sampled_from(Kind),
        st.integers(0, 9),
        st.integers(0, 20),
        st.sampled_from(OnPressure),
        st.integers(0, 5),
    ),
    max_size=8,
    unique_by=lambda candidate: candidate.slot,
)


@given(candidates, st.integers(0, 100))
def test_victims_are_offline_sufficient_and_none_is_needless(tenants: list[Candidate], needed: int) -> None:
    by_slot = {candidate.slot: candidate for candidate in tenants}
    offline_bytes = sum(candidate.held_bytes for candidate in tenants if candidate.kind is Kind.OFFLINE)
    chosen = victims(tenants, needed)
    assert (chosen is None) == (offline_bytes < needed)
    if chosen is None:
        return
    freed_bytes = [by_slot[slot].held_bytes for slot in chosen]
    assert len(set(chosen)) == len(chosen)
    assert all(by_slot[slot].kind is Kind.OFFLINE for slot in chosen)
    assert sum(freed_bytes) >= needed
    assert all(sum(freed_bytes) - candidate < needed for candidate in freed_bytes)
    order = [(-by_slot[slot].priority, -by_slot[slot].joined_ns) for slot in chosen]
    assert order == sorted(order)


@given(candidates, st.integers(1, 100))
def test_higher_priority_is_chosen_only_if_all_lower_do_not_suffice(tenants: list[Candidate], needed: int) -> None:
    chosen = victims(tenants, needed)
    if not chosen:
        return
    highest = min(candidate.priority for candidate in tenants if candidate.slot in chosen)
    lower_bytes = sum(
        candidate.held_bytes for candidate in tenants if candidate.kind is Kind.OFFLINE and candidate.priority > highest
    )
    assert lower_bytes < needed


@given(st.integers(-3, 200), st.integers(0, LARGEST), st.integers(0, LARGEST))
def test_backoff_doubles_up_to_its_cap(attempt: int, base: int, cap: int) -> None:
    wait = delay_ns(attempt, base, cap)
    assert 0 <= wait <= cap
    assert wait <= delay_ns(attempt + 1, base, cap)
    if attempt >= 1:
        assert wait == cap or delay_ns(attempt + 1, base, cap) == min(2 * wait, cap)
        assert wait >= min(base, cap)
    else:
        assert wait == 0


def test_example_backoffs() -> None:
    assert [delay_ns(attempt, 30, 900) for attempt in range(8)] == [0, 30, 60, 120, 240, 480, 900, 900]


HANGS = ProtectLimits(hang_factor=100, hang_least_ns=10 * SECOND_NS, hang_unknown_ns=600 * SECOND_NS)


@pytest.mark.parametrize(
    "expected_s, waited_s, hangs",
    [(1, 100, False), (1, 101, True), (0.001, 9, False), (0.001, 11, True), (0, 600, False), (0, 601, True)],
)
def test_hang_thresholds(expected_s: float, waited_s: float, hangs: bool) -> None:
    assert is_hung(int(expected_s * SECOND_NS), int(waited_s * SECOND_NS), HANGS) is hangs


@given(st.integers(0, LARGEST), st.integers(0, LARGEST), st.integers(0, LARGEST))
def test_longer_wait_never_ends_a_hang(expected: int, waited: int, more: int) -> None:
    assert is_hung(expected, waited + more, HANGS) or not is_hung(expected, waited, HANGS)
    never = ProtectLimits(hang_unknown_ns=0)
    assert not is_hung(0, waited, never)
