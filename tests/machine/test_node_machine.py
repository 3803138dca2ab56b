"""What does a node do about each event? Examples, as equality of the lists of actions."""

from cotenant.domain.event import NodeSettings, NodeStarted, NodeStopping, TenantJoined
from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.machine.node import NodeMachine

WORK = TenantSpec(Kind.OFFLINE, 7, command="python train.py")


def test_a_node_may_stop_while_somebody_is_away() -> None:
    node = NodeMachine()
    started = NodeStarted(NodeSettings(2, grace_ns=100), "1", 0)
    for event in (started, TenantJoined(1, 10, 1000, WORK), started, NodeStopping("told to")):
        node.handle(event, now=5)
        node.check()
