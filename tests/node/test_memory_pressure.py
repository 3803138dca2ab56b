"""Tenants that give up memory for an online tenant, and how suspended ones are restored."""

import msgspec
import pytest

from cotenant.node.model.action import (
    NO_PEER,
    Action,
    Confirm,
    IssueGrant,
    Refuse,
    RemoveEntry,
    RestoreTenant,
    Revoke,
    SetTenantTable,
    SignalTenant,
    SuspendTenant,
    UpsertEntry,
)
from cotenant.node.model.admission import Reason
from cotenant.node.model.event import (
    EvictionRequested,
    GpuLost,
    GpuSampled,
    MemoryRequested,
    NodeSettings,
    NodeStarted,
    PeerLost,
    TenantDrained,
    TenantJoined,
    TenantLeft,
    TenantRestarted,
    TenantRestored,
    TenantResumed,
    TenantSuspended,
    TimerFired,
)
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import ExitPhase, GpuSample, OnPressure
from cotenant.node.state.memory_pressure import WAITING_LIMIT
from cotenant.node.state.node import NodeMachine
from tests.support.protection_setup import JOB, LIMITS, MINOR, WEB, ProtectedNode, entry

SUSPENDABLE = msgspec.structs.replace(JOB, on_pressure=OnPressure.SUSPEND)
CALM = GpuSample(100_000, 100_000, 1_000_000, 10, 100, 0, 0)
NEEDS = "online tenant web needs 60B on GPU 0"


def without_table_changes(actions: list[Action]) -> list[Action]:
    """Return the actions other than changes of tenant tables."""
    return [action for action in actions if not isinstance(action, UpsertEntry | RemoveEntry | SetTenantTable)]


def test_online_join_waits_until_the_offline_tenant_has_left() -> None:
    node = ProtectedNode()
    node.join(1)
    assert node.join(2, WEB, now=10) == [UpsertEntry(3, 0, entry(0, JOB, paused=True))]
    assert node.lifecycle().why == f"evicted: {NEEDS}"
    assert without_table_changes(node.handle(TenantDrained(0, 1), 12)) == [
        SignalTenant(4, 1, 0, 1, "term", f"evicted: {NEEDS}", may_restart=True)
    ]
    revoked, grant = without_table_changes(node.handle(TenantLeft(1, "exit 143"), 20))
    assert revoked == Revoke(5, 1, "job", 0, 1, "exit 143")
    assert isinstance(grant, IssueGrant)
    assert (grant.peer, grant.tenant, grant.grant.slot, grant.grant.generation) == (2, "web", 0, 2)
    assert node.machine.next_wakeup() is None


def test_join_that_waited_too_long_is_refused_with_a_retry_time() -> None:
    node = ProtectedNode()
    node.join(1, grace_ns=1000)
    node.join(2, WEB, now=10)
    node.wake(30)
    (refused,) = node.wake(160)
    assert isinstance(refused, Refuse)
    assert (refused.peer, refused.reject.reason, refused.reject.retry_after_ns) == (2, Reason.NO_CAPACITY_YET, 150)
    assert node.phase() is ExitPhase.TERMINATING, "the eviction continues"


def test_no_tenant_is_evicted_if_the_join_would_not_fit() -> None:
    for spec in (msgspec.structs.replace(WEB, memory_bytes=101), msgspec.structs.replace(JOB, name="other")):
        node = ProtectedNode()
        node.join(1)
        (refused,) = node.join(2, spec, now=10)
        assert isinstance(refused, Refuse)
        assert (refused.reject.reason, refused.reject.retry_after_ns) == (Reason.NO_MEMORY, 0)
        assert node.phase() is ExitPhase.RUNNING
    node = ProtectedNode()
    node.join(1, WEB)
    (refused,) = node.join(2, WEB, now=10, name="other")
    assert isinstance(refused, Refuse), "an online tenant is not evicted for another"


def test_no_tenant_is_evicted_if_the_share_would_not_fit() -> None:
    node = ProtectedNode()
    node.join(1, WEB, memory_bytes=10, share_ppm=800_000)
    node.join(2, memory_bytes=60, share_ppm=100_000)
    (refused,) = node.join(3, WEB, name="late", share_ppm=300_000, now=10)
    assert isinstance(refused, Refuse)
    assert node.phase(1) is ExitPhase.RUNNING


