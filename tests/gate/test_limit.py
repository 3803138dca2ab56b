"""Each tenant gets its share: static limits are not exceeded, conserving limits use idle time of others."""

from __future__ import annotations

import heapq
from typing import ClassVar

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from cotenant import _native
from cotenant.gate import tenant_table
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules, ProcessEntry
from tests.support.gate_sums import AHEAD, LIMIT, MS, PPM, SHARE, US, WINDOW, LaunchRequest

START = 10_000 * MS
WAIT_NS = 5 * MS
LONGER = 30 * US
lengths_ns = st.sampled_from([5 * US, 50 * US, 300 * US, 2 * MS, 30 * MS, 250 * MS])
long_ns = st.sampled_from([300 * US, 2 * MS, 30 * MS, 250 * MS])
shares_ppm = st.sampled_from([50_000, 100_000, 300_000, 500_000, 700_000, 950_000])


class Host:
    """A host that always wants to launch; those of one file share a device, first come first served."""

    ends: ClassVar[dict[int, int]] = {}

    def __init__(
        self, file: memoryview, slot: int, length_ns: int, takes_ns: int = 0, free_ppm: int = 0, depth: int = 4
    ) -> None:
        """Set up the host; with a larger depth its small kernels go to several streams and run concurrently."""
        self.device = id(file)
        self.ends[self.device] = 0
        self.gate = _native.Gate(file, slot, 1)
        self.request: LaunchRequest = (length_ns, length_ns, 0, 0, 1, 0, 1, free_ppm)
        self.takes_ns = takes_ns or length_ns
        self.since_ns = self.used_ns = self.reason = 0
        self.depth = depth
        self.pending: list[int] = []

    def turn(self, now: int) -> int:
        """Ask once; when to come again."""
        had = bool(self.pending)
        while self.pending and self.pending[0] <= now:
            self.gate.confirmed(self.request[0], self.pending.pop(0))
            self.gate.measured(self.use_of(self.request[0]), self.use_of(self.takes_ns), now)
        if had and not self.pending:
            self.gate.sync(0, 0, True, now)
        if self.pending:
            self.gate.prolong(now + LONGER)  # as the hook does while events do not show its end
        self.since_ns = self.since_ns or now
        passes, self.reason, until_ns, *_ = self.gate.admit(self.request, self.since_ns, now)
        if not passes:
            return min(max(until_ns, now + US), now + WAIT_NS)  # as long as the hook sleeps at most
        occupied_ns = self.takes_ns if self.depth <= 4 else self.use_of(self.takes_ns)
        self.ends[self.device] = max(self.ends[self.device], now) + occupied_ns
        self.pending.append(self.ends[self.device])
        self.used_ns += self.use_of(self.takes_ns)
        self.since_ns = 0
        if len(self.pending) < self.depth:
            return now + US
        self.gate.sync(0, 0, False, now)
        return self.pending[-1]

    def use_of(self, length_ns: int) -> int:
        return length_ns * (PPM - self.request[7]) // PPM


def entry(slot: int, limit_ppm: int = 0, *, static: bool = False, priority: int = 7) -> GateEntry:
    return GateEntry(slot, 1, priority, online=False, limit_ppm=limit_ppm, static=static)


def device(*entries: GateEntry, policy: GatePolicy = GatePolicy.FILL) -> memoryview:
    file = tenant_table.device_memory()
    tenant_table.write_tenant_table(file, GateRules(policy, entries=entries))
    return file


