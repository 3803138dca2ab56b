"""The wire format encodes every message and rejects everything else."""

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.errors import PeerError
from cotenant.gate.grant import Kind
from cotenant.gate.rules import Limit
from cotenant.node import wire
from cotenant.node.client.run import spec_of
from cotenant.node.config.file import RunConfig
from cotenant.node.model.tenant import TenantSpec
from cotenant.predict.usage import TaskUse
from tests.support.strategies import (
    LARGEST,
    amounts,
    departures,
    gate_changes,
    gate_rules,
    gpu_watches,
    gpus,
    grant,
    histograms,
    names,
    rejects,
    shares,
    small,
    specs,
    texts,
    views,
)


def test_name_with_a_trailing_newline_is_rejected() -> None:
    spec = msgspec.structs.replace(TenantSpec(Kind.OFFLINE, 5), name="web\n")
    with pytest.raises(PeerError):
        wire.decode_request(wire.encode(wire.Join(wire.VERSION, spec))[4:])


def test_command_that_is_not_utf8_can_join() -> None:
    spec = spec_of(RunConfig(task="t\udcff"), ["./caf\udce9", "x"])  # Python's text for the bytes of a Latin-1 name
    assert wire.decode_request(wire.encode(wire.Join(wire.VERSION, spec))[4:]) == wire.Join(wire.VERSION, spec)
    assert (spec.task, spec.command) == ("t?", "./caf? x")


any_int = st.integers(-(1 << 63), LARGEST)
requests: st.SearchStrategy[wire.Request] = st.one_of(
    st.builds(wire.Join, any_int, specs()),
    st.builds(wire.Resume, any_int, any_int, any_int),
    st.builds(wire.Leave, texts),
    st.builds(wire.ListTenants, any_int),
    st.builds(wire.Pause, any_int, st.lists(names, max_size=3), st.booleans(), st.booleans()),
    st.builds(wire.SetPriority, any_int, names, st.integers(0, 9)),
    st.builds(wire.SetShare, any_int, names, st.none() | shares, st.none() | st.sampled_from(Limit)),
    st.builds(wire.SetObjective, any_int, names, amounts),
    st.builds(wire.SetRules, any_int, gate_changes),
    st.builds(wire.EvictTenants, any_int, st.lists(names, max_size=3), amounts),
    st.builds(wire.Quit, amounts),
    st.builds(wire.SuspendResult, st.booleans(), texts),
    st.builds(wire.RestoreResult, st.booleans(), texts),
    st.builds(wire.RestartReport, texts, amounts),
)
answers: st.SearchStrategy[wire.Answer] = st.one_of(
    st.builds(wire.Welcome, any_int, names, grant, st.dictionaries(names, texts, max_size=2)),
    st.builds(wire.Signal, st.sampled_from(["term", "kill"]), texts, st.booleans()),
    st.builds(wire.Suspend, texts),
    st.just(wire.Restore()),
    st.builds(wire.Refusal, rejects),
    st.builds(wire.SlotReleased, texts),
    st.builds(wire.Confirmation, st.lists(names, max_size=3), gate_rules),
    st.builds(wire.ProtocolViolation, texts),
    st.builds(
        wire.TenantList,
        any_int,
        texts,
        small,
        st.lists(views, max_size=3),
        st.lists(departures, max_size=3),
        small,
        small,
        small,
        st.lists(gpus, max_size=3),
        histograms,
        gate_rules,
        st.lists(gpu_watches, max_size=3),
    ),
)


@given(requests)
def test_requests_survive_encoding_and_decoding(request: wire.Request) -> None:
    (payload,) = wire.Frames().feed(wire.encode(request))
    assert wire.decode_request(payload) == request


@given(answers)
def test_answers_survive_encoding_and_decoding(answer: wire.Answer) -> None:
    (payload,) = wire.Frames(wire.ANSWER_LIMIT_BYTES).feed(wire.encode(answer))
    assert wire.decode_answer(payload) == answer


