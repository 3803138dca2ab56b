"""Does a parent take its steps in order, with a node and without one, and is a program started again when it should?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.domain.instant import SECOND_NS
from cotenant.machine.ending import HURRY_NS, PATIENCE_NS, Ending, Step
from cotenant.machine.restart import CAP_NS, Restarts

GRACE_NS = 10 * SECOND_NS

WELL_NS = 60 * SECOND_NS


def test_with_a_node_every_step_is_the_node_s_word() -> None:
    ending = Ending(GRACE_NS)
    assert ending.wanted(has_it=False, with_node=True, now=0) == [Step.ASK_NODE]
    assert ending.told("term") == [Step.SIGNAL]
    assert ending.told("kill") == [Step.KILL]
    assert ending.next_wakeup() is None


def test_a_node_that_is_silent_is_not_waited_for_for_ever() -> None:
    ending = Ending(GRACE_NS)
    ending.wanted(has_it=False, with_node=True, now=0)
    assert ending.wake(now=PATIENCE_NS - 1) == []
    assert ending.next_wakeup() == PATIENCE_NS
    assert ending.wake(now=PATIENCE_NS) == [Step.SIGNAL]
    assert ending.wake(now=PATIENCE_NS + GRACE_NS) == [Step.KILL]
    assert ending.told("term") == ending.told("kill") == []


def test_without_a_node_the_steps_are_the_same() -> None:
    ending = Ending(GRACE_NS)
    assert ending.wanted(has_it=False, with_node=False, now=5) == [Step.SIGNAL]
    assert ending.wake(now=5 + GRACE_NS - 1) == []
    assert ending.wake(now=5 + GRACE_NS) == [Step.KILL]


def test_what_a_terminal_sent_is_not_sent_twice() -> None:
    ending = Ending(GRACE_NS)
    assert ending.wanted(has_it=True, with_node=True, now=0) == [Step.ASK_NODE]
    assert ending.told("term") == []
    assert ending.told("kill") == [Step.KILL]
    alone = Ending(GRACE_NS)
    assert alone.wanted(has_it=True, with_node=False, now=0) == []
    assert alone.wake(now=GRACE_NS) == [Step.KILL]


def test_told_twice_means_a_hurry() -> None:
    ending = Ending(GRACE_NS)
    ending.wanted(has_it=False, with_node=True, now=0)
    assert ending.wanted(has_it=False, with_node=True, now=1) == [Step.HURRY_NODE, Step.SIGNAL]
    assert ending.wake(now=1 + HURRY_NS) == [Step.KILL]
    alone = Ending(GRACE_NS)
    alone.wanted(has_it=False, with_node=False, now=0)
    assert alone.wanted(has_it=False, with_node=False, now=1) == []
    assert alone.wake(now=1) == [Step.KILL]


def test_a_node_that_dies_half_way_leaves_the_rest_to_the_parent() -> None:
    before = Ending(GRACE_NS)
    before.wanted(has_it=False, with_node=True, now=0)
    before.left_alone(now=1)
    assert before.wake(now=1) == [Step.SIGNAL]
    after = Ending(GRACE_NS)
    after.told("term")
    assert after.next_wakeup() is None, "the node may give it longer than we know"
    after.left_alone(now=1)
    assert after.wake(now=1 + GRACE_NS) == [Step.KILL]
    untouched = Ending(GRACE_NS)
    untouched.left_alone(now=1)
    assert not untouched.is_begun
    assert untouched.next_wakeup() is None


def test_what_a_program_leaves_behind_gets_the_signal_once_and_then_the_kill() -> None:
    ending = Ending(GRACE_NS)
    assert ending.program_ended(now=0) == [Step.SIGNAL_REST]
    assert ending.program_ended(now=1) == []
    assert ending.wake(now=GRACE_NS) == [Step.KILL]
    assert not ending.is_begun, "it ended by itself"


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("wanted"), st.booleans(), st.booleans()),
            st.tuples(st.just("told"), st.sampled_from(["term", "kill"]), st.none()),
            st.tuples(st.just("alone"), st.none(), st.none()),
            st.tuples(st.just("ended"), st.none(), st.none()),
        ),
        max_size=8,
    )
)
def test_each_signal_goes_once_and_what_we_were_told_to_end_ends(moves: list[tuple[str, object, object]]) -> None:
    ending = Ending(GRACE_NS)
    steps: list[Step] = []
    now = 0
    for kind, first, second in moves:
        now += SECOND_NS
        match kind:
            case "wanted":
                steps += ending.wanted(has_it=bool(first), with_node=bool(second), now=now)
            case "told":
                steps += ending.told("term" if first == "term" else "kill")
            case "alone":
                ending.left_alone(now=now)
            case "ended":
                steps += ending.program_ended(now=now)
    while (wakeup := ending.next_wakeup()) is not None:
        now = max(now, wakeup)
        due = ending.wake(now=now)
        assert due, "woken for nothing"
        steps += due
    for step in (Step.SIGNAL, Step.SIGNAL_REST, Step.KILL, Step.ASK_NODE):
        assert steps.count(step) <= 1
    if Step.KILL in steps:
        assert Step.SIGNAL not in steps[steps.index(Step.KILL) :]
    if ending.is_own:
        assert ending.is_killed


def waits(rule: str, codes: list[int], ran_ns: int = 0) -> list[int | None]:
    restarts = Restarts(rule, SECOND_NS, WELL_NS)
    return [restarts.after(code, ran_ns) for code in codes]


@pytest.mark.parametrize(
    "rule, codes, expected",
    [
        ("no", [1, 0], [None, None]),
        ("on-failure", [1, 137, 0], [1, 2, None]),
        ("on-failure", [143, 130, 129, 139], [None, None, None, 1]),
        ("on-failure:2", [1, 1, 1], [1, 2, None]),
        ("always", [0, 0, 1], [1, 2, 4]),
        ("always:1", [0, 0], [1, None]),
    ],
)
def test_a_program_is_started_again_as_the_rule_says(rule: str, codes: list[int], expected: list[int | None]) -> None:
    assert waits(rule, codes) == [None if wait is None else wait * SECOND_NS for wait in expected]


def test_waits_grow_up_to_a_cap_and_begin_anew_when_it_ran_well() -> None:
    grown = [wait or 0 for wait in waits("always", [1] * 20)]
    assert grown == sorted(grown)
    assert grown[-1] == CAP_NS
    assert waits("always:1", [1] * 5, ran_ns=WELL_NS) == [SECOND_NS] * 5
