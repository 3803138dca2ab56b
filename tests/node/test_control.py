"""Effects of an adjustment in the node: tables, journal, joins and departures, restarts."""

import msgspec
import pytest

from cotenant.gate.grant import Kind
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules, Limit
from cotenant.node.journal import NodeTurn
from cotenant.node.model.action import Confirm, IssueGrant, RemoveEntry, SetOnlineShare, SetTenantTable, UpsertEntry
from cotenant.node.model.control import AdjustCause, Adjustment, ControlLimits, OnlineShareSetpoint
from cotenant.node.model.event import (
    GateChange,
    NodeRestored,
    NodeSettings,
    NodeStarted,
    ObjectiveChanged,
    OnlineShareProposed,
    RulesChanged,
    ShareChanged,
    TenantLeft,
)
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.policy.limit.share import delay_of
from cotenant.node.state.node import NodeMachine
from cotenant.runner.journal import encode_turn
from tests.node.test_place_predict import CALM_WEB, HOG, service, training
from tests.node.test_state import TWO_GPUS, Node

ONE_GPU = NodeSettings(4, 100, gpus=TWO_GPUS[:1])
WEB = TenantSpec(Kind.ONLINE, 2, "web", slo_ns=20)
API = TenantSpec(Kind.ONLINE, 2, "api", slo_ns=50)
JOB = TenantSpec(Kind.OFFLINE, 7, "job")


def proposal(online_ppm: int, *shares: tuple[int, int], gpu: int = 0) -> OnlineShareProposed:
    return OnlineShareProposed(Adjustment(gpu, online_ppm, AdjustCause.HEADROOM, "p99 5ms of 20ms", shares, 0, 1))


def node_with(*specs: TenantSpec) -> Node:
    node = Node(ONE_GPU)
    for peer, spec in enumerate(specs, 1):
        node.join(peer, spec)
    return node


def table_of(node: Node) -> GateRules:
    return node.machine.registry.tables.table(0, node.machine.rules)


def test_adjustment_writes_the_table_and_reports_the_previous_share() -> None:
    node = node_with(WEB, JOB)
    node.handle(proposal(500_000))
    reported = node.reported
    assert [type(action) for action in reported] == [SetTenantTable, SetOnlineShare]
    assert isinstance(reported[0], SetTenantTable)
    assert reported[0].rules.delay_ppm == 1_000_000
    assert [entry.slot for entry in reported[0].rules.entries] == [0, 1]
    assert reported[1] == SetOnlineShare(4, proposal(500_000).adjustment, 952_381)
    node.handle(proposal(250_000))
    again = node.reported
    assert isinstance(again[0], SetTenantTable)
    assert again[0].rules.delay_ppm == 3_000_000
    assert isinstance(again[1], SetOnlineShare)
    assert again[1].was_ppm == 500_000


@pytest.mark.parametrize(
    "specs, event",
    [
        ((JOB,), proposal(500_000)),
        ((TenantSpec(Kind.ONLINE, 2, "web"), JOB), proposal(500_000)),
        ((WEB, JOB), proposal(500_000, gpu=1)),
        ((WEB, JOB), proposal(500_000, gpu=-1)),
        ((WEB, JOB), proposal(0)),
    ],
)
def test_proposal_without_an_objective_or_device_is_ignored(
    specs: tuple[TenantSpec, ...], event: OnlineShareProposed
) -> None:
    node = node_with(*specs)
    assert node.handle(event) == []
    assert table_of(node).delay_ppm == GateRules().delay_ppm


def test_proposal_is_ignored_when_adjustment_is_off() -> None:
    settings = msgspec.structs.replace(ONE_GPU, control=ControlLimits(adjust="off"))
    node = Node(settings)
    node.join(1, WEB)
    assert node.handle(proposal(500_000)) == []


def test_setpoint_lasts_until_the_last_tenant_with_an_objective_leaves() -> None:
    node = node_with(WEB, JOB)
    node.handle(proposal(500_000))
    node.handle(TenantLeft(2, "exit 0"))
    assert node.reported[0] == RemoveEntry(5, 0, 1)
    node.join(3, JOB)
    assert isinstance(node.reported[0], UpsertEntry)
    assert table_of(node).delay_ppm == 1_000_000
    node.handle(TenantLeft(1, "exit 0"))
    assert isinstance(node.reported[0], SetTenantTable)
    assert node.reported[0].rules.delay_ppm == GateRules().delay_ppm
    assert node.machine.registry.tables.setpoints == {}


def test_changed_delay_rule_applies_only_without_a_setpoint() -> None:
    node = node_with(WEB, JOB)
    node.handle(proposal(500_000))
    node.handle(RulesChanged(9, True, GateChange(GatePolicy.STRICT, delay_ppm=70_000)))
    reported = node.reported
    assert isinstance(reported[0], SetTenantTable)
    assert (reported[0].rules.policy, reported[0].rules.delay_ppm) == (GatePolicy.STRICT, 1_000_000)
    assert isinstance(reported[1], Confirm)
    assert reported[1].rules.delay_ppm == 70_000
    node.handle(TenantLeft(1, "exit 0"))
    assert table_of(node).delay_ppm == 70_000


