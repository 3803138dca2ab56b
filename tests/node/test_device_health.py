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
    """The one new state of a device among what was decided."""
    (found,) = [action.watch for action in actions if isinstance(action, ReportGpuHealth)]
    return found


def refused(node: ProtectedNode, spec: TenantSpec, now: int) -> tuple[Reason, int]:
    """Why a newcomer is turned away, and for how long."""
    (answer,) = node.join(90, spec, now=now)
    assert isinstance(answer, Refuse)
    return answer.reject.reason, answer.reject.retry_after_ns


def welcome(node: ProtectedNode, peer: int, spec: TenantSpec, now: int) -> IssueGrant:
    *_, answer = node.join(peer, spec, now=now)
    assert isinstance(answer, IssueGrant)
    return answer


def look(node: ProtectedNode, sample: GpuSample, often: int, begin: int) -> list[Action]:
    """What so many looks in a row lead to."""
    return [action for step in range(often) for action in node.tell(GpuSampled(0, sample), begin + step)]


def test_a_device_goes_up_step_by_step_loses_its_offline_tenants_and_comes_back_by_itself() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2)
    assert watch_of(look(node, CALM, 1, 10)).health is Health.HEALTHY
    assert watch_of(look(node, FULL, 2, 20)).health is Health.UNHEALTHY
    assert refused(node, MINOR, 22) == (Reason.UNHEALTHY, 2)
    assert node.phase(1) is ExitPhase.RUNNING
    welcome(node, 3, msgspec.structs.replace(SMALL_WEB, name="two"), 23)

    over = look(node, FULL, 2, 30)
    assert watch_of(over).health is Health.OVERLIMIT
    assert [one for one in over if isinstance(one, UpsertEntry)] == [
        UpsertEntry(node.turn, 0, entry(1, JOB, paused=True))
    ]
    why = node.lifecycle(1).why
    assert why.startswith("evicted: GPU 0 was over its limit (99.0% of the memory used, above 98%")
    assert refused(node, MINOR, 40) == (Reason.UNHEALTHY, 31 + 500 - 40)
    *_, signal = node.tell(TenantDrained(1, 1), 41)
    assert signal == SignalTenant(node.turn, 2, 1, 1, "term", why, may_restart=True)
    node.tell(TenantLeft(2, "exit 143"), 50)

    assert look(node, CALM, 3, 60) == [], "the back-off is not over"
    assert watch_of(look(node, CALM, 1, 531)).health is Health.UNHEALTHY
    assert watch_of(look(node, CALM, 2, 540)).health is Health.HEALTHY
    welcome(node, 4, MINOR, 550)
    assert node.machine.watches()[0].evictions == (31,)


def test_each_eviction_soon_after_another_keeps_offline_away_for_longer() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    now, waits = 10, []
    for _ in range(4):
        over = watch_of([one for one in look(node, FULL, 4, now) if isinstance(one, ReportGpuHealth)][1:])
        waits.append(over.until_ns - over.since_ns)
        now = over.until_ns
        look(node, CALM, 5, now)
        assert node.machine.watches()[0].health is Health.HEALTHY
        now += 10
    assert waits == [500, 1000, 2000, 4000]


def test_over_its_limit_a_tenant_that_may_be_suspended_is() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2, on_pressure=OnPressure.SUSPEND)
    look(node, FULL, 4, 10)
    assert node.phase(1) is ExitPhase.SUSPENDING
    (asked,) = node.tell(TenantDrained(1, 1), 20)
    assert isinstance(asked, SuspendTenant)
    node.tell(TenantSuspended(2, ok=True), 21)
    look(node, CALM, 2, 300)
    assert node.phase(1) is ExitPhase.SUSPENDED, "not before the device is well"
    look(node, CALM, 5, 600)
    assert node.phase(1) is ExitPhase.RESTORING


def test_a_program_begun_anew_on_a_device_over_its_limit_gives_way_too() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2)
    node.tell(TenantFaulted(1, 1, "cuda", 700), 5)
    look(node, FULL, 4, 10)
    assert node.lifecycle(1).why.startswith("ended: CUDA error 700")
    node.tell(TenantRestarted(2, "exit 1", 1), 15)
    assert (node.phase(1), node.lifecycle(1).why.split("(")[0]) == (
        ExitPhase.DRAINING,
        "evicted: GPU 0 was over its limit ",
    )