def device_of_processes(*tenants: tuple[GateEntry, int]) -> memoryview:
    """Return a device on which each tenant has several processes; their indexes are consecutive."""
    file = tenant_table.device_memory()
    entries = [entry for entry, count in tenants for _ in range(count)]
    processes = [ProcessEntry(index, 1, entry.slot, entry) for index, entry in enumerate(entries)]
    tenant_table.write_tenant_table(file, GateRules(), processes)
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
def test_static_share_is_exact_for_any_kernel_length(
    length_ns: int, share_ppm: int, percent: int, free_ppm: int, policy: GatePolicy
) -> None:
    """Also if they take longer or shorter than expected, and if one is longer than the window."""
    file = device(entry(0, share_ppm, static=True), policy=policy)
    host = Host(file, 0, length_ns, length_ns * percent // 100, free_ppm)
    for_ns = 40 * max(WINDOW, host.takes_ns)
    play([host], for_ns)
    reachable_ns = for_ns * (PPM - free_ppm) // PPM
    wanted_ns = min(for_ns * share_ppm // PPM, reachable_ns)
    slack_ns = AHEAD + WINDOW * share_ppm // PPM + 4 * max(host.takes_ns, length_ns)
    assert host.used_ns <= for_ns * share_ppm // PPM + slack_ns
    assert host.used_ns >= wanted_ns - slack_ns


def test_idle_tenant_gets_a_bounded_burst() -> None:
    host = Host(device(entry(0, 500_000, static=True)), 0, 50 * US)
    play([host], 10 * MS)
    before_ns = host.used_ns
    play([host], 100 * MS, START + 60_000 * MS)
    assert host.used_ns - before_ns <= (WINDOW + 100 * MS + AHEAD) // 2 + 50 * US


def test_conserving_tenant_alone_needs_no_admission() -> None:
    assert not Host(device(entry(0, 300_000)), 0, US).gate.must_ask()
    assert not Host(device(entry(0, 300_000), entry(1, priority=8)), 0, US).gate.must_ask()
    assert Host(device(entry(0, 300_000), entry(1)), 0, US).gate.must_ask()
    assert Host(device(entry(0, 300_000, static=True)), 0, US).gate.must_ask()
    assert not Host(device(entry(0), entry(1)), 0, US).gate.must_ask()
    assert Host(device(entry(0), entry(1, 300_000)), 0, US).gate.must_ask()


@pytest.mark.parametrize("mine", [200_000, 500_000, 800_000])
def test_saturated_conserving_equals_get_their_shares(mine: int) -> None:
    file = device(entry(0, mine), entry(1, PPM - mine))
    hosts = [Host(file, 0, 70 * US), Host(file, 1, 400 * US)]
    play(hosts, 2_000 * MS)
    for host, share in zip(hosts, (mine, PPM - mine), strict=True):
        assert abs(host.used_ns * PPM // (2_000 * MS) - share) < 40_000


def test_tenant_without_a_share_yields_to_an_equal_and_is_not_starved() -> None:
    file = device(entry(0, 900_000, static=True), entry(1))
    owner, other = Host(file, 0, 200 * US), Host(file, 1, 200 * US)
    play([owner, other], 1_000 * MS)
    assert abs(owner.used_ns - 900 * MS) < 20 * MS
    assert other.used_ns > 0
    second_file = device(entry(0, PPM), entry(1))
    greedy, starved = Host(second_file, 0, 200 * US), Host(second_file, 1, 200 * US)
    play([greedy, starved], 1_000 * MS)
    assert starved.reason == SHARE
    assert starved.used_ns >= 5 * 200 * US


@pytest.mark.parametrize("free_ppm", [0, 500_000, 900_000])
@pytest.mark.parametrize("length_ns", [50 * US, 500 * US, 3 * MS])
def test_tenants_that_submit_far_ahead_get_their_shares(free_ppm: int, length_ns: int) -> None:
    """Also of work whose streams run side by side, so that it is over sooner than one after the other would be."""
    file = device(entry(0, 800_000, static=True), entry(1))
    owner, other = Host(file, 0, length_ns, free_ppm=free_ppm, depth=400), Host(file, 1, 200 * US, depth=400)
    play([owner, other], 1_000 * MS)
    assert abs(owner.used_ns - 800 * MS) < 30 * MS
    assert other.used_ns > 150 * MS


def test_dead_paused_or_satisfied_tenant_blocks_no_equal() -> None:
    file = device(entry(0, 500_000), entry(1))
    dead, other = Host(file, 0, 2 * MS), Host(file, 1, 100 * US)
    play([dead], 20 * MS)
    play([other], 500 * MS, START + 20 * MS)
    assert other.used_ns > 450 * MS
    paused = device(GateEntry(0, 1, 7, online=False, paused=True, limit_ppm=500_000), entry(1))
    held, free = Host(paused, 0, 2 * MS), Host(paused, 1, 100 * US)
    play([held, free], 100 * MS)
    assert held.used_ns == 0
    assert free.used_ns > 90 * MS


@pytest.mark.parametrize("before_ppm, after_ppm", [(200_000, 800_000), (800_000, 200_000), (50_000, 950_000)])
def test_changed_share_takes_effect(before_ppm: int, after_ppm: int) -> None:
    file = device(entry(0, before_ppm, static=True), entry(1))
    hosts = [Host(file, 0, 100 * US), Host(file, 1, 200 * US)]
    play(hosts, 500 * MS)
    before_ns = hosts[0].used_ns
    assert abs(before_ns - 500 * MS * before_ppm // PPM) < 20 * MS
    tenant_table.write_tenant_table(file, GateRules(entries=(entry(0, after_ppm, static=True), entry(1))))
    play(hosts, 500 * MS, START + 500 * MS)
    assert abs(hosts[0].used_ns - before_ns - 500 * MS * after_ppm // PPM) < 20 * MS


@pytest.mark.parametrize("guaranteed_ppm", [50_000, 200_000])
@pytest.mark.parametrize("length_ns", [50 * US, 2 * MS, 20 * MS])
def test_busy_higher_priority_leaves_the_minimum_share(guaranteed_ppm: int, length_ns: int) -> None:
    """Of a tenant below: promised, so never starved; also of kernels that fit into no gap."""
    low = GateEntry(1, 1, 7, online=False, guaranteed_ppm=guaranteed_ppm)
    file = device(GateEntry(0, 1, 1, online=True), low)
    above, below = Host(file, 0, 200 * US), Host(file, 1, length_ns)
    play([above, below], 4_000 * MS)
    assert below.used_ns >= 4_000 * MS * guaranteed_ppm // PPM * 9 // 10 - length_ns


def test_processes_of_a_tenant_divide_its_minimum_share() -> None:
    online, offline = GateEntry(0, 1, 1, online=True), GateEntry(1, 1, 7, online=False, guaranteed_ppm=100_000)
    file = device_of_processes((online, 1), (offline, 4))
    above, siblings = Host(file, 0, 200 * US), [Host(file, index, 2 * MS) for index in range(1, 5)]
    play([above, *siblings], 4_000 * MS)
    used_ns = sum(host.used_ns for host in siblings)
    assert 360 * MS - 2 * MS <= used_ns <= 400 * MS + 80 * MS


def test_processes_of_a_tenant_divide_its_share() -> None:
    file = device_of_processes((entry(0, 400_000, static=True), 3), (entry(1), 1))
    siblings = [Host(file, index, 100 * US) for index in range(3)]
    other = Host(file, 3, 200 * US)
    play([*siblings, other], 2_000 * MS)
    assert abs(sum(host.used_ns for host in siblings) - 800 * MS) < 30 * MS
    assert all(host.used_ns > 100 * MS for host in siblings)


def test_changed_share_applies_to_the_next_launch_and_the_debt() -> None:
    """A kernel of a second at a tenth keeps the gate closed for ten; at a half, for two."""
    file = device(entry(0, 100_000, static=True))
    host = Host(file, 0, MS)
    second: LaunchRequest = (1_000 * MS, 1_000 * MS, 0, 0, 1, 0, 1, 0)
    assert host.gate.admit(second, START, START)[0] == 1
    assert host.gate.admit(second, START, START)[:3] == (0, LIMIT, START + 10_000 * MS)
    tenant_table.write_tenant_table(file, GateRules(entries=(entry(0, 500_000, static=True),)))
    assert host.gate.admit(second, START, START)[:3] == (0, LIMIT, START + 2_000 * MS)
    assert host.gate.admit(second, START, START + 2_000 * MS)[0] == 1


def test_copy_is_not_charged_and_a_failed_launch_is_refunded() -> None:
    host = Host(device(entry(0, 100_000, static=True)), 0, MS)
    copy: LaunchRequest = (5 * MS, 5 * MS, 0, 0, 1, 0, 1, PPM)
    assert host.gate.admit(copy, START, START)[0] == 1
    assert host.gate.admit(host.request, START, START)[0] == 1
    assert host.gate.admit(host.request, START, START)[:3] == (0, LIMIT, START + 10 * MS)
    assert host.gate.admit(copy, START, START)[0] == 1
    host.gate.submitted(host.request, False, START)
    assert host.gate.admit(host.request, START, START)[0] == 1


def test_mps_tenant_within_its_share_of_sms_delays_no_equal() -> None:
    for free_ppm, waits in ((690_000, False), (0, True)):
        file = device(entry(0, 300_000, static=True), entry(1))
        owner, other = Host(file, 0, MS, free_ppm=free_ppm), Host(file, 1, MS)
        other.gate.share_by_mps(0)
        assert owner.gate.admit(owner.request, START, START)[0] == 1
        assert (other.gate.admit(other.request, START, START)[1] == SHARE) == waits


@pytest.mark.parametrize("shares", [(50_000, 200_000), (300_000, 600_000), (150_000, 250_000, 450_000)])
@pytest.mark.parametrize("static", [True, False])
def test_share_holds_next_to_saturated_equals(shares: tuple[int, ...], static: bool) -> None:
    """Kernels of several lengths, and one tenant without a share, which has the rest."""
    entries = [entry(slot, share, static=static) for slot, share in enumerate(shares)]
    file = device(*entries, entry(len(shares)))
    hosts = [
        Host(file, slot, length_ns)
        for slot, length_ns in zip(range(len(shares)), (70 * US, MS, 300 * US), strict=False)
    ]
    play([*hosts, Host(file, len(shares), 200 * US)], 1_000 * MS)
    for host, share in zip(hosts, shares, strict=True):
        assert host.used_ns >= 1_000 * MS * share // PPM - 30 * MS


@pytest.mark.parametrize("share_ppm", [100_000, 500_000, 700_000])
@pytest.mark.parametrize("length_ns", [50 * US, 500 * US, 2 * MS])
def test_share_holds_for_a_descheduled_process(share_ppm: int, length_ns: int) -> None:
    """Each second all processes are descheduled for longer than idle time is saved; a sleep at the gate is not idle."""
    file = device(entry(0, share_ppm, static=True), entry(1))
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
def test_kernels_of_a_quarter_second_keep_all_shares(
    owners: list[tuple[int, int]], other_ns: int, static: bool, depth: int
) -> None:
    """Any tenant may have such kernels, with or without a share; use before the others were known is excluded."""
    file = device(*(entry(slot, share, static=static) for slot, (share, _) in enumerate(owners)), entry(len(owners)))
    hosts = [Host(file, slot, length_ns, depth=depth) for slot, (_, length_ns) in enumerate(owners)]
    other = Host(file, len(owners), other_ns, depth=depth)
    longest_ns = max(other_ns, *(length_ns for _, length_ns in owners))
    for_ns = 40 * max(WINDOW, longest_ns)
    play([*hosts, other], for_ns)
    for host, (share, length_ns) in zip(hosts, owners, strict=True):
        assert host.used_ns >= for_ns * share // PPM * 9 // 10 - 2 * (length_ns + longest_ns)
    assert other.used_ns > 0
