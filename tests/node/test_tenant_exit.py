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


def evicted(now: int = 10) -> ProtectedNode:
    node = ProtectedNode()
    node.join(1)
    paused, answer = node.tell(EVICT, now)
    assert paused == UpsertEntry(node.turn, 0, entry(0, JOB, paused=True))
    assert isinstance(answer, Confirm)
    assert answer.tenants == ("job",)
    return node


def test_a_graceful_exit_stops_drains_asks_stops_again_and_kills() -> None:
    node = evicted(10)
    assert node.phase() is ExitPhase.DRAINING
    asked = node.tell(TenantDrained(0, 1), 15)
    assert asked == [UpsertEntry(4, 0, ending(0)), SignalTenant(4, 1, 0, 1, "term", WHY)]
    assert node.phase() is ExitPhase.TERMINATING
    assert node.wake(115) == [UpsertEntry(5, 0, entry(0, JOB, paused=True))]
    assert node.phase() is ExitPhase.FINISHING
    assert node.tell(TenantDrained(0, 1), 120) == [SignalTenant(6, 1, 0, 1, "kill", WHY)]
    assert node.phase() is ExitPhase.KILLED
    assert node.wake(130) == [KillTenant(7, 0, 0, 11, WHY)]
    assert node.tell(PeerLost(1), 131) == [
        RemoveEntry(8, 0, 0),
        Revoke(8, NO_PEER, "job", 0, 1, "lost: its connection closed"),
    ]
    assert node.machine.next_wakeup() is None
    assert node.machine.registry.departed[-1].tenant.lifecycle.why == WHY


def test_work_that_does_not_end_is_waited_for_no_longer_than_the_limit() -> None:
    node = evicted(10)
    assert node.wake(30) == [UpsertEntry(4, 0, ending(0)), SignalTenant(4, 1, 0, 1, "term", WHY)]
    assert node.wake(130) == [UpsertEntry(5, 0, entry(0, JOB, paused=True))]
    assert node.wake(150) == [SignalTenant(6, 1, 0, 1, "kill", WHY)]
    assert node.wake(160) == [KillTenant(7, 0, 0, 11, WHY)]
    assert node.wake(160 + 10**9) == [KillTenant(8, 0, 0, 11, WHY)], "a tenant that is still there is killed again"


def test_a_program_may_end_in_any_step() -> None:
    for steps in range(4):
        node = evicted()
        for _ in range(steps):
            node.wake(node.machine.next_wakeup() or 0)
        assert Revoke(node.turn + 1, 1, "job", 0, 1, "exit 3") in node.tell(TenantLeft(1, "exit 3"), 10**6)
        assert (node.machine.tenants(), node.machine.next_wakeup()) == ([], None)


def test_who_has_no_device_is_asked_at_once_and_killed_after_its_grace() -> None:
    node = ProtectedNode(gpus=())
    node.join(1)
    signal, _ = node.tell(EVICT, 10)
    assert signal == SignalTenant(3, 1, 0, 1, "term", WHY)
    assert node.wake(110) == [SignalTenant(4, 1, 0, 1, "kill", WHY)]


@pytest.mark.parametrize("own_ns, asked_ns, grace_ns", [(0, 0, 100), (40, 0, 40), (40, 70, 70), (0, 1, 1)], ids=str)
def test_the_grace_is_the_asker_s_else_the_tenant_s_else_the_node_s(own_ns: int, asked_ns: int, grace_ns: int) -> None:
    node = ProtectedNode()
    node.join(1, grace_ns=own_ns)
    node.tell(msgspec.structs.replace(EVICT, grace_ns=asked_ns), 10)
    node.tell(TenantDrained(0, 1), 20)
    assert node.machine.next_wakeup() == 20 + grace_ns


def test_a_second_eviction_shortens_the_grace_and_never_extends_it() -> None:
    node = evicted(10)
    node.tell(TenantDrained(0, 1), 20)
    node.tell(msgspec.structs.replace(EVICT, grace_ns=500), 30)
    assert node.machine.next_wakeup() == 120
    node.tell(msgspec.structs.replace(EVICT, grace_ns=50), 40)
    assert node.machine.next_wakeup() == 70


