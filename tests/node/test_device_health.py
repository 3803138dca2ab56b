"""Consequences of each health transition for tenants and joins."""

from collections.abc import Sequence

import msgspec
import pytest

from cotenant.node.model.action import (
    Action,
    IssueGrant,
    Refuse,
    RemoveEntry,
    ReportGpuHealth,
    RestartMps,
    SetTenantTable,
    SignalTenant,
    SuspendTenant,
    UpsertEntry,
)
from cotenant.node.model.admission import Reason
from cotenant.node.model.event import (
    GpuFaulted,
    GpuLost,
    GpuRecovered,
    GpuSampled,
    MpsStatusChanged,
    NodeStarted,
    TenantDrained,
    TenantFaulted,
    TenantLeft,
    TenantRestarted,
    TenantSuspended,
)
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import Block, ExitPhase, GpuSample, GpuWatch, Health, OnPressure
from cotenant.node.model.tenant import TenantSpec
from tests.support.protection_setup import JOB, MINOR, WEB, ProtectedNode, entry

CALM = GpuSample(100_000, 100_000, 1_000_000, 10, 100, 5, 5)
FULL = GpuSample(100_000, 100_000, 1_000_000, 99, 100, 60, 39)
SMALL_WEB = msgspec.structs.replace(WEB, memory_bytes=10)


def watch_of(actions: Sequence[Action]) -> GpuWatch:
    """Return the only reported health of a device among these actions."""
    (watch,) = [action.watch for action in actions if isinstance(action, ReportGpuHealth)]
    return watch


def refusal_of(node: ProtectedNode, spec: TenantSpec, now: int) -> tuple[Reason, int]:
    """Return the reason and the retry time with which a join is refused."""
    (answer,) = node.join(90, spec, now=now)
    assert isinstance(answer, Refuse)
    return answer.reject.reason, answer.reject.retry_after_ns


def welcome(node: ProtectedNode, peer: int, spec: TenantSpec, now: int) -> IssueGrant:
    *_, answer = node.join(peer, spec, now=now)
    assert isinstance(answer, IssueGrant)
    return answer


def sample_repeatedly(node: ProtectedNode, sample: GpuSample, count: int, begin: int) -> list[Action]:
    """Report the same sample `count` times, one per instant; return all actions."""
    return [action for step in range(count) for action in node.handle(GpuSampled(0, sample), begin + step)]


def test_full_device_degrades_evicts_offline_tenants_and_recovers() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2)
    assert watch_of(sample_repeatedly(node, CALM, 1, 10)).health is Health.HEALTHY
    assert watch_of(sample_repeatedly(node, FULL, 2, 20)).health is Health.UNHEALTHY
    assert refusal_of(node, MINOR, 22) == (Reason.UNHEALTHY, 2)
    assert node.phase(1) is ExitPhase.RUNNING
    welcome(node, 3, msgspec.structs.replace(SMALL_WEB, name="two"), 23)

    over = sample_repeatedly(node, FULL, 2, 30)
    assert watch_of(over).health is Health.OVERLIMIT
    assert [action for action in over if isinstance(action, UpsertEntry)] == [
        UpsertEntry(node.turn, 0, entry(1, JOB, paused=True))
    ]
    why = node.lifecycle(1).why
    assert why.startswith("evicted: GPU 0 was over its limit (99.0% of the memory used, above 98%")
    assert refusal_of(node, MINOR, 40) == (Reason.UNHEALTHY, 31 + 500 - 40)
    *_, signal = node.handle(TenantDrained(1, 1), 41)
    assert signal == SignalTenant(node.turn, 2, 1, 1, "term", why, may_restart=True)
    node.handle(TenantLeft(2, "exit 143"), 50)

    assert sample_repeatedly(node, CALM, 3, 60) == [], "the back-off is not over"
    assert watch_of(sample_repeatedly(node, CALM, 1, 531)).health is Health.UNHEALTHY
    assert watch_of(sample_repeatedly(node, CALM, 2, 540)).health is Health.HEALTHY
    welcome(node, 4, MINOR, 550)
    assert node.machine.watches()[0].evictions == (31,)


def test_backoff_doubles_with_each_overlimit() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    now, waits = 10, []
    for _ in range(4):
        over = watch_of(
            [action for action in sample_repeatedly(node, FULL, 4, now) if isinstance(action, ReportGpuHealth)][1:]
        )
        waits.append(over.until_ns - over.since_ns)
        now = over.until_ns
        sample_repeatedly(node, CALM, 5, now)
        assert node.machine.watches()[0].health is Health.HEALTHY
        now += 10
    assert waits == [500, 1000, 2000, 4000]


def test_tenant_that_may_be_suspended_is_suspended_over_the_limit() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2, on_pressure=OnPressure.SUSPEND)
    sample_repeatedly(node, FULL, 4, 10)
    assert node.phase(1) is ExitPhase.SUSPENDING
    (asked,) = node.handle(TenantDrained(1, 1), 20)
    assert isinstance(asked, SuspendTenant)
    node.handle(TenantSuspended(2, ok=True), 21)
    sample_repeatedly(node, CALM, 2, 300)
    assert node.phase(1) is ExitPhase.SUSPENDED, "not before the device is healthy"
    sample_repeatedly(node, CALM, 5, 600)
    assert node.phase(1) is ExitPhase.RESTORING


