"""Is every turn one line, whatever a tenant says?"""

from hypothesis import example, given

from cotenant.domain.event import TenantLeft
from cotenant.format.journal import Turn
from cotenant.format.log import describe_turn
from tests.strategies import turns


@given(turns)
@example(Turn(0, TenantLeft(1, "exit 0\n0.000000001 node stops: told to -> nothing to do"), []))
@example(Turn(0, TenantLeft(1, "\x1b[2J\x9b2J\u2028"), []))
def test_a_turn_is_one_printable_line(turn: Turn) -> None:
    assert describe_turn(turn.now, turn.event, turn.actions).isprintable()


def test_a_turn_reads_as_when_what_and_what_was_done() -> None:
    line = describe_turn(1_500_000_000, TenantLeft(3, "exit 0\n"), [])
    assert line == r"1.500000000 peer 3 leaves: exit 0\n -> nothing to do"
