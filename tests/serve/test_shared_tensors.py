"""Tensors in shared memory: round trips for all datatypes and splits."""

from __future__ import annotations

import fcntl
import os
import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.serve.protocol.oip.tensor import NUMPY, Array
from cotenant.serve.runtime.gpu import shared_tensors as parcel
from cotenant.serve.runtime.gpu.shared_tensors import BatchResult, RunBatch, TensorMemory, write_tensors

PIECES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[TensorSpec], list[list[Array]]]:
    """Draw tensors, each as pieces that differ only in their rows."""
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
    """Through a real socket, several batches in the same memory, which grows as needed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        written, read = TensorMemory(), TensorMemory()
        for specs, pieces in (first, second):
            laid, descriptor = write_tensors(specs, pieces, written)
            parcel.send(ours, RunBatch(7, 3, 1, laid, ("A",), ("B",)), descriptor)
            heard = parcel.receive_server_message(theirs, read)
            assert isinstance(heard, RunBatch)
            for lies, column in zip(heard.tensors, pieces, strict=True):
                tensor, whole = read.tensor(lies), np.concatenate(column)
                assert tensor.shape == whole.shape
                assert tensor.dtype == whole.dtype
                assert tensor.tobytes() == whole.tobytes() or tensor.tolist() == whole.tolist()


def test_memory_that_could_shrink_is_not_taken() -> None:
    """Its owner could make every read of the other side fault."""
    descriptor = os.memfd_create("short", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, 4096)
        with pytest.raises(ValueError, match="not sealed"):
            TensorMemory().map(descriptor)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        TensorMemory().map(descriptor)
    finally:
        os.close(descriptor)


def test_more_than_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="exceed the"):
        TensorMemory().reserve(parcel.MEMORY_LIMIT_BYTES + 1)


def test_an_end_without_words_is_heard_as_nothing() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        parcel.send(ours, BatchResult(1, 2, ()))
        ours.close()
        assert parcel.receive_worker_message(theirs, TensorMemory()) == BatchResult(1, 2, ())
        assert parcel.receive_worker_message(theirs, TensorMemory()) is None
