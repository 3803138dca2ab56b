"""The format of a journal on disk: a magic line, then turns; a turn is a prefix and msgpack of (now, event, actions).

The prefix holds the length, its complement and the CRC-32 of the payload, each a 32-bit little-endian integer. The
complement detects a damaged length, which would otherwise look like a truncated file and drop the turns after it.

A last turn that is truncated, or whose checksum is wrong, is a torn tail: the writer died before it carried out any
action of that turn, so the turn is dropped. Damage before the last turn cannot come from a crash of the writer; it is
an error that names the offset.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from cotenant.errors import PeerError
from cotenant.units.instant import Instant
from cotenant.units.value import Value

MAGIC: Final = b"cotenant journal 2\n"
_CHUNK_BYTES: Final = 64 << 10
_PREFIX: Final = struct.Struct("<III")
BEGINNING_BYTES: Final = len(MAGIC) + _PREFIX.size
_ALL_BITS: Final = 0xFFFF_FFFF

E = TypeVar("E")
A = TypeVar("A")


class Turn(Value, Generic[E, A], frozen=True):
    """One turn of a state machine: the instant, the event, and the actions that the machine returned."""

    now: Instant
    event: E
    actions: list[A]


AnyTurn = TypeVar("AnyTurn", bound=Turn[Any, Any])

ReadBytes: TypeAlias = Callable[[int], bytes]
"""Returns up to this many bytes, as `read` of a binary file does."""


class JournalDamageError(PeerError):
    """A turn before the end of the journal cannot be read; the turns before it can."""

    def __init__(self, offset_bytes: int, turns: int, detail: str) -> None:
        """Name the offset of the damage and the number of turns before it."""
        self.offset_bytes = offset_bytes
        self.turns = turns
        super().__init__(f"damaged at byte {offset_bytes}, after {turns} readable turns: {detail}")


_encoder = msgspec.msgpack.Encoder()


def encode_turn(now: Instant, event: Value, actions: Sequence[Value]) -> bytes:
    """Return the bytes of one turn as the file holds them."""
    payload = _encoder.encode((now, event, actions))
    length = len(payload)
    return _PREFIX.pack(length, length ^ _ALL_BITS, zlib.crc32(payload)) + payload


class Segment:
    """The size of a segment, and whether the next segment is due.

    The next segment is due when this one exceeds the limit and is at least twice as large as its head. Without the
    second condition a node with many tenants and a small limit would write nothing but heads.
    """

    __slots__ = ("_head_bytes", "_limit_bytes", "size_bytes")

    def __init__(self, limit_bytes: int) -> None:
        """Start with an empty segment."""
        self._limit_bytes = limit_bytes
        self._head_bytes = 0
        self.size_bytes = 0

    def resume(self, size_bytes: int, beginning: bytes) -> None:
        """Continue a file of this size; `beginning` holds its first `BEGINNING_BYTES`, or fewer if it is shorter."""
        self.size_bytes = size_bytes
        prefix = beginning[len(MAGIC) : BEGINNING_BYTES]
        self._head_bytes = BEGINNING_BYTES + int(_PREFIX.unpack(prefix)[0]) if len(prefix) == _PREFIX.size else 0

    def grow(self, written_bytes: int) -> bool:
        """Add one turn of this size; return True when the next segment is due."""
        self.size_bytes += written_bytes
        if not self._head_bytes:
            self._head_bytes = self.size_bytes
        return self.size_bytes > self._limit_bytes and self.size_bytes >= 2 * self._head_bytes


class JournalReader(Generic[AnyTurn]):
    """Iterates over the turns that a `read` function returns.

    Afterwards `sound_bytes` is the size of the readable part and `torn_bytes` that of the torn tail. Iterating again
    continues with the turns written meanwhile; `read` must then begin at `sound_bytes`.
    """

    def __init__(self, read: ReadBytes, decoder: msgspec.msgpack.Decoder[AnyTurn], limit_bytes: int) -> None:
        """Read turns of at most `limit_bytes`; nothing is read until the first iteration."""
        self._read = read
        self._decoder: msgspec.msgpack.Decoder[AnyTurn] = decoder
        self._limit_bytes = limit_bytes
        self.turns = 0
        self.sound_bytes = 0
        self.torn_bytes = 0

    def __iter__(self) -> Iterator[AnyTurn]:
        """Yield every readable turn in order; raise `JournalDamageError` for damage before the last turn."""
        self.torn_bytes = 0
        if not self.sound_bytes:
            magic = self._read(len(MAGIC))
            if magic != MAGIC:
                if MAGIC.startswith(magic):  # the writer died before it had written the first line
                    self.torn_bytes = len(magic)
                    return
                raise JournalDamageError(0, 0, "the file is not a cotenant journal, or one of another version")
            self.sound_bytes = len(MAGIC)
        while prefix := self._read(_PREFIX.size):
            turn = self._turn(prefix)
            if turn is None:
                return
            yield turn

    def _turn(self, prefix: bytes) -> AnyTurn | None:
        if len(prefix) < _PREFIX.size:
            self._skip_torn_tail(prefix)
            return None
        length, complement, checksum = _PREFIX.unpack(prefix)
        if length ^ complement != _ALL_BITS or not 0 < length <= self._limit_bytes:
            if not any(prefix) and self._skip_zeros():
                return None
            raise JournalDamageError(self.sound_bytes, self.turns, "the length of a turn is damaged")
        payload = self._read(length)
        if len(payload) < length:
            self._skip_torn_tail(prefix + payload)
            return None
        if zlib.crc32(payload) != checksum:
            following = self._read(1)
            if following:
                raise JournalDamageError(self.sound_bytes, self.turns, "the checksum is wrong")
            self._skip_torn_tail(prefix + payload)
            return None
        try:
            turn: AnyTurn = self._decoder.decode(payload)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise JournalDamageError(self.sound_bytes, self.turns, f"cannot be decoded: {error}") from None
        self.turns += 1
        self.sound_bytes += _PREFIX.size + length
        return turn

    def _skip_torn_tail(self, tail: bytes) -> None:
        self.torn_bytes = len(tail)
        while chunk := self._read(_CHUNK_BYTES):
            self.torn_bytes += len(chunk)

    def _skip_zeros(self) -> bool:
        """Return whether only zeros follow: some file systems leave zeros in place of a lost write."""
        size_bytes = _PREFIX.size
        while chunk := self._read(_CHUNK_BYTES):
            if chunk.count(0) != len(chunk):
                return False
            size_bytes += len(chunk)
        self.torn_bytes = size_bytes
        return True
