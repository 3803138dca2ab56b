"""What does a node say at the gates of its devices, and what do pauses, priorities and rules change?"""

from typing import Any

import msgspec

from cotenant.domain.action import NO_PEER, Confirm, Crowd, Grant, Refuse, Revoke, Rise, Roster, Sit
from cotenant.domain.event import (
    GateChange,
    NodeSettings,
    ObjectiveChanged,
    PriorityChanged,
    RulesChanged,
    ShareChanged,
    TenantLeft,
    TenantsPaused,
)
from cotenant.domain.gate import SEATS_LIMIT, GatePolicy, GateRules, GateSeat, Limit
from cotenant.domain.plan import Reason, Reject
from cotenant.domain.tenant import Kind, TenantSpec
from tests.machine.test_node_machine import GIB, TWO_GPUS, WORK, Node, terms

ONE_GPU = NodeSettings(4, 100, gpus=TWO_GPUS[:1])
WEB = TenantSpec(Kind.ONLINE, 1, "web", share_ppm=500_000)
JOB = TenantSpec(Kind.OFFLINE, 7, "job", share_ppm=100_000)
WEB_SEAT = GateSeat(0, 1, 1, online=True, least_ppm=500_000)
JOB_SEAT = GateSeat(1, 1, 7, online=False, least_ppm=100_000)
OWN, OTHER = 1000, 1001


def roster(turn: int, *seats: GateSeat, gpu: int = 0, **rules: Any) -> Roster:
    return Roster(turn, gpu, GateRules(**rules, seats=seats))


def paused(*names: str, uid: int = OWN, owner: bool = False, on: bool = True) -> TenantsPaused:
    return TenantsPaused(9, uid, owner, names, all_offline=not names, paused=on)


def two() -> Node:
    node = Node(ONE_GPU)
    node.join(1, WEB)
    node.join(2, JOB)
    return node


def test_what_the_roster_says_anew_comes_first() -> None:
    node = Node(ONE_GPU)
    assert node.told == [roster(1)]
    node.join(1, WEB)
    assert node.told == [Sit(2, 0, WEB_SEAT), Grant(2, 1, "web", terms(0, 1, WEB, 0))]
    node.join(2, JOB)
    granted = Grant(3, 2, "job", terms(1, 1, JOB, 0), 1)
    assert node.told == [Sit(3, 0, JOB_SEAT), Crowd(3, 0, 1), granted]
    node.tell(TenantLeft(1, "exit 0"))
    assert node.told == [Rise(4, 0, 0), Revoke(4, 1, "web", 0, 1, "exit 0"), Crowd(4, 0, 0)]


def test_the_share_of_an_online_tenant_below_another_is_guaranteed_as_that_of_an_offline_one() -> None:
    node = Node(ONE_GPU)
    node.join(1, TenantSpec(Kind.ONLINE, 0, "first"))
    node.join(2, TenantSpec(Kind.ONLINE, 2, "second", share_ppm=300_000, limit=Limit.OFF))
    assert node.told[0] == Sit(3, 0, GateSeat(1, 1, 2, online=True, least_ppm=300_000))


def test_each_device_has_its_own_roster() -> None:
    node = Node(NodeSettings(4, 100, gpus=TWO_GPUS))
    assert node.told == [roster(1), roster(1, gpu=1)]
    node.join(1, TenantSpec(Kind.OFFLINE, 3, memory_bytes=9 * GIB))
    assert node.told[0] == Sit(2, 1, GateSeat(0, 1, 3, online=False))


def test_a_node_without_devices_has_no_roster_and_holds_nobody_back() -> None:
    node = Node()
    assert node.told == []
    node.join(1)
    assert [type(action) for action in node.told] == [Grant]
    (refused,) = node.tell(paused("python-0"))
    assert isinstance(refused, Refuse)
    assert refused.reject.reason is Reason.NO_GATE
    assert node.tell(paused()) == [Confirm(4, 9, (), GateRules())]


def test_a_pause_is_seen_by_everybody_and_twice_is_once() -> None:
    node = two()
    held = GateSeat(1, 1, 7, online=False, paused=True, least_ppm=100_000)
    node.tell(paused("job"))
    assert node.told == [Sit(4, 0, held), Confirm(4, 9, ("job",), GateRules())]
    node.tell(paused("job"))
    assert node.told == [Confirm(5, 9, ("job",), GateRules())]
    node.tell(paused("job", on=False))
    assert node.told == [Sit(6, 0, JOB_SEAT), Confirm(6, 9, ("job",), GateRules())]
    node.tell(paused())
    assert node.told == [Sit(7, 0, held), Confirm(7, 9, ("job",), GateRules())]


