"""What happens to tenants that use memory past the hook or their quota, or forge their pages."""

from __future__ import annotations

import msgspec
import pytest

from cotenant.node.config.protection import ProtectConfig
from cotenant.node.model.action import Action, KillTenant, SignalTenant
from cotenant.node.model.event import (
    MemoryBypassed,
    MemoryRequested,
    NodeSettings,
    NodeStarted,
    TenantFaulted,
    TenantLeft,
    TimerFired,
)
from cotenant.node.model.fault import PageFault
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.log_event import LogEventKind
from cotenant.node.model.protection import ExitPhase, OnBypass
from cotenant.node.state.event_log import EventLog
from tests.support.protection_setup import JOB, LIMITS, MINOR, WEB, ProtectedNode

GIB = 1 << 30


def kills(actions: list[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, KillTenant | SignalTenant)]


def bypass(slot: int, unseen_bytes: int = 15 * GIB, over_bytes: int = 14 * GIB) -> MemoryBypassed:
    return MemoryBypassed(slot, 1, unseen_bytes, over_bytes, 15 * GIB)


def test_offline_tenant_is_evicted_at_once_by_the_node_itself() -> None:
    node = ProtectedNode()
    node.join(1)
    actions = kills(node.handle(bypass(0), 50))
    why = "evicted: it uses 15GiB that its hook did not see and 14GiB more than its quota, 15GiB in total"
    assert actions == [
        SignalTenant(node.turn, 1, 0, 1, "kill", why, may_restart=False),
        KillTenant(node.turn, 0, 0, 11, why, keep_parent=True),
    ]
    assert node.phase() is ExitPhase.KILLED
    assert kills(node.handle(bypass(0, unseen_bytes=16 * GIB), 55)) == [], "it is being killed"
    actions = kills(node.wake(50 + LIMITS.obey_ns))
    assert actions == [KillTenant(node.turn, 0, 0, 11, why)], "its parent did not end"


def test_tenant_in_its_grace_period_is_killed_at_once() -> None:
    node = ProtectedNode()
    node.join(1)
    node.join(2, WEB, now=10)  # the offline tenant drains for it
    assert node.phase() is ExitPhase.DRAINING
    assert [type(action) for action in kills(node.handle(bypass(0), 12))] == [SignalTenant, KillTenant]
    assert node.phase() is ExitPhase.KILLED


def test_disconnected_tenant_is_killed_with_its_parent() -> None:
    node = ProtectedNode()
    node.join(1)
    node.restart(20)
    [action] = kills(node.handle(bypass(0), 50))
    assert isinstance(action, KillTenant)
    assert not action.keep_parent


def test_online_tenant_is_only_reported() -> None:
    node = ProtectedNode()
    node.join(1, WEB)
    assert node.handle(bypass(0), 50) == []
    assert node.phase() is ExitPhase.RUNNING


def test_report_evicts_no_tenant() -> None:
    node = ProtectedNode()
    settings = NodeSettings(4, 1000, gpus=(Gpu("a", 100),), limits=LIMITS, on_bypass=OnBypass.REPORT)
    node.handle(NodeStarted(settings, "1", 0), 0)
    node.join(1)
    assert node.handle(bypass(0), 50) == []


@pytest.mark.parametrize("event", [bypass(0, 0, 0), bypass(3), msgspec.structs.replace(bypass(0), generation=9)])
def test_ended_bypass_and_other_tenants_change_nothing(event: MemoryBypassed) -> None:
    node = ProtectedNode()
    node.join(1)
    assert node.handle(event, 50) == []


@pytest.mark.parametrize("spec", [JOB, WEB])
@pytest.mark.parametrize("fault", list(PageFault))
def test_forged_pages_evict_every_tenant(fault: PageFault, spec: object) -> None:
    node = ProtectedNode()
    node.join(1, spec)  # type: ignore[arg-type]
    actions = kills(node.handle(TenantFaulted(0, 1, "pages", int(fault)), 50))
    assert [type(action) for action in actions] == [SignalTenant, KillTenant]
    assert "page fault" in node.lifecycle().why
    assert not node.lifecycle().may_restart


def test_bypass_is_in_the_event_log() -> None:
    node, log = ProtectedNode(), EventLog()
    node.join(1)
    texts = [(each.what, each.text) for each in log.record(50, bypass(0, over_bytes=0), [])]
    assert texts == [
        (
            LogEventKind.MEMORY_BYPASSED,
            "slot-0 bypasses its limits: it uses 15GiB that its hook did not see, 15GiB in total",
        )
    ]
    [ended] = log.record(60, bypass(0, 0, 0), [])
    assert ended.what is LogEventKind.MEMORY_SEEN


def test_request_that_evictions_cannot_satisfy_evicts_no_tenant() -> None:
    node = ProtectedNode()
    node.join(1, MINOR)
    node.join(2, WEB, now=2)
    held = ((0, 30), (1, 20))
    assert node.handle(MemoryRequested(1, 1, 60, held), 10) == []
    assert node.handle(MemoryRequested(1, 1, 60, held, free_bytes=29), 11) == []
    assert node.phase(0) is ExitPhase.RUNNING
    node.handle(MemoryRequested(1, 1, 60, held, free_bytes=30), 12)
    assert node.phase(0) is ExitPhase.DRAINING, "together with the free memory it suffices"


def test_config_names_both_reactions() -> None:
    assert OnBypass(ProtectConfig().on_bypass) is OnBypass.EVICT
    assert OnBypass(ProtectConfig(on_bypass="report").on_bypass) is OnBypass.REPORT


def test_tenant_that_ends_after_its_eviction_leaves_as_usual() -> None:
    node = ProtectedNode()
    node.join(1)
    node.handle(bypass(0), 50)
    node.handle(TenantLeft(1, "killed by SIGKILL"), 55)
    assert node.machine.tenants() == []
    node.handle(TimerFired(), 200)