def test_lowest_priority_is_evicted_first_and_no_more_than_needed() -> None:
    node = ProtectedNode()
    node.join(1)
    node.join(2, MINOR)
    node.join(3, WEB, memory_bytes=40, now=10)
    assert [node.phase(slot) for slot in (0, 1)] == [ExitPhase.RUNNING, ExitPhase.DRAINING]
    node.join(4, WEB, name="second", memory_bytes=20, now=11)
    assert [node.phase(slot) for slot in (0, 1)] == [ExitPhase.DRAINING, ExitPhase.DRAINING], (
        "memory freed for the first join is not counted again"
    )


def test_join_waits_for_the_device_with_the_fewest_evictions() -> None:
    node = ProtectedNode((Gpu("a", 100), Gpu("b", 100)))
    for peer, (gpu, memory) in enumerate([("0", 50), ("0", 50), ("1", 90)], 1):
        node.join(peer, name=f"job{peer}", gpu=gpu, memory_bytes=memory)
    node.join(4, WEB, now=10)
    assert [node.phase(slot) for slot in range(3)] == [ExitPhase.RUNNING, ExitPhase.RUNNING, ExitPhase.DRAINING]
    node.join(5, WEB, name="here", gpu="0", now=11)
    assert [node.phase(slot) for slot in range(3)] == [ExitPhase.DRAINING] * 3


def test_offline_join_is_refused_while_an_online_join_waits() -> None:
    node = ProtectedNode()
    node.join(1)
    node.join(2, WEB, now=10)
    (refused,) = node.join(3, MINOR, now=20)
    assert isinstance(refused, Refuse)
    assert (refused.reject.reason, refused.reject.retry_after_ns) == (Reason.NO_CAPACITY_YET, 140)


def test_waiting_peer_that_disconnects_does_not_join() -> None:
    for event in (PeerLost(2), TenantLeft(2, "gave up")):
        node = ProtectedNode()
        node.join(1)
        node.join(2, WEB, now=10)
        for twice in (TenantJoined(2, 12, 1000, WEB), TenantResumed(2, 11, 1000, 0, 1)):
            (refused,) = node.handle(twice, 11)
            assert isinstance(refused, Refuse)
            assert refused.reject.reason is Reason.ALREADY_HERE
        assert node.handle(event, 12) == []
        assert without_table_changes(node.handle(TenantLeft(1, "exit 0"), 13)) == [
            Revoke(node.turn, 1, "job", 0, 1, "exit 0")
        ]


def test_waiting_join_is_refused_when_its_name_is_taken_or_its_device_lost() -> None:
    node = ProtectedNode()
    node.join(1)
    node.join(2, WEB, now=10)
    *_, refused = node.join(3, WEB, memory_bytes=0, now=11)
    assert isinstance(refused, Refuse)
    assert (refused.peer, refused.reject.reason) == (2, Reason.NAME_TAKEN)
    node.join(4, WEB, name="other", now=12)
    refusals = [action for action in node.handle(GpuLost(0), 13) if isinstance(action, Refuse)]
    assert [(action.peer, action.reject.reason) for action in refusals] == [(4, Reason.UNHEALTHY)]


def test_restart_drops_waiting_joins() -> None:
    node = ProtectedNode()
    node.join(1)
    node.join(2, WEB, now=10)
    node.restart(12)
    assert node.machine.snapshot().waiting == ()
    assert node.phase() is ExitPhase.DRAINING


def test_number_of_waiting_joins_is_limited() -> None:
    machine = NodeMachine()
    machine.handle(NodeStarted(NodeSettings(200, 10, gpus=(Gpu("a", 1000),), limits=LIMITS), "1", 0), now=0)
    machine.handle(TenantJoined(1, 1, 1000, msgspec.structs.replace(JOB, memory_bytes=1000)), now=1)
    for peer in range(2, 2 + WAITING_LIMIT):
        machine.handle(TenantJoined(peer, peer, 1000, msgspec.structs.replace(WEB, name="", memory_bytes=1)), now=2)
    assert len(machine.snapshot().waiting) == WAITING_LIMIT
    late = TenantJoined(999, 9, 1000, msgspec.structs.replace(WEB, memory_bytes=1))
    (refused,) = machine.handle(late, now=3)
    assert isinstance(refused, Refuse)
    assert refused.reject.reason is Reason.NO_MEMORY
    granted = [action for action in machine.handle(PeerLost(1), now=4) if isinstance(action, IssueGrant)]
    assert [action.peer for action in granted] == list(range(2, 2 + WAITING_LIMIT)), "in order of arrival"
    machine.check()