def test_a_parent_that_is_asked_to_end_twice_does_not_wait() -> None:
    node = ProtectedNode()
    node.join(1)
    assert node.tell(QuitRequested(1, 0), 10) == [UpsertEntry(3, 0, entry(0, JOB, paused=True))]
    _, signal = node.tell(TenantDrained(0, 1), 20)
    assert signal == SignalTenant(4, 1, 0, 1, "term", "ended: its `cotenant run` was asked to stop")
    assert node.tell(QuitRequested(1, 1), 30) == []
    assert node.machine.next_wakeup() == 21
    assert node.tell(QuitRequested(7, 0), 31) == [], "a peer that is not a tenant has nothing to end"


def test_only_its_own_user_or_the_node_s_may_evict() -> None:
    node = ProtectedNode()
    node.join(1)
    for event, reason in (
        (EvictionRequested(9, 1001, False, ("job",)), Reason.NOT_YOURS),
        (EvictionRequested(9, 1000, True, ("job", "nobody")), Reason.UNKNOWN_TENANT),
    ):
        (refused,) = node.tell(event, 5)
        assert isinstance(refused, Refuse)
        assert refused.reject.reason is reason
    assert node.phase() is ExitPhase.RUNNING
    node.tell(EvictionRequested(9, 1001, True, ("job",)), 5)
    assert node.phase() is ExitPhase.DRAINING


def test_an_online_tenant_is_evicted_by_its_name_like_any_other_and_comes_after_everybody() -> None:
    node = ProtectedNode()
    node.join(1, WEB)
    node.tell(EvictionRequested(9, 1000, False, ("web",)), 10)
    sat, _ = node.tell(TenantDrained(0, 1), 12)
    assert sat == UpsertEntry(4, 0, ending(0))


def test_who_was_paused_may_launch_to_end() -> None:
    node = ProtectedNode()
    node.join(1)
    node.tell(TenantsPaused(9, 1000, False, ("job",), all_offline=False, paused=True), 5)
    assert not any(isinstance(action, UpsertEntry) for action in node.tell(EVICT, 10)), "it is held back already"
    sat, _ = node.tell(TenantDrained(0, 1), 12)
    assert sat == UpsertEntry(5, 0, ending(0))


def test_a_word_about_somebody_else_changes_nothing() -> None:
    node = evicted()
    assert node.tell(TenantDrained(0, 2), 11) == []
    assert node.tell(TenantDrained(3, 1), 11) == []
    assert node.tell(TenantFaulted(0, 2, "cuda", 700), 11) == []
    assert node.phase() is ExitPhase.DRAINING


# -- errors ----------------------------------------------------------------------------------------------------


def test_a_program_that_met_a_fatal_error_has_a_moment_to_end_by_itself() -> None:
    node = ProtectedNode()
    node.join(1, WEB)
    assert node.tell(TenantFaulted(0, 1, "cuda", 700), 10) == [UpsertEntry(3, 0, entry(0, WEB, paused=True))]
    assert node.tell(TenantDrained(0, 1), 11) == [], "what is waited for is the program, not its work"
    _, signal = node.wake(40)
    assert isinstance(signal, SignalTenant)
    assert (signal.kind, signal.may_restart) == ("term", True)
    assert signal.why.startswith("ended: CUDA error 700 (bad-kernel: ")


def test_a_program_that_was_started_again_is_not_ended_for_the_old_one_s_error() -> None:
    node = ProtectedNode()
    node.join(1)
    node.tell(TenantFaulted(0, 1, "cuda", 700), 10)
    assert node.tell(TenantRestarted(1, "exit 1", 1), 20) == [UpsertEntry(4, 0, entry(0, JOB))]
    assert (node.phase(), node.machine.registry.holders[0].restarts) == (ExitPhase.RUNNING, 1)
    node.tell(EVICT, 30)
    assert node.tell(TenantRestarted(1, "exit 1", 2), 35) == []
    assert node.phase() is ExitPhase.DRAINING, "who was evicted is, whatever runs in its place"


@pytest.mark.parametrize("source, code", [("cuda", 2), ("signal", 11), ("nobody knows", 3)])
def test_an_error_that_is_over_already_leads_to_nothing(source: str, code: int) -> None:
    node = ProtectedNode()
    node.join(1)
    assert node.tell(TenantFaulted(0, 1, source, code), 10) == []
    assert node.phase() is ExitPhase.RUNNING


