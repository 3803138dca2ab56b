"""The ranks of a job agree on each collective: none is refused what another launches, and none waits forever."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from cotenant import _native
from cotenant.gate.hold_reason import HeldLaunch, HoldReason, find_hold
from cotenant.gate.rules import GateEntry, GateRules, ProcessEntry
from cotenant.gate.tenant_table import device_memory, gate_page, read_page, write_tenant_table
from tests.support.effort import examples

MS = 10**6
HELD_NS = _native.GANG_HELD_NS
PATIENCE_MAX_NS = _native.GANG_PATIENCE_MAX_NS
PATIENCE_MIN_NS = MS
LONGEST_WAIT_NS = HELD_NS + PATIENCE_MAX_NS
steps_ns = st.sampled_from([1, MS // 10, MS, 20 * MS, 300 * MS, 1100 * MS])


def make_page() -> mmap.mmap:
    return mmap.mmap(-1, _native.GANG_BYTES)


@dataclass
class Rank:
    """What the model knows of one rank."""

    gang: Any
    generation: int
    is_gate_open: bool = True
    passed: int = 0
    is_prepared: bool = False
    has_claimed: bool = False
    arrived_ns: int = 0
    asked_ns: int = 0
    patience_ns: int = PATIENCE_MAX_NS
    has_given_up: bool = False


class Job(RuleBasedStateMachine):
    """Ranks that ask in any order, with gates that open and close, against a model of sets and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.page = make_page()
        self.now_ns = 10**9
        self.ranks: list[Rank] = []
        self.number = 0
        self.ready: set[int] = set()
        self.agreed_alone: set[int] = set()
        """The collectives for which the bit of a rank was set that did not set it."""

    @initialize(count=st.integers(2, 4))
    def start(self, count: int) -> None:
        self.ranks = [Rank(_native.Gang(self.page, count, index + 1), index + 1) for index in range(count)]
        for rank in self.ranks:  # in order, so that ranks are numbered as in the model
            self._ask(rank)

    @rule(index=st.integers(0, 3), is_open=st.booleans())
    def turn_gate(self, index: int, is_open: bool) -> None:
        self.ranks[index % len(self.ranks)].is_gate_open = is_open

    @rule(step_ns=steps_ns)
    def advance(self, step_ns: int) -> None:
        self.now_ns += step_ns

    @rule(index=st.integers(0, 3))
    def ask(self, index: int) -> None:
        self._ask(self.ranks[index % len(self.ranks)])

    @rule(step_ns=st.sampled_from([0, MS // 10]))
    def ask_all(self, step_ns: int) -> None:
        self.now_ns += step_ns
        for rank in self.ranks:
            self._ask(rank)

    # ---- one question, in C and in the model ----------------------------------------------------------------------

    def _ask(self, rank: Rank) -> None:
        passes = self._ask_gang(rank)
        assert passes == self._ask_model(rank)
        if passes:
            self._launch(rank)
        rank.gang.held(0 if passes else self.now_ns)
        rank.asked_ns = 0 if passes else self.now_ns

    def _ask_gang(self, rank: Rank) -> bool:
        gang = rank.gang
        assert gang.begin(True, self.now_ns)
        assert not gang.is_uncontended()
        if gang.is_agreed():
            return True
        return bool(gang.open(self.now_ns) if rank.is_gate_open else gang.close())

    def _ask_model(self, rank: Rank) -> bool:
        wanted = rank.passed + 1
        rank.has_claimed = True
        rank.arrived_ns = rank.arrived_ns or self.now_ns
        is_full = len(self.ready) == len(self.ranks)
        if rank.is_prepared and (self.number > wanted or (self.number == wanted and is_full)):
            return True
        return self._open(rank, wanted) if rank.is_gate_open else self._close(rank, wanted)

    def _open(self, rank: Rank, wanted: int) -> bool:
        everyone = {each.generation for each in self.ranks}
        while self.number < wanted:
            self.ready |= {rank.generation} | self._not_awaited(rank, self.number)
            if self.ready != everyone:
                return False
            self.number, self.ready = wanted, set()
        if self.number > wanted or self.ready == everyone:
            return True
        others = self._not_awaited(rank, wanted)
        if others - self.ready:
            self.agreed_alone.add(wanted)
        self.ready |= {rank.generation} | others
        rank.is_prepared = True
        return self.ready == everyone

    def _close(self, rank: Rank, wanted: int) -> bool:
        if self.number > wanted or (self.number == wanted and len(self.ready) == len(self.ranks)):
            return rank.is_prepared
        if self.number == wanted:
            self.ready.discard(rank.generation)
        rank.is_prepared = False
        return False

    def _not_awaited(self, asking: Rank, number: int) -> set[int]:
        found = set()
        for rank in self.ranks:
            if rank is asking:
                continue
            is_held = rank.asked_ns > 0 and self.now_ns - rank.asked_ns < HELD_NS
            last_ns = max(asking.arrived_ns, rank.asked_ns if rank.has_claimed else 0)
            is_silent = not is_held and self.now_ns - last_ns >= asking.patience_ns
            if rank.has_claimed and rank.passed >= number:
                found.add(rank.generation)
            elif is_silent:
                found.add(rank.generation)
                asking.has_given_up = True
        return found

    def _launch(self, rank: Rank) -> None:
        wanted = rank.passed + 1
        assert rank.gang.passed() == wanted
        if rank.has_given_up:
            rank.patience_ns = max(rank.patience_ns // 2, PATIENCE_MIN_NS)
        else:
            rank.patience_ns = min(rank.patience_ns * 2, PATIENCE_MAX_NS)
        rank.passed, rank.is_prepared, rank.has_given_up, rank.arrived_ns = wanted, False, False, 0
        # Safety: a rank that has not launched it yet must launch it, unless it showed no sign of life.
        for other in self.ranks:
            if other.passed < wanted and wanted not in self.agreed_alone:
                assert other.passed == wanted - 1
                assert other.gang.is_agreed()

    @invariant()
    def the_page_shows_the_model(self) -> None:
        shown = _native.gang_ranks(self.page)
        for index, rank in enumerate(self.ranks):
            assert shown[index] == (rank.generation if rank.has_claimed else 0, rank.passed, rank.asked_ns, 1)

    def teardown(self) -> None:
        """Liveness: with open gates, every rank that keeps asking launches within a bounded time."""
        if not self.ranks:
            return
        before = [rank.passed for rank in self.ranks]
        until_ns = self.now_ns + 4 * LONGEST_WAIT_NS
        for rank in self.ranks:
            rank.is_gate_open = True
        while self.now_ns < until_ns and any(
            rank.passed <= passed for rank, passed in zip(self.ranks, before, strict=True)
        ):
            self.now_ns += 50 * MS
            for rank in self.ranks:
                self._ask(rank)
        assert all(rank.passed > passed for rank, passed in zip(self.ranks, before, strict=True))


def test_ranks_agree_in_any_order() -> None:
    run_state_machine_as_test(Job, settings=settings(max_examples=examples(200, 4000), stateful_step_count=60))


# ---- single cases ---------------------------------------------------------------------------------------------------


def pair(now_ns: int = 1) -> tuple[mmap.mmap, Any, Any]:
    page = make_page()
    first, second = (_native.Gang(page, 2, generation) for generation in (7, 8))
    assert first.begin(True, now_ns)
    assert second.begin(False, now_ns)
    return page, first, second


def test_ranks_without_neighbours_have_nothing_to_agree_on() -> None:
    page = make_page()
    first, second = (_native.Gang(page, 2, generation) for generation in (7, 8))
    assert first.begin(False, 1)
    assert first.is_uncontended()  # the other has not come yet, and may be a program without cotenant
    assert second.begin(False, 1)
    assert first.is_uncontended()
    assert second.begin(True, 2)
    assert not first.is_uncontended()


def test_a_rank_with_an_open_gate_waits_for_one_whose_gate_is_closed() -> None:
    _, first, second = pair()
    assert not first.open(1)
    for now_ns in range(1, 100 * PATIENCE_MAX_NS, PATIENCE_MAX_NS // 10):
        second.held(now_ns)
        assert not second.close()
        assert not first.open(now_ns)
        assert not first.is_agreed()
    assert second.open(now_ns)
    assert first.is_agreed()


def test_what_is_agreed_is_launched_even_if_the_gate_closes_then() -> None:
    _, first, second = pair()
    assert not first.open(1)
    assert second.open(1)
    assert first.close()


def test_a_rank_that_left_is_not_waited_for_longer_than_the_patience() -> None:
    page, first, second = pair()
    second.held(1)
    assert not first.open(1)
    _native.gang_leave(page, 8)
    assert not first.open(PATIENCE_MAX_NS)
    assert first.open(PATIENCE_MAX_NS + 1)


def test_a_rank_that_never_comes_is_waited_for_once() -> None:
    rank = _native.Gang(make_page(), 3, 7)
    now_ns = 10**9
    assert rank.begin(True, now_ns)
    assert not rank.open(now_ns)
    assert not rank.open(now_ns + PATIENCE_MAX_NS - 1)
    now_ns += PATIENCE_MAX_NS
    for _ in range(5):
        assert rank.begin(True, now_ns)
        assert rank.open(now_ns)
        rank.passed()


def test_a_process_that_replaces_one_continues_its_count() -> None:
    page, first, second = pair()
    for number in range(1, 6):
        first.begin(True, number)
        second.begin(True, number)
        assert not first.open(number)
        assert second.open(number)
        assert first.passed() == second.passed() == number
    _native.gang_leave(page, 8)
    replacement = _native.Gang(page, 2, 9)
    assert replacement.begin(True, 10)
    assert not replacement.open(10)
    first.begin(True, 10)
    assert first.open(10)
    assert replacement.is_agreed()
    assert first.passed() == replacement.passed() == 6


def test_a_full_gang_has_no_place_for_another_process() -> None:
    page, _, _ = pair()
    assert not _native.Gang(page, 2, 9).begin(True, 1)


@pytest.mark.parametrize("count", [0, 1, _native.GANG_RANKS + 1])
def test_a_gang_has_at_least_two_ranks_and_at_most_its_page_has(count: int) -> None:
    with pytest.raises(ValueError, match=r"a gang has 2 to 32 ranks"):
        _native.Gang(make_page(), count, 1)


class HostileRank(RuleBasedStateMachine):
    """A rank whose page another one fills with anything: it may be delayed, but never launches without its own gate."""

    def __init__(self) -> None:
        super().__init__()
        self.page = make_page()
        self.now_ns = 10**9
        self.gang = _native.Gang(self.page, 2, 5)
        self.has_opened = False

    @rule(at=st.integers(0, 40), word=st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 5, 2**32 + 3])))
    def corrupt(self, at: int, word: int) -> None:
        self.page[8 * at : 8 * at + 8] = word.to_bytes(8, "little")

    @rule(step_ns=steps_ns, is_open=st.booleans())
    def ask(self, step_ns: int, is_open: bool) -> None:
        self.now_ns += step_ns
        if not self.gang.begin(True, self.now_ns):
            self.has_opened = False
            return
        passes = self.gang.is_agreed()
        assert not passes or self.has_opened
        if not passes and is_open:
            passes = self.gang.open(self.now_ns)
            self.has_opened = True
        elif not passes:
            passes = self.gang.close()
            assert not passes or self.has_opened
            self.has_opened = self.has_opened and passes
        if passes:
            self.gang.passed()
            self.has_opened = False

    def teardown(self) -> None:
        """Liveness: alone, it passes after the longest patience, or the page has no entry for it."""
        if self.gang.begin(True, self.now_ns) and not self.gang.is_agreed() and not self.gang.open(self.now_ns):
            for _ in range(3):
                self.now_ns += 2 * LONGEST_WAIT_NS
                if not self.gang.begin(True, self.now_ns) or self.gang.is_agreed() or self.gang.open(self.now_ns):
                    return
            raise AssertionError("it waits for a rank that shows no sign of life")


def test_a_hostile_rank_can_only_delay_its_own_job() -> None:
    run_state_machine_as_test(HostileRank, settings=settings(max_examples=examples(200, 4000), stateful_step_count=40))


# ---- at the gate ----------------------------------------------------------------------------------------------------

SERVICE, TRAINER = 0, 1
FREE, GAP, BUSY, DUE, PAUSED, AGREED, GANG = 1, 2, 8, 10, 13, 20, 21
"""Reasons of the gate; native/gate/gate.h."""
KERNEL = (50_000, 50_000, 0, 0, 1)


class RankAtGate:
    """A rank on a device of its own, with a service of higher priority."""

    def __init__(self, generation: int, page: mmap.mmap | None) -> None:
        self.memory = device_memory()
        self._generation = generation
        self.pause(is_paused=False)
        self.service = _native.Gate(self.memory, SERVICE, 1)
        self.gate = _native.Gate(self.memory, TRAINER, generation)
        self.gate.set_collective(True)
        if page is not None:
            self.gate.join_gang(page, 2)

    def pause(self, *, is_paused: bool) -> None:
        entries = (GateEntry(SERVICE, 1, 2, True), GateEntry(TRAINER, 1, 7, False, paused=is_paused))
        processes = (
            ProcessEntry(SERVICE, 1, SERVICE, entries[0]),
            ProcessEntry(TRAINER, self._generation, TRAINER, entries[1]),
        )
        write_tenant_table(self.memory, GateRules(entries=entries), processes)

    def ask(self, now_ns: int) -> tuple[bool, int]:
        passes, reason, *_ = self.gate.admit(KERNEL, now_ns, now_ns)
        return bool(passes), reason

    def serve(self, now_ns: int, length_ns: int) -> None:
        """Let the service launch, and then be idle for ten times as long."""
        self.service.announce((length_ns, length_ns, 10 * length_ns, 10 * length_ns, 1), now_ns)


def ranks_at_gates() -> tuple[RankAtGate, RankAtGate, int]:
    """Return two ranks that have launched their first collective, and an instant."""
    page = make_page()
    first, second = RankAtGate(7, page), RankAtGate(8, page)
    now_ns = 10**9
    assert first.ask(now_ns) == second.ask(now_ns) == (False, GANG)  # the second one only comes now
    assert first.ask(now_ns) == (True, FREE)
    assert second.ask(now_ns) == (True, AGREED)
    return first, second, now_ns + 10 * MS


def test_collective_waits_for_the_gates_of_all_devices() -> None:
    first, second, now_ns = ranks_at_gates()
    second.serve(now_ns, 4 * MS)
    assert first.ask(now_ns) == (False, GANG)
    assert second.ask(now_ns) == (False, BUSY)
    assert first.ask(now_ns + MS) == (False, GANG)
    assert second.ask(now_ns + 5 * MS) == (True, GAP)
    assert first.ask(now_ns + 5 * MS) == (True, AGREED)


def test_agreed_collective_passes_although_the_service_has_launched_or_the_rank_was_paused() -> None:
    first, second, now_ns = ranks_at_gates()
    assert first.ask(now_ns) == (False, GANG)
    assert second.ask(now_ns) == (True, FREE)
    first.serve(now_ns + MS, 4 * MS)
    first.pause(is_paused=True)
    assert first.ask(now_ns + MS) == (True, AGREED)
    assert first.ask(now_ns + MS) == (False, PAUSED)  # the next one


def test_rank_that_is_paused_before_the_agreement_holds_the_others() -> None:
    first, second, now_ns = ranks_at_gates()
    assert first.ask(now_ns) == (False, GANG)
    first.pause(is_paused=True)
    for _ in range(40):
        now_ns += 100 * MS
        assert first.ask(now_ns) == (False, PAUSED)
        assert second.ask(now_ns) == (False, GANG)
    assert find_hold(second.memory, TRAINER, 8, now_ns) == HeldLaunch(HoldReason.RANKS, now_ns, ())
    first.pause(is_paused=False)
    assert first.ask(now_ns) == (True, FREE)
    assert second.ask(now_ns) == (True, AGREED)
    assert find_hold(second.memory, TRAINER, 8, now_ns) is None


def test_collective_without_a_gang_passes_only_while_the_service_is_idle() -> None:
    rank = RankAtGate(7, None)
    now_ns = 10**9
    rank.serve(now_ns, 4 * MS)
    assert rank.ask(now_ns + 5 * MS) == (False, DUE)
    rank.gate.set_collective(False)
    assert rank.ask(now_ns + 5 * MS) == (True, GAP)
    rank.gate.set_collective(True)
    assert rank.ask(now_ns + 100 * MS) == (True, FREE)


def test_loss_by_an_agreed_collective_is_charged() -> None:
    first, second, now_ns = ranks_at_gates()
    assert first.ask(now_ns) == (False, GANG)
    assert second.ask(now_ns) == (True, FREE)
    first.serve(now_ns + 1, 4 * MS)
    assert first.ask(now_ns + 2) == (True, AGREED)
    page_of_rank = read_page(gate_page(first.memory, TRAINER))
    assert page_of_rank["overruns"] == 0
    assert not first.ask(now_ns + MS)[0]  # now it sees that the service launched before
    page_of_rank = read_page(gate_page(first.memory, TRAINER))
    assert page_of_rank["overruns"] == 1
    assert page_of_rank["overrun_ns"] == KERNEL[0]
    assert page_of_rank["stale"] == 0