def test_of_several_devices_a_newcomer_gets_one_that_is_well() -> None:
    node = ProtectedNode((Gpu("a", 100), Gpu("b", 100)))
    node.tell(GpuLost(0), 5)
    assert welcome(node, 1, JOB, 6).grant.gpu == 1
    (answer,) = node.join(2, MINOR, gpu="0", now=7)
    assert isinstance(answer, Refuse)
    assert answer.reject.reason is Reason.UNHEALTHY
    assert answer.reject.detail == "GPU 0 admits no tenants: it does not respond"


def test_a_lost_device_ends_its_tenants_and_admits_none_until_it_recovers() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2, MINOR)
    lost = node.tell(GpuLost(0, "fell off the bus"), 10)
    assert watch_of(lost).health is Health.DISABLED
    signals = [one for one in lost if isinstance(one, SignalTenant)]
    why = "ended: GPU 0 is disabled: it does not respond: fell off the bus"
    assert signals == [
        SignalTenant(4, 1, 0, 1, "term", why, may_restart=True),
        SignalTenant(4, 2, 1, 1, "term", why, may_restart=True),
    ]
    assert node.tell(GpuLost(0, "still"), 11) == []
    for spec in (JOB, msgspec.structs.replace(WEB, memory_bytes=0, name="other")):
        assert refused(node, spec, 12)[0] is Reason.UNHEALTHY
    assert look(node, FULL, 3, 13) == [], "what a lost device says of itself means nothing"
    assert watch_of(node.tell(GpuRecovered(0), 20)).health is Health.INIT
    assert node.tell(GpuRecovered(0), 21) == []
    node.tell(TenantLeft(2, "exit 1"), 22)
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
        assert node.tell(event, 5) == []


# -- Xids ------------------------------------------------------------------------------------------------------


def test_an_xid_of_a_tenant_ends_that_tenant_and_the_device_stays_as_it_is() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2, MINOR)
    assert node.tell(GpuFaulted(0, 31, 1, 1), 10) == [UpsertEntry(4, 0, entry(1, MINOR, paused=True))]
    assert (node.phase(0), node.phase(1)) == (ExitPhase.RUNNING, ExitPhase.DRAINING)
    assert node.lifecycle(1).why.startswith("ended: Xid 31 (tenant-fault: ")
    assert node.tell(GpuFaulted(0, 31), 11) == [], "nobody knows whose it is"
    assert node.machine.watches() == [GpuWatch()]


def test_an_xid_that_reaches_everybody_empties_the_device_which_then_begins_anew() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2, MINOR)
    struck = node.tell(GpuFaulted(0, 48), 10)
    assert (watch_of(struck).health, watch_of(struck).blocked) == (Health.DISABLED, (Block.DRAIN,))
    assert (node.phase(0), node.phase(1)) == (ExitPhase.RUNNING, ExitPhase.DRAINING)
    assert refused(node, JOB, 11)[0] is Reason.UNHEALTHY
    node.tell(TenantLeft(2, "exit 1"), 20)
    node.restart(30)
    assert node.machine.watches()[0].blocked == (Block.DRAIN,), "the node knows that by itself"
    node.resume(3, 0, 31)
    assert watch_of(node.tell(TenantLeft(3, "exit 0"), 40)).health is Health.INIT
    welcome(node, 4, JOB, 41)


def test_an_xid_after_which_only_a_reset_helps_ends_everybody_and_is_over_when_they_are_gone() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    struck = node.tell(GpuFaulted(0, 79), 10)
    assert watch_of(struck).blocked == (Block.DRAIN,)
    assert [one.kind for one in struck if isinstance(one, SignalTenant)] == ["term"]
    node.tell(GpuLost(0, ""), 11)
    node.tell(TenantLeft(1, "exit 1"), 12)
    assert node.machine.watches()[0].blocked == (Block.DEVICE,)
    assert watch_of(node.tell(GpuRecovered(0), 20)).blocked == ()


# -- MPS -------------------------------------------------------------------------------------------------------


