"""Does the door answer honest peers whatever hostile ones do, and lose nothing but their connections?"""

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotenant.domain.plan import Reason
from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.errors import PeerError
from cotenant.format import wire
from cotenant.live.client import Connection, NodeAwayError
from cotenant.live.door import PATIENCE_NS
from cotenant.live.loop import READ
from tests.effort import examples
from tests.live.indoors import BOUND_S, SPEC, Indoors, heard, join, open_files, until

LENGTH = struct.Struct("<I")
LIST = wire.encode(wire.List(wire.VERSION))
JOIN = wire.encode(wire.Join(wire.VERSION, SPEC))


def frame(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


def packed(**fields: Any) -> bytes:
    return frame(msgspec.msgpack.encode(fields))


def stuck(node: Indoors) -> list[Any]:
    """Peers that do not read what they were told; an honest question makes the loop go round."""
    node.honest()
    return [peer for peer in list(node.door._peers.values()) if peer.blocked]


@pytest.fixture
def node() -> Iterator[Indoors]:
    """A node; whatever a test did to it, it lives, answers, and has neither connections nor descriptors left over."""
    before = open_files()
    with Indoors() as made:
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
    "an answer instead of a request": wire.encode(wire.Farewell("bye")),
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


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_message_costs_its_sender_the_connection_and_says_why(node: Indoors, what: str) -> None:
    stranger = node.stranger(MALFORMED[what])
    [answer] = heard(stranger)
    assert isinstance(answer, wire.Wrong)
    assert answer.detail


def test_a_client_of_an_older_version_is_told_so(node: Indoors) -> None:
    [answer] = heard(node.stranger(packed(type="list", version=1)))
    assert answer == wire.Wrong(f"this node speaks version {wire.VERSION} of the protocol, not 1")


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
    "a GPU that no one is called": ("offline", 5, "", 0, 0, 0, "", "", "a b"),
    "too few fields": ("offline",),
}


@pytest.mark.parametrize("what", SPECS)
def test_a_spec_that_cannot_be_is_refused_at_the_door(node: Indoors, what: str) -> None:
    [answer] = heard(node.stranger(packed(type="join", version=wire.VERSION, spec=SPECS[what])))
    assert isinstance(answer, wire.Wrong)
    assert node.honest().tenants == []


def test_what_came_before_the_nonsense_is_answered(node: Indoors) -> None:
    answers = heard(node.stranger(LIST + LIST + frame(b"\xc1") + LIST))
    assert [type(answer) for answer in answers] == [wire.Tenants, wire.Tenants, wire.Wrong]


def test_a_message_may_come_byte_by_byte(node: Indoors) -> None:
    stranger = node.stranger(*[LIST[at : at + 1] for at in range(len(LIST))])
    stranger.shutdown(socket.SHUT_WR)
    assert [type(answer) for answer in heard(stranger)] == [wire.Tenants]


@pytest.mark.parametrize("said", [b"", LIST[:2], LIST[:-1], LENGTH.pack(wire.FRAME_LIMIT_BYTES) + b"x" * 1000])
def test_a_peer_that_does_not_finish_is_dropped_when_patience_ends(node: Indoors, said: bytes) -> None:
    stranger = node.stranger(said)
    node.settled(1)
    node.clock.advance(PATIENCE_NS - 1)
    node.honest()
    assert node.peers() >= 1, "not before its time"
    node.clock.advance(1)
    node.honest()
    [answer] = heard(stranger)
    assert answer == wire.Wrong("nothing complete came for too long")


def test_words_that_a_node_was_too_slow_to_read_are_heard_when_patience_ends(node: Indoors) -> None:
    held_up, goes_on = threading.Event(), threading.Event()
    read, write = os.pipe()

    def get_no_processor(mask: int) -> None:
        del mask
        node.loop.forget(read)
        held_up.set()
        goes_on.wait()

    stranger = node.stranger()
    node.settled(1)
    node.loop.watch(read, READ, get_no_processor)
    os.write(write, b"x")
    held_up.wait()
    stranger.sendall(LIST)
    node.clock.advance(PATIENCE_NS + 1)
    goes_on.set()
    stranger.shutdown(socket.SHUT_WR)
    assert [type(answer) for answer in heard(stranger)] == [wire.Tenants]
    os.close(read)
    os.close(write)