def test_an_offline_tenant_that_hangs_is_killed_at_once_and_an_online_one_never() -> None:
    node = ProtectedNode()
    node.join(1)
    node.join(2, WEB, memory_bytes=0)
    sat, signal = node.tell(TenantHung(0, 1, "gemm", 1000, 900_000), 10)
    assert sat == UpsertEntry(4, 0, entry(0, JOB, paused=True))
    assert isinstance(signal, SignalTenant)
    assert (signal.kind, signal.may_restart) == ("kill", True)
    assert signal.why.startswith("killed: kernel gemm has run for 900us, 1us expected (hang: ")
    assert node.tell(TenantHung(0, 1, "gemm", 1000, 950_000), 11) == []
    assert node.tell(TenantHung(1, 1, "gemm", 1000, 900_000), 12) == []


# -- a restart in the midst ------------------------------------------------------------------------------------


def test_a_restarted_node_goes_on_with_the_step_once_the_parent_is_back() -> None:
    node = evicted(10)
    grant = IssueGrant(0, 2, "job", node.machine.registry.holders[0].grant)
    node.restart(12)
    assert node.machine.next_wakeup() == 1012, "only its return is waited for"
    assert node.resume(2, 0, 50) == [msgspec.structs.replace(grant, cause=5)]
    assert node.machine.next_wakeup() == 70
    assert [type(action) for action in node.wake(70)] == [UpsertEntry, SignalTenant]

    node.restart(80)
    again = node.resume(3, 0, 90)
    assert again == [msgspec.structs.replace(grant, cause=8, peer=3), SignalTenant(8, 3, 0, 1, "term", WHY)]
    assert node.machine.next_wakeup() == 190, "what was said before may never have arrived"

    assert node.wake(190) == [UpsertEntry(9, 0, entry(0, JOB, paused=True))]
    node.restart(195)
    node.resume(4, 0, 200)
    assert (node.phase(), node.machine.next_wakeup()) == (ExitPhase.FINISHING, 220)
    node.wake(220)
    node.restart(225)
    _, signal = node.resume(5, 0, 230)
    assert signal == SignalTenant(node.turn, 5, 0, 1, "kill", WHY)


def test_who_is_evicted_while_it_is_away_hears_of_it_when_it_comes_back() -> None:
    node = ProtectedNode()
    node.join(1)
    node.restart(5)
    node.tell(EVICT, 10)
    assert node.wake(30) == [UpsertEntry(5, 0, ending(0))], "nobody is there to be told"
    assert node.machine.next_wakeup() == 1005
    _, signal = node.resume(2, 0, 40)
    assert signal == SignalTenant(6, 2, 0, 1, "term", WHY)


def test_who_was_to_end_and_does_not_come_back_is_killed_and_learns_why_if_it_comes_later() -> None:
    node = evicted(10)
    node.restart(12)
    killed, revoked = [one for one in node.wake(1012) if not isinstance(one, RemoveEntry)]
    assert killed == KillTenant(5, 0, 0, 11, WHY)
    assert isinstance(revoked, Revoke)
    (refused,) = node.tell(TenantResumed(3, 11, 1000, 0, 1), 1020)
    assert isinstance(refused, Refuse)
    assert (refused.reject.reason, refused.reject.detail) == (Reason.EVICTED, WHY)
    (refused,) = node.tell(TenantResumed(3, 12, 1000, 0, 1), 1020)
    assert isinstance(refused, Refuse)
    assert refused.reject.reason is Reason.UNKNOWN_SLOT, "another process learns nothing"


def test_a_node_kills_a_disconnected_tenant_itself() -> None:
    node = ProtectedNode()
    node.join(1)
    node.restart(5)
    *_, killed = node.tell(TenantHung(0, 1, "gemm", 1, 2), 10)
    assert isinstance(killed, KillTenant)
    assert (killed.gpu, killed.slot, killed.pid) == (0, 0, 11)


def test_a_journal_of_before_protection_is_read_and_everybody_in_it_runs() -> None:
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
    assert machine.snapshot().waiting, "and its memory can be made room with"