def test_after_the_death_of_an_mps_server_online_comes_back_first() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2, MINOR)
    died = node.tell(MpsStatusChanged(0, is_ready=False, detail="signal 11"), 10)
    assert died == [ReportGpuHealth(4, 0, watch_of(died)), RestartMps(4, 0)]
    assert watch_of(died).why == "its MPS server exited: signal 11"
    assert node.tell(MpsStatusChanged(0, is_ready=False), 11) == [RestartMps(5, 0)]
    assert refused(node, msgspec.structs.replace(WEB, memory_bytes=0, name="other"), 12)[0] is Reason.UNHEALTHY
    node.tell(TenantLeft(1, "exit 1"), 13)
    node.tell(TenantLeft(2, "exit 1"), 14)
    assert watch_of(node.tell(MpsStatusChanged(0, is_ready=True), 20)).health is Health.INIT
    assert refused(node, MINOR, 30) == (Reason.UNHEALTHY, 70)
    welcome(node, 3, SMALL_WEB, 31)
    welcome(node, 4, MINOR, 32)


@pytest.mark.parametrize("how", ["its program begins anew in its slot", "another online tenant comes", "it takes long"])
def test_offline_waits_no_longer_than_it_must(how: str) -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.tell(MpsStatusChanged(0, is_ready=False), 10)
    node.tell(MpsStatusChanged(0, is_ready=True), 20)
    assert refused(node, MINOR, 21)[1] == 79
    if how.startswith("its"):
        node.tell(TenantRestarted(1, "exit 1", 1), 30)
    elif how.startswith("another"):
        welcome(node, 2, msgspec.structs.replace(SMALL_WEB, name="two"), 30)
    welcome(node, 3, MINOR, 100 if how == "it takes long" else 31)


def test_without_online_tenants_none_joins_first() -> None:
    node = ProtectedNode()
    node.join(1, MINOR)
    node.tell(MpsStatusChanged(0, is_ready=False), 10)
    node.tell(MpsStatusChanged(0, is_ready=True), 20)
    welcome(node, 2, JOB, 21)


def test_a_server_that_is_back_does_not_bring_a_lost_device_back() -> None:
    node = ProtectedNode()
    node.tell(MpsStatusChanged(0, is_ready=False), 10)
    assert node.tell(GpuLost(0), 11) == [], "it admits no tenants already"
    assert node.tell(MpsStatusChanged(0, is_ready=True), 12) == []
    assert node.machine.watches()[0].health is Health.DISABLED
    assert watch_of(node.tell(GpuRecovered(0), 13)).health is Health.INIT


# -- a restart -------------------------------------------------------------------------------------------------


def test_a_restarted_node_forgets_reported_blocks_and_keeps_its_own_decisions() -> None:
    node = ProtectedNode((Gpu("a", 100), Gpu("b", 100)))
    node.join(1, SMALL_WEB, gpu="0")
    look(node, FULL, 4, 10)
    node.tell(GpuLost(1), 20)
    reported = node.restart(30)
    assert [(one.gpu, one.watch.health) for one in reported if isinstance(one, ReportGpuHealth)] == [(1, Health.INIT)]
    assert [watch.health for watch in node.machine.watches()] == [Health.OVERLIMIT, Health.INIT]
    other = msgspec.structs.replace(node.machine.settings, gpus=(Gpu("c", 50),))
    node.tell(NodeStarted(other, "1", 0), 40)
    assert node.machine.watches() == [GpuWatch()], "another device has that number now"


def test_who_comes_first_after_a_restart_is_remembered_for_as_long_as_it_may_take() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.tell(MpsStatusChanged(0, is_ready=False), 10)
    node.restart(20)
    assert refused(node, MINOR, 30) == (Reason.UNHEALTHY, 70)
    welcome(node, 2, MINOR, 100)


def test_what_is_said_at_the_gate_is_said_once() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2, MINOR)
    node.join(3, msgspec.structs.replace(MINOR, name="third"))
    over = look(node, FULL, 4, 10)
    said = [one for one in over if isinstance(one, UpsertEntry | RemoveEntry | SetTenantTable)]
    assert [type(one) for one in said] == [SetTenantTable], "two seats change in one turn"


def test_a_device_that_drains_begins_anew_once_other_programs_run_in_every_place() -> None:
    node = ProtectedNode()
    node.join(1, SMALL_WEB)
    node.join(2, msgspec.structs.replace(SMALL_WEB, name="two"))
    assert watch_of(node.tell(GpuFaulted(0, 48), 10)).health is Health.DISABLED
    assert node.tell(TenantRestarted(1, "exit 3", 1), 20) == []
    assert refused(node, MINOR, 21)[0] is Reason.UNHEALTHY
    assert watch_of(node.tell(TenantRestarted(2, "exit 3", 1), 30)).health is Health.INIT
    welcome(node, 4, MINOR, 40)