@given(requests, answers)
def test_no_answer_decodes_as_a_request(request: wire.Request, answer: wire.Answer) -> None:
    with pytest.raises(PeerError):
        wire.decode_request(wire.encode(answer)[4:])
    with pytest.raises(PeerError):
        wire.decode_answer(wire.encode(request)[4:])


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "little") + payload


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=6), st.lists(st.integers(0, 300), max_size=12))
def test_any_chunks_give_the_same_frames(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(framed, payloads))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    frames = wire.Frames()
    received = []
    for begin, end in itertools.pairwise(edges):
        received += frames.feed(stream[begin:end])
    assert received == payloads
    assert not frames.partial


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=3))
def test_frame_is_partial_until_its_last_byte(payloads: list[bytes]) -> None:
    frames = wire.Frames()
    for payload in payloads:
        for byte in framed(payload)[:-1]:
            assert frames.feed(bytes([byte])) == []
            assert frames.partial
        assert frames.feed(payload[-1:]) == [payload]
        assert not frames.partial


@pytest.mark.parametrize("length", [0, 101, 1 << 31, (1 << 32) - 1])
def test_frame_of_invalid_length_is_rejected_by_its_header(length: int) -> None:
    frames = wire.Frames(limit_bytes=100)
    frames.feed(length.to_bytes(4, "little")[:3])
    with pytest.raises(PeerError, match=f"announces {length}$"):
        frames.feed(length.to_bytes(4, "little")[3:])


def test_frame_of_the_maximum_length_is_accepted() -> None:
    assert wire.Frames(limit_bytes=100).feed(framed(bytes(100))) == [bytes(100)]


@given(st.integers(1, 200), st.integers(1, 64))
def test_buffer_holds_at_most_one_frame(limit: int, chunk: int) -> None:
    frames = wire.Frames(limit_bytes=limit)
    stream = framed(bytes(limit)) * 3
    for begin in range(0, len(stream), chunk):
        frames.feed(stream[begin : begin + chunk])
        assert len(frames._buffer) < limit + 4


# Bytes that are nearly messages: valid msgpack of the wrong shape, and messages with bytes changed.
shapes: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), any_int, st.floats(), st.text(max_size=5), st.binary(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=8), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=10,
)
tags = st.sampled_from(["join", "resume", "leave", "list", "welcome", "tenants", "wrong", "x"])
keys = st.sampled_from(["type", "version", "spec", "slot", "generation", "ending", "tenants", "grant", "turn_ns"])


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    payload = bytearray(wire.encode(draw(st.one_of(requests, answers)))[4:])
    for _ in range(draw(st.integers(1, 4))):
        payload[draw(st.integers(0, len(payload) - 1))] = draw(st.integers(0, 255))
    return bytes(payload[: draw(st.integers(1, len(payload)))])


@given(
    st.one_of(
        st.binary(max_size=100),
        shapes.map(msgspec.msgpack.encode),
        st.dictionaries(keys, st.one_of(shapes, tags), max_size=5).map(msgspec.msgpack.encode),
        mutations(),
    )
)
def test_invalid_message_raises_only_peer_error(payload: bytes) -> None:
    for decode in (wire.decode_request, wire.decode_answer):
        try:
            decode(payload)
        except PeerError as error:
            assert "cannot be read" in str(error) or "speaks version" in str(error)  # noqa: PT017  a lucky mutation may still be a message


