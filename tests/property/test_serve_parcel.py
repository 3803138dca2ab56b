"""Do tensors come out of shared memory as they went in, whatever they are and however they were cut?"""

from __future__ import annotations

import fcntl
import os
import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.domain.tensor import Datatype, TensorSpec
from cotenant.format.tensor import NUMPY, Array
from cotenant.live.serve import parcel
from cotenant.live.serve.parcel import Did, Do, Room, lay_out

PIECES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[TensorSpec], list[list[Array]]]:
    """Some tensors, each as pieces that agree in all but their rows."""
    rows = draw(PIECES)
    specs, found = [], []
    for place in range(draw(st.integers(1, 4))):
        datatype = draw(st.sampled_from(list(Datatype)))
        width = draw(st.integers(0, 7))
        seed = np.random.default_rng(draw(st.integers(0, 1 << 30)))
        specs.append(TensorSpec(f"T{place}", datatype, (-1, width)))
        found.append([_filled(seed, datatype, (one, width)) for one in rows])
    return specs, found


def _filled(seed: np.random.Generator, datatype: Datatype, shape: tuple[int, int]) -> Array:
    if datatype is Datatype.BYTES:
        texts = [seed.bytes(int(seed.integers(0, 9))) for _ in range(shape[0] * shape[1])]
        array = np.empty(len(texts), np.object_)
        array[:] = texts
        return array.reshape(shape)
    raw = seed.bytes(shape[0] * shape[1] * NUMPY[datatype].itemsize)
    if datatype is Datatype.BOOL:
        raw = bytes(one & 1 for one in raw)
    whole: Array = np.frombuffer(raw, NUMPY[datatype]).reshape(shape)
    return whole


@given(columns(), columns())
def test_what_is_laid_out_is_seen_on_the_other_side(
    first: tuple[list[TensorSpec], list[list[Array]]], second: tuple[list[TensorSpec], list[list[Array]]]
) -> None:
    """Through a real socket, one batch after another in the same memory, which grows when it must."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        written, read = Room(), Room()
        for specs, pieces in (first, second):
            laid, descriptor = lay_out(specs, pieces, written)
            parcel.send(ours, Do(7, 3, 1, laid, ("A",), ("B",)), descriptor)
            heard = parcel.hear_errand(theirs, read)
            assert isinstance(heard, Do)
            for lies, column in zip(heard.tensors, pieces, strict=True):
                seen, whole = read.seen(lies), np.concatenate(column)
                assert seen.shape == whole.shape
                assert seen.dtype == whole.dtype
                assert seen.tobytes() == whole.tobytes() or seen.tolist() == whole.tolist()


def test_memory_that_could_shrink_is_not_taken() -> None:
    """Its owner could make every read of the other side a fault."""
    descriptor = os.memfd_create("short", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, 4096)
        with pytest.raises(ValueError, match="made shorter"):
            Room().take(descriptor)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        Room().take(descriptor)
    finally:
        os.close(descriptor)


def test_more_than_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="are more than"):
        Room().make(parcel.ROOM_LIMIT_BYTES + 1)


def test_an_end_without_words_is_heard_as_nothing() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        parcel.send(ours, Did(1, 2, ()))
        ours.close()
        assert parcel.hear_word(theirs, Room()) == Did(1, 2, ())
        assert parcel.hear_word(theirs, Room()) is None
