"""What does a journal look like on disk? A magic line, then turns: length, checksum, msgpack of (now, event, actions).

The length and the checksum are 32-bit little-endian. A turn that the end of the file cuts short, or a last turn whose
checksum is wrong, is a torn tail: its writer died, nobody was told what it said, and it is dropped. Damage before that
is not the work of a crash, and is an error that names the place.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from cotenant.domain.action import Action
from cotenant.domain.event import Event
from cotenant.domain.instant import Instant
from cotenant.domain.value import Value
from cotenant.errors import PeerError

MAGIC: Final = b"cotenant journal 1\n"
TURN_LIMIT_BYTES: Final = 32 << 20
"""Holds the whole of the largest node, which is what stands at the head of a segment."""
_PREFIX: Final = struct.Struct("<II")


class Turn(Value, frozen=True):
    """One turn of a host: when, what was told, what was decided."""

    now: Instant
    event: Event
    actions: list[Action]


class JournalDamageError(PeerError):
    """A turn in the midst of the journal does not say what was written; the turns before it are sound."""

    def __init__(self, offset_bytes: int, turns: int, detail: str) -> None:
        """Name the place and how much before it is sound."""
        self.offset_bytes = offset_bytes
        self.turns = turns
        super().__init__(f"damaged at byte {offset_bytes}, after {turns} sound turns: {detail}")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Turn)


def encode_turn(now: Instant, event: Event, actions: list[Action]) -> bytes:
    """One turn as it stands in the file."""
    payload = _encoder.encode((now, event, actions))
    return _PREFIX.pack(len(payload), zlib.crc32(payload)) + payload


class TurnReader:
    """Streams turns out of a `read(n)` function; afterwards `sound_bytes` and `torn_bytes` say how the file ended."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        """Read nothing yet."""
        self._read = read
        self.turns = 0
        self.sound_bytes = 0
        self.torn_bytes = 0

    def __iter__(self) -> Iterator[Turn]:
        """Every sound turn in order; raises `JournalDamageError` where damage is more than a torn tail."""
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

    def _turn(self, prefix: bytes) -> Turn | None:
        if len(prefix) < _PREFIX.size:
            self._torn(prefix)
            return None
        length, checksum = _PREFIX.unpack(prefix)
        if length == 0 or length > TURN_LIMIT_BYTES:
            rest = self._read(TURN_LIMIT_BYTES)
            if length == 0 and not any(rest) and not checksum:  # a file system may leave zeros behind a lost write
                self._torn(prefix + rest)
                return None
            raise JournalDamageError(self.sound_bytes, self.turns, f"a turn of {length} bytes cannot be")
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
            turn = _decoder.decode(payload)
        except msgspec.MsgspecError as error:
            raise JournalDamageError(self.sound_bytes, self.turns, f"cannot be read: {error}") from None
        self.turns += 1
        self.sound_bytes += _PREFIX.size + length
        return turn

    def _torn(self, tail: bytes) -> None:
        self.torn_bytes = len(tail)
        while more := self._read(1 << 16):
            self.torn_bytes += len(more)
