"""The end of a tenant in a pod: it is paused until its pod is evicted, and the node ends it only after that."""

import pytest

from cotenant.gate.grant import Kind
from cotenant.node.model.action import Confirm, KillTenant, SignalTenant
from cotenant.node.model.event import (
    DisruptionAnnounced,
    EvictionRequested,
    GpuLost,
    NodeSettings,
    NodeStarted,
    TenantDrained,
    TenantFaulted,
    TenantJoined,
    TenantResumed,
    TimerFired,
)
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import ExitPhase, Lifecycle, ProtectLimits
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.state.node import NodeMachine
from cotenant.units.instant import NEVER, SECOND_NS

LIMITS = ProtectLimits()
JOB = TenantSpec(Kind.OFFLINE, 7, "job", memory_bytes=8 << 30, pod="1111-22/3333-44")
WEB = TenantSpec(Kind.ONLINE, 2, "web", memory_bytes=12 << 30)
SETTINGS = NodeSettings(4, 10 * SECOND_NS, gpus=(Gpu("a", 16 << 30),))
EVICT = EvictionRequested(9, 0, True, ("job",))


@pytest.fixture
def node() -> NodeMachine:
    machine = NodeMachine()
    machine.handle(NodeStarted(SETTINGS, "test", 0), now=0)
    machine.handle(TenantJoined(1, 100, 1000, JOB), now=1)
    return machine


def lifecycle(node: NodeMachine) -> Lifecycle:
    node.check()
    return node.registry.holders[0].lifecycle


def is_paused(node: NodeMachine) -> bool:
    [entry] = node.registry.tables.entries(0)
    return entry.paused


def announced(is_deleted: bool, grace_ns: int = 7 * SECOND_NS, generation: int = 1) -> DisruptionAnnounced:
    return DisruptionAnnounced(9, 0, True, 0, generation, is_deleted, grace_ns)


def test_tenant_is_paused_and_not_signalled_until_its_pod_is_evicted(node: NodeMachine) -> None:
    actions = node.handle(EVICT, now=10)
    assert not any(isinstance(action, SignalTenant | KillTenant) for action in actions)
    assert (lifecycle(node).phase, lifecycle(node).awaits_notice) == (ExitPhase.DRAINING, True)
    assert lifecycle(node).until_ns == 10 + LIMITS.pod_notice_ns
    assert is_paused(node)
    assert node.handle(TenantDrained(0, 1), now=11) == []
    assert lifecycle(node).awaits_notice


def test_kubelet_sends_the_signals_to_a_deleted_pod(node: NodeMachine) -> None:
    node.handle(EVICT, now=10)
    actions = node.handle(announced(True), now=20)
    assert not any(isinstance(action, SignalTenant | KillTenant) for action in actions)
    assert any(isinstance(action, Confirm) for action in actions)
    state = lifecycle(node)
    assert (state.phase, state.awaits_notice, state.until_ns) == (ExitPhase.TERMINATING, False, 20 + 7 * SECOND_NS)
    assert not is_paused(node), "the program may save its state"
    node.handle(TimerFired(), now=state.until_ns)
    assert lifecycle(node).phase is ExitPhase.FINISHING
    actions = node.handle(TimerFired(), now=lifecycle(node).until_ns)
    assert [action.kind for action in actions if isinstance(action, SignalTenant)] == ["kill"]


def test_node_signals_a_pod_that_was_marked(node: NodeMachine) -> None:
    node.handle(EVICT, now=10)
    actions = node.handle(announced(False), now=20)
    assert [action.kind for action in actions if isinstance(action, SignalTenant)] == ["term"]
    assert lifecycle(node).until_ns == 20 + LIMITS.grace_ns


def test_node_does_not_wait_forever_for_the_plugin(node: NodeMachine) -> None:
    node.handle(EVICT, now=10)
    actions = node.handle(TimerFired(), now=10 + LIMITS.pod_notice_ns)
    assert [action.kind for action in actions if isinstance(action, SignalTenant)] == ["term"]
    assert not lifecycle(node).awaits_notice


