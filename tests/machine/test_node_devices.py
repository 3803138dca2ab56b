"""Which device does a tenant get that names one, and what when devices turn up later?"""

import msgspec
import pytest

from cotenant.domain.action import Grant, Refuse, Roster, Sit
from cotenant.domain.event import GpusFound, NodeSettings
from cotenant.domain.gate import GateRules
from cotenant.domain.gpu import Gpu
from cotenant.domain.plan import Reason
from cotenant.domain.tenant import Kind, TenantSpec
from tests.machine.test_node_machine import GIB, TWO_GPUS, Node

SOFT = tuple(Gpu(f"soft:{number} V100", 8 * GIB, (f"soft:{number}", f"GPU-{number}0")) for number in (0, 1))
REAL = tuple(Gpu(f"{number} A100", 8 * GIB, (f"GPU-{number}0", str(number))) for number in (0, 1))


def wish(gpu: str, memory_bytes: int = 0) -> TenantSpec:
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
def test_a_named_device_is_the_one(gpus: tuple[Gpu, ...], named: tuple[str, ...], visible: str) -> None:
    node = Node(NodeSettings(9, 100, place="pack", gpus=gpus))
    for peer, name in enumerate(named):
        granted = node.join(peer, wish(name))[-1]
        assert isinstance(granted, Grant)
        assert granted.terms.gpu == 1
    assert gpus[1].visible(1) == visible


def test_a_device_that_is_unknown_or_full_is_refused_and_no_other_given() -> None:
    node = Node(NodeSettings(9, 100, gpus=SOFT))
    (unknown,) = node.join(1, wish("soft:2"))
    assert isinstance(unknown, Refuse)
    assert unknown.reject.reason is Reason.UNKNOWN_GPU
    assert "'soft:2', only soft:0, soft:1;" in unknown.reject.detail
    node.join(2, wish("soft:1", 6 * GIB))
    (full,) = node.join(3, wish("soft:1", 3 * GIB))
    assert isinstance(full, Refuse)
    assert full.reject.reason is Reason.NO_MEMORY
    assert isinstance(node.join(4, wish("", 3 * GIB))[-1], Grant)


def test_devices_that_turn_up_get_a_roster_and_tenants() -> None:
    node = Node(NodeSettings(9, 100))
    before = node.join(1, wish("soft:1"))[-1]
    assert isinstance(before, Grant)
    assert before.terms.gpu == -1, "a node without devices holds nobody back"
    node.tell(GpusFound(SOFT))
    assert node.told == [Roster(3, gpu, GateRules()) for gpu in (0, 1)]
    node.join(2, wish("soft:1"))
    assert isinstance(node.told[0], Sit)
    assert node.told[0].gpu == 1
    node.restart(50, gpus=node.machine.settings.gpus)
    later = msgspec.structs.replace(node.machine.settings, gpus=(*SOFT, TWO_GPUS[0]))
    node.tell(GpusFound(TWO_GPUS[:1]))
    assert node.machine.settings == later
