"""The node's reaction to each event, as equality of the lists of actions."""

import re
from typing import Any

import msgspec
import pytest

from cotenant.errors import InvariantError
from cotenant.gate.grant import Grant, Kind
from cotenant.gate.rules import GateRules
from cotenant.node.model.action import (
    NO_PEER,
    Action,
    IssueGrant,
    Refuse,
    RemoveEntry,
    Revoke,
    SetNeighbourCount,
    SetTenantTable,
    Stop,
    UpsertEntry,
)
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.event import (
    DEPARTED_LIMIT,
    Event,
    NodeRestored,
    NodeSettings,
    NodeStarted,
    NodeStopping,
    PeerLost,
    TenantJoined,
    TenantLeft,
    TenantResumed,
    TimerFired,
)
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import NAME_LIMIT, NAME_PATTERN, Departure, Tenant, TenantSpec, TenantView
from cotenant.node.state.node import NodeMachine

GIB = 1 << 30
WORK = TenantSpec(Kind.OFFLINE, 7, command="python train.py")
SERVE = TenantSpec(Kind.ONLINE, 1, "web", 50, 4 * GIB, 400_000, "web", "python serve.py")
TWO_SLOTS = NodeSettings(2, grace_ns=100)
TWO_GPUS = (Gpu("a", 8 * GIB), Gpu("b", 16 * GIB))


class Node:
    """A state machine whose invariants are checked after every turn, and whose snapshot must always restore it."""

    def __init__(self, settings: NodeSettings = TWO_SLOTS) -> None:
        self.machine = NodeMachine()
        self.handle(NodeStarted(settings, "1", 0), 0)

    def handle(self, event: Event, now: int = 5) -> list[Action]:
        self.reported = self.machine.handle(event, now=now)  # with the changes of the tenant tables
        self.machine.check()
        fresh = NodeMachine()
        assert fresh.handle(self.machine.snapshot(), now=now) == []
        fresh.check()
        assert fresh.snapshot() == self.machine.snapshot()
        assert (fresh.tenants(), fresh.next_wakeup()) == (self.machine.tenants(), self.machine.next_wakeup())
        return [
            action for action in self.reported if not isinstance(action, SetTenantTable | UpsertEntry | RemoveEntry)
        ]

    def join(self, peer: int, spec: TenantSpec = WORK, now: int = 5) -> list[Action]:
        return self.handle(TenantJoined(peer, 10 + peer, 1000, spec), now)

    def restart(self, now: int, **changes: Any) -> list[Action]:
        settings = msgspec.structs.replace(self.machine.settings, **changes)
        return self.handle(NodeStarted(settings, "1", 0), now)


def grant(slot: int, generation: int, spec: TenantSpec = WORK, gpu: int = -1) -> Grant:
    return Grant(slot, generation, spec.kind, spec.priority, spec.share_ppm, spec.memory_bytes, spec.slo_ns, gpu)


def refusal(cause: int, peer: int, reason: Reason, detail: str) -> list[Action]:
    return [Refuse(cause, peer, Reject(reason, detail))]


def test_first_start_has_no_actions() -> None:
    machine = NodeMachine()
    assert machine.handle(NodeStarted(TWO_SLOTS, "1", 0), now=3) == []
    assert (machine.tenants(), machine.next_wakeup(), machine.turn) == ([], None, 1)


def test_tenant_gets_the_lowest_free_slot_and_its_grant() -> None:
    node = Node()
    assert node.join(1, SERVE) == [IssueGrant(2, 1, "web", grant(0, 1, SERVE))]
    assert node.join(2) == [SetNeighbourCount(3, -1, 1), IssueGrant(3, 2, "python-1", grant(1, 1), 1)]
    held = [Tenant("web", grant(0, 1, SERVE), SERVE, 11, 1000, 5), Tenant("python-1", grant(1, 1), WORK, 12, 1000, 5)]
    assert node.machine.tenants() == [TenantView(tenant, True) for tenant in held]


