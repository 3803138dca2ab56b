"""What does a journal look like on disk? A magic line, then turns: a prefix and msgpack of (now, event, actions).

A node's and a cluster's differ in nothing but the events and actions that they hold.

The prefix is the length, its complement and the checksum of what follows, each 32-bit little-endian. The complement is
there because a length that was damaged would otherwise look like a file cut short, and sound turns be dropped.

A turn that the end of the file cuts short, or a last turn whose checksum is wrong, is a torn tail: its writer died,
nobody was told what it said, and it is dropped. Damage before that is not the work of a crash, and is an error that
names the place.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar, get_args

import msgspec

from cotenant.domain.action import Action
from cotenant.domain.clusters import ClusterAction, ClusterEvent
from cotenant.domain.event import Event
from cotenant.domain.instant import Instant
from cotenant.domain.value import Value
from cotenant.errors import PeerError

MAGIC: Final = b"cotenant journal 1\n"
TURN_LIMIT_BYTES: Final = 32 << 20
"""More than the head of a segment takes with every slot there can be held by the longest command."""
CLUSTER_LIMIT_BYTES: Final = 1 << 30
"""More than the head takes with every job that a cluster remembers, if their commands are of a usual length."""
_CHUNK_BYTES: Final = 64 << 10
_PREFIX: Final = struct.Struct("<III")
BEGINNING_BYTES: Final = len(MAGIC) + _PREFIX.size
_ALL_BITS: Final = 0xFFFF_FFFF


class Turn(Value, frozen=True):
    """One turn of a node's host: when, what was told, what was decided."""

    now: Instant
    event: Event
    actions: list[Action]


class ClusterTurn(Value, frozen=True):
    """One turn of a cluster's host."""

    now: Instant
    event: ClusterEvent
    actions: list[ClusterAction]


AnyTurn = TypeVar("AnyTurn", Turn, ClusterTurn)


_CLUSTER_TAGS: Final = frozenset(str(kind.__struct_config__.tag) for kind in get_args(ClusterEvent))


class JournalDamageError(PeerError):
    """A turn in the midst of the journal does not say what was written; the turns before it are sound."""

    def __init__(self, offset_bytes: int, turns: int, detail: str) -> None:
        """Name the place and how much before it is sound."""
        self.offset_bytes = offset_bytes
        self.turns = turns
        super().__init__(f"damaged at byte {offset_bytes}, after {turns} sound turns: {detail}")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Turn)
_cluster_decoder = msgspec.msgpack.Decoder(ClusterTurn)


def encode_turn(now: Instant, event: Value, actions: Sequence[Value]) -> bytes:
    """One turn as it stands in the file."""
    payload = _encoder.encode((now, event, actions))
    length = len(payload)
    return _PREFIX.pack(length, length ^ _ALL_BITS, zlib.crc32(payload)) + payload


class Segment:
    """How large a segment is, and whether it is time for the next.

    That is past the limit, but not before the head is at most half of it: a node with many tenants and a small limit
    would otherwise write nothing but heads.
    """

    __slots__ = ("_head_bytes", "_limit_bytes", "size_bytes")

    def __init__(self, limit_bytes: int) -> None:
        """Nothing is written yet."""
        self._limit_bytes = limit_bytes
        self._head_bytes = 0
        self.size_bytes = 0

    def resume(self, size_bytes: int, beginning: bytes) -> None:
        """Go on with a file of this size; `beginning` is at least its first `BEGINNING_BYTES`, if it has them."""
        self.size_bytes = size_bytes
        prefix = beginning[len(MAGIC) : BEGINNING_BYTES]
        self._head_bytes = BEGINNING_BYTES + int(_PREFIX.unpack(prefix)[0]) if len(prefix) == _PREFIX.size else 0

    def grow(self, written_bytes: int) -> bool:
        """One more turn; True when the next segment should begin."""
        self.size_bytes += written_bytes
        if not self._head_bytes:
            self._head_bytes = self.size_bytes
        return self.size_bytes > self._limit_bytes and self.size_bytes >= 2 * self._head_bytes


