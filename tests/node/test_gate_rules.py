"""Tenant tables of the devices, and how pauses, priorities and rules change them."""

from typing import Any

import msgspec

from cotenant.gate.grant import Kind
from cotenant.gate.rules import ENTRIES_LIMIT, GateEntry, GatePolicy, GateRules, Limit
from cotenant.node.model.action import (
    NO_PEER,
    Confirm,
    IssueGrant,
    Refuse,
    RemoveEntry,
    Revoke,
    SetNeighbourCount,
    SetTenantTable,
    UpsertEntry,
)
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.event import (
    GateChange,
    NodeSettings,
    ObjectiveChanged,
    PriorityChanged,
    RulesChanged,
    ShareChanged,
    TenantLeft,
    TenantsPaused,
)
from cotenant.node.model.tenant import TenantSpec
from tests.node.test_state import GIB, TWO_GPUS, WORK, Node, grant

ONE_GPU = NodeSettings(4, 100, gpus=TWO_GPUS[:1])
WEB = TenantSpec(Kind.ONLINE, 1, "web", share_ppm=500_000)
JOB = TenantSpec(Kind.OFFLINE, 7, "job", share_ppm=100_000)
WEB_ENTRY = GateEntry(0, 1, 1, online=True, guaranteed_ppm=500_000)
JOB_ENTRY = GateEntry(1, 1, 7, online=False, guaranteed_ppm=100_000)
OWN, OTHER = 1000, 1001


def table(turn: int, *entries: GateEntry, gpu: int = 0, **rules: Any) -> SetTenantTable:
    return SetTenantTable(turn, gpu, GateRules(**rules, entries=entries))


def paused(*names: str, uid: int = OWN, owner: bool = False, on: bool = True) -> TenantsPaused:
    return TenantsPaused(9, uid, owner, names, all_offline=not names, paused=on)


def node_with_web_and_job() -> Node:
    node = Node(ONE_GPU)
    node.join(1, WEB)
    node.join(2, JOB)
    return node


def test_table_changes_precede_other_actions() -> None:
    node = Node(ONE_GPU)
    assert node.reported == [table(1)]
    node.join(1, WEB)
    assert node.reported == [UpsertEntry(2, 0, WEB_ENTRY), IssueGrant(2, 1, "web", grant(0, 1, WEB, 0))]
    node.join(2, JOB)
    granted = IssueGrant(3, 2, "job", grant(1, 1, JOB, 0), 1)
    assert node.reported == [UpsertEntry(3, 0, JOB_ENTRY), SetNeighbourCount(3, 0, 1), granted]
    node.handle(TenantLeft(1, "exit 0"))
    assert node.reported == [RemoveEntry(4, 0, 0), Revoke(4, 1, "web", 0, 1, "exit 0"), SetNeighbourCount(4, 0, 0)]


def test_share_of_a_lower_priority_online_tenant_is_guaranteed() -> None:
    node = Node(ONE_GPU)
    node.join(1, TenantSpec(Kind.ONLINE, 0, "first"))
    node.join(2, TenantSpec(Kind.ONLINE, 2, "second", share_ppm=300_000, limit=Limit.OFF))
    assert node.reported[0] == UpsertEntry(3, 0, GateEntry(1, 1, 2, online=True, guaranteed_ppm=300_000))


def test_each_device_has_its_own_table() -> None:
    node = Node(NodeSettings(4, 100, gpus=TWO_GPUS))
    assert node.reported == [table(1), table(1, gpu=1)]
    node.join(1, TenantSpec(Kind.OFFLINE, 3, memory_bytes=9 * GIB))
    assert node.reported[0] == UpsertEntry(2, 1, GateEntry(0, 1, 3, online=False))


def test_node_without_devices_has_no_table_and_pauses_no_tenant() -> None:
    node = Node()
    assert node.reported == []
    node.join(1)
    assert [type(action) for action in node.reported] == [IssueGrant]
    (refused,) = node.handle(paused("python-0"))
    assert isinstance(refused, Refuse)
    assert refused.reject.reason is Reason.NO_GATE
    assert node.handle(paused()) == [Confirm(4, 9, (), GateRules())]


def test_pause_changes_the_table_once() -> None:
    node = node_with_web_and_job()
    held = GateEntry(1, 1, 7, online=False, paused=True, guaranteed_ppm=100_000)
    node.handle(paused("job"))
    assert node.reported == [UpsertEntry(4, 0, held), Confirm(4, 9, ("job",), GateRules())]
    node.handle(paused("job"))
    assert node.reported == [Confirm(5, 9, ("job",), GateRules())]
    node.handle(paused("job", on=False))
    assert node.reported == [UpsertEntry(6, 0, JOB_ENTRY), Confirm(6, 9, ("job",), GateRules())]
    node.handle(paused())
    assert node.reported == [UpsertEntry(7, 0, held), Confirm(7, 9, ("job",), GateRules())]