def test_reused_slot_has_a_new_generation() -> None:
    node = Node()
    node.join(1)
    node.join(2)
    assert node.handle(TenantLeft(1, "exit 0"), 9) == [
        Revoke(4, 1, "python-0", 0, 1, "exit 0"),
        SetNeighbourCount(4, -1, 0),
    ]
    assert node.join(3, SERVE) == [SetNeighbourCount(5, -1, 1), IssueGrant(5, 3, "web", grant(0, 2, SERVE), 1)]


def test_second_join_or_resume_of_a_connection_is_refused() -> None:
    node = Node()
    node.join(1)
    assert node.join(1) == refusal(3, 1, Reason.ALREADY_HERE, "this connection is already a tenant")
    resumes = TenantResumed(1, 11, 1000, 0, 1)
    assert node.handle(resumes) == refusal(4, 1, Reason.ALREADY_HERE, "this connection is already a tenant")


def test_join_without_a_free_slot_is_refused() -> None:
    node = Node()
    node.join(1)
    node.join(2)
    detail = "all 2 slots are taken; wait for a tenant to leave or raise node.slots"
    assert node.join(3) == refusal(4, 3, Reason.NO_SLOT, detail)


def test_duplicate_name_is_refused_until_its_tenant_leaves() -> None:
    node = Node()
    node.join(1, SERVE)
    detail = "the name 'web' is taken by the tenant in slot 0"
    assert node.join(2, SERVE) == refusal(3, 2, Reason.NAME_TAKEN, detail)
    node.handle(PeerLost(1))
    assert node.join(2, SERVE) == [IssueGrant(5, 2, "web", grant(0, 2, SERVE))]


@pytest.mark.parametrize(
    "requested, reason, detail",
    [
        (
            {"memory_bytes": 17 * GIB},
            Reason.NO_MEMORY,
            "requested 17GiB of device memory, but GPU 1 has only 16GiB unreserved",
        ),
        ({"share_ppm": 700_000}, Reason.NO_SHARE, "requested a share of 70%, but GPU 1 has only 60% unreserved"),
    ],
)
def test_join_that_fits_on_no_device_is_refused(requested: dict[str, int], reason: Reason, detail: str) -> None:
    node = Node(NodeSettings(9, 100, gpus=TWO_GPUS))
    for peer in (1, 2):
        node.join(peer, TenantSpec(Kind.OFFLINE, 7, share_ppm=400_000))
    assert node.join(3, msgspec.structs.replace(WORK, **requested)) == refusal(4, 3, reason, detail)


def test_refusal_names_the_device_and_its_free_memory() -> None:
    node = Node(NodeSettings(4, 100, place="pack", gpus=TWO_GPUS))
    node.join(1, TenantSpec(Kind.OFFLINE, 7, memory_bytes=7 * GIB))
    # GPU 0 is the fullest, so `pack` prefers it. A limit of 1GiB for the whole node would be wrong: GPU 1 has 16GiB.
    detail = "requested 17GiB of device memory, but GPU 0 has only 1GiB unreserved"
    refused = node.join(2, TenantSpec(Kind.OFFLINE, 7, memory_bytes=17 * GIB))
    assert refused == refusal(3, 2, Reason.NO_MEMORY, detail)


def test_preferred_device_is_skipped_when_the_tenant_does_not_fit() -> None:
    node = Node(NodeSettings(4, 100, place="pack", gpus=TWO_GPUS))
    assert node.join(1) == [IssueGrant(2, 1, "python-0", grant(0, 1, gpu=0))]
    large = TenantSpec(Kind.OFFLINE, 7, "large", memory_bytes=9 * GIB)
    assert node.join(2, large) == [IssueGrant(3, 2, "large", grant(1, 1, large, gpu=1))]


def test_overcommit_admits_every_tenant() -> None:
    node = Node(NodeSettings(4, 100, admit="overcommit", gpus=TWO_GPUS))
    whole = TenantSpec(Kind.OFFLINE, 7, memory_bytes=99 * GIB, share_ppm=10**6)
    assert [type(node.join(peer, whole)[-1]) for peer in range(4)] == [IssueGrant] * 4