def test_online_tenant_that_needs_memory_makes_the_node_ask_for_the_eviction(node: NodeMachine) -> None:
    node.handle(TenantJoined(2, 200, 1000, WEB), now=10)
    assert lifecycle(node).awaits_notice
    assert lifecycle(node).why == "evicted: online tenant web needs 12GiB on GPU 0"


def test_tenants_of_a_lost_gpu_await_the_notice(node: NodeMachine) -> None:
    actions = node.handle(GpuLost(0, "Xid 79"), now=10)
    assert not any(isinstance(action, SignalTenant | KillTenant) for action in actions)
    assert lifecycle(node).awaits_notice


def test_an_error_that_the_loss_of_the_gpu_caused_does_not_end_the_pod_before_the_notice(node: NodeMachine) -> None:
    node.handle(TenantFaulted(0, 1, "cuda", 999), now=5)
    assert (lifecycle(node).phase, lifecycle(node).awaits_notice) == (ExitPhase.DRAINING, False)
    actions = node.handle(GpuLost(0, "no answer"), now=10)
    assert not any(isinstance(action, SignalTenant | KillTenant) for action in actions)
    assert lifecycle(node).awaits_notice
    assert lifecycle(node).why == "ended: GPU 0 is disabled: it does not respond: no answer"
    assert lifecycle(node).until_ns == 10 + LIMITS.pod_notice_ns
    node.handle(announced(True), now=20)
    assert lifecycle(node).phase is ExitPhase.TERMINATING


def test_an_error_of_the_program_alone_ends_the_pod_as_a_failure(node: NodeMachine) -> None:
    node.handle(TenantFaulted(0, 1, "cuda", 719), now=5)
    assert not lifecycle(node).awaits_notice
    actions = node.handle(TimerFired(), now=lifecycle(node).until_ns)
    assert [action.kind for action in actions if isinstance(action, SignalTenant)] == ["term"]


def test_announcement_that_is_late_or_of_another_tenant_changes_nothing(node: NodeMachine) -> None:
    before = lifecycle(node)
    for event in (announced(True), announced(True, generation=2)):
        [confirm] = node.handle(event, now=10)
        assert isinstance(confirm, Confirm)
    assert lifecycle(node) == before


def test_wait_begins_anew_after_a_restart_of_the_node(node: NodeMachine) -> None:
    node.handle(EVICT, now=10)
    node.handle(NodeStarted(SETTINGS, "test", 0), now=SECOND_NS)
    assert lifecycle(node).until_ns == NEVER
    node.handle(TenantResumed(5, 100, 1000, 0, 1), now=2 * SECOND_NS)
    assert lifecycle(node).awaits_notice
    assert lifecycle(node).until_ns == 2 * SECOND_NS + LIMITS.pod_notice_ns
    node.handle(announced(True), now=3 * SECOND_NS)
    assert lifecycle(node).phase is ExitPhase.TERMINATING


def test_announcement_for_a_disconnected_tenant_has_no_deadline(node: NodeMachine) -> None:
    node.handle(EVICT, now=10)
    node.handle(NodeStarted(SETTINGS, "test", 0), now=SECOND_NS)
    node.handle(announced(True), now=2 * SECOND_NS)
    assert lifecycle(node).until_ns == NEVER


def test_tenant_in_no_pod_is_drained_as_before() -> None:
    machine = NodeMachine()
    machine.handle(NodeStarted(SETTINGS, "test", 0), now=0)
    machine.handle(TenantJoined(1, 100, 1000, TenantSpec(Kind.OFFLINE, 7, "job")), now=1)
    machine.handle(EVICT, now=10)
    assert not lifecycle(machine).awaits_notice
    actions = machine.handle(TenantDrained(0, 1), now=11)
    assert [action.kind for action in actions if isinstance(action, SignalTenant)] == ["term"]
