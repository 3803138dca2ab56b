"""Tenants with several devices: placement, reservations, tables, exits and pressure on all of them."""

from typing import Any

import msgspec
import pytest

from cotenant.gate.grant import Kind
from cotenant.node.model.action import IssueGrant, Refuse, RemoveEntry, SetNeighbourCount, UpsertEntry
from cotenant.node.model.admission import Reason
from cotenant.node.model.event import (
    EvictionRequested,
    GpuLost,
    MemoryRequested,
    NodeStarted,
    ShareChanged,
    TenantDrained,
    TenantJoined,
    TenantLeft,
    TenantsPaused,
    TenantSuspended,
)
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import ExitPhase, OnPressure
from cotenant.node.model.tenant import GPU_LIMIT, TenantSpec
from tests.support.protection_setup import JOB, WEB, ProtectedNode, entry

TRIO = (Gpu("a", 100), Gpu("b", 100), Gpu("c", 50))
PAIR = msgspec.structs.replace(JOB, gpu="0,1")


def node_of(gpus: tuple[Gpu, ...] = TRIO) -> ProtectedNode:
    return ProtectedNode(gpus)


def granted(node: ProtectedNode, slot: int = 0) -> tuple[int, ...]:
    return node.machine.registry.holders[slot].grant.gpus


def free_memory(node: ProtectedNode) -> list[int]:
    plan = node.machine.plan()
    return [plan.capacity(gpu).memory_free_bytes for gpu in range(len(node.machine.settings.gpus))]


def test_tenant_has_an_entry_and_its_reservation_on_each_device() -> None:
    node = node_of()
    *tables, grant = node.join(1, PAIR)
    assert tables == [UpsertEntry(2, 0, entry(0, JOB)), UpsertEntry(2, 1, entry(0, JOB))]
    assert isinstance(grant, IssueGrant)
    assert (grant.grant.gpus, grant.neighbours, grant.more_neighbours) == ((0, 1), 0, (0,))
    assert free_memory(node) == [40, 40, 50]
    assert node.handle(TenantLeft(1, "exit 0"), 5)[:2] == [RemoveEntry(3, 0, 0), RemoveEntry(3, 1, 0)]
    assert free_memory(node) == [100, 100, 50]


def test_devices_have_the_order_that_the_program_numbers_them_by() -> None:
    node = node_of()
    node.join(1, JOB, gpu="1,0")
    assert granted(node) == (1, 0)


@pytest.mark.parametrize(
    "request_, words",
    [
        ({"gpu": "0,7"}, "no GPU '7'"),
        ({"gpu": "1,1"}, "names GPU 1 twice"),
        ({"gpu_count": 4}, "requests 4 GPUs, and the node has 3"),
        ({"gpu": "0,2", "memory_bytes": 60}, "GPU 2"),
        ({"gpu_count": 3, "memory_bytes": 60}, "2 of 3 requested GPUs are free for it"),
    ],
)
def test_request_that_cannot_be_met_is_refused_as_a_whole(request_: dict[str, Any], words: str) -> None:
    node = node_of()
    (action,) = node.join(1, JOB, **request_)
    assert isinstance(action, Refuse)
    assert words in action.reject.detail
    assert free_memory(node) == [100, 100, 50]


def test_node_chooses_the_devices_that_the_policy_prefers() -> None:
    node = node_of()
    node.join(1, JOB, gpu="0")
    node.join(2, JOB, gpu_count=2, memory_bytes=10, name="two")
    assert granted(node, 1) == (1, 2)
    node.join(3, JOB, gpu_count=3, memory_bytes=10, name="all")
    assert granted(node, 2) == (0, 1, 2)


def test_prediction_names_each_device() -> None:
    node = node_of()
    settings = msgspec.structs.replace(node.machine.settings, place="predict")
    node.handle(NodeStarted(settings, "1", 0), 1)
    actions = node.join(1, JOB, gpu_count=2, memory_bytes=10)
    placed = actions[-1]
    assert getattr(placed, "more_gpus", None) == (1,)
    assert "GPU 0" in getattr(placed, "why", "")
    assert "GPU 1" in getattr(placed, "why", "")


