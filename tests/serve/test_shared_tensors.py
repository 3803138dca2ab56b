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
from cotenant.serve.runtime.gpu import shared_tensors
from cotenant.serve.runtime.gpu.shared_tensors import BatchResult, RunBatch, TensorMemory, write_tensors

PIECES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[TensorSpec], list[list[Array]]]:
    """Draw tensors, each as pieces that differ only in their rows."""
    rows = draw(PIECES)
    specs, arrays = [], []
    for index in range(draw(st.integers(1, 4))):
        datatype = draw(st.sampled_from(list(Datatype)))
        width = draw(st.integers(0, 7))
        seed = np.random.default_rng(draw(st.integers(0, 1 << 30)))
        specs.append(TensorSpec(f"T{index}", datatype, (-1, width)))
        arrays.append([_filled(seed, datatype, (count, width)) for count in rows])
    return specs, arrays


def _filled(seed: np.random.Generator, datatype: Datatype, shape: tuple[int, int]) -> Array:
    if datatype is Datatype.BYTES:
        texts = [seed.bytes(int(seed.integers(0, 9))) for _ in range(shape[0] * shape[1])]
        array = np.empty(len(texts), np.object_)
        array[:] = texts
        return array.reshape(shape)
    raw = seed.bytes(shape[0] * shape[1] * NUMPY[datatype].itemsize)
    if datatype is Datatype.BOOL:
        raw = bytes(byte & 1 for byte in raw)
    numbers: Array = np.frombuffer(raw, NUMPY[datatype]).reshape(shape)
    return numbers


@given(columns(), columns())
def test_written_tensors_are_read_by_the_other_side(
    first: tuple[list[TensorSpec], list[list[Array]]], second: tuple[list[TensorSpec], list[list[Array]]]
) -> None:
    """Through a real socket, several batches in the same memory, which grows as needed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        sender_memory, receiver_memory = TensorMemory(), TensorMemory()
        for specs, pieces in (first, second):
            locations, descriptor = write_tensors(specs, pieces, sender_memory)
            shared_tensors.send(ours, RunBatch(7, 3, 1, locations, ("A",), ("B",)), descriptor)
            message = shared_tensors.receive_server_message(theirs, receiver_memory)
            assert isinstance(message, RunBatch)
            for location, column in zip(message.tensors, pieces, strict=True):
                tensor, expected = receiver_memory.tensor(location), np.concatenate(column)
                assert tensor.shape == expected.shape
                assert tensor.dtype == expected.dtype
                assert tensor.tobytes() == expected.tobytes() or tensor.tolist() == expected.tolist()


def test_memory_not_sealed_against_shrinking_is_rejected() -> None:
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


def test_memory_beyond_the_limit_is_rejected() -> None:
    with pytest.raises(ValueError, match="exceed the"):
        TensorMemory().reserve(shared_tensors.MEMORY_LIMIT_BYTES + 1)


def test_closed_connection_is_received_as_none() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        shared_tensors.send(ours, BatchResult(1, 2, ()))
        ours.close()
        assert shared_tensors.receive_worker_message(theirs, TensorMemory()) == BatchResult(1, 2, ())
        assert shared_tensors.receive_worker_message(theirs, TensorMemory()) is None