def test_peers_with_objectives_get_shares_unless_their_user_set_a_limit() -> None:
    node = node_with(WEB, API, JOB)
    node.handle(proposal(500_000, (0, 300_000), (1, 700_000), (2, 100_000)))
    assert [entry.limit_ppm for entry in table_of(node).entries] == [300_000, 700_000, 0]
    node.handle(ShareChanged(9, 0, True, "web", 200_000, Limit.STATIC))
    assert table_of(node).entries[0] == GateEntry(0, 1, 2, True, guaranteed_ppm=200_000, limit_ppm=200_000, static=True)
    node.handle(TenantLeft(1, "exit 0"))
    assert [entry.limit_ppm for entry in table_of(node).entries] == [0, 0]
    node.join(4, WEB)  # in the slot of the tenant that left, whose share does not apply to this one
    assert [entry.limit_ppm for entry in table_of(node).entries] == [0, 0, 0]


def test_removed_objective_removes_the_share_and_the_last_one_the_setpoint() -> None:
    node = node_with(WEB, API, JOB)
    node.handle(proposal(500_000, (0, 300_000), (1, 700_000)))
    node.handle(ObjectiveChanged(9, 0, True, "web", 70))
    assert [type(action) for action in node.reported] == [IssueGrant, Confirm], (
        "a changed objective is adjusted by later measurements"
    )
    node.handle(ObjectiveChanged(9, 0, True, "web", 0))
    assert [type(action) for action in node.reported] == [SetTenantTable, IssueGrant, Confirm]
    assert [entry.limit_ppm for entry in table_of(node).entries] == [0, 0, 0], "a single tenant has no peers"
    assert table_of(node).delay_ppm == 1_000_000
    node.handle(ObjectiveChanged(9, 0, True, "api", 0))
    assert isinstance(node.reported[0], SetTenantTable)
    assert node.reported[0].rules.delay_ppm == GateRules().delay_ppm
    assert node.handle(proposal(400_000)) == []
    node.handle(ObjectiveChanged(9, 0, True, "api", 50))
    node.handle(proposal(400_000))
    assert [type(action) for action in node.reported] == [SetTenantTable, SetOnlineShare]
    node.machine.check()


@pytest.mark.parametrize("stricter", [0, 1])
def test_new_tenant_is_placed_by_the_current_objectives(stricter: int) -> None:
    """It joins the service whose objective leaves more headroom."""
    node = Node(NodeSettings(4, 100, place="predict", gpus=(TWO_GPUS[0], TWO_GPUS[0])))
    for peer, name in enumerate(("web", "api"), 1):
        node.join(peer, msgspec.structs.replace(service(CALM_WEB, 90), name=name))
    (strict,) = (view.tenant for view in node.machine.tenants() if view.tenant.grant.gpu == stricter)
    node.handle(ObjectiveChanged(9, 0, True, strict.name, 13_000_000))
    node.join(3, msgspec.structs.replace(training(HOG), name="job"))
    (job,) = (view.tenant for view in node.machine.tenants() if view.tenant.name == "job")
    assert job.grant.gpu == 1 - stricter


def test_tenants_of_different_priorities_do_not_divide_the_device() -> None:
    node = node_with(WEB, msgspec.structs.replace(API, priority=3))
    node.handle(proposal(500_000, (0, 300_000), (1, 700_000)))
    assert [entry.limit_ppm for entry in table_of(node).entries] == [0, 0]


def test_setpoint_survives_a_restart_unless_adjustment_is_off() -> None:
    node = node_with(WEB, API)
    node.handle(proposal(400_000, (0, 300_000), (1, 700_000)))
    restored = NodeMachine()
    restored.handle(node.machine.snapshot(), now=0)
    assert restored.registry.tables.setpoints == {0: OnlineShareSetpoint(0, 400_000, ((0, 300_000), (1, 700_000)))}
    (table, *_) = restored.handle(NodeStarted(ONE_GPU, "1", 0), now=1)
    assert isinstance(table, SetTenantTable)
    assert table.rules.delay_ppm == delay_of(400_000)
    assert [entry.limit_ppm for entry in table.rules.entries] == [300_000, 700_000]
    off = msgspec.structs.replace(ONE_GPU, control=ControlLimits(adjust="off"))
    (table, *_) = restored.handle(NodeStarted(off, "1", 0), now=2)
    assert isinstance(table, SetTenantTable)
    assert table.rules.delay_ppm == GateRules().delay_ppm
    restored.check()


def test_snapshot_of_a_version_without_control_is_read() -> None:
    node = node_with(WEB, JOB)
    head = node.machine.snapshot()
    old = msgspec.json.decode(msgspec.json.encode(head))
    assert len(old) == len(NodeRestored.__struct_fields__) + 1  # its tag
    control_index = NodeSettings.__struct_fields__.index("control")
    without = [old[0], old[1][:control_index], *old[2 : NodeRestored.__struct_fields__.index("setpoints") + 1]]
    read = msgspec.json.decode(msgspec.json.encode(without), type=NodeRestored)
    assert read == head
    assert encode_turn(0, read, []) == encode_turn(0, head, [])
    assert NodeTurn(0, read, []) == NodeTurn(0, head, [])