def test_pause_of_several_names_applies_to_all_or_none() -> None:
    node = node_with_web_and_job()
    node.handle(paused("job", "jab"))
    unknown = Reject(Reason.UNKNOWN_TENANT, "no tenant has the name 'jab'; list the tenants with: cotenant ps")
    assert node.reported == [Refuse(4, 9, unknown)]
    assert not any(view.tenant.paused for view in node.machine.tenants())
    assert node.handle(paused("job", "web")) == [Confirm(5, 9, ("job", "web"), GateRules())]
    held = [msgspec.structs.replace(entry, paused=True) for entry in (WEB_ENTRY, JOB_ENTRY)]
    assert node.reported[0] == table(5, *held), "two changes are written at once"
    assert all(view.tenant.paused for view in node.machine.tenants())


def test_only_the_tenants_user_or_the_nodes_user_may_change_it() -> None:
    node = node_with_web_and_job()
    refused = Reject(Reason.NOT_YOURS, "the tenant 'job' belongs to another user")
    assert node.handle(paused("job", uid=OTHER)) == [Refuse(4, 9, refused)]
    assert node.handle(PriorityChanged(9, OTHER, False, "job", 0)) == [Refuse(5, 9, refused)]
    assert node.handle(paused(uid=OTHER)) == [Confirm(6, 9, (), GateRules())]
    assert node.handle(paused("job", uid=OTHER, owner=True)) == [Confirm(7, 9, ("job",), GateRules())]
    (rules,) = node.handle(RulesChanged(9, False, GateChange(GatePolicy.OPEN)))
    assert isinstance(rules, Refuse)
    assert rules.reject.reason is Reason.NOT_YOURS


def test_changed_priority_is_in_the_table_and_on_the_grant_page() -> None:
    node = node_with_web_and_job()
    node.handle(PriorityChanged(9, OWN, False, "job", 0))
    changed = TenantSpec(Kind.OFFLINE, 0, "job", share_ppm=100_000)
    assert node.reported == [
        UpsertEntry(4, 0, GateEntry(1, 1, 0, online=False, guaranteed_ppm=100_000)),
        IssueGrant(4, NO_PEER, "job", grant(1, 1, changed, 0), 1),
        Confirm(4, 9, ("job",), GateRules()),
    ]
    node.handle(PriorityChanged(9, OWN, False, "job", 0))
    assert node.reported == [Confirm(5, 9, ("job",), GateRules())]


def test_changed_share_is_in_the_table_and_on_the_grant_page() -> None:
    node = node_with_web_and_job()
    node.handle(ShareChanged(9, OWN, False, "job", 450_000, Limit.STATIC))
    changed = TenantSpec(Kind.OFFLINE, 7, "job", share_ppm=450_000)
    entry = GateEntry(1, 1, 7, online=False, guaranteed_ppm=450_000, limit_ppm=450_000, static=True)
    assert node.reported == [
        UpsertEntry(4, 0, entry),
        IssueGrant(4, NO_PEER, "job", grant(1, 1, changed, 0), 1),
        Confirm(4, 9, ("job",), GateRules()),
    ]
    node.handle(ShareChanged(9, OWN, False, "job", limit=Limit.CONSERVING))
    assert node.reported[0] == UpsertEntry(5, 0, msgspec.structs.replace(entry, static=False))
    node.handle(ShareChanged(9, OWN, False, "job", limit=Limit.OFF))
    assert node.reported[0] == UpsertEntry(6, 0, GateEntry(1, 1, 7, online=False, guaranteed_ppm=450_000))
    node.handle(ShareChanged(9, OWN, False, "job"))
    assert node.reported == [Confirm(7, 9, ("job",), GateRules())]


def test_static_limit_without_a_share_is_refused() -> None:
    node = Node(ONE_GPU)
    node.join(1, TenantSpec(Kind.OFFLINE, 7, "job", limit=Limit.CONSERVING))
    (refused,) = node.handle(ShareChanged(9, OWN, False, "job", limit=Limit.STATIC))
    assert isinstance(refused, Refuse)
    assert refused.reject.reason is Reason.NO_SHARE
    assert "no share that a static limit could apply to; add --share" in refused.reject.detail
    assert len(node.handle(ShareChanged(9, OWN, False, "job", 100_000, Limit.STATIC))) == 2
    assert isinstance(node.handle(ShareChanged(9, OWN, False, "job", 0))[0], Refuse)


