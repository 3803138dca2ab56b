"""Each step of a tenant's exit as a list of actions, also across a restart of the node."""

import msgspec
import pytest

from cotenant.node.model.action import (
    NO_PEER,
    Confirm,
    IssueGrant,
    KillTenant,
    Refuse,
    RemoveEntry,
    Revoke,
    SignalTenant,
    UpsertEntry,
)
from cotenant.node.model.admission import Reason
from cotenant.node.model.event import (
    EvictionRequested,
    NodeRestored,
    NodeSettings,
    NodeStarted,
    PeerLost,
    QuitRequested,
    TenantDrained,
    TenantFaulted,
    TenantHung,
    TenantJoined,
    TenantLeft,
    TenantRestarted,
    TenantResumed,
    TenantsPaused,
)
from cotenant.node.model.protection import ExitPhase
from cotenant.node.state.node import NodeMachine
from tests.support.protection_setup import JOB, LIMITS, WEB, ProtectedNode, ending, entry

WHY = "evicted: user 1000 requested it"
EVICT = EvictionRequested(9, 1000, False, ("job",))


def evict_job(now: int = 10) -> ProtectedNode:
    node = ProtectedNode()
    node.join(1)
    paused, answer = node.handle(EVICT, now)
    assert paused == UpsertEntry(node.turn, 0, entry(0, JOB, paused=True))
    assert isinstance(answer, Confirm)
    assert answer.tenants == ("job",)
    return node


def test_eviction_drains_terminates_finishes_and_kills() -> None:
    node = evict_job(10)
    assert node.phase() is ExitPhase.DRAINING
    actions = node.handle(TenantDrained(0, 1), 15)
    assert actions == [UpsertEntry(4, 0, ending(0)), SignalTenant(4, 1, 0, 1, "term", WHY)]
    assert node.phase() is ExitPhase.TERMINATING
    assert node.wake(115) == [UpsertEntry(5, 0, entry(0, JOB, paused=True))]
    assert node.phase() is ExitPhase.FINISHING
    assert node.handle(TenantDrained(0, 1), 120) == [SignalTenant(6, 1, 0, 1, "kill", WHY)]
    assert node.phase() is ExitPhase.KILLED
    assert node.wake(130) == [KillTenant(7, 0, 0, 11, WHY)]
    assert node.handle(PeerLost(1), 131) == [
        RemoveEntry(8, 0, 0),
        Revoke(8, NO_PEER, "job", 0, 1, "lost: its connection closed"),
    ]
    assert node.machine.next_wakeup() is None
    assert node.machine.registry.departed[-1].tenant.lifecycle.why == WHY


def test_each_exit_phase_ends_at_its_deadline() -> None:
    node = evict_job(10)
    assert node.wake(30) == [UpsertEntry(4, 0, ending(0)), SignalTenant(4, 1, 0, 1, "term", WHY)]
    assert node.wake(130) == [UpsertEntry(5, 0, entry(0, JOB, paused=True))]
    assert node.wake(150) == [SignalTenant(6, 1, 0, 1, "kill", WHY)]
    assert node.wake(160) == [KillTenant(7, 0, 0, 11, WHY)]
    assert node.wake(160 + 10**9) == [KillTenant(8, 0, 0, 11, WHY)], "a tenant that remains is killed again"


def test_program_may_exit_in_any_phase() -> None:
    for steps in range(4):
        node = evict_job()
        for _ in range(steps):
            node.wake(node.machine.next_wakeup() or 0)
        assert Revoke(node.turn + 1, 1, "job", 0, 1, "exit 3") in node.handle(TenantLeft(1, "exit 3"), 10**6)
        assert (node.machine.tenants(), node.machine.next_wakeup()) == ([], None)


def test_tenant_without_a_device_is_terminated_without_draining() -> None:
    node = ProtectedNode(gpus=())
    node.join(1)
    signal, _ = node.handle(EVICT, 10)
    assert signal == SignalTenant(3, 1, 0, 1, "term", WHY)
    assert node.wake(110) == [SignalTenant(4, 1, 0, 1, "kill", WHY)]


@pytest.mark.parametrize("own_ns, requested_ns, grace_ns", [(0, 0, 100), (40, 0, 40), (40, 70, 70), (0, 1, 1)], ids=str)
def test_grace_is_that_of_the_request_else_of_the_tenant_else_of_the_node(
    own_ns: int, requested_ns: int, grace_ns: int
) -> None:
    node = ProtectedNode()
    node.join(1, grace_ns=own_ns)
    node.handle(msgspec.structs.replace(EVICT, grace_ns=requested_ns), 10)
    node.handle(TenantDrained(0, 1), 20)
    assert node.machine.next_wakeup() == 20 + grace_ns