def test_one_byte_now_and_then_buys_no_more_time(node: Indoors) -> None:
    stranger = node.stranger()
    node.settled(1)
    for at in range(6):
        with contextlib.suppress(BrokenPipeError):
            stranger.sendall(LIST[at : at + 1])
        node.clock.advance(PATIENCE_NS // 5)
        node.honest()
    assert [type(answer) for answer in heard(stranger)] == [wire.Wrong]


def test_a_tenant_may_be_silent_for_ever_but_not_in_the_midst_of_a_word(node: Indoors) -> None:
    with Connection(node.path, BOUND_S) as tenant:
        join(tenant)
        for _ in range(3):
            node.let_patience_run_out()
        assert len(node.honest().tenants) == 1
        tenant._socket.sendall(LIST[:3])
        until(lambda: [peer for peer in list(node.door._peers.values()) if peer.tenant and peer.frames.partial])
        node.let_patience_run_out()
        until(lambda: not node.honest().tenants)
        assert node.honest().departed[-1].ending == "lost: its connection closed"


def test_a_former_tenant_is_an_ordinary_peer_again(node: Indoors) -> None:
    with Connection(node.path, BOUND_S) as tenant:
        join(tenant)
        answer, _ = tenant.ask(wire.Leave("exit 0"))
        assert answer == wire.Farewell("exit 0")
        node.let_patience_run_out()
        with pytest.raises((PeerError, NodeAwayError)):
            tenant.ask(wire.List(wire.VERSION))


def test_a_client_that_never_reads_is_not_listened_to_and_then_dropped(node: Indoors) -> None:
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


def test_a_tenant_that_never_reads_hurts_nobody(node: Indoors) -> None:
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


def test_a_flood_of_connections_pushes_out_the_oldest_that_is_no_tenant(node: Indoors) -> None:
    with Connection(node.path, BOUND_S) as tenant:
        join(tenant)
        flood = [node.stranger() for _ in range(60)]
        assert len(node.honest().tenants) == 1
        assert node.peers() <= 16
        for stranger in flood[:40]:
            assert heard(stranger) == [wire.Wrong("too many connections")]
        for stranger in flood[40:]:
            stranger.close()
        answer, _ = tenant.ask(wire.List(wire.VERSION))
        assert isinstance(answer, wire.Tenants)


def test_no_newcomer_pushes_a_tenant_out() -> None:
    with Indoors(slots=8, most=3) as node, contextlib.ExitStack() as stack:
        tenants = [stack.enter_context(Connection(node.path, BOUND_S)) for _ in range(3)]
        for tenant in tenants:
            join(tenant)
        assert heard(node.stranger()) == [wire.Wrong("too many connections, all of them tenants")]
        for tenant in tenants:
            answer, _ = tenant.ask(wire.List(wire.VERSION))
            assert isinstance(answer, wire.Tenants)
            assert len(answer.tenants) == 3


def test_a_thousand_connections_that_hang_up_at_once_leave_nothing(node: Indoors) -> None:
    for number in range(1000):
        node.stranger(*([LIST, JOIN, JOIN[:7], b""][number % 4 : number % 4 + 1])).close()
    node.settled(0)
    assert node.honest().tenants == []


def test_joining_twice_is_refused_and_the_first_place_stays(node: Indoors) -> None:
    with Connection(node.path, BOUND_S) as tenant:
        terms = join(tenant)
        for request in (wire.Join(wire.VERSION, SPEC), wire.Resume(wire.VERSION, terms.slot, terms.generation)):
            answer, handed = tenant.ask(request)
            assert isinstance(answer, wire.Refused)
            assert answer.reject.reason is Reason.ALREADY_HERE
            assert handed == []
        assert [view.tenant.terms for view in node.honest().tenants] == [terms]


def test_two_joins_in_one_breath_get_one_slot(node: Indoors) -> None:
    stranger = node.stranger(JOIN + JOIN)
    until(lambda: len(node.honest().tenants) == 1)
    stranger.shutdown(socket.SHUT_WR)
    assert [type(answer) for answer in heard(stranger)] == [wire.Welcome, wire.Refused]
    until(lambda: not node.honest().tenants)


@pytest.mark.parametrize("slot", [0, 1, 4, 5000, -1, -(1 << 63), (1 << 64) - 1])
@pytest.mark.parametrize("generation", [0, 1, (1 << 64) - 1])
def test_nobody_resumes_the_slot_of_somebody_else(node: Indoors, slot: int, generation: int) -> None:
    with Connection(node.path, BOUND_S) as tenant, Connection(node.path, BOUND_S) as thief:
        terms = join(tenant)
        assert (terms.slot, terms.generation) == (0, 1)
        answer, handed = thief.ask(wire.Resume(wire.VERSION, slot, generation))
        assert isinstance(answer, wire.Refused)
        assert handed == []
        assert [view.connected for view in node.honest().tenants] == [True]


def test_a_peer_that_leaves_without_having_joined_changes_nothing(node: Indoors) -> None:
    stranger = node.stranger(wire.encode(wire.Leave("exit 0")) + LIST)
    stranger.shutdown(socket.SHUT_WR)
    [answer] = heard(stranger)
    assert isinstance(answer, wire.Tenants)
    assert answer.departed == []


def test_a_full_node_refuses_with_a_reason_and_a_remedy(node: Indoors) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            join(stack.enter_context(Connection(node.path, BOUND_S)))
        answer, _ = stack.enter_context(Connection(node.path, BOUND_S)).ask(wire.Join(wire.VERSION, SPEC))
        assert isinstance(answer, wire.Refused)
        assert answer.reject.reason is Reason.NO_SLOT
        assert "raise node.slots" in answer.reject.detail
    until(lambda: not node.honest().tenants)


def test_the_page_comes_along_for_reading_only(node: Indoors) -> None:
    from cotenant.live.page import read_page

    with Connection(node.path, BOUND_S) as tenant:
        answer, handed = tenant.ask(wire.Join(wire.VERSION, TenantSpec(Kind.ONLINE, 1, slo_ns=50, share_ppm=7)))
        assert isinstance(answer, wire.Welcome)
        [page] = handed  # without a device there is no gate
        assert read_page(page) == answer.terms
        assert not os.get_inheritable(page)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(page, b"x")
        tenant.ask(wire.Leave("exit 0"))
        assert read_page(page) is None
        os.close(page)


def test_descriptors_that_a_peer_sends_along_are_not_kept(node: Indoors) -> None:
    before = open_files()
    stranger = node.stranger()
    for _ in range(50):
        socket.send_fds(stranger, [LIST], [0, 1, 2])
    stranger.shutdown(socket.SHUT_WR)
    assert len(heard(stranger)) == 50
    until(lambda: open_files() <= before)  # the last of them is closed after it is forgotten


requests = st.one_of(
    st.builds(wire.List, st.integers(0, 3)),
    st.builds(wire.Leave, st.text(max_size=300)),
    st.builds(wire.Resume, st.just(wire.VERSION), st.integers(-(1 << 63), (1 << 64) - 1), st.integers(-1, 5)),
    st.builds(
        wire.Join,
        st.just(wire.VERSION),
        st.builds(
            TenantSpec,
            st.just(Kind.OFFLINE),
            st.integers(-1, 10),
            st.sampled_from(["", "a", "b", "a b"]),
            st.just(0),
            st.integers(-1, 1 << 63),
            st.integers(-1, 1_000_001),
            st.text(max_size=20),
            st.text(max_size=600),
        ),
    ),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
maps = st.fixed_dictionaries(
    {"type": st.sampled_from(["join", "resume", "leave", "list", "welcome", "?"])},
    optional=dict.fromkeys(("version", "spec", "slot", "generation", "ending", "more"), values),
)
words = st.one_of(
    st.binary(max_size=64),
    st.binary(min_size=1, max_size=64).map(frame),
    values.map(msgspec.msgpack.encode).map(frame),
    maps.map(msgspec.msgpack.encode).map(frame),
    requests.map(wire.encode),
)


def test_random_words_by_the_hundred_neither_crash_nor_stall_it(node: Indoors) -> None:
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
                heard(stranger)
            stranger.close()
        assert node.running.failure is None
        node.honest()

    speak()
    assert spoken > 300
    node.settled(0)
    assert node.honest().tenants == []
    node.machine.check()  # after an answer, for the loop is done by then with what the last peers said