def test_program_restarted_on_a_device_over_the_limit_is_evicted() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2)
    node.handle(TenantFaulted(1, 1, "cuda", 700), 5)
    sample_repeatedly(node, FULL, 4, 10)
    assert node.lifecycle(1).why.startswith("ended: CUDA error 700")
    node.handle(TenantRestarted(2, "exit 1", 1), 15)
    assert (node.phase(1), node.lifecycle(1).why.split("(")[0]) == (
        ExitPhase.DRAINING,
        "evicted: GPU 0 was over its limit ",
    )


def test_new_tenant_gets_a_device_that_admits_tenants() -> None:
    node = ProtectedNode((Gpu("a", 100), Gpu("b", 100)))
    node.handle(GpuLost(0), 5)
    assert welcome(node, 1, JOB, 6).grant.gpu == 1
    (answer,) = node.join(2, MINOR, gpu="0", now=7)
    assert isinstance(answer, Refuse)
    assert answer.reject.reason is Reason.UNHEALTHY
    assert answer.reject.detail == "GPU 0 admits no tenants: it does not respond"


def test_lost_device_ends_its_tenants_and_admits_none_until_it_recovers() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2, MINOR)
    lost = node.handle(GpuLost(0, "fell off the bus"), 10)
    assert watch_of(lost).health is Health.DISABLED
    signals = [action for action in lost if isinstance(action, SignalTenant)]
    why = "ended: GPU 0 is disabled: it does not respond: fell off the bus"
    assert signals == [
        SignalTenant(4, 1, 0, 1, "term", why, may_restart=True),
        SignalTenant(4, 2, 1, 1, "term", why, may_restart=True),
    ]
    assert node.handle(GpuLost(0, "still"), 11) == []
    for spec in (JOB, msgspec.structs.replace(WEB, memory_bytes=0, name="other")):
        assert refusal_of(node, spec, 12)[0] is Reason.UNHEALTHY
    assert sample_repeatedly(node, FULL, 3, 13) == [], "samples of a lost device are ignored"
    assert watch_of(node.handle(GpuRecovered(0), 20)).health is Health.INIT
    assert node.handle(GpuRecovered(0), 21) == []
    node.handle(TenantLeft(2, "exit 1"), 22)
    welcome(node, 3, MINOR, 23)


def test_events_of_unknown_devices_are_ignored() -> None:
    node = ProtectedNode()
    for event in (
        GpuLost(1),
        GpuRecovered(-1),
        GpuSampled(7, FULL),
        MpsStatusChanged(-1, is_ready=False),
        GpuFaulted(2, 79),
    ):
        assert node.handle(event, 5) == []


# -- Xids ------------------------------------------------------------------------------------------------------


def test_xid_of_a_tenant_ends_only_that_tenant() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2, MINOR)
    assert node.handle(GpuFaulted(0, 31, 1, 1), 10) == [UpsertEntry(4, 0, entry(1, MINOR, paused=True))]
    assert (node.phase(0), node.phase(1)) == (ExitPhase.RUNNING, ExitPhase.DRAINING)
    assert node.lifecycle(1).why.startswith("ended: Xid 31 (tenant-fault: ")
    assert node.handle(GpuFaulted(0, 31), 11) == [], "the tenant is unknown"
    assert node.machine.watches() == [GpuWatch()]


def test_uncontained_xid_drains_the_device_until_all_tenants_left() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2, MINOR)
    actions = node.handle(GpuFaulted(0, 48), 10)
    assert (watch_of(actions).health, watch_of(actions).blocked) == (Health.DISABLED, (Block.DRAIN,))
    assert (node.phase(0), node.phase(1)) == (ExitPhase.RUNNING, ExitPhase.DRAINING)
    assert refusal_of(node, JOB, 11)[0] is Reason.UNHEALTHY
    node.handle(TenantLeft(2, "exit 1"), 20)
    node.restart(30)
    assert node.machine.watches()[0].blocked == (Block.DRAIN,), "only the node knows of a drain"
    node.resume(3, 0, 31)
    assert watch_of(node.handle(TenantLeft(3, "exit 0"), 40)).health is Health.INIT
    welcome(node, 4, JOB, 41)


def test_xid_that_needs_a_reset_ends_all_tenants_and_blocks_until_they_left() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    actions = node.handle(GpuFaulted(0, 79), 10)
    assert watch_of(actions).blocked == (Block.DRAIN,)
    assert [action.kind for action in actions if isinstance(action, SignalTenant)] == ["term"]
    node.handle(GpuLost(0, ""), 11)
    node.handle(TenantLeft(1, "exit 1"), 12)
    assert node.machine.watches()[0].blocked == (Block.DEVICE,)
    assert watch_of(node.handle(GpuRecovered(0), 20)).blocked == ()


