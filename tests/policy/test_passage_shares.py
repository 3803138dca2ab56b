"""Does a tenant that gets a share among equals while it works still come through?"""

from __future__ import annotations

from cotenant.domain.gate import GateRules, GateSeat
from cotenant.policy.schedule.passage import Passage, Work
from cotenant.policy.schedule.roster import file_bytes, format_roster, write_roster

US = 1000


def test_it_wants_to_know_of_the_ends_of_those_launches_alone_that_had_to_ask() -> None:
    file = bytearray(file_bytes(2))
    format_roster(file, 2)
    equals = (GateSeat(0, 1, 1, True), GateSeat(1, 1, 1, True))
    write_roster(file, GateRules(seats=equals))
    passage = Passage(file, (0, 1), [Work(400 * US, 400 * US)], [0])
    now_ns = 10**9
    for _ in range(3):  # on the device when the share comes
        assert passage.ask(0, now_ns, now_ns) == now_ns
        assert not passage.confirms
        passage.submitted(now_ns)
        now_ns += US
    shared = tuple(GateSeat(seat.slot, 1, 1, True, limit_ppm=500_000) for seat in equals)
    write_roster(file, GateRules(seats=shared))
    for _ in range(50):
        now_ns += 400 * US
        assert passage.ask(0, now_ns, now_ns) == now_ns
        assert passage.confirms
        passage.submitted(now_ns)
        now_ns += 400 * US
        passage.ended(0, now_ns)
    write_roster(file, GateRules(seats=equals))
    assert passage.ask(0, now_ns + US, now_ns + US) == now_ns + US
    assert not passage.confirms
