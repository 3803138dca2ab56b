"""What do those below owe who are gone, and do charges follow what those above say they lost?"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant import _native
from cotenant.domain.gate import GateRules, GateSeat
from cotenant.policy.schedule import roster
from tests.property import gate_sums as sums
from tests.property.gate_sums import MS, US, Wish
from tests.property.test_gate_bounds import START, device, gates, read, seats

HIT: Wish = (50 * MS, 50 * MS, 0, 0, 1, 0, 1, 0)
SHORT: Wish = (20 * US, 20 * US, 0, 0, 1, 0, 1, 0)
HOLDER: Wish = (20 * US, 20 * US, 300 * US, 400 * US, 1, 0, 1, 0)


def hit(holder: _native.Gate, gate: _native.Gate, now: int) -> int:
    """One below launches 50 ms of work into a pause, and the holder comes back at once."""
    assert gate.ask(HIT, now, now)[:2] == (1, sums.FREE)
    gate.submitted(HIT, True, now)
    holder.announce(HOLDER, now + 10 * US)
    now += 60 * MS
    gate.confirmed(HIT[0], now)
    gate.ask(SHORT, now, now)
    return now


def test_what_a_tenant_owes_that_is_gone_is_forgiven_and_what_others_owe_is_not() -> None:
    all_seats = seats(0, 5, 5)
    file = device(GateRules(seats=all_seats))
    holder, gone, other = gates(file, 3)
    now = hit(holder, gone, START)
    assert other.ask(SHORT, now, now)[1] == sums.DEBT
    roster.write_roster(file, GateRules(seats=(all_seats[0], all_seats[2])))
    assert other.ask(SHORT, now, now)[:2] == (1, sums.FREE)
    other.submitted(SHORT, True, now)
    other.confirmed(SHORT[0], now + MS)
    now = hit(holder, other, now + MS)
    assert other.ask(SHORT, now, now)[1] == sums.DEBT, "its own"
    new = GateSeat(1, 2, 5, online=False)
    roster.write_roster(file, GateRules(seats=(all_seats[0], new, all_seats[2])))
    assert _native.Gate(file, 1, 2).ask(SHORT, now, now)[1] == sums.DEBT, "who comes finds what those owe who are there"


def test_a_process_that_outlives_its_seat_closes_the_gate_for_nobody() -> None:
    all_seats = seats(0, 5, 5)
    file = device(GateRules(seats=all_seats))
    holder, gone, other = gates(file, 3)
    assert gone.ask(HIT, START, START)[0]
    gone.submitted(HIT, True, START)
    roster.write_roster(file, GateRules(seats=(all_seats[0], all_seats[2])))
    holder.announce(HOLDER, START + 10 * US)
    now = START + 60 * MS
    gone.ask(SHORT, now, now)  # it writes down what it took, on the floor too
    assert other.ask(SHORT, now, now)[:2] == (1, sums.FREE)


def bursts(late_ns: int, count: int, *, alone: bool = True) -> tuple[int, int]:
    """Requests of 1 ms that others meet, each over so much later than alone: what these were charged, and would be.

    One of two finds the device to itself, if it ever does.
    """
    file = device(GateRules(delay_ppm=4_000_000, switch_ns=0, seats=seats(0, 5)))
    holder, low = gates(file, 2)
    work: Wish = (MS, MS, 20 * MS, 21 * MS, 1, 0, 1, 0)
    below: Wish = (400 * US, 400 * US, 0, 0, 1, 0, 1, 0)
    now, thought = START, 0
    for number in range(count):
        now += 10 * MS
        is_met = not alone or number % 2
        if is_met and low.ask(below, now - sums.STUCK_AFTER, now)[0]:
            low.submitted(below, True, now)
            thought += 300 * US
        holder.announce(work, now + 100 * US)
        holder.rest(0, 0, False, now + 110 * US)
        low.confirmed(below[0], now + 400 * US)
        now += MS + 105 * US + (late_ns if is_met else 0)
        holder.rest(20 * MS, 21 * MS, True, now)
    return read(file, 1, "overrun_ns"), thought


@settings(max_examples=15)
@given(late_ns=st.sampled_from([0, 50 * US, 150 * US, 400 * US, 900 * US]))
def test_charges_follow_what_was_lost_and_never_exceed_what_they_would_have_been(late_ns: int) -> None:
    charged, thought = bursts(late_ns, 400)
    assert thought
    assert charged <= thought
    assert charged <= bursts(late_ns + 50 * US, 400)[0]
    assert charged * 8 >= thought - 2 * MS, "an eighth is charged at least"


def test_what_nobody_feels_is_hardly_charged_in_the_end() -> None:
    (before, _), (after, _) = bursts(0, 400), bursts(0, 800)
    _, thought = bursts(0, 400)
    assert (after - before) * 5 <= thought


@pytest.mark.parametrize("late_ns", [0, 900 * US])
def test_one_that_is_never_alone_tells_nothing_and_is_charged_for_as_it_was(late_ns: int) -> None:
    charged, thought = bursts(late_ns, 200, alone=False)
    assert thought - 300 * US <= charged <= thought, "the last is charged when its tenant asks again"