def test_reservation_is_free_after_the_tenant_ends() -> None:
    node = Node(NodeSettings(4, 100, gpus=TWO_GPUS[:1]))
    whole = TenantSpec(Kind.OFFLINE, 7, memory_bytes=8 * GIB, share_ppm=10**6)
    for peer in range(1, 4):
        assert node.join(peer, whole) == [IssueGrant(2 * peer, peer, "tenant-0", grant(0, peer, whole, gpu=0))]
        node.handle(PeerLost(peer))


def test_departure_of_a_peer_that_is_no_tenant_has_no_actions() -> None:
    node = Node()
    assert node.handle(TenantLeft(7, "exit 0")) == []
    assert node.handle(PeerLost(7)) == []


def test_lost_tenant_gets_no_message_and_frees_its_slot() -> None:
    node = Node()
    node.join(1)
    assert node.handle(PeerLost(1), 8) == [Revoke(3, NO_PEER, "python-0", 0, 1, "lost: its connection closed")]
    tenant = Tenant("python-0", grant(0, 1), WORK, 11, 1000, 5)
    assert list(node.machine.registry.departed) == [Departure(tenant, "lost: its connection closed", 8)]


def test_only_the_latest_departures_are_remembered() -> None:
    node = Node()
    for peer in range(DEPARTED_LIMIT + 5):
        node.join(peer)
        node.handle(TenantLeft(peer, f"exit {peer}"))
    assert [departure.ending for departure in node.machine.registry.departed] == [
        f"exit {peer}" for peer in range(5, DEPARTED_LIMIT + 5)
    ]


# -- restarts --------------------------------------------------------------------------------------------------


def test_restart_waits_for_tenants_and_renews_their_pages() -> None:
    node = Node()
    node.join(1)
    node.join(2, SERVE)
    granted = [IssueGrant(4, NO_PEER, "python-0", grant(0, 1), 1), IssueGrant(4, NO_PEER, "web", grant(1, 1, SERVE), 1)]
    assert node.restart(50) == granted
    assert node.machine.next_wakeup() == 150
    assert [view.connected for view in node.machine.tenants()] == [False, False]
    assert node.handle(TenantResumed(1, 12, 1000, 1, 1)) == [IssueGrant(5, 1, "web", grant(1, 1, SERVE), 1)]
    assert node.machine.next_wakeup() == 150
    assert node.handle(TenantResumed(2, 11, 1000, 0, 1)) == [IssueGrant(6, 2, "python-0", grant(0, 1), 1)]
    assert node.machine.next_wakeup() is None


def test_tenant_that_does_not_reconnect_in_time_is_lost() -> None:
    node = Node()
    node.join(1)
    node.join(2, SERVE)
    node.restart(50)
    node.handle(TenantResumed(1, 12, 1000, 1, 1))
    assert node.handle(TimerFired(), 149) == []
    revoked = Revoke(7, NO_PEER, "python-0", 0, 1, "lost: did not reconnect in time")
    assert node.handle(TimerFired(), 150) == [revoked, SetNeighbourCount(7, -1, 0)]
    assert node.machine.next_wakeup() is None
    late = TenantResumed(2, 11, 1000, 0, 1)
    assert node.handle(late, 151) == refusal(8, 2, Reason.UNKNOWN_SLOT, "no tenant holds slot 0")


def test_slot_of_a_disconnected_tenant_is_not_granted_again() -> None:
    node = Node()
    node.join(1)
    node.restart(50)
    assert node.join(2) == [SetNeighbourCount(4, -1, 1), IssueGrant(4, 2, "python-1", grant(1, 1), 1)]
    assert [type(action) for action in node.join(3)] == [Refuse]


