"""Strategies for data that a peer may send to a node: bytes, frames, invalid and valid messages."""

import struct

import msgspec
from hypothesis import strategies as st

from cotenant.gate.grant import Kind
from cotenant.node import wire
from cotenant.node.model.tenant import TenantSpec

LENGTH = struct.Struct("<I")


def frame(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


requests = st.one_of(
    st.builds(wire.ListTenants, st.integers(0, 3)),
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