def test_second_eviction_can_only_shorten_the_grace() -> None:
    node = evict_job(10)
    node.handle(TenantDrained(0, 1), 20)
    node.handle(msgspec.structs.replace(EVICT, grace_ns=500), 30)
    assert node.machine.next_wakeup() == 120
    node.handle(msgspec.structs.replace(EVICT, grace_ns=50), 40)
    assert node.machine.next_wakeup() == 70


def test_second_quit_request_ends_the_grace() -> None:
    node = ProtectedNode()
    node.join(1)
    assert node.handle(QuitRequested(1, 0), 10) == [UpsertEntry(3, 0, entry(0, JOB, paused=True))]
    _, signal = node.handle(TenantDrained(0, 1), 20)
    assert signal == SignalTenant(4, 1, 0, 1, "term", "ended: its `cotenant run` was asked to stop")
    assert node.handle(QuitRequested(1, 1), 30) == []
    assert node.machine.next_wakeup() == 21
    assert node.handle(QuitRequested(7, 0), 31) == [], "a peer that is not a tenant has nothing to end"


def test_only_the_tenants_user_or_the_nodes_user_may_evict() -> None:
    node = ProtectedNode()
    node.join(1)
    for event, reason in (
        (EvictionRequested(9, 1001, False, ("job",)), Reason.NOT_YOURS),
        (EvictionRequested(9, 1000, True, ("job", "nobody")), Reason.UNKNOWN_TENANT),
    ):
        (refused,) = node.handle(event, 5)
        assert isinstance(refused, Refuse)
        assert refused.reject.reason is reason
    assert node.phase() is ExitPhase.RUNNING
    node.handle(EvictionRequested(9, 1001, True, ("job",)), 5)
    assert node.phase() is ExitPhase.DRAINING


def test_evicted_online_tenant_gets_the_lowest_priority() -> None:
    node = ProtectedNode()
    node.join(1, WEB)
    node.handle(EvictionRequested(9, 1000, False, ("web",)), 10)
    change, _ = node.handle(TenantDrained(0, 1), 12)
    assert change == UpsertEntry(4, 0, ending(0))


def test_paused_tenant_may_launch_while_terminating() -> None:
    node = ProtectedNode()
    node.join(1)
    node.handle(TenantsPaused(9, 1000, False, ("job",), all_offline=False, paused=True), 5)
    assert not any(isinstance(action, UpsertEntry) for action in node.handle(EVICT, 10)), "it is paused already"
    change, _ = node.handle(TenantDrained(0, 1), 12)
    assert change == UpsertEntry(5, 0, ending(0))


def test_event_of_another_generation_or_slot_is_ignored() -> None:
    node = evict_job()
    assert node.handle(TenantDrained(0, 2), 11) == []
    assert node.handle(TenantDrained(3, 1), 11) == []
    assert node.handle(TenantFaulted(0, 2, "cuda", 700), 11) == []
    assert node.phase() is ExitPhase.DRAINING


# -- errors ----------------------------------------------------------------------------------------------------


def test_program_with_a_fatal_error_gets_time_to_exit_by_itself() -> None:
    node = ProtectedNode()
    node.join(1, WEB)
    assert node.handle(TenantFaulted(0, 1, "cuda", 700), 10) == [UpsertEntry(3, 0, entry(0, WEB, paused=True))]
    assert node.handle(TenantDrained(0, 1), 11) == [], "this phase waits for the program, not for its work"
    _, signal = node.wake(40)
    assert isinstance(signal, SignalTenant)
    assert (signal.kind, signal.may_restart) == ("term", True)
    assert signal.why.startswith("ended: CUDA error 700 (bad-kernel: ")


def test_restarted_program_is_not_ended_for_an_earlier_error() -> None:
    node = ProtectedNode()
    node.join(1)
    node.handle(TenantFaulted(0, 1, "cuda", 700), 10)
    assert node.handle(TenantRestarted(1, "exit 1", 1), 20) == [UpsertEntry(4, 0, entry(0, JOB))]
    assert (node.phase(), node.machine.registry.holders[0].restarts) == (ExitPhase.RUNNING, 1)
    node.handle(EVICT, 30)
    assert node.handle(TenantRestarted(1, "exit 1", 2), 35) == []
    assert node.phase() is ExitPhase.DRAINING, "an eviction applies to the restarted program, too"


@pytest.mark.parametrize("source, code", [("cuda", 2), ("signal", 11), ("unknown", 3)])
def test_error_without_a_remedy_has_no_actions(source: str, code: int) -> None:
    node = ProtectedNode()
    node.join(1)
    assert node.handle(TenantFaulted(0, 1, source, code), 10) == []
    assert node.phase() is ExitPhase.RUNNING