@pytest.mark.parametrize(
    "event, reason, detail",
    [
        (TenantResumed(9, 11, 1000, 1, 1), Reason.UNKNOWN_SLOT, "no tenant holds slot 1"),
        (TenantResumed(9, 11, 1000, 99, 1), Reason.UNKNOWN_SLOT, "no tenant holds slot 99"),
        (TenantResumed(9, 11, 1000, -1, 1), Reason.UNKNOWN_SLOT, "no tenant holds slot -1"),
        (TenantResumed(9, 12, 1000, 0, 2), Reason.NOT_YOURS, "slot 0 belongs to another process"),
        (TenantResumed(9, 11, 1001, 0, 2), Reason.NOT_YOURS, "slot 0 belongs to another process"),
        (TenantResumed(9, 11, 1000, 0, 1), Reason.STALE, "slot 0 is at generation 2, not 1"),
        (TenantResumed(9, 11, 1000, 0, 3), Reason.STALE, "slot 0 is at generation 2, not 3"),
    ],
)
def test_only_the_holder_may_resume(event: TenantResumed, reason: Reason, detail: str) -> None:
    node = Node()
    node.join(1)
    node.handle(TenantLeft(1, "exit 0"))
    node.join(1)
    node.restart(50)
    assert node.handle(event) == refusal(6, 9, reason, detail)
    assert node.handle(TenantResumed(9, 11, 1000, 0, 2)) == [IssueGrant(7, 9, "python-0", grant(0, 2))]


def test_slot_of_a_connected_tenant_cannot_be_resumed() -> None:
    node = Node()
    node.join(1)
    detail = "the holder of slot 0 is already connected"
    assert node.handle(TenantResumed(2, 11, 1000, 0, 1)) == refusal(3, 2, Reason.ALREADY_HERE, detail)


def test_events_of_peers_before_the_restart_are_ignored() -> None:
    node = Node()
    node.join(1)
    node.restart(50)
    assert node.handle(PeerLost(1)) == []
    assert node.handle(TenantLeft(1, "exit 0")) == []


def test_restart_during_the_grace_restarts_the_grace() -> None:
    node = Node()
    node.join(1)
    node.restart(50)
    node.restart(120)
    assert node.handle(TimerFired(), 150) == []
    assert node.machine.next_wakeup() == 220


def test_surplus_slots_after_a_restart_are_not_reused() -> None:
    node = Node(NodeSettings(3, 100))
    for peer in range(3):
        node.join(peer)
    node.restart(50, slots=1)
    for peer in range(3):
        assert node.handle(TenantResumed(peer, 10 + peer, 1000, peer, 1)) == [
            IssueGrant(6 + peer, peer, f"python-{peer}", grant(peer, 1), 2)
        ]
    assert node.handle(TenantLeft(2, "exit 0")) == [
        Revoke(9, 2, "python-2", 2, 1, "exit 0"),
        SetNeighbourCount(9, -1, 1),
    ]
    assert [type(action) for action in node.join(5)] == [Refuse]
    node.handle(TenantLeft(0, "exit 0"))
    assert node.join(5) == [SetNeighbourCount(12, -1, 1), IssueGrant(12, 5, "python-0", grant(0, 2), 1)]
    node.restart(60, slots=3)
    assert node.join(6) == [SetNeighbourCount(14, -1, 2), IssueGrant(14, 6, "python-2", grant(2, 2), 2)]


def test_removed_device_keeps_its_tenant_and_admits_no_other() -> None:
    node = Node(NodeSettings(4, 100, gpus=TWO_GPUS))
    on_b = TenantSpec(Kind.OFFLINE, 7, "b", memory_bytes=9 * GIB)
    assert node.join(1, on_b) == [IssueGrant(2, 1, "b", grant(0, 1, on_b, gpu=1))]
    assert node.restart(50, gpus=TWO_GPUS[:1]) == [IssueGrant(3, NO_PEER, "b", grant(0, 1, on_b, gpu=1))]
    assert node.join(2) == [IssueGrant(4, 2, "python-1", grant(1, 1, gpu=0))]
    node.restart(60, gpus=TWO_GPUS)
    assert node.machine.plan().capacity(1).memory_free_bytes == 7 * GIB
    node.restart(70, gpus=(TWO_GPUS[0], Gpu("small", GIB)))
    assert node.machine.plan().capacity(1).memory_free_bytes == -8 * GIB
    tiny = TenantSpec(Kind.OFFLINE, 7, "tiny", memory_bytes=1)
    assert node.join(3, tiny) == [SetNeighbourCount(7, 0, 1), IssueGrant(7, 3, "tiny", grant(2, 1, tiny, gpu=0), 1)]


