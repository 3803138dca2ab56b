"""What does a node do about each event? Examples, as equality of the lists of actions."""

from cotenant.domain.action import Action, Refuse
from cotenant.domain.event import NodeSettings, NodeStarted, NodeStopping, TenantJoined
from cotenant.domain.gpu import Gpu
from cotenant.domain.plan import Reason, Reject
from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.machine.node import NodeMachine

WORK = TenantSpec(Kind.OFFLINE, 7, command="python train.py")


def test_a_node_may_stop_while_somebody_is_away() -> None:
    node = NodeMachine()
    started = NodeStarted(NodeSettings(2, grace_ns=100), "1", 0)
    for event in (started, TenantJoined(1, 10, 1000, WORK), started, NodeStopping("told to")):
        node.handle(event, now=5)
        node.check()


def test_a_refusal_names_the_device_it_speaks_of() -> None:
    node = NodeMachine()
    gpus = (Gpu("a", 8 << 30), Gpu("b", 16 << 30))
    node.handle(NodeStarted(NodeSettings(4, 100, place="pack", gpus=gpus), "1", 0), now=0)
    node.handle(TenantJoined(1, 10, 1000, TenantSpec(Kind.OFFLINE, 7, memory_bytes=7 << 30)), now=1)
    # GPU 0 is the fullest, so packing asks it first; to say "at most 1GiB" of the node would be wrong, b has 16GiB.
    refused: list[Action] = node.handle(
        TenantJoined(2, 11, 1000, TenantSpec(Kind.OFFLINE, 7, memory_bytes=17 << 30)), now=2
    )
    detail = "asked for 17GiB of device memory, GPU 0 has 1GiB not promised yet"
    assert refused == [Refuse(3, 2, Reject(Reason.NO_MEMORY, detail))]