def test_hung_offline_tenant_is_killed_and_an_online_one_is_not() -> None:
    node = ProtectedNode()
    node.join(1)
    node.join(2, WEB, memory_bytes=0)
    change, signal = node.handle(TenantHung(0, 1, "gemm", 1000, 900_000), 10)
    assert change == UpsertEntry(4, 0, entry(0, JOB, paused=True))
    assert isinstance(signal, SignalTenant)
    assert (signal.kind, signal.may_restart) == ("kill", True)
    assert signal.why.startswith("killed: kernel gemm has run for 900us, 1us expected (hang: ")
    assert node.handle(TenantHung(0, 1, "gemm", 1000, 950_000), 11) == []
    assert node.handle(TenantHung(1, 1, "gemm", 1000, 900_000), 12) == []


# -- restarts of the node --------------------------------------------------------------------------------------


def test_restarted_node_repeats_the_phase_when_the_parent_reconnects() -> None:
    node = evict_job(10)
    grant = IssueGrant(0, 2, "job", node.machine.registry.holders[0].grant)
    node.restart(12)
    assert node.machine.next_wakeup() == 1012, "the only deadline is that of the reconnection"
    assert node.resume(2, 0, 50) == [msgspec.structs.replace(grant, cause=5)]
    assert node.machine.next_wakeup() == 70
    assert [type(action) for action in node.wake(70)] == [UpsertEntry, SignalTenant]

    node.restart(80)
    again = node.resume(3, 0, 90)
    assert again == [msgspec.structs.replace(grant, cause=8, peer=3), SignalTenant(8, 3, 0, 1, "term", WHY)]
    assert node.machine.next_wakeup() == 190, "the earlier signal may be lost, so the grace begins anew"

    assert node.wake(190) == [UpsertEntry(9, 0, entry(0, JOB, paused=True))]
    node.restart(195)
    node.resume(4, 0, 200)
    assert (node.phase(), node.machine.next_wakeup()) == (ExitPhase.FINISHING, 220)
    node.wake(220)
    node.restart(225)
    _, signal = node.resume(5, 0, 230)
    assert signal == SignalTenant(node.turn, 5, 0, 1, "kill", WHY)


def test_tenant_evicted_while_disconnected_is_notified_when_it_resumes() -> None:
    node = ProtectedNode()
    node.join(1)
    node.restart(5)
    node.handle(EVICT, 10)
    assert node.wake(30) == [UpsertEntry(5, 0, ending(0))], "no parent is connected"
    assert node.machine.next_wakeup() == 1005
    _, signal = node.resume(2, 0, 40)
    assert signal == SignalTenant(6, 2, 0, 1, "term", WHY)


def test_exiting_tenant_that_does_not_reconnect_is_killed_and_its_resume_refused() -> None:
    node = evict_job(10)
    node.restart(12)
    killed, revoked = [action for action in node.wake(1012) if not isinstance(action, RemoveEntry)]
    assert killed == KillTenant(5, 0, 0, 11, WHY)
    assert isinstance(revoked, Revoke)
    (refused,) = node.handle(TenantResumed(3, 11, 1000, 0, 1), 1020)
    assert isinstance(refused, Refuse)
    assert (refused.reject.reason, refused.reject.detail) == (Reason.EVICTED, WHY)
    (refused,) = node.handle(TenantResumed(3, 12, 1000, 0, 1), 1020)
    assert isinstance(refused, Refuse)
    assert refused.reject.reason is Reason.UNKNOWN_SLOT, "another process does not learn the reason"


def test_node_kills_a_disconnected_tenant_itself() -> None:
    node = ProtectedNode()
    node.join(1)
    node.restart(5)
    *_, killed = node.handle(TenantHung(0, 1, "gemm", 1, 2), 10)
    assert isinstance(killed, KillTenant)
    assert (killed.gpu, killed.slot, killed.pid) == (0, 0, 11)


def test_snapshot_of_a_version_without_protection_is_read() -> None:
    old = msgspec.msgpack.encode(
        [
            *["restored", [2, 100, 0, "spread", "reserve", [["a", 100, []]]], 7, [1, 0]],
            [[-1, ["job", [0, 1, "offline", 7, 0, 60, 0, 0], ["offline", 7, "job", 0, 60], 11, 1000, 5]]],
            *[[], -1, -1],
        ]
    )

    machine = NodeMachine()
    machine.handle(msgspec.msgpack.decode(old, type=NodeRestored), now=1)
    assert [view.tenant.lifecycle.phase for view in machine.tenants()] == [ExitPhase.RUNNING]
    assert [watch.health.value for watch in machine.watches()] == ["init"]
    machine.handle(NodeStarted(NodeSettings(2, 100, gpus=machine.settings.gpus, limits=LIMITS), "1", 0), now=2)
    machine.handle(TenantJoined(4, 5, 1000, WEB), now=3)
    machine.check()
    assert machine.snapshot().waiting, "its memory can be reclaimed"