@pytest.mark.parametrize("nest", [b"\x91", b"\x81\xa1x", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01"])
def test_deeply_nested_message_raises_peer_error(nest: bytes) -> None:
    for payload in (nest * 10_000, b"\x81\xa4type" + nest * 10_000, b"\x82\xa4type\xa4join\xa4spec" + nest * 10_000):
        for decode in (wire.decode_request, wire.decode_answer):
            with pytest.raises(PeerError):
                decode(payload)


@given(st.binary(max_size=300))
def test_any_stream_gives_frames_or_peer_error(stream: bytes) -> None:
    frames = wire.Frames(limit_bytes=50)
    try:
        payloads = frames.feed(stream)
    except PeerError:
        return
    assert sum(len(payload) + 4 for payload in payloads) <= len(stream)


SPEC: dict[str, Any] = {
    "kind": "online",
    "priority": 5,
    "name": "web",
    "slo_ns": 50,
    "memory_bytes": 1,
    "share_ppm": 1,
    "task": "t",
    "command": "c",
    "gpu": "soft:0",
}

# field: values just beyond its limits
OUT_OF_RANGE: list[tuple[str, object]] = [
    ("kind", "batch"),
    ("kind", None),
    ("kind", "offline"),  # with an slo
    ("priority", -1),
    ("priority", 10),
    ("priority", 5.0),
    ("priority", "5"),
    ("priority", True),
    ("name", "x" * 65),
    ("name", "-x"),
    ("name", ".x"),
    ("name", "a b"),
    ("name", "a/b"),
    ("name", "\n"),
    ("name", "a\x00"),
    ("name", "\N{CYRILLIC SMALL LETTER A}"),
    ("name", "\N{ARABIC-INDIC DIGIT FIVE}"),
    ("name", None),
    ("slo_ns", -1),
    ("slo_ns", 1 << 63),
    ("memory_bytes", -1),
    ("memory_bytes", 1 << 63),
    ("share_ppm", -1),
    ("share_ppm", 1_000_001),
    ("task", "x" * 513),
    ("command", "x" * 513),
]


INVALID_USES: list[object] = [
    [-1],
    [1_000_001],
    [0, [[1_000_001, 0]]],
    [0, [[0, -1]]],
    [0, [[1, 1]] * 9],
    [0, [[1]]],
    [0, [], 0, 1 << 63],
    [0] * 20,
    {"duty_ppm": 5},
    5,
]


def join_of(spec: dict[str, Any], *more: object) -> bytes:
    return msgspec.msgpack.encode({"type": "join", "version": wire.VERSION, "spec": [*spec.values(), *more]})


@pytest.mark.parametrize("field, value", OUT_OF_RANGE)
def test_out_of_range_field_is_rejected_by_the_decoder(field: str, value: object) -> None:
    with pytest.raises(PeerError):
        wire.decode_request(join_of({**SPEC, field: value}))


@pytest.mark.parametrize("use", INVALID_USES, ids=str)
def test_invalid_profile_is_rejected_by_the_decoder(use: object) -> None:
    spec = [*SPEC.values(), *["", "evict", 0, "off"][len(SPEC) - 8 :], use]
    with pytest.raises(PeerError):
        wire.decode_request(msgspec.msgpack.encode({"type": "join", "version": wire.VERSION, "spec": spec}))


def test_profile_in_a_spec_is_optional() -> None:
    request = wire.decode_request(join_of(SPEC))
    assert isinstance(request, wire.Join)
    assert request.spec.use is None
    frame = wire.encode(wire.Join(wire.VERSION, msgspec.structs.replace(request.spec, use=TaskUse(5, ((7, 9),)))))
    again = wire.decode_request(frame[4:])
    assert isinstance(again, wire.Join)
    assert again.spec.use == TaskUse(5, ((7, 9),))


@pytest.mark.parametrize(
    "field, value",
    [
        ("priority", 0),
        ("priority", 9),
        ("name", ""),
        ("name", "x" * 64),
        ("name", "0._-A"),
        ("slo_ns", LARGEST),
        ("memory_bytes", LARGEST),
        ("share_ppm", 10**6),
        ("task", "😀" * 512),
        ("command", "x" * 512),
    ],
)
def test_limit_values_are_accepted(field: str, value: object) -> None:
    request = wire.decode_request(join_of({**SPEC, field: value}))
    assert isinstance(request, wire.Join)
    assert getattr(request.spec, field) == value


@pytest.mark.parametrize(
    "message",
    [
        {"type": "leave", "ending": "x" * 257},
        {"type": "leave", "ending": "x", "more": 1},
        {"type": "leave"},
        {"type": "list", "version": "1"},
        {"type": "resume", "version": wire.VERSION, "slot": 0},
        {"type": "welcome", "version": wire.VERSION},
        {"version": wire.VERSION},
        {},
        [],
    ],
)
def test_message_with_wrong_fields_is_rejected(message: object) -> None:
    with pytest.raises(PeerError):
        wire.decode_request(msgspec.msgpack.encode(message))


def test_spec_with_an_extra_field_is_rejected() -> None:
    with pytest.raises(PeerError):
        wire.decode_request(join_of(SPEC, "more"))


def test_message_of_another_version_raises_an_error_with_the_version() -> None:
    older = wire.encode(wire.ListTenants(wire.VERSION - 1))[4:]
    assert wire.decode_request(older) == wire.ListTenants(wire.VERSION - 1)  # the listener compares the version
    newer = msgspec.msgpack.encode({"type": "join", "version": wire.VERSION + 1, "spec": [1, 2, 3], "colour": "blue"})
    with pytest.raises(PeerError, match=f"version {wire.VERSION} of the protocol, not {wire.VERSION + 1}"):
        wire.decode_request(newer)