# -- memory that is wanted while a tenant runs -----------------------------------------------------------------


def test_memory_request_evicts_a_tenant_that_holds_memory() -> None:
    node = ProtectedNode()
    node.join(1, WEB, memory_bytes=0)
    node.join(2, MINOR, memory_bytes=0)
    node.join(3, memory_bytes=0)
    request = MemoryRequested(0, 1, 40, ((0, 10), (1, 0), (2, 50)))
    assert node.handle(request, 10) == [UpsertEntry(5, 0, entry(2, JOB, paused=True))], (
        "a tenant without memory is not evicted"
    )
    assert node.lifecycle(2).why == "evicted: online tenant web needs 40B on GPU 0"
    assert node.handle(request, 11) == [], "memory that is being freed is not requested again"


@pytest.mark.parametrize("slot", [1, 2], ids=["an offline tenant", "nobody"])
def test_no_tenant_gives_up_memory_for_offline_tenants(slot: int) -> None:
    node = ProtectedNode()
    node.join(1)
    node.join(2, MINOR)
    assert node.handle(MemoryRequested(slot, 1, 10, ((0, 90), (1, 5))), 10) == []


def test_no_tenant_is_evicted_if_all_hold_too_little_memory() -> None:
    node = ProtectedNode()
    node.join(1, WEB, memory_bytes=0)
    node.join(2)
    assert node.handle(MemoryRequested(0, 1, 80, ((1, 70),)), 10) == []


# -- suspension ------------------------------------------------------------------------------------------------


def suspended_job() -> ProtectedNode:
    """Return a node on which `job` was suspended for `web`."""
    node = ProtectedNode()
    node.join(1, SUSPENDABLE)
    assert node.join(2, WEB, now=10) == [UpsertEntry(3, 0, entry(0, JOB, paused=True))]
    assert node.handle(TenantDrained(0, 1), 12) == [SuspendTenant(4, 1, 0, f"suspended: {NEEDS}")]
    assert node.handle(TenantDrained(0, 1), 13) == [], "the request is sent once"
    (granted,) = without_table_changes(node.handle(TenantSuspended(1, ok=True), 20))
    assert isinstance(granted, IssueGrant)
    assert granted.tenant == "web"
    assert (node.phase(), node.machine.plan().capacity(0).memory_free_bytes) == (ExitPhase.SUSPENDED, 40)
    return node


def test_suspended_tenant_is_restored_once_it_fits_on_a_healthy_device() -> None:
    node = suspended_job()
    assert node.handle(GpuSampled(0, CALM), 300)[1:] == [], "there is no free memory"
    node.handle(TenantLeft(2, "exit 0"), 301)
    full = msgspec.structs.replace(CALM, memory_used_bytes=50)
    assert node.handle(GpuSampled(0, full), 302) == [], "the device still reports too little free memory"
    assert node.handle(GpuSampled(0, CALM), 303) == [RestoreTenant(node.turn, 1, 0)]
    assert (node.phase(), node.machine.plan().capacity(0).memory_free_bytes) == (ExitPhase.RESTORING, 40)
    assert node.handle(TenantRestored(1, ok=True), 310) == [UpsertEntry(node.turn, 0, entry(0, JOB))]
    assert (node.phase(), node.machine.next_wakeup()) == (ExitPhase.RUNNING, None)


def test_tenant_stays_suspended_for_a_minimum_time() -> None:
    node = suspended_job()
    node.handle(TenantLeft(2, "exit 0"), 30)
    assert not any(isinstance(action, RestoreTenant) for action in node.handle(GpuSampled(0, CALM), 169))
    assert RestoreTenant(node.turn + 1, 1, 0) in node.handle(GpuSampled(0, CALM), 170)


def test_suspended_tenant_is_restored_before_offline_tenants_join() -> None:
    node = suspended_job()
    node.handle(TenantLeft(2, "exit 0"), 30)
    (refused,) = node.join(3, MINOR, now=31)
    assert isinstance(refused, Refuse)
    assert (refused.reject.reason, refused.reject.retry_after_ns) == (Reason.NO_CAPACITY_YET, 150)
    node.handle(GpuSampled(0, CALM), 200)
    node.handle(TenantRestored(1, ok=True), 201)
    *_, granted = node.join(3, MINOR, now=202)
    assert isinstance(granted, IssueGrant)