def test_of_several_names_all_are_paused_or_none() -> None:
    node = two()
    node.tell(paused("job", "jab"))
    unknown = Reject(Reason.UNKNOWN_TENANT, "no tenant is called 'jab'; see: cotenant ps")
    assert node.told == [Refuse(4, 9, unknown)]
    assert not any(view.tenant.paused for view in node.machine.tenants())
    assert node.tell(paused("job", "web")) == [Confirm(5, 9, ("job", "web"), GateRules())]
    held = [msgspec.structs.replace(seat, paused=True) for seat in (WEB_SEAT, JOB_SEAT)]
    assert node.told[0] == roster(5, *held), "two changes are seen at once"
    assert all(view.tenant.paused for view in node.machine.tenants())


def test_a_tenant_is_changed_by_its_own_user_or_the_node_s() -> None:
    node = two()
    refused = Reject(Reason.NOT_YOURS, "the tenant 'job' is another user's")
    assert node.tell(paused("job", uid=OTHER)) == [Refuse(4, 9, refused)]
    assert node.tell(PriorityChanged(9, OTHER, False, "job", 0)) == [Refuse(5, 9, refused)]
    assert node.tell(paused(uid=OTHER)) == [Confirm(6, 9, (), GateRules())]
    assert node.tell(paused("job", uid=OTHER, owner=True)) == [Confirm(7, 9, ("job",), GateRules())]
    (rules,) = node.tell(RulesChanged(9, False, GateChange(GatePolicy.OPEN)))
    assert isinstance(rules, Refuse)
    assert rules.reject.reason is Reason.NOT_YOURS


def test_another_priority_is_on_the_roster_and_on_its_page() -> None:
    node = two()
    node.tell(PriorityChanged(9, OWN, False, "job", 0))
    changed = TenantSpec(Kind.OFFLINE, 0, "job", share_ppm=100_000)
    assert node.told == [
        Sit(4, 0, GateSeat(1, 1, 0, online=False, least_ppm=100_000)),
        Grant(4, NO_PEER, "job", terms(1, 1, changed, 0), 1),
        Confirm(4, 9, ("job",), GateRules()),
    ]
    node.tell(PriorityChanged(9, OWN, False, "job", 0))
    assert node.told == [Confirm(5, 9, ("job",), GateRules())]


def test_another_share_is_on_the_roster_and_on_its_page() -> None:
    node = two()
    node.tell(ShareChanged(9, OWN, False, "job", 450_000, Limit.STATIC))
    changed = TenantSpec(Kind.OFFLINE, 7, "job", share_ppm=450_000)
    seat = GateSeat(1, 1, 7, online=False, least_ppm=450_000, limit_ppm=450_000, static=True)
    assert node.told == [
        Sit(4, 0, seat),
        Grant(4, NO_PEER, "job", terms(1, 1, changed, 0), 1),
        Confirm(4, 9, ("job",), GateRules()),
    ]
    node.tell(ShareChanged(9, OWN, False, "job", limit=Limit.CONSERVING))
    assert node.told[0] == Sit(5, 0, msgspec.structs.replace(seat, static=False))
    node.tell(ShareChanged(9, OWN, False, "job", limit=Limit.OFF))
    assert node.told[0] == Sit(6, 0, GateSeat(1, 1, 7, online=False, least_ppm=450_000))
    node.tell(ShareChanged(9, OWN, False, "job"))
    assert node.told == [Confirm(7, 9, ("job",), GateRules())]


def test_nobody_is_held_to_a_share_that_it_does_not_have() -> None:
    node = Node(ONE_GPU)
    node.join(1, TenantSpec(Kind.OFFLINE, 7, "job", limit=Limit.CONSERVING))
    (refused,) = node.tell(ShareChanged(9, OWN, False, "job", limit=Limit.STATIC))
    assert isinstance(refused, Refuse)
    assert refused.reject.reason is Reason.NO_SHARE
    assert "no share to be held to; add --share" in refused.reject.detail
    assert len(node.tell(ShareChanged(9, OWN, False, "job", 100_000, Limit.STATIC))) == 2
    assert isinstance(node.tell(ShareChanged(9, OWN, False, "job", 0))[0], Refuse)


