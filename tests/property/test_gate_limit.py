"""Does everybody get its share, no more where that was asked for, and what others leave where it was not?"""

from __future__ import annotations

import heapq
from typing import ClassVar

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from cotenant import _native
from cotenant.domain.gate import GatePolicy, GateRules, GateSeat
from cotenant.policy.schedule import roster
from tests.property.gate_sums import AHEAD, LIMIT, MS, PPM, SHARE, US, WINDOW, Wish

START = 10_000 * MS
NAP = 5 * MS
LONGER = 30 * US
lengths_ns = st.sampled_from([5 * US, 50 * US, 300 * US, 2 * MS, 30 * MS, 250 * MS])
long_ns = st.sampled_from([300 * US, 2 * MS, 30 * MS, 250 * MS])
shares_ppm = st.sampled_from([50_000, 100_000, 300_000, 500_000, 700_000, 950_000])


class Host:
    """A host that always wants to launch; those of one file share a device, first come first served."""

    ends: ClassVar[dict[int, int]] = {}

    def __init__(
        self, file: bytearray, slot: int, length_ns: int, takes_ns: int = 0, free_ppm: int = 0, depth: int = 4
    ) -> None:
        """With a greater depth its work in few blocks goes into several streams, and runs beside itself."""
        self.device = id(file)
        self.ends[self.device] = 0
        self.gate = _native.Gate(file, slot, 1)
        self.wish: Wish = (length_ns, length_ns, 0, 0, 1, 0, 1, free_ppm)
        self.takes_ns = takes_ns or length_ns
        self.since_ns = self.used_ns = self.reason = 0
        self.depth = depth
        self.pending: list[int] = []

    def turn(self, now: int) -> int:
        """Ask once; when to come again."""
        had = bool(self.pending)
        while self.pending and self.pending[0] <= now:
            self.gate.confirmed(self.wish[0], self.pending.pop(0))
            self.gate.measured(self.use_of(self.wish[0]), self.use_of(self.takes_ns), now)
        if had and not self.pending:
            self.gate.rest(0, 0, True, now)
        if self.pending:
            self.gate.prolong(now + LONGER)  # as the hook does while events do not show its end
        self.since_ns = self.since_ns or now
        passes, self.reason, until_ns = self.gate.ask(self.wish, self.since_ns, now)
        if not passes:
            return min(max(until_ns, now + US), now + NAP)  # as long as the hook sleeps at most
        occupied_ns = self.takes_ns if self.depth <= 4 else self.use_of(self.takes_ns)
        self.ends[self.device] = max(self.ends[self.device], now) + occupied_ns
        self.pending.append(self.ends[self.device])
        self.used_ns += self.use_of(self.takes_ns)
        self.since_ns = 0
        if len(self.pending) < self.depth:
            return now + US
        self.gate.rest(0, 0, False, now)
        return self.pending[-1]

    def use_of(self, length_ns: int) -> int:
        return length_ns * (PPM - self.wish[7]) // PPM


def seat(slot: int, limit_ppm: int = 0, *, static: bool = False, priority: int = 7) -> GateSeat:
    return GateSeat(slot, 1, priority, online=False, limit_ppm=limit_ppm, static=static)


def device(*seats: GateSeat, policy: GatePolicy = GatePolicy.FILL, slots: int = 4) -> bytearray:
    file = bytearray(roster.file_bytes(slots))
    roster.format_roster(file, slots)
    roster.write_roster(file, GateRules(policy, seats=seats))
    return file


def play(hosts: list[Host], for_ns: int, begin: int = START) -> None:
    turns = [(begin, number) for number in range(len(hosts))]
    while turns[0][0] < begin + for_ns:
        now, number = heapq.heappop(turns)
        heapq.heappush(turns, (max(hosts[number].turn(now), now + 1), number))


