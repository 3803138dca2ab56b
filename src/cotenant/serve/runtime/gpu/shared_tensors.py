"""Messages and shared memory between the server and its workers: a socket carries the messages, memory the tensors.

Each side owns the memory that it writes and creates a larger one when needed; the descriptor is sent with the message
that needs it. The memory is sealed against shrinking, so that neither side can fault the other. A worker has one active
run at a time, so one memory per direction is sufficient; results are copied before the next run starts.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np

from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.serve.protocol.oip.tensor import NUMPY, Array, from_raw, to_raw

MEMORY_LIMIT_BYTES: Final = 1 << 30
"""Limit for one direction of one worker."""
_MESSAGE_BYTES: Final = 1 << 16
_MIN_MEMORY_BYTES: Final = 1 << 16
_ALIGNMENT_BYTES: Final = 64
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class TensorLocation(msgspec.Struct, array_like=True, frozen=True):
    """Location of a tensor in the sender's memory."""

    datatype: Datatype
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


class WorkerSetup(msgspec.Struct, array_like=True, tag="worker-setup", frozen=True):
    """The model that a worker loads, and the device memory that it may use."""

    kind: str
    path: str
    memory_bytes: int


class RunBatch(msgspec.Struct, array_like=True, tag="run-batch", frozen=True):
    """Run a batch."""

    run: int
    rows: int
    due_ns: int
    """Instant (CLOCK_MONOTONIC) since which the first request waits."""
    tensors: tuple[TensorLocation, ...]
    inputs: tuple[str, ...]
    """Names of the tensors; their order may differ from the model file's."""
    outputs: tuple[str, ...]
    """Names of the requested outputs, in the order of the result."""


class CheckDevice(msgspec.Struct, array_like=True, tag="check-device", frozen=True):
    """Check the device: a worker that lost it because of another MPS client does not notice while idle."""


ServerMessage: TypeAlias = WorkerSetup | RunBatch | CheckDevice


class WorkerReady(msgspec.Struct, array_like=True, tag="worker-ready", frozen=True):
    """The worker is ready."""

    pid: int
    sms: int
    """SMs that its kernels may use."""
    is_mps: bool
    device: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    means_batches: bool
    """Whether the model file declares that the first dimension of all tensors is the batch."""


class BatchResult(msgspec.Struct, array_like=True, tag="batch-result", frozen=True):
    """A run has ended."""

    run: int
    took_ns: int
    tensors: tuple[TensorLocation, ...]


class BatchFailure(msgspec.Struct, array_like=True, tag="batch-failure", frozen=True):
    """A run failed; `is_last`: the device is lost, and the worker ends."""

    run: int
    why: str
    is_last: bool


class WorkerFailure(msgspec.Struct, array_like=True, tag="worker-failure", frozen=True):
    """The worker cannot run the model, and ends."""

    why: str


class DeviceHealthy(msgspec.Struct, array_like=True, tag="device-healthy", frozen=True):
    """Response to `CheckDevice`."""


WorkerMessage: TypeAlias = WorkerReady | BatchResult | BatchFailure | WorkerFailure | DeviceHealthy
_SERVER_MESSAGES: Final = msgspec.msgpack.Decoder(ServerMessage)
_WORKER_MESSAGES: Final = msgspec.msgpack.Decoder(WorkerMessage)
_encode: Final = msgspec.msgpack.Encoder().encode