# -- MPS -------------------------------------------------------------------------------------------------------


def test_online_tenants_return_first_after_an_mps_server_died() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2, MINOR)
    died = node.handle(MpsStatusChanged(0, is_ready=False, detail="signal 11"), 10)
    assert died == [ReportGpuHealth(4, 0, watch_of(died)), RestartMps(4, 0)]
    assert watch_of(died).why == "its MPS server exited: signal 11"
    assert node.handle(MpsStatusChanged(0, is_ready=False), 11) == [RestartMps(5, 0)]
    assert refusal_of(node, msgspec.structs.replace(WEB, memory_bytes=0, name="other"), 12)[0] is Reason.UNHEALTHY
    node.handle(TenantLeft(1, "exit 1"), 13)
    node.handle(TenantLeft(2, "exit 1"), 14)
    assert watch_of(node.handle(MpsStatusChanged(0, is_ready=True), 20)).health is Health.INIT
    assert refusal_of(node, MINOR, 30) == (Reason.UNHEALTHY, 70)
    welcome(node, 3, SMALL_WEB, 31)
    welcome(node, 4, MINOR, 32)


@pytest.mark.parametrize(
    "condition", ["its program restarts in its slot", "another online tenant joins", "the time is over"]
)
def test_offline_join_waits_until_online_tenants_returned_or_the_time_is_over(condition: str) -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.handle(MpsStatusChanged(0, is_ready=False), 10)
    node.handle(MpsStatusChanged(0, is_ready=True), 20)
    assert refusal_of(node, MINOR, 21)[1] == 79
    if condition.startswith("its"):
        node.handle(TenantRestarted(1, "exit 1", 1), 30)
    elif condition.startswith("another"):
        welcome(node, 2, msgspec.structs.replace(SMALL_WEB, name="two"), 30)
    welcome(node, 3, MINOR, 100 if condition == "the time is over" else 31)


def test_offline_tenants_join_at_once_without_online_tenants() -> None:
    node = ProtectedNode()
    node.join(1, MINOR)
    node.handle(MpsStatusChanged(0, is_ready=False), 10)
    node.handle(MpsStatusChanged(0, is_ready=True), 20)
    welcome(node, 2, JOB, 21)


def test_ready_mps_server_does_not_recover_a_lost_device() -> None:
    node = ProtectedNode()
    node.handle(MpsStatusChanged(0, is_ready=False), 10)
    assert node.handle(GpuLost(0), 11) == [], "it admits no tenants already"
    assert node.handle(MpsStatusChanged(0, is_ready=True), 12) == []
    assert node.machine.watches()[0].health is Health.DISABLED
    assert watch_of(node.handle(GpuRecovered(0), 13)).health is Health.INIT


# -- a restart -------------------------------------------------------------------------------------------------


def test_restart_forgets_reported_blocks_and_keeps_own_decisions() -> None:
    node = ProtectedNode((Gpu("a", 100), Gpu("b", 100)))
    node.join(1, SMALL_WEB, gpu="0")
    sample_repeatedly(node, FULL, 4, 10)
    node.handle(GpuLost(1), 20)
    reported = node.restart(30)
    assert [(action.gpu, action.watch.health) for action in reported if isinstance(action, ReportGpuHealth)] == [
        (1, Health.INIT)
    ]
    assert [watch.health for watch in node.machine.watches()] == [Health.OVERLIMIT, Health.INIT]
    other = msgspec.structs.replace(node.machine.settings, gpus=(Gpu("c", 50),))
    node.handle(NodeStarted(other, "1", 0), 40)
    assert node.machine.watches() == [GpuWatch()], "another device has this index now"


def test_online_first_survives_a_restart_for_its_full_time() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.handle(MpsStatusChanged(0, is_ready=False), 10)
    node.restart(20)
    assert refusal_of(node, MINOR, 30) == (Reason.UNHEALTHY, 70)
    welcome(node, 2, MINOR, 100)


def test_two_changed_entries_of_a_turn_write_one_table() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2, MINOR)
    node.join(3, msgspec.structs.replace(MINOR, name="third"))
    actions = sample_repeatedly(node, FULL, 4, 10)
    changes = [action for action in actions if isinstance(action, UpsertEntry | RemoveEntry | SetTenantTable)]
    assert [type(action) for action in changes] == [SetTenantTable], "two entries change in one turn"


def test_drained_device_recovers_once_all_programs_were_restarted() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2, msgspec.structs.replace(SMALL_WEB, name="two"))
    assert watch_of(node.handle(GpuFaulted(0, 48), 10)).health is Health.DISABLED
    assert node.handle(TenantRestarted(1, "exit 3", 1), 20) == []
    assert refusal_of(node, MINOR, 21)[0] is Reason.UNHEALTHY
    assert watch_of(node.handle(TenantRestarted(2, "exit 3", 1), 30)).health is Health.INIT
    welcome(node, 4, MINOR, 40)