def test_a_share_grows_only_into_what_is_free_and_shrinks_always() -> None:
    node = two()
    node.join(3, TenantSpec(Kind.OFFLINE, 7, "big", share_ppm=100_000, limit=Limit.CONSERVING))
    (refused,) = node.tell(ShareChanged(9, OWN, False, "job", 400_001))
    assert isinstance(refused, Refuse)
    assert refused.reject.reason is Reason.NO_SHARE
    assert len(node.tell(ShareChanged(9, OWN, False, "job", 400_000))) == 2
    assert isinstance(node.tell(ShareChanged(9, OWN, False, "big", 100_001))[0], Refuse)
    assert len(node.tell(ShareChanged(9, OWN, False, "job", 0))) == 2
    assert len(node.tell(ShareChanged(9, OWN, False, "big", 500_000))) == 2
    (refused,) = node.tell(ShareChanged(9, OTHER, False, "big", 1))
    assert isinstance(refused, Refuse)
    assert refused.reject.reason is Reason.NOT_YOURS
    node.restart(50)
    assert node.told[0] == roster(
        11, WEB_SEAT, GateSeat(1, 1, 7, online=False), GateSeat(2, 1, 7, False, False, 500_000, False, 500_000)
    )


def test_another_objective_is_on_its_page_and_outlives_the_process() -> None:
    node = two()
    changed = msgspec.structs.replace(WEB, slo_ns=20)
    node.tell(ObjectiveChanged(9, OWN, False, "web", 20))
    assert node.told == [Grant(4, NO_PEER, "web", terms(0, 1, changed, 0), 1), Confirm(4, 9, ("web",), GateRules())]
    assert node.machine.tenants()[0].tenant.spec == changed
    node.tell(ObjectiveChanged(9, OWN, False, "web", 20))
    assert node.told == [Confirm(5, 9, ("web",), GateRules())]
    node.restart(50)
    assert Grant(6, NO_PEER, "web", terms(0, 1, changed, 0), 1) in node.told
    node.tell(ObjectiveChanged(9, OTHER, True, "web", 0))
    assert node.told == [Grant(7, NO_PEER, "web", terms(0, 1, WEB, 0), 1), Confirm(7, 9, ("web",), GateRules())]


def test_an_objective_is_for_an_online_tenant_of_one_s_own() -> None:
    node = two()
    before = node.machine.tenants()
    for name, uid, reason, detail in (
        ("job", OWN, Reason.NO_OBJECTIVE, "'job' is offline and has no latency objective; run it with --online"),
        ("jab", OWN, Reason.UNKNOWN_TENANT, "no tenant is called 'jab'"),
        ("web", OTHER, Reason.NOT_YOURS, "the tenant 'web' is another user's"),
    ):
        (refused,) = node.tell(ObjectiveChanged(9, uid, False, name, 20))
        assert isinstance(refused, Refuse)
        assert refused.reject.reason is reason
        assert refused.reject.detail.startswith(detail)
    assert node.tell(ObjectiveChanged(9, OWN, False, "job", 0)) == [Confirm(7, 9, ("job",), GateRules())]
    assert node.machine.tenants() == before


def test_rules_change_for_all_devices_and_only_what_was_said() -> None:
    node = Node(NodeSettings(4, 100, gpus=TWO_GPUS))
    node.tell(RulesChanged(9, True, GateChange(GatePolicy.STRICT, delay_ppm=10_000)))
    changed: dict[str, Any] = {"policy": GatePolicy.STRICT, "delay_ppm": 10_000}
    rules = GateRules(**changed)
    assert node.told == [roster(2, **changed), roster(2, gpu=1, **changed), Confirm(2, 9, (), rules)]
    node.tell(RulesChanged(9, True, GateChange(bound_ns=rules.bound_ns)))
    assert node.told == [Confirm(3, 9, (), rules)]


def test_pauses_priorities_and_rules_outlive_the_process() -> None:
    node = two()
    node.tell(paused("job"))
    node.tell(PriorityChanged(9, OWN, False, "job", 2))
    node.tell(RulesChanged(9, True, GateChange(GatePolicy.OPEN)))
    node.restart(50)
    held = GateSeat(1, 1, 2, online=False, paused=True, least_ppm=100_000)
    assert node.told[0] == roster(7, WEB_SEAT, held, policy=GatePolicy.OPEN)
    node.restart(60, gate=GateRules(GatePolicy.STRICT))
    assert node.told[0] == roster(8, WEB_SEAT, held, policy=GatePolicy.STRICT)


def test_a_device_has_so_many_seats_and_no_more() -> None:
    node = Node(NodeSettings(200, 100, admit="overcommit", gpus=TWO_GPUS))
    for peer in range(2 * SEATS_LIMIT):
        node.join(peer)
    assert [room.tenants for room in node.machine.rooms.rooms] == [SEATS_LIMIT, SEATS_LIMIT]
    (refused,) = node.join(999)
    assert isinstance(refused, Refuse)
    assert refused.reject.reason is Reason.NO_SEAT
    assert "96" in refused.reject.detail
    node.tell(TenantLeft(0, "exit 0"))
    assert isinstance(node.join(1000, WORK)[-1], Grant)
    assert isinstance(node.told[0], Roster), "a full device's is said in full"
