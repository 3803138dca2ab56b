"""Next to an active holder, launches get a part of the SMs, which follows the holder's loss or the node's objective."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant import _native
from cotenant.gate.rules import GatePolicy, GateRules
from tests.gate.test_bounds import START, device, entries, gates
from tests.support import gate_sums as sums
from tests.support.gate_sums import MS, US, LaunchRequest

PPM = 1_000_000
STEP = 50_000
REQUEST_NS = 4 * MS


class Shared:
    """A holder whose requests follow each other without a pause, and a process of lower priority."""

    def __init__(self, rules: GateRules, *, step: int = STEP) -> None:
        self.file = device(rules)
        self.holder, self.low = gates(self.file, 2)
        self.low.share_by_mps(step)
        self.now = START
        self.running: list[tuple[int, int]] = []
        self.parts: list[int] = []
        self.reasons: list[int] = []

    def launch(self, length_ns: int, free_ppm: int = 0) -> tuple[int, int, int]:
        """Ask for a launch; return the reason, the expected time and the limit."""
        request: LaunchRequest = (length_ns, length_ns, 0, 0, 1, 0, 1, free_ppm)
        passes, reason, _, expect_ns, sm_ppm, _ = self.low.admit(request, self.now, self.now)
        if passes:
            self.low.submitted((expect_ns, *request[1:]), True, self.now)
            self.running.append((self.now + expect_ns, expect_ns))
            self.parts.append(sm_ppm or PPM)
        self.reasons.append(reason)
        return reason, expect_ns, sm_ppm

    def request(self, delay_of_part: float) -> None:
        """Serve one request, which takes longer in proportion to the SMs that others may use meanwhile."""
        begin, count = self.now, len(self.parts)
        self.holder.oldest(begin)
        self.holder.announce((REQUEST_NS, REQUEST_NS, 5 * US, 10 * US, 1, 0, 1, 0), begin)
        self.holder.sync(0, 0, False, begin + US)
        for number in range(20):
            self.now = begin + (number + 1) * REQUEST_NS // 20
            self.end()
            self.launch(300 * US)
        used = self.parts[count:]
        late_ns = round(REQUEST_NS * delay_of_part * sum(used) / len(used) / PPM) if used else 0
        self.now = begin + REQUEST_NS + late_ns
        self.end()
        self.holder.sync(5 * US, 10 * US, True, self.now)
        self.holder.oldest(0)
        self.holder.requested(self.now - begin, 0)

    def end(self) -> None:
        """Confirm launches that have ended."""
        for end, expect_ns in [ended for ended in self.running if ended[0] <= self.now]:
            self.low.confirmed(expect_ns, end)
            self.running.remove((end, expect_ns))


@pytest.mark.parametrize("delay", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("harm", [0.05, 0.2, 1.0])
def test_part_of_the_sms_settles_where_holders_lose_what_they_may(delay: float, harm: float) -> None:
    shared = Shared(GateRules(delay_ppm=round(delay * PPM), switch_ns=0, entries=entries(0, 5)))
    for _ in range(1500):
        shared.request(harm)
    parts = shared.parts[-len(shared.parts) // 3 :]
    mean = sum(parts) / len(parts) / PPM
    expected = min(delay / harm, 1.0)
    if expected > 0.1:
        assert 0.7 * expected <= mean <= min(1.25 * expected, 1.0)
        assert shared.reasons[-1000:].count(sums.SPACE) + shared.reasons[-1000:].count(sums.BOUND) > 950
    elif expected < 0.05:
        assert shared.reasons.count(sums.SPACE) < len(shared.reasons) / 20, "hardly any launch is worth its loss"


def test_part_shrinks_when_a_holder_begins_to_lose_more() -> None:
    shared = Shared(GateRules(delay_ppm=100_000, switch_ns=0, entries=entries(0, 5)))
    for _ in range(800):
        shared.request(0.05)
    assert shared.parts[-1] == PPM
    for _ in range(100):
        shared.request(0.5)
    assert max(shared.parts[-50:]) <= 300_000


@settings(max_examples=50)
@given(
    stated=st.integers(0, PPM),
    step=st.sampled_from([20_000, 50_000, 62_500, 125_000]),
    free_ppm=st.integers(0, PPM - 1),
    length_us=st.integers(1, 2000),
)
def test_launch_next_to_a_holder_gets_at_most_the_part_that_the_node_states(
    stated: int, step: int, free_ppm: int, length_us: int
) -> None:
    shared = Shared(GateRules(delay_ppm=20_000, switch_ns=0, entries=entries(0, 5), sm_ppm=stated), step=step)
    for _ in range(20):  # its requests leave no pauses
        shared.request(0.0)
    for _, running_ns in shared.running:
        shared.low.confirmed(running_ns, shared.now)
    shared.holder.announce((REQUEST_NS, REQUEST_NS, 5 * US, 10 * US, 1, 0, 1, 0), shared.now)
    shared.holder.sync(0, 0, False, shared.now)
    shared.holder.oldest(shared.now)
    part = PPM - free_ppm
    reason, expect_ns, sm_ppm = shared.launch(length_us * US, free_ppm)
    if stated < max(step, 50_000):
        assert reason == sums.BUSY
    elif part <= stated or stated >= 950_000:
        assert (reason, expect_ns, sm_ppm) == (sums.SPACE, length_us * US, 0), "it leaves enough SMs by itself"
    else:
        assert reason == sums.SPACE
        assert sm_ppm == stated // step * step
        assert expect_ns == length_us * US * part // sm_ppm, "it takes longer"


@pytest.mark.parametrize("is_active", [True, False])
@pytest.mark.parametrize(
    "stated, limited", [(600_000, 600_000), (620_000, 600_000), (960_000, 950_000), (1_000_000, 0), (None, 0)]
)
def test_open_gate_limits_every_lower_launch_to_the_stated_part(
    stated: int | None, limited: int, is_active: bool
) -> None:
    rules = GateRules(policy=GatePolicy.OPEN, switch_ns=0, entries=entries(0, 5), sm_ppm=stated)
    shared = Shared(rules, step=50_000)
    if is_active:
        shared.holder.announce((REQUEST_NS, REQUEST_NS, 5 * US, 10 * US, 1, 0, 1, 0), shared.now)
    assert shared.launch(MS)[::2] == (sums.TOP, limited)
    assert shared.launch(MS, free_ppm=500_000)[::2] == (sums.TOP, 0), "it leaves enough SMs by itself"
    assert shared.holder.admit((MS, MS, 0, 0, 1, 0, 1, 0), shared.now, shared.now)[1] == sums.TOP


def test_process_that_cannot_limit_its_launches_passes_only_with_small_ones() -> None:
    shared = Shared(GateRules(delay_ppm=20_000, switch_ns=0, entries=entries(0, 5), sm_ppm=500_000), step=0)
    for _ in range(20):
        shared.request(0.0)
    shared.holder.announce((REQUEST_NS, REQUEST_NS, 5 * US, 10 * US, 1, 0, 1, 0), shared.now)
    assert shared.launch(MS)[0] == sums.BUSY
    assert shared.launch(MS, free_ppm=600_000)[::2] == (sums.SPACE, 0)


def test_without_mps_only_time_decides() -> None:
    shared = Shared(GateRules(delay_ppm=20_000, switch_ns=0, entries=entries(0, 5), sm_ppm=500_000))
    alone: _native.Gate = gates(shared.file, 2)[1]
    shared.holder.announce((REQUEST_NS, REQUEST_NS, 5 * US, 10 * US, 1, 0, 1, 0), START)
    assert alone.admit((MS, MS, 0, 0, 1, 0, 1, 600_000), START, START)[1] == sums.BUSY
