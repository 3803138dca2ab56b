"""Do things happen in the order of their instants, and does a node live and die as a process would?"""

from cotenant.domain.event import NodeSettings, TenantJoined, TenantResumed
from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.format.journal import Turn
from cotenant.machine.node import NodeMachine
from cotenant.sim.journal import SimJournal
from cotenant.sim.loop import SimLoop
from cotenant.sim.node import SimNode

WORK = TenantSpec(Kind.OFFLINE, 7, command="python train.py")


def journal_of(node: SimNode) -> list[Turn]:
    assert isinstance(node.journal, SimJournal)
    return list(node.journal.turns())


def test_a_killed_node_is_not_woken_any_more() -> None:
    loop = SimLoop()
    node = SimNode(loop, NodeMachine, NodeSettings(2, grace_ns=100))
    node.start(None, 0)
    node.deliver(TenantJoined(1, 10, 1000, WORK), 1)
    node.kill()
    node.start(None, 10)  # waits for its tenant until 110
    node.kill()
    node.start(None, 50)
    node.deliver(TenantResumed(2, 10, 1000, 0, 1), 60)
    turns = len(journal_of(node))
    loop.run(1000)
    assert len(journal_of(node)) == turns
    assert node.pages.read(0) is not None
