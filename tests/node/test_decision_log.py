"""Every turn is one printable line, whatever text a tenant supplies."""

from hypothesis import example, given

from cotenant.node.decision_log import describe_turn
from cotenant.node.journal import NodeTurn
from cotenant.node.model.event import TenantLeft
from tests.support.strategies import turns


@given(turns)
@example(NodeTurn(0, TenantLeft(1, "exit 0\n0.000000001 node stops: told to -> no action"), []))
@example(NodeTurn(0, TenantLeft(1, "\x1b[2J\x9b2J\u2028"), []))
def test_any_turn_is_one_printable_line(turn: NodeTurn) -> None:
    assert describe_turn(turn.now, turn.event, turn.actions).isprintable()


def test_line_contains_instant_event_and_actions() -> None:
    line = describe_turn(1_500_000_000, TenantLeft(3, "exit 0\n"), [])
    assert line == r"1.500000000 peer 3 leaves: exit 0\n -> no action"
