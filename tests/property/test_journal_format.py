"""Does a journal say what was written, and nothing else, wherever it ends and whatever befell it?"""

import io
import zlib

import pytest

from cotenant.domain.event import Woke
from cotenant.format.journal import MAGIC, JournalDamageError, Turn, TurnReader, encode_turn


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "little") + zlib.crc32(payload).to_bytes(4, "little") + payload


def read(content: bytes) -> tuple[list[Turn], TurnReader]:
    reader = TurnReader(io.BytesIO(content).read)
    return list(reader), reader


def test_text_that_is_no_text_is_damage() -> None:
    with pytest.raises(JournalDamageError, match="after 0 sound turns"):
        read(MAGIC + framed(b"\x93\x01\x93\xa4left\x02\xa2\xff\xff\x90"))


def test_a_turn_behind_many_zeros_is_not_dropped_unseen() -> None:
    turn = encode_turn(1, Woke(), [])
    with pytest.raises(JournalDamageError, match="after 1 sound turns"):
        read(MAGIC + turn + bytes(33 << 20) + turn)


def test_zeros_at_the_end_are_read_in_small_pieces() -> None:
    file = io.BytesIO(MAGIC + bytes(1 << 20))
    asked: list[int] = []

    def read_some(size: int) -> bytes:
        asked.append(size)
        return file.read(size)

    reader = TurnReader(read_some)
    assert list(reader) == []
    assert reader.torn_bytes == 1 << 20
    assert max(asked) <= 64 << 10