def test_tenant_that_cannot_be_suspended_in_time_is_evicted() -> None:
    node = ProtectedNode()
    node.join(1, SUSPENDABLE)
    node.join(2, WEB, now=10)
    node.wake(30)
    assert node.handle(TenantSuspended(1, ok=False, detail="no checkpoint"), 31) == []
    assert (node.phase(), node.lifecycle().why) == (
        ExitPhase.DRAINING,
        "evicted: it could not be suspended (no checkpoint)",
    )
    node = ProtectedNode()
    node.join(1, SUSPENDABLE)
    node.handle(MemoryRequested(0, 1, 1), 2)
    node.join(2, WEB, memory_bytes=0)
    node.handle(MemoryRequested(1, 1, 5, ((0, 50),)), 10)
    assert node.lifecycle().held_bytes == 50
    node.wake(30)
    node.wake(180)
    assert (node.phase(), node.lifecycle().why) == (
        ExitPhase.DRAINING,
        "evicted: its parent did not suspend it in time",
    )


def test_tenant_that_cannot_be_restored_stays_suspended() -> None:
    node = suspended_job()
    node.handle(TenantLeft(2, "exit 0"), 30)
    node.handle(GpuSampled(0, CALM), 200)
    assert node.handle(TenantRestored(1, ok=False, detail="no room"), 210) == []
    assert (node.phase(), node.machine.plan().capacity(0).memory_free_bytes) == (ExitPhase.SUSPENDED, 100)
    assert node.lifecycle().why == "suspended: it could not be restored (no room)"
    node.handle(GpuSampled(0, CALM), 300)
    assert node.phase() is ExitPhase.SUSPENDED
    node.handle(GpuSampled(0, CALM), 360)
    assert node.phase() is ExitPhase.RESTORING


def test_evicted_suspended_tenant_holds_no_reservation() -> None:
    node = suspended_job()
    *_, confirmed = node.handle(EvictionRequested(9, 1000, True, ("job",)), 30)
    assert isinstance(confirmed, Confirm)
    assert (node.phase(), node.machine.plan().capacity(0).memory_free_bytes) == (ExitPhase.DRAINING, 40)
    node.handle(TenantLeft(1, "exit 143"), 40)
    assert node.machine.plan().capacity(0).memory_free_bytes == 40
    node.handle(TenantLeft(2, "exit 0"), 41)
    assert node.machine.plan().capacity(0).memory_free_bytes == 100


def test_program_restarted_while_suspended_needs_free_capacity() -> None:
    node = suspended_job()
    node.handle(TenantRestarted(1, "exit 1", 1), 30)
    assert node.phase() is ExitPhase.DRAINING
    node = suspended_job()
    node.handle(TenantLeft(2, "exit 0"), 30)
    assert node.handle(TenantRestarted(1, "exit 1", 1), 31) == [UpsertEntry(node.turn, 0, entry(0, JOB))]
    assert node.machine.plan().capacity(0).memory_free_bytes == 40


def test_restarted_node_repeats_suspend_and_restore_requests() -> None:
    node = ProtectedNode()
    node.join(1, SUSPENDABLE)
    node.join(2, WEB, now=10)
    node.wake(30)
    node.restart(40)
    assert node.resume(3, 0, 50)[1:] == [SuspendTenant(node.turn, 3, 0, f"suspended: {NEEDS}")]
    node.handle(TenantSuspended(3, ok=True), 60)
    node.restart(70)
    assert len(node.resume(4, 0, 80)) == 1, "a suspended tenant gets only its grant"
    node.handle(GpuSampled(0, CALM), 300)
    assert node.phase() is ExitPhase.RESTORING
    node.restart(310)
    assert node.resume(5, 0, 320)[1:] == [RestoreTenant(node.turn, 5, 0)]


def test_disconnected_suspended_tenant_is_not_restored() -> None:
    node = suspended_job()
    node.handle(TenantLeft(2, "exit 0"), 30)
    node.restart(40)
    node.handle(GpuSampled(0, CALM), 300)
    assert node.phase() is ExitPhase.SUSPENDED
    assert Revoke(node.turn + 1, NO_PEER, "job", 0, 1, "lost: did not reconnect in time") in node.handle(
        TimerFired(), 1040
    )
