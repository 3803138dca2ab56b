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


def adjusted(online_ppm: int, *shares: tuple[int, int], gpu: int = 0) -> OnlineShareProposed:
    return OnlineShareProposed(Adjustment(gpu, online_ppm, AdjustCause.HEADROOM, "p99 5ms of 20ms", shares, 0, 1))


def a_node(*specs: TenantSpec) -> Node:
    node = Node(ONE_GPU)
    for peer, spec in enumerate(specs, 1):
        node.join(peer, spec)
    return node


def table_of(node: Node) -> GateRules:
    return node.machine.registry.tables.table(0, node.machine.rules)


def test_an_adjustment_is_said_at_the_gate_and_tells_what_was_before() -> None:
    node = a_node(WEB, JOB)
    node.tell(adjusted(500_000))
    reported = node.reported
    assert [type(action) for action in reported] == [SetTenantTable, SetOnlineShare]
    assert isinstance(reported[0], SetTenantTable)
    assert reported[0].rules.delay_ppm == 1_000_000
    assert [entry.slot for entry in reported[0].rules.entries] == [0, 1]
    assert reported[1] == SetOnlineShare(4, adjusted(500_000).adjustment, 980_392)
    node.tell(adjusted(250_000))
    again = node.reported
    assert isinstance(again[0], SetTenantTable)
    assert again[0].rules.delay_ppm == 3_000_000
    assert isinstance(again[1], SetOnlineShare)
    assert again[1].was_ppm == 500_000


@pytest.mark.parametrize(
    "specs, event",
    [
        ((JOB,), adjusted(500_000)),
        ((TenantSpec(Kind.ONLINE, 2, "web"), JOB), adjusted(500_000)),
        ((WEB, JOB), adjusted(500_000, gpu=1)),
        ((WEB, JOB), adjusted(500_000, gpu=-1)),
        ((WEB, JOB), adjusted(0)),
    ],
)
def test_where_no_objective_is_to_be_kept_nothing_is_adjusted(
    specs: tuple[TenantSpec, ...], event: OnlineShareProposed
) -> None:
    node = a_node(*specs)
    assert node.tell(event) == []
    assert table_of(node).delay_ppm == GateRules().delay_ppm


def test_a_node_that_adjusts_nothing_takes_no_adjustment() -> None:
    settings = msgspec.structs.replace(ONE_GPU, control=ControlLimits(adjust="off"))
    node = Node(settings)
    node.join(1, WEB)
    assert node.tell(adjusted(500_000)) == []


def test_what_others_do_changes_nothing_and_the_end_of_the_last_objective_brings_the_rules_back() -> None:
    node = a_node(WEB, JOB)
    node.tell(adjusted(500_000))
    node.tell(TenantLeft(2, "exit 0"))
    assert node.reported[0] == RemoveEntry(5, 0, 1)
    node.join(3, JOB)
    assert isinstance(node.reported[0], UpsertEntry)
    assert table_of(node).delay_ppm == 1_000_000
    node.tell(TenantLeft(1, "exit 0"))
    assert isinstance(node.reported[0], SetTenantTable)
    assert node.reported[0].rules.delay_ppm == GateRules().delay_ppm
    assert node.machine.registry.tables.setpoints == {}


def test_rules_that_people_change_still_act_and_the_delay_once_nothing_is_adjusted() -> None:
    node = a_node(WEB, JOB)
    node.tell(adjusted(500_000))
    node.tell(RulesChanged(9, True, GateChange(GatePolicy.STRICT, delay_ppm=70_000)))
    reported = node.reported
    assert isinstance(reported[0], SetTenantTable)
    assert (reported[0].rules.policy, reported[0].rules.delay_ppm) == (GatePolicy.STRICT, 1_000_000)
    assert isinstance(reported[1], Confirm)
    assert reported[1].rules.delay_ppm == 70_000
    node.tell(TenantLeft(1, "exit 0"))
    assert table_of(node).delay_ppm == 70_000


def test_equals_with_objectives_divide_the_device_but_not_whom_its_user_gave_a_limit() -> None:
    node = a_node(WEB, API, JOB)
    node.tell(adjusted(500_000, (0, 300_000), (1, 700_000), (2, 100_000)))
    assert [entry.limit_ppm for entry in table_of(node).entries] == [300_000, 700_000, 0]
    node.tell(ShareChanged(9, 0, True, "web", 200_000, Limit.STATIC))
    assert table_of(node).entries[0] == GateEntry(0, 1, 2, True, guaranteed_ppm=200_000, limit_ppm=200_000, static=True)
    node.tell(TenantLeft(1, "exit 0"))
    assert [entry.limit_ppm for entry in table_of(node).entries] == [0, 0]
    node.join(4, WEB)  # in the slot of the one that left: nothing was said of this one
    assert [entry.limit_ppm for entry in table_of(node).entries] == [0, 0, 0]


