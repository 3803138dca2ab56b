"""The node opens the gate, with a fixed part of the SMs for offline work, where that is measured to be better."""

import msgspec
import pytest

from cotenant.gate.rules import GatePolicy, GateRules
from cotenant.gate.tenant_table import read_tenant_table
from cotenant.node.model.control import AdjustCause, Adjustment, ControlLimits, DeviceWindow, TenantWindow
from cotenant.node.model.event import NodeSettings, OnlineShareProposed
from cotenant.node.policy.adjust.simple_mode import GateOnly, MeasuredMode, ModeInput, SimpleModeParameters
from cotenant.node.state.control import Control
from cotenant.simulate.kernels import RunSettings
from cotenant.simulate.sharing import Guest, RunSpec, SharingOutcome
from cotenant.simulate.steering import Steering, steered
from cotenant.softgpu.costs import hardware
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.load import BACK_TO_BACK, TRAINING, Arrival, Launch, Workload
from tests.node.test_control import JOB, ONE_GPU, WEB, node_with, table_of
from tests.node.test_state import Node

PERIOD_NS = ControlLimits().period_ns
STEPS = SimpleModeParameters()
LIMITS = ControlLimits()
MAX_PPM = LIMITS.max_online_ppm


class Device:
    """A device whose policy sees windows of one service and one training."""

    def __init__(self) -> None:
        self.mode = MeasuredMode()
        self.number = 0
        self.is_possible = True
        self.slo_ns = 10 * MILLISECOND_NS

    def run(
        self, for_ns: int, *, active: float = 1.0, launches: int = 100, online_ppm: int = 800_000, over: int = 0
    ) -> list[str]:
        """Feed windows; return the reasons of changes."""
        reasons = []
        for _ in range(for_ns // PERIOD_NS):
            self.number += 1
            begin_ns, end_ns = (self.number - 1) * PERIOD_NS, self.number * PERIOD_NS
            web = TenantWindow(0, 1, True, self.slo_ns, 50, over, active_ns=round(active * PERIOD_NS))
            job = TenantWindow(1, 1, online=False, launches=launches)
            given = ModeInput(online_ppm, MAX_PPM, self.is_possible, LIMITS.quantile_ppm)
            reason = self.mode.step(DeviceWindow(0, begin_ns, end_ns, (web, job)), given, end_ns)
            reasons += [reason] if reason else []
        return reasons


def selected() -> Device:
    """Return a device whose simple mode has just been selected, with 1,000 offline launches per second at the gate."""
    device = Device()
    assert len(device.run(STEPS.measured_ns + 2 * PERIOD_NS)) == 1
    assert device.mode.is_simple
    return device


def test_simple_mode_is_tried_where_online_work_leaves_no_pauses() -> None:
    device = selected()
    assert device.run(4 * STEPS.tried_ns, launches=200) == []
    assert device.mode.is_simple


@pytest.mark.parametrize(
    "what",
    [{"active": 0.8}, {"launches": 0}, {"online_ppm": MAX_PPM}],
    ids=["pauses", "no offline work", "objective not met"],
)
def test_gate_stays_without_a_reason_to_leave_it(what: dict[str, float]) -> None:
    device = Device()
    assert device.run(4 * STEPS.measured_ns, **what) == []  # type: ignore[arg-type]
    assert not device.mode.is_simple


def test_gate_stays_where_sms_cannot_be_limited() -> None:
    device = Device()
    device.is_possible = False
    assert device.run(4 * STEPS.measured_ns) == []
    assert GateOnly().step(DeviceWindow(0, 0, 1), ModeInput(1, 2, True, 1), 1) is None


def test_mode_is_taken_back_at_once_if_requests_miss_with_the_smallest_part() -> None:
    device = selected()
    assert device.run(PERIOD_NS, online_ppm=MAX_PPM, over=2) == []
    (reason,) = device.run(PERIOD_NS, online_ppm=MAX_PPM, over=3)
    assert reason == "5 of 100 requests missed the objective with the smallest part of the SMs"
    assert not device.mode.is_simple


def test_misses_with_a_larger_part_leave_the_decision_to_the_online_share() -> None:
    device = selected()
    assert device.run(SECOND_NS, over=20, launches=200) == []
    assert device.mode.is_simple


def test_mode_is_taken_back_if_offline_work_gains_nothing_and_retried_after_a_doubling_wait() -> None:
    device = selected()
    (reason,) = device.run(STEPS.tried_ns + PERIOD_NS, launches=102)
    assert reason == "offline work makes 1020 launches/s, and 1000 at the gate"
    assert device.run(STEPS.retry_ns - 5 * PERIOD_NS) == []
    assert len(device.run(6 * PERIOD_NS)) == 1  # tried again
    assert len(device.run(STEPS.tried_ns + PERIOD_NS, launches=102)) == 1
    assert device.run(2 * STEPS.retry_ns - 5 * PERIOD_NS) == []
    assert len(device.run(6 * PERIOD_NS)) == 1


def test_mode_is_taken_back_when_pauses_appear() -> None:
    device = selected()
    device.run(STEPS.tried_ns + PERIOD_NS, launches=200)
    assert device.run(3 * SECOND_NS, launches=200, active=0.3)[0].startswith("online work is active for ")
    assert not device.mode.is_simple


def test_mode_is_taken_back_for_other_tenants_objectives_or_rules() -> None:
    device = selected()
    device.slo_ns = 2 * device.slo_ns
    assert device.run(PERIOD_NS) == ["tenants or objectives changed"]
    device = selected()
    device.is_possible = False
    assert device.run(PERIOD_NS) == ["the SMs of offline work cannot be limited any more"]


def test_restored_mode_stays_until_it_is_measured() -> None:
    restored = Device()
    restored.mode = MeasuredMode(is_simple=True)
    assert restored.run(2 * STEPS.tried_ns) == []
    assert restored.mode.is_simple
    gate = GateOnly(is_simple=True)
    assert gate.step(DeviceWindow(0, 0, 1), ModeInput(1, 2, True, 1), 1) == "simple modes are disabled"


# ---- in the node ----------------------------------------------------------------------------------------------------


def proposal(online_ppm: int, *, is_simple: bool) -> OnlineShareProposed:
    cause = AdjustCause.SIMPLE_MODE if is_simple else AdjustCause.GATE_MODE
    return OnlineShareProposed(Adjustment(0, online_ppm, cause, "because", is_simple=is_simple))


def test_simple_mode_opens_the_gate_with_the_sms_that_the_online_share_leaves() -> None:
    node = node_with(WEB, JOB)
    node.handle(proposal(800_000, is_simple=True))
    assert (table_of(node).policy, table_of(node).sm_ppm) == (GatePolicy.OPEN, 200_000)
    node.handle(proposal(MAX_PPM, is_simple=True))
    assert (table_of(node).policy, table_of(node).sm_ppm) == (GatePolicy.OPEN, 20_000)
    node.handle(proposal(800_000, is_simple=False))
    assert (table_of(node).policy, table_of(node).sm_ppm) == (GatePolicy.FILL, 0)


@pytest.mark.parametrize("rules", [GateRules(sm_ppm=300_000), GateRules(policy=GatePolicy.STRICT)])
def test_configured_mode_is_never_replaced(rules: GateRules) -> None:
    node = node_with(WEB, JOB)
    node.handle(proposal(800_000, is_simple=True))
    table = node.machine.registry.tables.table(0, rules)
    assert (table.policy, table.sm_ppm) == (rules.policy, 0 if rules.sm_ppm is None else rules.sm_ppm)


def test_simple_mode_survives_a_restart_of_the_node() -> None:
    node = Node(NodeSettings(4, 100, gpus=ONE_GPU.gpus))
    node.join(1, WEB)
    node.join(2, JOB)
    node.handle(proposal(800_000, is_simple=True))
    (setpoint,) = node.machine.registry.tables.setpoints.values()
    assert setpoint.is_simple
    control = Control(LIMITS)
    control.restore(0, setpoint.online_ppm, is_simple=setpoint.is_simple)
    web = TenantWindow(0, 1, online=True, slo_ns=10, active_ns=PERIOD_NS)
    assert control.on_window(DeviceWindow(0, 0, PERIOD_NS, (web,)), PERIOD_NS, has_simple_modes=True) is None
    assert "gate is open" in control.why(0)


# ---- in simulated time ----------------------------------------------------------------------------------------------


def load(name: str, count: int, blocks: int, device_ns: int, arrival: Arrival, requests: int = 1) -> Workload:
    """Return a load of equal kernels with one block per SM at a time; blocks are as long as the waves require."""
    launch = Launch(KernelIdentity(name, (blocks, 1, 1), (1024, 1, 1)), device_ns, 4_000, registers=64)
    return msgspec.structs.replace(Workload(name, (launch,) * count, arrival), requests=requests)


def shared(service: Workload, training: Workload, slo_ns: int, mode: str, for_ns: int) -> SharingOutcome:
    guests = (
        Guest(load=service, online=True, priority=1, slo_ns=slo_ns),
        Guest(load=training, online=False, priority=7),
    )
    setting = RunSettings(device=hardware("v100"))
    run = RunSpec(guests=guests, setting=setting, for_ns=for_ns, warm_ns=for_ns // 2)
    return steered("cotenant", run, ControlLimits(simple_mode=mode), sliced=False)


NARROW = load("narrow", 20, 20, 100_000, BACK_TO_BACK, 10_000)
"""A service without pauses whose kernels leave three quarters of the SMs free."""
WHOLE = load("whole", 20, 80, 100_000, BACK_TO_BACK, 10_000)
"""A service without pauses whose kernels need every SM at once."""
LONG_BLOCKS = load("long", 5, 80, 5_000_000, TRAINING)
"""A training whose blocks are so long that next to the service they pass no gap."""


def test_training_next_to_dense_requests_gets_more_in_a_simple_mode_within_the_objective() -> None:
    slo_ns = 4 * MILLISECOND_NS
    measured, gated = (shared(NARROW, LONG_BLOCKS, slo_ns, mode, 8 * SECOND_NS) for mode in ("measured", "off"))
    causes = [turn.cause for turn in measured.turns]
    assert causes.count(AdjustCause.SIMPLE_MODE.value) == 1
    assert AdjustCause.GATE_MODE.value not in causes
    assert measured.guests[0].attainment(slo_ns) >= 0.99
    assert measured.guests[1].done_ns > 2 * gated.guests[1].done_ns
    assert AdjustCause.SIMPLE_MODE.value not in [turn.cause for turn in gated.turns]


def test_simple_mode_is_taken_back_where_blocks_of_the_training_are_longer_than_the_objective() -> None:
    slo_ns = 4 * MILLISECOND_NS
    outcome = shared(WHOLE, LONG_BLOCKS, slo_ns, "measured", 5 * SECOND_NS)
    modes = [turn for turn in outcome.turns if turn.cause in ("simple mode selected", "simple mode taken back")]
    assert [turn.cause for turn in modes[:2]] == ["simple mode selected", "simple mode taken back"]
    assert modes[1].at_ns - modes[0].at_ns <= 5 * PERIOD_NS
    assert "missed the objective" in modes[1].detail


def test_simulated_table_has_the_mode_of_the_decision() -> None:
    service = Guest(load=NARROW, online=True, priority=1, slo_ns=1)
    training = Guest(load=LONG_BLOCKS, online=False, priority=7)
    run = RunSpec(guests=(service, training), setting=RunSettings(device=hardware("v100")), for_ns=1)
    steering = Steering(run, LIMITS, sliced=False)
    steering.adjust(Adjustment(0, 700_000, AdjustCause.SIMPLE_MODE, is_simple=True), 1)
    assert read_tenant_table(steering.memory).policy is GatePolicy.OPEN
    assert read_tenant_table(steering.memory).sm_ppm == 300_000