class TensorMemory:
    """Memory that one side writes and the other reads."""

    def __init__(self) -> None:
        """Start without memory."""
        self._map: mmap.mmap | None = None
        self._view = np.empty(0, np.uint8)

    def reserve(self, size_bytes: int) -> int:
        """Ensure a size; return a descriptor for the other side, or -1 if the memory is large enough."""
        if size_bytes <= len(self._view):
            return -1
        if size_bytes > MEMORY_LIMIT_BYTES:
            raise ValueError(f"tensors of {size_bytes} bytes exceed the {MEMORY_LIMIT_BYTES} bytes of one run")
        size_bytes = max(_MIN_MEMORY_BYTES, 1 << (size_bytes - 1).bit_length())
        descriptor = os.memfd_create("cotenant-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        self.map(descriptor)
        return descriptor

    def map(self, descriptor: int) -> None:
        """Map this memory; the caller keeps the descriptor."""
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ValueError("memory for tensors is not sealed against shrinking")
        self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self._view = np.frombuffer(self._map, np.uint8)

    def write(self, offset: int, raw: bytes | Array) -> None:
        """Write bytes or the elements of an array."""
        if isinstance(raw, bytes):
            self._view[offset : offset + len(raw)] = np.frombuffer(raw, np.uint8)
        else:
            self._view[offset : offset + raw.nbytes].view(raw.dtype).reshape(raw.shape)[...] = raw

    def tensor(self, location: TensorLocation) -> Array:
        """Return a view of a tensor, valid until the other side writes again."""
        raw = self._view[location.offset : location.offset + location.size_bytes].data
        return from_raw(location.datatype, location.shape, raw)


def write_tensors(
    specs: Sequence[TensorSpec], columns: Sequence[Sequence[Array]], memory: TensorMemory
) -> tuple[tuple[TensorLocation, ...], int]:
    """Write tensors, with the pieces of each one in sequence.

    Return their locations and the result of `TensorMemory.reserve`.
    """
    raws: list[list[bytes | Array]] = []
    locations = []
    end = 0
    for spec, pieces in zip(specs, columns, strict=True):
        is_bytes = spec.datatype is Datatype.BYTES
        raw: list[bytes | Array] = [to_raw(spec.datatype, array) if is_bytes else array for array in pieces]
        size = sum(map(_size, raw))
        shape = pieces[0].shape
        if len(pieces) > 1:
            shape = (sum(array.shape[0] for array in pieces), *shape[1:])
        locations.append(TensorLocation(spec.datatype, shape, end, size))
        raws.append(raw)
        end += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    descriptor = memory.reserve(end)
    for location, raw in zip(locations, raws, strict=True):
        offset = location.offset
        for piece in raw:
            memory.write(offset, piece)
            offset += _size(piece)
    return tuple(locations), descriptor


def _size(raw: bytes | Array) -> int:
    return len(raw) if isinstance(raw, bytes) else raw.nbytes


def tensor_layout(specs: Sequence[TensorSpec], rows: int) -> tuple[tuple[TensorLocation, ...], int]:
    """Return the locations of tensors of fixed shapes for this many rows, and their total size."""
    locations = []
    end = 0
    for spec in specs:
        shape = tuple(rows if size < 0 else size for size in spec.shape)
        size_bytes = int(np.prod(shape, dtype=np.int64)) * NUMPY[spec.datatype].itemsize
        locations.append(TensorLocation(spec.datatype, shape, end, size_bytes))
        end += -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return tuple(locations), end


def send(channel: socket.socket, message: ServerMessage | WorkerMessage, descriptor: int = -1) -> None:
    """Send a message, with an optional descriptor, which is closed here."""
    try:
        if descriptor < 0:
            channel.send(_encode(message))
        else:
            socket.send_fds(channel, [_encode(message)], [descriptor])
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def receive_server_message(channel: socket.socket, memory: TensorMemory) -> ServerMessage | None:
    """Receive a message from the server; None if it is gone."""
    raw = _receive(channel, memory)
    return _SERVER_MESSAGES.decode(raw) if raw else None


def receive_worker_message(channel: socket.socket, memory: TensorMemory) -> WorkerMessage | None:
    """Receive a message from a worker; None if it is gone.

    A non-blocking socket without a message raises `BlockingIOError`.
    """
    raw = _receive(channel, memory)
    return _WORKER_MESSAGES.decode(raw) if raw else None


def _receive(channel: socket.socket, memory: TensorMemory) -> bytes:
    try:
        raw, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 1)
    except ConnectionError:
        return b""
    for descriptor in descriptors:
        try:
            memory.map(descriptor)
        finally:
            os.close(descriptor)
    return raw