def test_an_objective_that_is_taken_away_is_adjusted_for_no_more() -> None:
    node = a_node(WEB, API, JOB)
    node.tell(adjusted(500_000, (0, 300_000), (1, 700_000)))
    node.tell(ObjectiveChanged(9, 0, True, "web", 70))
    assert [type(action) for action in node.reported] == [IssueGrant, Confirm], (
        "another one is adjusted for by what is seen"
    )
    node.tell(ObjectiveChanged(9, 0, True, "web", 0))
    assert [type(action) for action in node.reported] == [SetTenantTable, IssueGrant, Confirm]
    assert [entry.limit_ppm for entry in table_of(node).entries] == [0, 0, 0], "one alone divides nothing"
    assert table_of(node).delay_ppm == 1_000_000
    node.tell(ObjectiveChanged(9, 0, True, "api", 0))
    assert isinstance(node.reported[0], SetTenantTable)
    assert node.reported[0].rules.delay_ppm == GateRules().delay_ppm
    assert node.tell(adjusted(400_000)) == []
    node.tell(ObjectiveChanged(9, 0, True, "api", 50))
    node.tell(adjusted(400_000))
    assert [type(action) for action in node.reported] == [SetTenantTable, SetOnlineShare]
    node.machine.check()


@pytest.mark.parametrize("stricter", [0, 1])
def test_who_comes_is_placed_by_the_objectives_that_hold_now(stricter: int) -> None:
    """Beside the service that may be slowed more."""
    node = Node(NodeSettings(4, 100, place="predict", gpus=(TWO_GPUS[0], TWO_GPUS[0])))
    for peer, name in enumerate(("web", "api"), 1):
        node.join(peer, msgspec.structs.replace(service(CALM_WEB, 90), name=name))
    (strict,) = (view.tenant for view in node.machine.tenants() if view.tenant.grant.gpu == stricter)
    node.tell(ObjectiveChanged(9, 0, True, strict.name, 13_000_000))
    node.join(3, msgspec.structs.replace(training(HOG), name="job"))
    (job,) = (view.tenant for view in node.machine.tenants() if view.tenant.name == "job")
    assert job.grant.gpu == 1 - stricter


def test_those_of_another_priority_are_no_equals() -> None:
    node = a_node(WEB, msgspec.structs.replace(API, priority=3))
    node.tell(adjusted(500_000, (0, 300_000), (1, 700_000)))
    assert [entry.limit_ppm for entry in table_of(node).entries] == [0, 0]


def test_a_restarted_node_says_what_was_adjusted_and_one_set_up_otherwise_does_not() -> None:
    node = a_node(WEB, API)
    node.tell(adjusted(400_000, (0, 300_000), (1, 700_000)))
    twin = NodeMachine()
    twin.handle(node.machine.snapshot(), now=0)
    assert twin.registry.tables.setpoints == {0: OnlineShareSetpoint(0, 400_000, ((0, 300_000), (1, 700_000)))}
    (table, *_) = twin.handle(NodeStarted(ONE_GPU, "1", 0), now=1)
    assert isinstance(table, SetTenantTable)
    assert table.rules.delay_ppm == delay_of(400_000)
    assert [entry.limit_ppm for entry in table.rules.entries] == [300_000, 700_000]
    off = msgspec.structs.replace(ONE_GPU, control=ControlLimits(adjust="off"))
    (table, *_) = twin.handle(NodeStarted(off, "1", 0), now=2)
    assert isinstance(table, SetTenantTable)
    assert table.rules.delay_ppm == GateRules().delay_ppm
    twin.check()


def test_a_journal_of_a_version_that_knew_no_control_is_read() -> None:
    node = a_node(WEB, JOB)
    head = node.machine.snapshot()
    old = msgspec.json.decode(msgspec.json.encode(head))
    assert len(old) == len(NodeRestored.__struct_fields__) + 1  # its tag
    known = NodeSettings.__struct_fields__.index("control")
    without = [old[0], old[1][:known], *old[2 : NodeRestored.__struct_fields__.index("setpoints") + 1]]
    read = msgspec.json.decode(msgspec.json.encode(without), type=NodeRestored)
    assert read == head
    assert encode_turn(0, read, []) == encode_turn(0, head, [])
    assert NodeTurn(0, read, []) == NodeTurn(0, head, [])