# -- stopping --------------------------------------------------------------------------------------------------


def test_idle_node_stops_after_the_idle_exit_time() -> None:
    idle = [Stop(5, "idle: no tenant for the time of node.idle_exit")]
    node = Node(NodeSettings(2, 100, idle_exit_ns=30))
    assert node.machine.next_wakeup() == 30
    node.join(1, now=10)
    assert node.machine.next_wakeup() is None
    node.handle(TenantLeft(1, "exit 0"), 20)
    assert node.handle(TimerFired(), 49) == []
    assert node.handle(TimerFired(), 50) == idle
    assert node.machine.next_wakeup() is None


def test_idle_exit_time_begins_when_the_last_tenant_is_lost() -> None:
    node = Node(NodeSettings(2, 100, idle_exit_ns=30))
    node.join(1)
    node.restart(50)
    assert node.handle(TimerFired(), 150) == [Revoke(4, NO_PEER, "python-0", 0, 1, "lost: did not reconnect in time")]
    assert node.machine.next_wakeup() == 180


def test_stopping_node_revokes_no_grant() -> None:
    node = Node()
    node.join(1)
    assert node.handle(NodeStopping("received SIGTERM")) == [Stop(3, "received SIGTERM")]
    assert len(node.machine.tenants()) == 1


def test_node_can_stop_while_a_tenant_is_disconnected() -> None:
    node = Node()
    node.join(1)
    node.restart(50)
    assert node.handle(NodeStopping("requested"), 60) == [Stop(4, "requested")]
    assert node.restart(70) == [IssueGrant(5, NO_PEER, "python-0", grant(0, 1))]


# -- names, snapshots, invariants ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command, name",
    [
        ("/usr/bin/python3.11 x.py", "python3.11-0"),
        ("", "tenant-0"),
        ("   ", "tenant-0"),
        ("./--", "tenant-0"),
        ("/", "tenant-0"),
        ("caf\u00e9 x", "caf-0"),
        ("x" * 99, "x" * 32 + "-0"),
        ("a\nb", "a-0"),
    ],
)
def test_unnamed_tenant_is_named_after_its_program(command: str, name: str) -> None:
    (granted,) = Node().join(1, TenantSpec(Kind.OFFLINE, 7, command=command))
    assert isinstance(granted, IssueGrant)
    assert granted.tenant == name
    assert re.search(NAME_PATTERN, granted.tenant)
    assert len(granted.tenant) <= NAME_LIMIT


def test_generated_name_avoids_a_name_in_use() -> None:
    node = Node()
    node.join(1, TenantSpec(Kind.OFFLINE, 7, "python-1"))
    assert node.join(2) == [SetNeighbourCount(3, -1, 1), IssueGrant(3, 2, "python-1-2", grant(1, 1), 1)]


def test_snapshot_contains_the_whole_state() -> None:
    node = Node()
    node.join(1)
    node.handle(TenantLeft(1, "exit 0"), 6)
    node.join(2, SERVE, now=7)
    departure = Departure(Tenant("python-0", grant(0, 1), WORK, 11, 1000, 5), "exit 0", 6)
    tenant = Tenant("web", grant(0, 2, SERVE), SERVE, 12, 1000, 7)
    assert node.machine.snapshot() == NodeRestored(
        TWO_SLOTS, 4, (2, 0), ((2, tenant),), (departure,), -1, -1, GateRules()
    )


def test_unknown_policy_raises_invariant_error() -> None:
    for changes in ({"place": "best"}, {"admit": "best"}):
        with pytest.raises(InvariantError, match="'best', which this version lacks"):
            Node().restart(5, **changes)


def test_violated_invariant_is_described() -> None:
    node = Node()
    node.join(1)
    node.machine.registry.free.append(0)
    with pytest.raises(InvariantError, match=r"after turn 2: free slots are \[0, 1\], not \[1\]"):
        node.machine.check()