@given(
    *(lengths_ns, shares_ppm, st.sampled_from([50, 100, 170]), st.sampled_from([0, 600_000])),
    st.sampled_from(GatePolicy),
)
@settings(max_examples=15)
def test_a_static_share_is_exact_in_the_long_run_however_long_kernels_take(
    length_ns: int, share_ppm: int, percent: int, free_ppm: int, policy: GatePolicy
) -> None:
    """Also if they take longer or shorter than expected, and if one is longer than the window."""
    file = device(seat(0, share_ppm, static=True), policy=policy)
    host = Host(file, 0, length_ns, length_ns * percent // 100, free_ppm)
    for_ns = 40 * max(WINDOW, host.takes_ns)
    play([host], for_ns)
    reachable_ns = for_ns * (PPM - free_ppm) // PPM
    wanted_ns = min(for_ns * share_ppm // PPM, reachable_ns)
    slack_ns = AHEAD + WINDOW * share_ppm // PPM + 4 * max(host.takes_ns, length_ns)
    assert host.used_ns <= for_ns * share_ppm // PPM + slack_ns
    assert host.used_ns >= wanted_ns - slack_ns


def test_who_idled_has_a_small_burst_and_no_more() -> None:
    host = Host(device(seat(0, 500_000, static=True)), 0, 50 * US)
    play([host], 10 * MS)
    before_ns = host.used_ns
    play([host], 100 * MS, START + 60_000 * MS)
    assert host.used_ns - before_ns <= (WINDOW + 100 * MS + AHEAD) // 2 + 50 * US


def test_alone_a_conserving_tenant_does_not_ask_and_a_static_one_does() -> None:
    assert not Host(device(seat(0, 300_000)), 0, US).gate.must_ask()
    assert not Host(device(seat(0, 300_000), seat(1, priority=8)), 0, US).gate.must_ask()
    assert Host(device(seat(0, 300_000), seat(1)), 0, US).gate.must_ask()
    assert Host(device(seat(0, 300_000, static=True)), 0, US).gate.must_ask()
    assert not Host(device(seat(0), seat(1)), 0, US).gate.must_ask()
    assert Host(device(seat(0), seat(1, 300_000)), 0, US).gate.must_ask()


@pytest.mark.parametrize("mine", [200_000, 500_000, 800_000])
def test_conserving_equals_who_all_want_more_have_their_shares(mine: int) -> None:
    file = device(seat(0, mine), seat(1, PPM - mine))
    hosts = [Host(file, 0, 70 * US), Host(file, 1, 400 * US)]
    play(hosts, 2_000 * MS)
    for host, share in zip(hosts, (mine, PPM - mine), strict=True):
        assert abs(host.used_ns * PPM // (2_000 * MS) - share) < 40_000


def test_one_without_a_share_lets_an_equal_have_its_own_first_and_is_not_kept_out_for_good() -> None:
    file = device(seat(0, 900_000, static=True), seat(1))
    owner, other = Host(file, 0, 200 * US), Host(file, 1, 200 * US)
    play([owner, other], 1_000 * MS)
    assert abs(owner.used_ns - 900 * MS) < 20 * MS
    assert other.used_ns > 0
    whole = device(seat(0, PPM), seat(1))
    greedy, starved = Host(whole, 0, 200 * US), Host(whole, 1, 200 * US)
    play([greedy, starved], 1_000 * MS)
    assert starved.reason == SHARE
    assert starved.used_ns >= 5 * 200 * US


@pytest.mark.parametrize("free_ppm", [0, 500_000, 900_000])
@pytest.mark.parametrize("length_ns", [50 * US, 500 * US, 3 * MS])
def test_who_submits_far_ahead_has_its_share_beside_one_that_does_too(free_ppm: int, length_ns: int) -> None:
    """Also of work whose streams run side by side, so that it is over sooner than one after the other would be."""
    file = device(seat(0, 800_000, static=True), seat(1))
    owner, other = Host(file, 0, length_ns, free_ppm=free_ppm, depth=400), Host(file, 1, 200 * US, depth=400)
    play([owner, other], 1_000 * MS)
    assert abs(owner.used_ns - 800 * MS) < 30 * MS
    assert other.used_ns > 150 * MS


def test_who_died_or_has_had_its_share_or_is_paused_keeps_nobody_waiting() -> None:
    file = device(seat(0, 500_000), seat(1))
    dead, other = Host(file, 0, 2 * MS), Host(file, 1, 100 * US)
    play([dead], 20 * MS)
    play([other], 500 * MS, START + 20 * MS)
    assert other.used_ns > 450 * MS
    paused = device(GateSeat(0, 1, 7, online=False, paused=True, limit_ppm=500_000), seat(1))
    held, free = Host(paused, 0, 2 * MS), Host(paused, 1, 100 * US)
    play([held, free], 100 * MS)
    assert held.used_ns == 0
    assert free.used_ns > 90 * MS


@pytest.mark.parametrize("before_ppm, after_ppm", [(200_000, 800_000), (800_000, 200_000), (50_000, 950_000)])
def test_another_share_is_had_from_then_on(before_ppm: int, after_ppm: int) -> None:
    file = device(seat(0, before_ppm, static=True), seat(1))
    hosts = [Host(file, 0, 100 * US), Host(file, 1, 200 * US)]
    play(hosts, 500 * MS)
    before_ns = hosts[0].used_ns
    assert abs(before_ns - 500 * MS * before_ppm // PPM) < 20 * MS
    roster.write_roster(file, GateRules(seats=(seat(0, after_ppm, static=True), seat(1))))
    play(hosts, 500 * MS, START + 500 * MS)
    assert abs(hosts[0].used_ns - before_ns - 500 * MS * after_ppm // PPM) < 20 * MS


@pytest.mark.parametrize("least_ppm", [50_000, 200_000])
@pytest.mark.parametrize("length_ns", [50 * US, 2 * MS, 20 * MS])
def test_one_above_that_never_rests_leaves_the_least_share(least_ppm: int, length_ns: int) -> None:
    """Of a tenant below: promised, so never starved; also of kernels that fit into no gap."""
    low = GateSeat(1, 1, 7, online=False, least_ppm=least_ppm)
    file = device(GateSeat(0, 1, 1, online=True), low)
    above, below = Host(file, 0, 200 * US), Host(file, 1, length_ns)
    play([above, below], 4_000 * MS)
    assert below.used_ns >= 4_000 * MS * least_ppm // PPM * 9 // 10 - length_ns


def test_several_processes_of_a_tenant_share_its_least_share() -> None:
    """Each of them had all of it when it was its own."""
    file = device(GateSeat(0, 1, 1, online=True), GateSeat(1, 1, 7, online=False, least_ppm=100_000))
    above, kin = Host(file, 0, 200 * US), [Host(file, 1, 2 * MS) for _ in range(4)]
    play([above, *kin], 4_000 * MS)
    used_ns = sum(host.used_ns for host in kin)
    assert 360 * MS - 2 * MS <= used_ns <= 400 * MS + 80 * MS


def test_several_processes_of_a_tenant_share_its_share() -> None:
    file = device(seat(0, 400_000, static=True), seat(1))
    kin = [Host(file, 0, 100 * US) for _ in range(3)]
    other = Host(file, 1, 200 * US)
    play([*kin, other], 2_000 * MS)
    assert abs(sum(host.used_ns for host in kin) - 800 * MS) < 30 * MS
    assert all(host.used_ns > 100 * MS for host in kin)


def test_another_share_acts_at_the_next_launch_and_on_the_debt() -> None:
    """A kernel of a second at a tenth keeps the gate closed for ten; at a half, for two."""
    file = device(seat(0, 100_000, static=True))
    host = Host(file, 0, MS)
    second: Wish = (1_000 * MS, 1_000 * MS, 0, 0, 1, 0, 1, 0)
    assert host.gate.ask(second, START, START)[0] == 1
    assert host.gate.ask(second, START, START) == (0, LIMIT, START + 10_000 * MS)
    roster.write_roster(file, GateRules(seats=(seat(0, 500_000, static=True),)))
    assert host.gate.ask(second, START, START) == (0, LIMIT, START + 2_000 * MS)
    assert host.gate.ask(second, START, START + 2_000 * MS)[0] == 1


def test_a_copy_is_neither_charged_nor_held_back_and_a_failed_launch_is_given_back() -> None:
    host = Host(device(seat(0, 100_000, static=True)), 0, MS)
    copy: Wish = (5 * MS, 5 * MS, 0, 0, 1, 0, 1, PPM)
    assert host.gate.ask(copy, START, START)[0] == 1
    assert host.gate.ask(host.wish, START, START)[0] == 1
    assert host.gate.ask(host.wish, START, START) == (0, LIMIT, START + 10 * MS)
    assert host.gate.ask(copy, START, START)[0] == 1
    host.gate.submitted(host.wish, False, START)
    assert host.gate.ask(host.wish, START, START)[0] == 1


def test_under_mps_nobody_waits_for_an_equal_whose_kernels_take_no_more_sms_than_its_share() -> None:
    for free_ppm, waits in ((690_000, False), (0, True)):
        file = device(seat(0, 300_000, static=True), seat(1))
        owner, other = Host(file, 0, MS, free_ppm=free_ppm), Host(file, 1, MS)
        other.gate.share_by_mps(True)
        assert owner.gate.ask(owner.wish, START, START)[0] == 1
        assert (other.gate.ask(other.wish, START, START)[1] == SHARE) == waits


@pytest.mark.parametrize("shares", [(50_000, 200_000), (300_000, 600_000), (150_000, 250_000, 450_000)])
@pytest.mark.parametrize("static", [True, False])
def test_whoever_has_a_share_has_it_beside_all_others_who_want_more(shares: tuple[int, ...], static: bool) -> None:
    """Kernels of several lengths, and one tenant without a share, which has the rest."""
    seats = [seat(slot, share, static=static) for slot, share in enumerate(shares)]
    file = device(*seats, seat(len(shares)))
    hosts = [
        Host(file, slot, length_ns)
        for slot, length_ns in zip(range(len(shares)), (70 * US, MS, 300 * US), strict=False)
    ]
    play([*hosts, Host(file, len(shares), 200 * US)], 1_000 * MS)
    for host, share in zip(hosts, shares, strict=True):
        assert host.used_ns >= 1_000 * MS * share // PPM - 30 * MS


@pytest.mark.parametrize("share_ppm", [100_000, 500_000, 700_000])
@pytest.mark.parametrize("length_ns", [50 * US, 500 * US, 2 * MS])
def test_whoever_is_kept_from_its_processor_has_its_share_all_the_same(share_ppm: int, length_ns: int) -> None:
    """Every second nobody runs for longer than one that idles may save up for. Who sleeps at the gate does not idle."""
    file = device(seat(0, share_ppm, static=True), seat(1))
    hosts = [Host(file, 0, length_ns), Host(file, 1, 200 * US)]
    for second in range(5):
        begin = START + second * 1_000 * MS
        play(hosts, 800 * MS, begin)
        for host in hosts:
            host.gate.overslept(200 * MS, begin + 1_000 * MS)
    play(hosts, 500 * MS, START + 5_000 * MS)
    assert abs(hosts[0].used_ns - 5_500 * MS * share_ppm // PPM) < 50 * MS


@given(
    st.lists(st.tuples(st.sampled_from([100_000, 200_000, 300_000]), long_ns), min_size=1, max_size=3),
    *(long_ns, st.booleans(), st.sampled_from([4, 400])),
)
@settings(max_examples=12, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@example([(300_000, 300 * US), (300_000, 30 * MS), (300_000, 250 * MS)], 300 * US, False, 4)
@example([(300_000, 2 * MS), (200_000, 250 * MS)], 250 * MS, True, 4)
@example([(300_000, 300 * US)], 250 * MS, False, 400)
def test_kernels_of_a_quarter_of_a_second_take_nobody_its_share(
    owners: list[tuple[int, int]], other_ns: int, static: bool, depth: int
) -> None:
    """Whoever has such, with a share or without; but for what they took before anybody knew of the others."""
    file = device(*(seat(slot, share, static=static) for slot, (share, _) in enumerate(owners)), seat(len(owners)))
    hosts = [Host(file, slot, length_ns, depth=depth) for slot, (_, length_ns) in enumerate(owners)]
    other = Host(file, len(owners), other_ns, depth=depth)
    longest_ns = max(other_ns, *(length_ns for _, length_ns in owners))
    for_ns = 40 * max(WINDOW, longest_ns)
    play([*hosts, other], for_ns)
    for host, (share, length_ns) in zip(hosts, owners, strict=True):
        assert host.used_ns >= for_ns * share // PPM * 9 // 10 - 2 * (length_ns + longest_ns)
    assert other.used_ns > 0