def test_neighbours_are_counted_on_each_device() -> None:
    node = node_of()
    node.machine.handle(TenantJoined(1, 11, 1000, msgspec.structs.replace(JOB, gpu="0", memory_bytes=10)), now=1)
    actions = node.machine.handle(
        TenantJoined(2, 12, 1000, msgspec.structs.replace(PAIR, name="two", memory_bytes=10)), now=2
    )
    assert SetNeighbourCount(3, 0, 1) in actions
    grant = next(action for action in actions if isinstance(action, IssueGrant))
    assert (grant.neighbours, grant.more_neighbours) == (1, (0,))


def test_pause_and_exit_concern_all_devices() -> None:
    node = node_of()
    node.join(1, PAIR)
    paused = node.handle(TenantsPaused(9, 1000, False, ("job",), False, True), 3)
    assert paused[:2] == [UpsertEntry(3, 0, entry(0, JOB, paused=True)), UpsertEntry(3, 1, entry(0, JOB, paused=True))]
    node.handle(EvictionRequested(9, 1000, False, ("job",)), 4)
    assert node.phase() is ExitPhase.DRAINING
    node.handle(TenantDrained(0, 1), 5)
    assert node.phase() is ExitPhase.TERMINATING
    tables = {gpu: node.machine.registry.tables.entries(gpu)[0].ending for gpu in (0, 1)}
    assert tables == {0: True, 1: True}


def test_loss_of_one_device_ends_the_tenant_on_all() -> None:
    node = node_of()
    node.join(1, PAIR)
    node.handle(GpuLost(1), 3)
    assert node.phase() is ExitPhase.TERMINATING
    assert "GPU 1" in node.lifecycle().why


def test_online_join_evicts_what_holds_its_memory_on_either_device() -> None:
    node = node_of()
    node.join(1, JOB, gpu="0", name="first")
    node.join(2, JOB, gpu="1", name="second")
    node.join(3, WEB, gpu="0,1", now=10)
    assert node.phase(0) is node.phase(1) is ExitPhase.DRAINING
    assert node.lifecycle(0).why == "evicted: online tenant web needs 60B on GPUs 0 and 1"
    node.handle(TenantLeft(1, "exit 0"), 12)
    assert 2 not in node.machine.registry.holders, "the other device has no memory for it yet"
    *_, grant = node.handle(TenantLeft(2, "exit 0"), 13)
    assert isinstance(grant, IssueGrant)
    assert (grant.peer, grant.grant.gpus) == (3, (0, 1))


def test_memory_request_of_the_second_device_evicts_there() -> None:
    node = node_of()
    node.join(1, WEB, gpu="0,1", memory_bytes=10)
    node.join(2, JOB, gpu="0", name="first")
    node.join(3, JOB, gpu="1", name="second")
    node.handle(MemoryRequested(0, 1, 50, ((2, 60),), 0, 1), 9)
    assert (node.phase(1), node.phase(2)) == (ExitPhase.RUNNING, ExitPhase.DRAINING)


def test_larger_reservation_must_fit_on_every_device() -> None:
    node = node_of()
    node.join(1, PAIR)
    node.join(2, JOB, gpu="1", name="other", memory_bytes=30)
    refused = node.handle(ShareChanged(9, 1000, False, "job", memory_bytes=80), 4)
    assert isinstance(refused[0], Refuse)
    assert refused[0].reject.reason is Reason.NO_MEMORY
    node.handle(ShareChanged(9, 1000, False, "job", memory_bytes=70), 5)
    assert free_memory(node) == [30, 0, 50]


def test_suspended_tenant_releases_its_reservation_on_all_devices() -> None:
    node = node_of()
    node.join(1, PAIR, on_pressure=OnPressure.SUSPEND)
    node.join(2, WEB, gpu="1", now=10)
    assert node.phase() is ExitPhase.SUSPENDING
    node.handle(TenantDrained(0, 1), 11)
    node.handle(TenantSuspended(1, True), 12)
    assert granted(node, 1) == (1,)
    assert free_memory(node) == [100, 40, 50]
    assert node.machine.registry.suspended == {0: (0, 1)}


def test_restart_of_the_node_keeps_all_devices() -> None:
    node = node_of()
    node.join(1, PAIR)
    (grant,) = node.restart(50)
    assert isinstance(grant, IssueGrant)
    assert grant.grant.gpus == (0, 1)
    node.resume(2, 0, 51)
    assert node.machine.registry.slot_of_peer == {2: 0}


def test_number_of_devices_is_limited() -> None:
    with pytest.raises(ValueError, match="at most"):
        TenantSpec(Kind.OFFLINE, 7, gpu=",".join(map(str, range(GPU_LIMIT + 1))))
