"""The listener answers honest peers whatever hostile peers do, and closes only the hostile connections."""

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotenant.errors import PeerError
from cotenant.node import wire
from cotenant.node.client.connection import Connection, NodeUnavailableError
from cotenant.node.daemon.listener import PATIENCE_NS, REQUEST_INTERVAL_NS
from cotenant.node.model.admission import Reason
from tests.support.effort import examples
from tests.support.node_in_process import BOUND_S, SPEC, InProcessNode, join, open_files, received, until
from tests.support.random_frames import LENGTH, frame, words

pytestmark = pytest.mark.live

LIST = wire.encode(wire.ListTenants(wire.VERSION))
JOIN = wire.encode(wire.Join(wire.VERSION, SPEC))


def packed(**fields: Any) -> bytes:
    return frame(msgspec.msgpack.encode(fields))


def stuck(node: InProcessNode) -> list[Any]:
    """Peers that do not read their answers; a valid request makes the loop turn."""
    node.honest()
    return [peer for peer in list(node.listener._peers.values()) if peer.blocked]


@pytest.fixture
def node() -> Iterator[InProcessNode]:
    """A node; whatever a test did to it, it lives, answers, and has neither connections nor descriptors left over."""
    before = open_files()
    with InProcessNode() as made:
        yield made
        assert made.honest().pid == os.getpid()
        made.settled(0)
    assert open_files() <= before


