"""How do tensors get from a server to its workers and back? Through memory of both; a socket says what lies where.

Each side owns the memory that it writes and makes a larger one when it must; the descriptor goes with the message that
needs it. The memory cannot be made shorter, so that nobody's end is a fault of the other. One run of a worker is under
way at a time, so one piece of memory each way is enough; what came back is copied out before the next run begins.
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

from cotenant.domain.tensor import Datatype, TensorSpec
from cotenant.format.tensor import NUMPY, Array, from_raw, to_raw

ROOM_LIMIT_BYTES: Final = 1 << 30
"""Of one direction of one worker."""
_MESSAGE_BYTES: Final = 1 << 16
_LEAST_BYTES: Final = 1 << 16
_ALIGNED: Final = 64
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Lies(msgspec.Struct, array_like=True, frozen=True):
    """A tensor in the memory of whoever sent the message."""

    datatype: Datatype
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


class Setup(msgspec.Struct, array_like=True, tag="setup", frozen=True):
    """Be this: what runs, and of which file."""

    kind: str
    path: str
    memory_bytes: int


class Do(msgspec.Struct, array_like=True, tag="do", frozen=True):
    """Run a batch."""

    run: int
    rows: int
    due_ns: int
    """By the system's monotonic clock: since when the first of it waits."""
    tensors: tuple[Lies, ...]
    inputs: tuple[str, ...]
    """The names of these, in their order: a config may have another one than the model's file."""
    outputs: tuple[str, ...]
    """Those that are wanted, in the order in which they are to lie."""


class Check(msgspec.Struct, array_like=True, tag="check", frozen=True):
    """Are you well? A worker whose device was taken away by another one's fault does not notice by itself."""


Errand: TypeAlias = Setup | Do | Check


class Hello(msgspec.Struct, array_like=True, tag="hello", frozen=True):
    """I can run it."""

    pid: int
    sms: int
    """That its kernels may use."""
    is_mps: bool
    device: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    means_batches: bool
    """Whether the model's file says that the first dimension of all of them is the batch."""


class Did(msgspec.Struct, array_like=True, tag="did", frozen=True):
    """A run is over."""

    run: int
    took_ns: int
    tensors: tuple[Lies, ...]


class Failed(msgspec.Struct, array_like=True, tag="failed", frozen=True):
    """A run failed; `is_last`: and so would every other, for the device is lost to me, so I end."""

    run: int
    why: str
    is_last: bool


class Sorry(msgspec.Struct, array_like=True, tag="sorry", frozen=True):
    """I cannot run it, so I end."""

    why: str


class Well(msgspec.Struct, array_like=True, tag="well", frozen=True):
    """The answer to a check."""


Word: TypeAlias = Hello | Did | Failed | Sorry | Well
_ERRANDS: Final = msgspec.msgpack.Decoder(Errand)
_WORDS: Final = msgspec.msgpack.Decoder(Word)
_encode: Final = msgspec.msgpack.Encoder().encode


class Room:
    """Memory that one side writes and the other reads."""

    def __init__(self) -> None:
        """None yet."""
        self._map: mmap.mmap | None = None
        self._view = np.empty(0, np.uint8)

    def make(self, size_bytes: int) -> int:
        """Have at least so much of it; a descriptor for the other side, -1 if it has that already."""
        if size_bytes <= len(self._view):
            return -1
        if size_bytes > ROOM_LIMIT_BYTES:
            raise ValueError(f"tensors of {size_bytes} bytes are more than the {ROOM_LIMIT_BYTES} that go into one run")
        size_bytes = max(_LEAST_BYTES, 1 << (size_bytes - 1).bit_length())
        descriptor = os.memfd_create("cotenant-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        self.take(descriptor)
        return descriptor

    def take(self, descriptor: int) -> None:
        """Use this memory from now on; the descriptor stays the caller's."""
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ValueError("memory for tensors could be made shorter behind our back")
        self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self._view = np.frombuffer(self._map, np.uint8)

    def write(self, at: int, raw: bytes | Array) -> None:
        """Put bytes or an array's elements into it."""
        if isinstance(raw, bytes):
            self._view[at : at + len(raw)] = np.frombuffer(raw, np.uint8)
        else:
            self._view[at : at + raw.nbytes].view(raw.dtype).reshape(raw.shape)[...] = raw

    def seen(self, lies: Lies) -> Array:
        """A tensor where it lies: valid until the other side writes again."""
        raw = self._view[lies.offset : lies.offset + lies.size_bytes].data
        return from_raw(lies.datatype, lies.shape, raw)


def lay_out(
    specs: Sequence[TensorSpec], columns: Sequence[Sequence[Array]], room: Room
) -> tuple[tuple[Lies, ...], int]:
    """Lay tensors into a room, the pieces of each one behind another; where they lie, and what `Room.make` gave."""
    raws: list[list[bytes | Array]] = []
    laid = []
    at = 0
    for spec, pieces in zip(specs, columns, strict=True):
        counted = spec.datatype is Datatype.BYTES
        raw: list[bytes | Array] = [to_raw(spec.datatype, one) if counted else one for one in pieces]
        size = sum(map(_size, raw))
        shape = pieces[0].shape
        if len(pieces) > 1:
            shape = (sum(one.shape[0] for one in pieces), *shape[1:])
        laid.append(Lies(spec.datatype, shape, at, size))
        raws.append(raw)
        at += -(-size // _ALIGNED) * _ALIGNED
    descriptor = room.make(at)
    for lies, raw in zip(laid, raws, strict=True):
        offset = lies.offset
        for piece in raw:
            room.write(offset, piece)
            offset += _size(piece)
    return tuple(laid), descriptor


def _size(raw: bytes | Array) -> int:
    return len(raw) if isinstance(raw, bytes) else raw.nbytes


def lie(specs: Sequence[TensorSpec], rows: int) -> tuple[tuple[Lies, ...], int]:
    """Where tensors of fixed shapes would lie, for so many rows, and the bytes they take."""
    laid = []
    at = 0
    for spec in specs:
        shape = tuple(rows if one < 0 else one for one in spec.shape)
        size = int(np.prod(shape, dtype=np.int64)) * NUMPY[spec.datatype].itemsize
        laid.append(Lies(spec.datatype, shape, at, size))
        at += -(-size // _ALIGNED) * _ALIGNED
    return tuple(laid), at


def send(line: socket.socket, message: Errand | Word, descriptor: int = -1) -> None:
    """One message, with a descriptor if there is one, which is closed here."""
    try:
        if descriptor < 0:
            line.send(_encode(message))
        else:
            socket.send_fds(line, [_encode(message)], [descriptor])
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def hear_errand(line: socket.socket, room: Room) -> Errand | None:
    """What the server wants; None: it is gone."""
    raw = _hear(line, room)
    return _ERRANDS.decode(raw) if raw else None


def hear_word(line: socket.socket, room: Room) -> Word | None:
    """What a worker says; None: it is gone. A line that does not block and has nothing is a `BlockingIOError`."""
    raw = _hear(line, room)
    return _WORDS.decode(raw) if raw else None


def _hear(line: socket.socket, room: Room) -> bytes:
    try:
        raw, descriptors, _, _ = socket.recv_fds(line, _MESSAGE_BYTES, 1)
    except ConnectionError:
        return b""
    for descriptor in descriptors:
        try:
            room.take(descriptor)
        finally:
            os.close(descriptor)
    return raw
