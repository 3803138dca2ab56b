"""Tenants learn that another tenant joined or left their device."""

from cotenant.gate.grant import Kind
from cotenant.node.model.action import IssueGrant, SetNeighbourCount
from cotenant.node.model.event import NodeSettings, PeerLost
from cotenant.node.model.tenant import NEIGHBOURS_LIMIT, TenantSpec
from tests.node.test_state import GIB, TWO_GPUS, Node


def test_neighbour_count_counts_tenants_of_the_same_device() -> None:
    node = Node(NodeSettings(4, 100, gpus=TWO_GPUS))
    large, share = TenantSpec(Kind.OFFLINE, 7, memory_bytes=9 * GIB), TenantSpec(Kind.OFFLINE, 7, share_ppm=700_000)
    grants = [node.join(peer, spec)[-1] for peer, spec in enumerate((large, share, share))]
    reported = [(action.grant.gpu, action.neighbours) for action in grants if isinstance(action, IssueGrant)]
    assert sorted(reported) == [(0, 0), (1, 0), (1, 1)]
    alone = next(peer for peer, (gpu, _) in enumerate(reported) if gpu == 0)
    assert len(node.handle(PeerLost(alone))) == 1
    assert node.handle(PeerLost(0))[1:] == [SetNeighbourCount(6, 1, 0)]


def test_join_beyond_the_neighbour_limit_changes_no_count() -> None:
    node = Node(NodeSettings(99, 100, gpus=TWO_GPUS[:1]))
    for peer in range(NEIGHBOURS_LIMIT):
        node.join(peer)
    *others, _ = node.join(50)
    assert others == [SetNeighbourCount(node.machine.turn, 0, NEIGHBOURS_LIMIT)]
    (granted,) = node.join(51)
    assert isinstance(granted, IssueGrant)
    assert granted.neighbours == NEIGHBOURS_LIMIT
    assert len(node.handle(PeerLost(51))) == 1
    _, fewer = node.handle(PeerLost(50))
    assert fewer == SetNeighbourCount(node.machine.turn, 0, NEIGHBOURS_LIMIT - 1)
