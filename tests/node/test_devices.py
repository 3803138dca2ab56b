"""Joins that request a device, and devices that are found later."""

import msgspec
import pytest

from cotenant.gate.grant import Kind
from cotenant.gate.rules import GateRules
from cotenant.node.model.action import IssueGrant, Refuse, SetTenantTable, UpsertEntry
from cotenant.node.model.admission import Reason
from cotenant.node.model.event import GpusFound, NodeSettings
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import TenantSpec
from tests.node.test_state import GIB, TWO_GPUS, Node

SOFT = tuple(Gpu(f"soft:{number} V100", 8 * GIB, (f"soft:{number}", f"GPU-{number}0")) for number in (0, 1))
REAL = tuple(Gpu(f"{number} A100", 8 * GIB, (f"GPU-{number}0", str(number))) for number in (0, 1))


def requested(gpu: str, memory_bytes: int = 0) -> TenantSpec:
    return TenantSpec(Kind.OFFLINE, 7, memory_bytes=memory_bytes, gpu=gpu)


@pytest.mark.parametrize(
    "gpus, named, visible",
    [
        (SOFT, ("soft:1", "GPU-10", "GPU-1"), "1"),
        (SOFT[::-1], ("soft:0", "GPU-0"), "0"),
        (REAL, ("1", "GPU-10", "GPU-1"), "GPU-10"),
        (TWO_GPUS, ("1", "soft:1"), "1"),
    ],
)
def test_requested_device_is_granted(gpus: tuple[Gpu, ...], named: tuple[str, ...], visible: str) -> None:
    node = Node(NodeSettings(9, 100, place="pack", gpus=gpus))
    for peer, name in enumerate(named):
        granted = node.join(peer, requested(name))[-1]
        assert isinstance(granted, IssueGrant)
        assert granted.grant.gpu == 1
    assert gpus[1].visible(1) == visible


def test_unknown_or_full_device_is_refused_without_an_alternative() -> None:
    node = Node(NodeSettings(9, 100, gpus=SOFT))
    (unknown,) = node.join(1, requested("soft:2"))
    assert isinstance(unknown, Refuse)
    assert unknown.reject.reason is Reason.UNKNOWN_GPU
    assert "'soft:2', only soft:0, soft:1;" in unknown.reject.detail
    node.join(2, requested("soft:1", 6 * GIB))
    (full,) = node.join(3, requested("soft:1", 3 * GIB))
    assert isinstance(full, Refuse)
    assert full.reject.reason is Reason.NO_MEMORY
    assert isinstance(node.join(4, requested("", 3 * GIB))[-1], IssueGrant)


def test_devices_found_later_get_a_table_and_tenants() -> None:
    node = Node(NodeSettings(9, 100))
    before = node.join(1, requested("soft:1"))[-1]
    assert isinstance(before, IssueGrant)
    assert before.grant.gpu == -1, "a node without devices ignores the requested device"
    node.handle(GpusFound(SOFT))
    assert node.reported == [SetTenantTable(3, gpu, GateRules()) for gpu in (0, 1)]
    node.join(2, requested("soft:1"))
    assert isinstance(node.reported[0], UpsertEntry)
    assert node.reported[0].gpu == 1
    node.restart(50, gpus=node.machine.settings.gpus)
    later = msgspec.structs.replace(node.machine.settings, gpus=(*SOFT, TWO_GPUS[0]))
    node.handle(GpusFound(TWO_GPUS[:1]))
    assert node.machine.settings == later