def test_share_grows_only_into_free_capacity_and_always_shrinks() -> None:
    node = node_with_web_and_job()
    node.join(3, TenantSpec(Kind.OFFLINE, 7, "big", share_ppm=100_000, limit=Limit.CONSERVING))
    (refused,) = node.handle(ShareChanged(9, OWN, False, "job", 400_001))
    assert isinstance(refused, Refuse)
    assert refused.reject.reason is Reason.NO_SHARE
    assert len(node.handle(ShareChanged(9, OWN, False, "job", 400_000))) == 2
    assert isinstance(node.handle(ShareChanged(9, OWN, False, "big", 100_001))[0], Refuse)
    assert len(node.handle(ShareChanged(9, OWN, False, "job", 0))) == 2
    assert len(node.handle(ShareChanged(9, OWN, False, "big", 500_000))) == 2
    (refused,) = node.handle(ShareChanged(9, OTHER, False, "big", 1))
    assert isinstance(refused, Refuse)
    assert refused.reject.reason is Reason.NOT_YOURS
    node.restart(50)
    assert node.reported[0] == table(
        11, WEB_ENTRY, GateEntry(1, 1, 7, online=False), GateEntry(2, 1, 7, False, False, 500_000, False, 500_000)
    )


def test_changed_objective_is_on_the_grant_page_and_survives_a_restart() -> None:
    node = node_with_web_and_job()
    changed = msgspec.structs.replace(WEB, slo_ns=20)
    node.handle(ObjectiveChanged(9, OWN, False, "web", 20))
    assert node.reported == [
        IssueGrant(4, NO_PEER, "web", grant(0, 1, changed, 0), 1),
        Confirm(4, 9, ("web",), GateRules()),
    ]
    assert node.machine.tenants()[0].tenant.spec == changed
    node.handle(ObjectiveChanged(9, OWN, False, "web", 20))
    assert node.reported == [Confirm(5, 9, ("web",), GateRules())]
    node.restart(50)
    assert IssueGrant(6, NO_PEER, "web", grant(0, 1, changed, 0), 1) in node.reported
    node.handle(ObjectiveChanged(9, OTHER, True, "web", 0))
    assert node.reported == [
        IssueGrant(7, NO_PEER, "web", grant(0, 1, WEB, 0), 1),
        Confirm(7, 9, ("web",), GateRules()),
    ]


def test_objective_of_an_offline_or_foreign_tenant_is_refused() -> None:
    node = node_with_web_and_job()
    before = node.machine.tenants()
    for name, uid, reason, detail in (
        (
            "job",
            OWN,
            Reason.NO_OBJECTIVE,
            "'job' is an offline tenant, which has no latency objective; run it with --online",
        ),
        ("jab", OWN, Reason.UNKNOWN_TENANT, "no tenant has the name 'jab'"),
        ("web", OTHER, Reason.NOT_YOURS, "the tenant 'web' belongs to another user"),
    ):
        (refused,) = node.handle(ObjectiveChanged(9, uid, False, name, 20))
        assert isinstance(refused, Refuse)
        assert refused.reject.reason is reason
        assert refused.reject.detail.startswith(detail)
    assert node.handle(ObjectiveChanged(9, OWN, False, "job", 0)) == [Confirm(7, 9, ("job",), GateRules())]
    assert node.machine.tenants() == before


def test_rule_change_applies_to_all_devices_and_only_to_given_fields() -> None:
    node = Node(NodeSettings(4, 100, gpus=TWO_GPUS))
    node.handle(RulesChanged(9, True, GateChange(GatePolicy.STRICT, delay_ppm=10_000)))
    changed: dict[str, Any] = {"policy": GatePolicy.STRICT, "delay_ppm": 10_000}
    rules = GateRules(**changed)
    assert node.reported == [table(2, **changed), table(2, gpu=1, **changed), Confirm(2, 9, (), rules)]
    node.handle(RulesChanged(9, True, GateChange(bound_ns=rules.bound_ns)))
    assert node.reported == [Confirm(3, 9, (), rules)]


def test_pauses_priorities_and_rules_survive_a_restart() -> None:
    node = node_with_web_and_job()
    node.handle(paused("job"))
    node.handle(PriorityChanged(9, OWN, False, "job", 2))
    node.handle(RulesChanged(9, True, GateChange(GatePolicy.OPEN)))
    node.restart(50)
    held = GateEntry(1, 1, 2, online=False, paused=True, guaranteed_ppm=100_000)
    assert node.reported[0] == table(7, WEB_ENTRY, held, policy=GatePolicy.OPEN)
    node.restart(60, gate=GateRules(GatePolicy.STRICT))
    assert node.reported[0] == table(8, WEB_ENTRY, held, policy=GatePolicy.STRICT)


def test_number_of_entries_of_a_device_is_limited() -> None:
    node = Node(NodeSettings(200, 100, admit="overcommit", gpus=TWO_GPUS))
    for peer in range(2 * ENTRIES_LIMIT):
        node.join(peer)
    assert [capacity.tenants for capacity in node.machine.registry.capacity.devices] == [ENTRIES_LIMIT, ENTRIES_LIMIT]
    (refused,) = node.join(999)
    assert isinstance(refused, Refuse)
    assert refused.reject.reason is Reason.GPU_FULL
    assert "96" in refused.reject.detail
    node.handle(TenantLeft(0, "exit 0"))
    assert isinstance(node.join(1000, WORK)[-1], IssueGrant)
    assert isinstance(node.reported[0], SetTenantTable), "the table of a full device is written as a whole"
