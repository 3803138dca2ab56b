"""Who is told that somebody came to its device, or left it?"""

from cotenant.domain.action import Crowd, Grant
from cotenant.domain.event import NodeSettings, PeerLost
from cotenant.domain.tenant import NEIGHBOURS_LIMIT, Kind, TenantSpec
from tests.machine.test_node_machine import GIB, TWO_GPUS, Node


def test_only_those_on_the_same_device_hear_of_each_other() -> None:
    node = Node(NodeSettings(4, 100, gpus=TWO_GPUS))
    large, share = TenantSpec(Kind.OFFLINE, 7, memory_bytes=9 * GIB), TenantSpec(Kind.OFFLINE, 7, share_ppm=700_000)
    grants = [node.join(peer, spec)[-1] for peer, spec in enumerate((large, share, share))]
    told = [(action.terms.gpu, action.neighbours) for action in grants if isinstance(action, Grant)]
    assert sorted(told) == [(0, 0), (1, 0), (1, 1)]
    alone = next(peer for peer, (gpu, _) in enumerate(told) if gpu == 0)
    assert len(node.tell(PeerLost(alone))) == 1
    assert node.tell(PeerLost(0))[1:] == [Crowd(6, 1, 0)]


def test_who_comes_to_a_crowd_changes_nothing_for_the_others() -> None:
    node = Node(NodeSettings(99, 100, gpus=TWO_GPUS[:1]))
    for peer in range(NEIGHBOURS_LIMIT):
        node.join(peer)
    *others, _ = node.join(50)
    assert others == [Crowd(node.machine.turn, 0, NEIGHBOURS_LIMIT)]
    (granted,) = node.join(51)
    assert isinstance(granted, Grant)
    assert granted.neighbours == NEIGHBOURS_LIMIT
    assert len(node.tell(PeerLost(51))) == 1
    _, fewer = node.tell(PeerLost(50))
    assert fewer == Crowd(node.machine.turn, 0, NEIGHBOURS_LIMIT - 1)
