"""Does a journal say what was written, and nothing else, wherever it ends and whatever befell it?"""

import io
import zlib

import pytest

from cotenant.format.journal import MAGIC, JournalDamageError, Turn, TurnReader


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "little") + zlib.crc32(payload).to_bytes(4, "little") + payload


def read(content: bytes) -> tuple[list[Turn], TurnReader]:
    reader = TurnReader(io.BytesIO(content).read)
    return list(reader), reader


def test_text_that_is_no_text_is_damage() -> None:
    with pytest.raises(JournalDamageError, match="after 0 sound turns"):
        read(MAGIC + framed(b"\x93\x01\x93\xa4left\x02\xa2\xff\xff\x90"))