class Reader(Generic[AnyTurn]):
    """Streams turns out of a `read(n)` function; afterwards `sound_bytes` and `torn_bytes` say how the file ended.

    Iterated once more it goes on, with what was written meanwhile; `read` must then begin at `sound_bytes`.
    """

    def __init__(
        self, read: Callable[[int], bytes], decoder: msgspec.msgpack.Decoder[AnyTurn], limit_bytes: int
    ) -> None:
        """Read nothing yet."""
        self._read = read
        self._decoder: msgspec.msgpack.Decoder[AnyTurn] = decoder
        self._limit_bytes = limit_bytes
        self.turns = 0
        self.sound_bytes = 0
        self.torn_bytes = 0
        self.last_instant: Instant = 0
        """Of the last turn that was read."""

    def __iter__(self) -> Iterator[AnyTurn]:
        """Every sound turn in order; raises `JournalDamageError` where damage is more than a torn tail."""
        self.torn_bytes = 0
        if not self.sound_bytes:
            magic = self._read(len(MAGIC))
            if magic != MAGIC:
                if MAGIC.startswith(magic):  # not even the first line was written
                    self.torn_bytes = len(magic)
                    return
                raise JournalDamageError(0, 0, "this is not a cotenant journal, or one of another version")
            self.sound_bytes = len(MAGIC)
        while prefix := self._read(_PREFIX.size):
            turn = self._turn(prefix)
            if turn is None:
                return
            yield turn

    def _turn(self, prefix: bytes) -> AnyTurn | None:
        if len(prefix) < _PREFIX.size:
            self._torn(prefix)
            return None
        length, complement, checksum = _PREFIX.unpack(prefix)
        if length ^ complement != _ALL_BITS or not 0 < length <= self._limit_bytes:
            if not any(prefix) and self._zeros_to_the_end():
                return None
            raise JournalDamageError(self.sound_bytes, self.turns, "the length of a turn is not what was written")
        payload = self._read(length)
        if len(payload) < length:
            self._torn(prefix + payload)
            return None
        if zlib.crc32(payload) != checksum:
            following = self._read(1)
            if following:
                raise JournalDamageError(self.sound_bytes, self.turns, "the checksum is wrong")
            self._torn(prefix + payload)
            return None
        try:
            turn: AnyTurn = self._decoder.decode(payload)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise JournalDamageError(self.sound_bytes, self.turns, f"cannot be read: {error}") from None
        self.turns += 1
        self.last_instant = turn.now
        self.sound_bytes += _PREFIX.size + length
        return turn

    def _torn(self, tail: bytes) -> None:
        self.torn_bytes = len(tail)
        while more := self._read(_CHUNK_BYTES):
            self.torn_bytes += len(more)

    def _zeros_to_the_end(self) -> bool:
        """A file system may leave zeros behind a lost write; anything after them is no torn tail."""
        size_bytes = _PREFIX.size
        while more := self._read(_CHUNK_BYTES):
            if more.count(0) != len(more):
                return False
            size_bytes += len(more)
        self.torn_bytes = size_bytes
        return True


def is_of_cluster(read: Callable[[int], bytes]) -> bool:
    """Whether a journal is a cluster's, by its first turn; one that cannot be read is as good as a node's."""
    beginning = read(BEGINNING_BYTES)
    if len(beginning) < BEGINNING_BYTES:
        return False
    length = int(_PREFIX.unpack(beginning[len(MAGIC) :])[0])
    if length > CLUSTER_LIMIT_BYTES:
        return False
    try:
        _, event, *_ = msgspec.msgpack.decode(read(length))
        return isinstance(event, list) and event[0] in _CLUSTER_TAGS
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError, TypeError, IndexError):
        return False


class TurnReader(Reader[Turn]):
    """Of a node's journal."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        """Read nothing yet."""
        super().__init__(read, _decoder, TURN_LIMIT_BYTES)


class ClusterReader(Reader[ClusterTurn]):
    """Of a cluster's journal."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        """Read nothing yet."""
        super().__init__(read, _cluster_decoder, CLUSTER_LIMIT_BYTES)
