"""A short scenario of three tenants at one gate as a log: each launch request and the gate's decision."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

from cotenant import _native
from cotenant.gate import tenant_table
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules
from tests.support.gate_sums import MS, US

NAMES: Final = ("online", "training", "batch")
PRIORITIES: Final = (0, 5, 7)
REASONS: Final = {
    0: "nobody is above",
    1: "all above are quiet",
    2: "it fits into the gap",
    3: "its share is due",
    4: "it waited long",
    5: "nothing ends",
    6: "it gives way block by block",
    8: "one above is busy",
    9: "it does not fit",
    10: "one above is due",
    11: "enough is submitted",
    12: "a better one waits",
    13: "it is paused",
    14: "one launched",
    15: "of the debt",
}
START: Final = 1_000_000_000
DEBT_AT: Final = tenant_table.TABLE_BYTES + 64


class GateScenario:
    """The device's file, its tenants, and the instant."""

    def __init__(self) -> None:
        self.file = tenant_table.device_memory()
        self.now, self.since = START, dict.fromkeys(NAMES, 0)
        self.rule()
        self.gates = {name: _native.Gate(self.file, slot, 1) for slot, name in enumerate(NAMES)}

    def rule(self, policy: GatePolicy = GatePolicy.FILL, paused: str = "") -> str:
        entries = [
            GateEntry(slot, 1, PRIORITIES[slot], online=slot == 0, paused=name == paused)
            for slot, name in enumerate(NAMES)
        ]
        tenant_table.write_tenant_table(self.file, GateRules(policy, switch_ns=0, entries=tuple(entries)))
        return f"the node says: {policy.value}" + (f", {paused} paused" if paused else "")

    def launch(self, name: str, expect_us: int, back_us: int = 0, granularity_us: int = 0) -> str:
        """Request a launch and describe the decision; the host expects to launch again after `back_us`."""
        gate, low = self.gates[name], back_us * US
        request = (expect_us * US, expect_us * US, low, low and low + 50 * US, 1, granularity_us * US, 1)
        self.since[name] = self.since[name] or self.now
        passes, reason, until, *_ = gate.admit(request, self.since[name], self.now)
        if passes:
            self.since[name] = 0
            gate.submitted(request, True, self.now)
        decision = "passes" if passes else f"waits until {(until - START) / US:.1f} us"
        owed = max(struct.unpack_from("<Q", self.file, DEBT_AT)[0] - self.now, 0)
        debt = f" (debt {owed / MS:.2f} ms)" if owed else ""
        blocks = f" in blocks of {granularity_us} us" if granularity_us else ""
        return f"{name} wants {expect_us} us{blocks}: {decision}, {REASONS[reason]}{debt}"

    def over(self, name: str, expect_us: int) -> str:
        self.gates[name].confirmed(expect_us * US, self.now)
        return f"{name}'s {expect_us} us are over"

    def wait(self, name: str) -> str:
        self.gates[name].sync(400 * US, 450 * US, False, self.now)
        return f"{name} waits for the device, and is expected back 400 us after"

    def at(self, now_us: float) -> None:
        self.now = START + round(now_us * US)


def log_lines() -> Iterator[str]:
    scenario = GateScenario()
    steps: list[tuple[int, Callable[[], str]]] = [
        (0, lambda: scenario.launch("online", 20, 300)),
        (5, lambda: scenario.launch("training", 60)),
        (6, lambda: scenario.launch("batch", 40)),
        (20, lambda: scenario.launch("batch", 40)),
        (20, lambda: scenario.launch("training", 60)),
        (22, lambda: scenario.launch("batch", 40)),
        (80, lambda: scenario.over("training", 60)),
        (85, lambda: scenario.launch("batch", 40)),
        (120, lambda: scenario.launch("training", 250)),
        (125, lambda: scenario.launch("training", 100)),
        (140, lambda: scenario.launch("online", 30, 300)),  # earlier than expected
        (150, lambda: scenario.launch("training", 100)),
        (225, lambda: scenario.over("training", 100)),
        (226, lambda: scenario.wait("online")),
        (230, lambda: scenario.launch("training", 100)),
        (330, lambda: scenario.over("training", 100)),
        (5000, lambda: scenario.launch("training", 900)),  # no other tenant is active, but the debt is large
        (20_000, lambda: scenario.launch("training", 900)),
        (20_010, lambda: scenario.launch("batch", 40)),
        (20_100, lambda: scenario.launch("online", 20, 400)),  # the online tenant is active again
        (20_110, lambda: scenario.launch("training", 50)),
        (20_900, lambda: scenario.over("training", 900)),
        (21_000, lambda: scenario.launch("batch", 40)),
        (21_100, lambda: scenario.launch("online", 20, 400)),
        (21_150, lambda: scenario.launch("training", 50)),
        (150_000, lambda: scenario.launch("online", 20, 400)),
        (150_025, lambda: scenario.launch("training", 50)),  # the debt is low enough to fill gaps again
        (150_080, lambda: scenario.over("training", 50)),
        (160_000, lambda: scenario.launch("training", 50)),
        (161_000, lambda: scenario.rule(paused="training")),
        (161_001, lambda: scenario.launch("training", 50)),
        (161_002, lambda: scenario.launch("batch", 40)),
        (300_000, lambda: scenario.launch("batch", 40)),
        (300_100, lambda: scenario.over("batch", 40)),
        (300_100, lambda: scenario.rule(GatePolicy.STRICT)),
        (300_200, lambda: scenario.launch("online", 20, 400)),
        (300_300, lambda: scenario.launch("training", 50)),
        (303_000, lambda: scenario.launch("training", 50)),
        (303_010, lambda: scenario.rule(GatePolicy.OPEN)),
        (303_011, lambda: scenario.launch("batch", 40)),
        (303_051, lambda: scenario.over("batch", 40)),
        (400_000, lambda: scenario.rule(GatePolicy.FILL)),
        (400_001, lambda: scenario.launch("online", 900, 100)),
        (400_101, lambda: scenario.launch("online", 900, 100)),
        (400_201, lambda: scenario.launch("online", 900, 100)),
        (400_210, lambda: scenario.launch("batch", 200)),
        (
            400_220,
            lambda: scenario.launch("training", 200, granularity_us=4),
        ),  # while the device is busy
        (400_301, lambda: scenario.launch("online", 900, 100)),  # the online tenant loses a part of a block
        (400_310, lambda: scenario.launch("training", 200, granularity_us=4)),
    ]
    for now_us, step in steps:
        scenario.at(now_us)
        yield f"{now_us:>9.1f} us  {step()}"


if __name__ == "__main__":
    for line in log_lines():
        print(line)