MALFORMED = {
    "an empty frame": LENGTH.pack(0),
    "a frame one byte too long": LENGTH.pack(wire.FRAME_LIMIT_BYTES + 1),
    "four gigabytes announced": b"\xff\xff\xff\xff",
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "not msgpack": frame(b"\xc1"),
    "half of a map": frame(b"\x82\xa4type\xa4list"),
    "bytes after the message": frame(msgspec.msgpack.encode({"type": "list", "version": wire.VERSION}) + b"\0"),
    "a list instead of a map": frame(msgspec.msgpack.encode([1, 2, 3])),
    "no type": packed(version=wire.VERSION),
    "an unknown type": packed(type="shutdown", version=wire.VERSION),
    "a type that is no text": packed(type=5, version=wire.VERSION),
    "an answer instead of a request": wire.encode(wire.SlotReleased("bye")),
    "an unknown field": packed(type="list", version=wire.VERSION, more=1),
    "a missing field": packed(type="list"),
    "another version": packed(type="list", version=wire.VERSION + 1),
    "a version below zero": packed(type="list", version=-1),
    "a version as text": packed(type="list", version=str(wire.VERSION)),
    "text that is not UTF-8": frame(b"\x82\xa4type\xa5leave\xa6ending\xa2\xff\xfe"),
    "a key that is not UTF-8": frame(b"\x82\xa4type\xa4list\xa2\xff\xfe\x01"),
    "a type that is not UTF-8": frame(b"\x81\xa4type\xa2\xff\xfe"),
    "lists in lists in lists": frame(b"\x91" * 60_000),
    "maps in maps in maps": frame(b"\x82\xa4type\xa4list\xa7version" + b"\x81\xa1a" * 19_000 + b"\x01"),
    "a million entries announced": frame(b"\xdf\x00\x0f\xff\xff"),
    "an extension": frame(b"\xd4\x05\x01"),
    "a number where a spec belongs": packed(type="join", version=wire.VERSION, spec=7),
    "an ending without an end": packed(type="leave", ending="x" * 60_000),
    "a fraction of a slot": packed(type="resume", version=wire.VERSION, slot=0.5, generation=1),
    "an infinite slot": packed(type="resume", version=wire.VERSION, slot=float("inf"), generation=1),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_message_closes_the_connection_with_a_reason(node: InProcessNode, name: str) -> None:
    stranger = node.stranger(MALFORMED[name])
    [answer] = received(stranger)
    assert isinstance(answer, wire.ProtocolViolation)
    assert answer.detail


def test_client_of_an_older_version_is_refused_with_a_reason(node: InProcessNode) -> None:
    [answer] = received(node.stranger(packed(type="list", version=1)))
    assert answer == wire.ProtocolViolation(f"this node speaks version {wire.VERSION} of the protocol, not 1")


def test_hook_of_another_version_is_refused_with_a_reason(node: InProcessNode) -> None:
    [answer] = received(node.stranger(packed(type="attach", version=wire.HOOK_VERSION + 1)))
    expected = f"this node speaks version {wire.HOOK_VERSION} of the hook protocol, not {wire.HOOK_VERSION + 1}"
    assert answer == wire.ProtocolViolation(expected)


SPECS: dict[str, tuple[Any, ...]] = {
    "a priority of twelve": ("offline", 12),
    "a priority below zero": ("offline", -1),
    "no such kind": ("root", 5),
    "an escape in the name": ("offline", 5, "\x1b[2J"),
    "a path as a name": ("offline", 5, "../../etc"),
    "a line break after the name": ("offline", 5, "a\n"),
    "a name without an end": ("offline", 5, "x" * 65),
    "an objective for offline work": ("offline", 5, "", 1),
    "more memory than can be counted": ("offline", 5, "", 0, 1 << 63),
    "less memory than none": ("offline", 5, "", 0, -1),
    "more than the whole": ("offline", 5, "", 0, 0, 1_000_001),
    "a command without an end": ("offline", 5, "", 0, 0, 0, "", "x" * 513),
    "too many fields": ("offline", 5, "", 0, 0, 0, "", "", "", "more"),
    "an invalid name of a GPU": ("offline", 5, "", 0, 0, 0, "", "", "a b"),
    "too few fields": ("offline",),
}


@pytest.mark.parametrize("name", SPECS)
def test_invalid_spec_is_refused_by_the_listener(node: InProcessNode, name: str) -> None:
    [answer] = received(node.stranger(packed(type="join", version=wire.VERSION, spec=SPECS[name])))
    assert isinstance(answer, wire.ProtocolViolation)
    assert node.honest().tenants == []


def test_messages_before_an_invalid_one_are_answered(node: InProcessNode) -> None:
    answers = received(node.stranger(LIST + LIST + frame(b"\xc1") + LIST))
    assert [type(answer) for answer in answers] == [wire.TenantList, wire.TenantList, wire.ProtocolViolation]


def test_message_may_arrive_byte_by_byte(node: InProcessNode) -> None:
    stranger = node.stranger(*[LIST[at : at + 1] for at in range(len(LIST))])
    stranger.shutdown(socket.SHUT_WR)
    assert [type(answer) for answer in received(stranger)] == [wire.TenantList]


@pytest.mark.parametrize("data", [b"", LIST[:2], LIST[:-1], LENGTH.pack(wire.FRAME_LIMIT_BYTES) + b"x" * 1000])
def test_unfinished_message_closes_the_connection_after_the_timeout(node: InProcessNode, data: bytes) -> None:
    stranger = node.stranger(data)
    node.settled(1)
    node.clock.advance(PATIENCE_NS - 1)
    node.honest()
    assert node.peers() >= 1, "not before its time"
    node.clock.advance(1)
    node.honest()
    [answer] = received(stranger)
    assert answer == wire.ProtocolViolation("no complete request arrived in time")


def test_single_bytes_do_not_extend_the_timeout(node: InProcessNode) -> None:
    stranger = node.stranger()
    node.settled(1)
    for at in range(6):
        with contextlib.suppress(BrokenPipeError):
            stranger.sendall(LIST[at : at + 1])
        node.clock.advance(PATIENCE_NS // 5)
        node.honest()
    assert [type(answer) for answer in received(stranger)] == [wire.ProtocolViolation]


def test_tenant_may_be_silent_but_not_within_a_message(node: InProcessNode) -> None:
    with Connection(node.path, BOUND_S) as tenant:
        join(tenant)
        for _ in range(3):
            node.let_patience_run_out()
        assert len(node.honest().tenants) == 1
        tenant._socket.sendall(LIST[:3])
        until(
            lambda: any(
                peer.tenant and peer.number in node.listener._deadlines for peer in list(node.listener._peers.values())
            )
        )
        node.let_patience_run_out()
        until(lambda: not node.honest().tenants)
        assert node.honest().departed[-1].ending == "lost: its connection closed"


def test_former_tenant_is_an_ordinary_peer(node: InProcessNode) -> None:
    with Connection(node.path, BOUND_S) as tenant:
        join(tenant)
        answer, _ = tenant.ask(wire.Leave("exit 0"))
        assert answer == wire.SlotReleased("exit 0")
        node.let_patience_run_out()
        with pytest.raises((PeerError, NodeUnavailableError)):
            tenant.ask(wire.ListTenants(wire.VERSION))


def test_client_that_never_reads_is_closed(node: InProcessNode) -> None:
    greedy = node.stranger()
    greedy.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            greedy.send(LIST * 100)
    until(lambda: stuck(node))
    peer = stuck(node)[0]
    assert peer.unsent_bytes <= wire.ANSWER_LIMIT_BYTES
    assert len(peer.requests) < 4096
    node.let_patience_run_out()
    node.settled(0)
    greedy.close()


def test_tenant_that_never_reads_does_not_affect_others(node: InProcessNode) -> None:
    mute = node.stranger(JOIN)
    until(lambda: len(node.honest().tenants) == 1)
    mute.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            mute.send(LIST * 100)
    until(lambda: stuck(node))
    for _ in range(3):
        node.let_patience_run_out()
    mute.close()
    until(lambda: not node.honest().tenants)


def test_connection_flood_closes_the_oldest_non_tenant(node: InProcessNode) -> None:
    with Connection(node.path, BOUND_S) as tenant:
        join(tenant)
        flood = [node.stranger() for _ in range(60)]
        assert len(node.honest().tenants) == 1
        until(lambda: node.peers() <= 16)  # the connection of the last request may not be closed yet
        for stranger in flood[:40]:
            assert received(stranger) == [wire.ProtocolViolation("too many connections")]
        for stranger in flood[40:]:
            stranger.close()
        answer, _ = tenant.ask(wire.ListTenants(wire.VERSION))
        assert isinstance(answer, wire.TenantList)


def test_new_connection_never_closes_a_tenant() -> None:
    with InProcessNode(slots=8, most=3) as node, contextlib.ExitStack() as stack:
        tenants = [stack.enter_context(Connection(node.path, BOUND_S)) for _ in range(3)]
        for tenant in tenants:
            join(tenant)
        assert received(node.stranger()) == [wire.ProtocolViolation("too many connections, all of them tenants")]
        for tenant in tenants:
            answer, _ = tenant.ask(wire.ListTenants(wire.VERSION))
            assert isinstance(answer, wire.TenantList)
            assert len(answer.tenants) == 3


def test_thousand_short_connections_leave_nothing(node: InProcessNode) -> None:
    for number in range(1000):
        node.stranger(*([LIST, JOIN, JOIN[:7], b""][number % 4 : number % 4 + 1])).close()
    node.settled(0)
    assert node.honest().tenants == []


def test_second_join_is_refused_and_the_first_slot_stays(node: InProcessNode) -> None:
    with Connection(node.path, BOUND_S) as tenant:
        grant = join(tenant)
        for request in (wire.Join(wire.VERSION, SPEC), wire.Resume(wire.VERSION, grant.slot, grant.generation)):
            answer, handed = tenant.ask(request)
            assert isinstance(answer, wire.Refusal)
            assert answer.reject.reason is Reason.ALREADY_HERE
            assert handed == []
        assert [view.tenant.grant for view in node.honest().tenants] == [grant]


def test_two_joins_in_one_packet_get_one_slot(node: InProcessNode) -> None:
    stranger = node.stranger(JOIN + JOIN)
    until(lambda: len(node.honest().tenants) == 1)
    stranger.shutdown(socket.SHUT_WR)
    assert [type(answer) for answer in received(stranger)] == [wire.Welcome, wire.Refusal]
    until(lambda: not node.honest().tenants)


@pytest.mark.parametrize("slot", [0, 1, 4, 5000, -1, -(1 << 63), (1 << 64) - 1])
@pytest.mark.parametrize("generation", [0, 1, (1 << 64) - 1])
def test_peer_cannot_resume_the_slot_of_another(node: InProcessNode, slot: int, generation: int) -> None:
    with Connection(node.path, BOUND_S) as tenant, Connection(node.path, BOUND_S) as thief:
        grant = join(tenant)
        assert (grant.slot, grant.generation) == (0, 1)
        answer, handed = thief.ask(wire.Resume(wire.VERSION, slot, generation))
        assert isinstance(answer, wire.Refusal)
        assert handed == []
        assert [view.connected for view in node.honest().tenants] == [True]


def test_leave_without_join_changes_nothing(node: InProcessNode) -> None:
    stranger = node.stranger(wire.encode(wire.Leave("exit 0")) + LIST)
    stranger.shutdown(socket.SHUT_WR)
    [answer] = received(stranger)
    assert isinstance(answer, wire.TenantList)
    assert answer.departed == []


def test_full_node_refuses_with_a_reason_and_a_remedy(node: InProcessNode) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            join(stack.enter_context(Connection(node.path, BOUND_S)))
        answer, _ = stack.enter_context(Connection(node.path, BOUND_S)).ask(wire.Join(wire.VERSION, SPEC))
        assert isinstance(answer, wire.Refusal)
        assert answer.reject.reason is Reason.NO_SLOT
        assert "raise node.slots" in answer.reject.detail
    until(lambda: not node.honest().tenants)


@pytest.mark.parametrize("count", [1, 2, 3, 200])
def test_peer_that_sends_descriptors_with_other_messages_is_dropped(node: InProcessNode, count: int) -> None:
    before = open_files()
    stranger = node.stranger()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(50):
            socket.send_fds(stranger, [LIST], [0] * count)
    stranger.shutdown(socket.SHUT_WR)
    answers = received(stranger)
    assert [type(answer) for answer in answers] in ([wire.ProtocolViolation], [])  # the rest is unread at the close
    until(lambda: open_files() <= before)  # the last of them is closed after it is forgotten


def test_descriptor_of_an_unfinished_frame_is_closed_with_the_connection(node: InProcessNode) -> None:
    before = open_files()
    stranger = node.stranger()
    socket.send_fds(stranger, [LIST[:3]], [0])
    until(lambda: any(peer.descriptor is not None for peer in list(node.listener._peers.values())))
    stranger.close()
    until(lambda: open_files() <= before)


def test_user_that_sends_too_many_requests_waits() -> None:
    with InProcessNode(burst=10) as node:
        stranger = node.stranger(LIST * 15)
        frames, answers = wire.Frames(wire.ANSWER_LIMIT_BYTES), 0
        while answers < 10:
            answers += len(frames.feed(stranger.recv(1 << 16)))
        until(lambda: node.listener._throttled)
        assert answers == 10
        other = node.stranger(LIST)
        until(lambda: len(node.listener._throttled) == 2)  # the limit is of the user, not of the connection
        for _ in range(6):
            node.clock.advance(REQUEST_INTERVAL_NS)
            node.honest()  # operators do not wait
        stranger.shutdown(socket.SHUT_WR)
        assert len(received(stranger)) + answers == 15
        other.close()
        node.settled(0)


def test_hundreds_of_random_messages_neither_crash_nor_stall_the_listener(node: InProcessNode) -> None:
    spoken = 0

    @settings(max_examples=examples(150, 4000), deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(words, min_size=1, max_size=16), st.sampled_from(["listen", "hang up", "half close"]))
    def speak(conversation: list[bytes], manner: str) -> None:
        nonlocal spoken
        spoken += len(conversation)
        stranger = node.stranger()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for word in conversation:
                stranger.sendall(word)
        if manner == "hang up":
            stranger.close()
        else:
            stranger.shutdown(socket.SHUT_WR)
            if manner == "listen":
                received(stranger)
            stranger.close()
        assert node.running.failure is None
        node.honest()

    speak()
    assert spoken > 300
    node.settled(0)
    assert node.honest().tenants == []
    node.machine.check()  # after an answer, for the loop is done by then with what the last peers said
