"""Exit steps of a parent with and without a node, and the restart rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.node.state.program_exit import HURRY_NS, PATIENCE_NS, ExitStep, ProgramExit
from cotenant.node.state.restart import CAP_NS, RestartPolicy
from cotenant.units.instant import SECOND_NS

GRACE_NS = 10 * SECOND_NS

WELL_NS = 60 * SECOND_NS


def test_node_decides_every_step() -> None:
    ending = ProgramExit(GRACE_NS)
    assert ending.exit_requested(already_signalled=False, with_node=True, now=0) == [ExitStep.ASK_NODE]
    assert ending.node_requests("term") == [ExitStep.SIGNAL]
    assert ending.node_requests("kill") == [ExitStep.KILL]
    assert ending.next_wakeup() is None


def test_silent_node_is_waited_for_a_bounded_time() -> None:
    ending = ProgramExit(GRACE_NS)
    ending.exit_requested(already_signalled=False, with_node=True, now=0)
    assert ending.wake(now=PATIENCE_NS - 1) == []
    assert ending.next_wakeup() == PATIENCE_NS
    assert ending.wake(now=PATIENCE_NS) == [ExitStep.SIGNAL]
    assert ending.wake(now=PATIENCE_NS + GRACE_NS) == [ExitStep.KILL]
    assert ending.node_requests("term") == ending.node_requests("kill") == []


def test_steps_without_a_node_are_the_same() -> None:
    ending = ProgramExit(GRACE_NS)
    assert ending.exit_requested(already_signalled=False, with_node=False, now=5) == [ExitStep.SIGNAL]
    assert ending.wake(now=5 + GRACE_NS - 1) == []
    assert ending.wake(now=5 + GRACE_NS) == [ExitStep.KILL]


def test_signal_sent_by_a_terminal_is_not_repeated() -> None:
    ending = ProgramExit(GRACE_NS)
    assert ending.exit_requested(already_signalled=True, with_node=True, now=0) == [ExitStep.ASK_NODE]
    assert ending.node_requests("term") == []
    assert ending.node_requests("kill") == [ExitStep.KILL]
    alone = ProgramExit(GRACE_NS)
    assert alone.exit_requested(already_signalled=True, with_node=False, now=0) == []
    assert alone.wake(now=GRACE_NS) == [ExitStep.KILL]


def test_second_signal_shortens_the_grace() -> None:
    ending = ProgramExit(GRACE_NS)
    ending.exit_requested(already_signalled=False, with_node=True, now=0)
    assert ending.exit_requested(already_signalled=False, with_node=True, now=1) == [
        ExitStep.HURRY_NODE,
        ExitStep.SIGNAL,
    ]
    assert ending.wake(now=1 + HURRY_NS) == [ExitStep.KILL]
    alone = ProgramExit(GRACE_NS)
    alone.exit_requested(already_signalled=False, with_node=False, now=0)
    assert alone.exit_requested(already_signalled=False, with_node=False, now=1) == []
    assert alone.wake(now=1) == [ExitStep.KILL]


def test_parent_continues_when_the_node_dies() -> None:
    before = ProgramExit(GRACE_NS)
    before.exit_requested(already_signalled=False, with_node=True, now=0)
    before.node_lost(now=1)
    assert before.wake(now=1) == [ExitStep.SIGNAL]
    after = ProgramExit(GRACE_NS)
    after.node_requests("term")
    assert after.next_wakeup() is None, "the node may give it longer than we know"
    after.node_lost(now=1)
    assert after.wake(now=1 + GRACE_NS) == [ExitStep.KILL]
    untouched = ProgramExit(GRACE_NS)
    untouched.node_lost(now=1)
    assert not untouched.is_begun
    assert untouched.next_wakeup() is None


def test_remaining_processes_get_one_signal_then_a_kill() -> None:
    ending = ProgramExit(GRACE_NS)
    assert ending.program_ended(now=0) == [ExitStep.SIGNAL_REST]
    assert ending.program_ended(now=1) == []
    assert ending.wake(now=GRACE_NS) == [ExitStep.KILL]
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
def test_each_signal_is_sent_once_and_the_program_ends(moves: list[tuple[str, object, object]]) -> None:
    ending = ProgramExit(GRACE_NS)
    steps: list[ExitStep] = []
    now = 0
    for kind, first, second in moves:
        now += SECOND_NS
        match kind:
            case "wanted":
                steps += ending.exit_requested(already_signalled=bool(first), with_node=bool(second), now=now)
            case "told":
                steps += ending.node_requests("term" if first == "term" else "kill")
            case "alone":
                ending.node_lost(now=now)
            case "ended":
                steps += ending.program_ended(now=now)
    while (wakeup := ending.next_wakeup()) is not None:
        now = max(now, wakeup)
        due = ending.wake(now=now)
        assert due, "woken for nothing"
        steps += due
    for step in (ExitStep.SIGNAL, ExitStep.SIGNAL_REST, ExitStep.KILL, ExitStep.ASK_NODE):
        assert steps.count(step) <= 1
    if ExitStep.KILL in steps:
        assert ExitStep.SIGNAL not in steps[steps.index(ExitStep.KILL) :]
    if ending.is_own:
        assert ending.is_killed


def waits(rule: str, codes: list[int], ran_ns: int = 0) -> list[int | None]:
    restarts = RestartPolicy(rule, SECOND_NS, WELL_NS)
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
def test_restart_follows_the_policy(rule: str, codes: list[int], expected: list[int | None]) -> None:
    assert waits(rule, codes) == [None if wait is None else wait * SECOND_NS for wait in expected]


def test_restart_delay_grows_to_a_cap_and_resets() -> None:
    grown = [wait or 0 for wait in waits("always", [1] * 20)]
    assert grown == sorted(grown)
    assert grown[-1] == CAP_NS
    assert waits("always:1", [1] * 5, ran_ns=WELL_NS) == [SECOND_NS] * 5
