"""A journal decodes to the turns that were written, wherever it ends and however it is damaged."""

import io
import zlib

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cotenant.node.journal import TURN_LIMIT_BYTES, NodeJournalReader, NodeTurn
from cotenant.node.model.event import TimerFired
from cotenant.runner.journal import MAGIC, JournalDamageError, encode_turn
from tests.support.effort import examples
from tests.support.strategies import turns


def encoded(turn: NodeTurn) -> bytes:
    return encode_turn(turn.now, turn.event, turn.actions)


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "little") + zlib.crc32(payload).to_bytes(4, "little") + payload


def read(content: bytes) -> tuple[list[NodeTurn], NodeJournalReader]:
    reader = NodeJournalReader(io.BytesIO(content).read)
    return list(reader), reader


def test_invalid_utf8_is_damage() -> None:
    with pytest.raises(JournalDamageError, match="after 0 readable turns"):
        read(MAGIC + framed(b"\x93\x01\x93\xa4left\x02\xa2\xff\xff\x90"))


def test_turn_after_many_zeros_is_not_dropped_silently() -> None:
    turn = encode_turn(1, TimerFired(), [])
    with pytest.raises(JournalDamageError, match="after 1 readable turns"):
        read(MAGIC + turn + bytes(33 << 20) + turn)


def test_zeros_at_the_end_are_read_in_small_chunks() -> None:
    file = io.BytesIO(MAGIC + bytes(1 << 20))
    sizes: list[int] = []

    def read_some(size: int) -> bytes:
        sizes.append(size)
        return file.read(size)

    reader = NodeJournalReader(read_some)
    assert list(reader) == []
    assert reader.torn_bytes == 1 << 20
    assert max(sizes) <= 64 << 10


@given(st.lists(turns, max_size=5))
def test_journal_round_trips(written: list[NodeTurn]) -> None:
    chunks = [MAGIC, *map(encoded, written)]
    decoded, reader = read(b"".join(chunks))
    assert decoded == written
    assert (reader.turns, reader.torn_bytes, reader.sound_bytes) == (len(written), 0, sum(map(len, chunks)))


@settings(max_examples=examples(12, 250))  # each example is cut at every byte
@given(st.lists(turns, min_size=1, max_size=3))
def test_every_cut_keeps_exactly_the_turns_before_it(written: list[NodeTurn]) -> None:
    ends = [len(MAGIC)]
    for turn in written:
        ends.append(ends[-1] + len(encoded(turn)))
    content = MAGIC + b"".join(map(encoded, written))
    for cut in range(len(content) + 1):
        decoded, reader = read(content[:cut])
        sound = max((end for end in ends if end <= cut), default=0)
        assert decoded == written[: max(sum(end <= cut for end in ends) - 1, 0)]
        assert (reader.sound_bytes, reader.torn_bytes) == (sound, cut - sound)


@settings(max_examples=examples(10, 200))  # each bit of an example is flipped
@given(st.lists(turns, min_size=1, max_size=2))
def test_flipped_bit_is_always_detected(written: list[NodeTurn]) -> None:
    content = MAGIC + b"".join(map(encoded, written))
    assume(len(content) < 600)
    for index in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[index] ^= 1 << bit
            reader = NodeJournalReader(io.BytesIO(flipped).read)
            decoded: list[NodeTurn] = []
            try:
                decoded.extend(reader)
            except JournalDamageError as damage:
                assert damage.turns == len(decoded)  # noqa: PT017  damage or a torn tail, both are right
            else:
                assert reader.torn_bytes
            assert decoded == written[: len(decoded)]
            assert len(decoded) < len(written)


@given(st.lists(turns, max_size=2), st.integers(1, 300))
def test_zeros_at_the_end_are_a_torn_tail(written: list[NodeTurn], zeros: int) -> None:
    decoded, reader = read(MAGIC + b"".join(map(encoded, written)) + bytes(zeros))
    assert decoded == written
    assert reader.torn_bytes == zeros


def test_damaged_length_is_not_a_torn_tail() -> None:
    turn = encode_turn(1, TimerFired(), [])
    longer = bytearray(turn)
    longer[1] ^= 4  # 1,024 bytes more than there are
    with pytest.raises(JournalDamageError, match="the length of a turn is damaged") as caught:
        read(MAGIC + turn + bytes(longer) + turn)
    assert caught.value.turns == 1


def test_bad_last_turn_is_torn_and_bad_earlier_turn_is_damage() -> None:
    turn = encode_turn(1, TimerFired(), [])
    bad = turn[:-1] + bytes([turn[-1] ^ 1])
    decoded, reader = read(MAGIC + turn + bad)
    assert (len(decoded), reader.torn_bytes) == (1, len(bad))
    with pytest.raises(JournalDamageError, match="the checksum is wrong") as caught:
        read(MAGIC + turn + bad + turn)
    assert (caught.value.offset_bytes, caught.value.turns) == (len(MAGIC + turn), 1)


@pytest.mark.parametrize("content", [b"x", b"cotenant journal 3\n", b"\x00" * 30, MAGIC[:-1] + b" "])
def test_file_without_the_magic_line_is_refused(content: bytes) -> None:
    with pytest.raises(JournalDamageError, match="not a cotenant journal"):
        read(content)


def test_empty_file_is_an_empty_journal() -> None:
    decoded, reader = read(b"")
    assert (decoded, reader.sound_bytes, reader.torn_bytes) == ([], 0, 0)


def test_oversized_turn_is_refused_unread() -> None:
    length = TURN_LIMIT_BYTES + 1
    file = io.BytesIO(MAGIC + length.to_bytes(4, "little") + (length ^ 0xFFFF_FFFF).to_bytes(4, "little") + bytes(100))
    with pytest.raises(JournalDamageError, match="the length of a turn is damaged"):
        list(NodeJournalReader(file.read))
    assert file.tell() == len(MAGIC) + 12


@given(st.lists(turns, min_size=1, max_size=4))
def test_reader_reads_one_turn_at_a_time(written: list[NodeTurn]) -> None:
    """When a turn is yielded, no byte after it has been read, and no read is larger than one turn."""
    file = io.BytesIO(MAGIC + b"".join(map(encoded, written)))
    sizes: list[int] = []

    def read_some(size: int) -> bytes:
        sizes.append(size)
        return file.read(size)

    position = len(MAGIC)
    for turn, expected in zip(NodeJournalReader(read_some), written, strict=True):
        position += len(encoded(expected))
        assert turn == expected
        assert file.tell() == position
    assert max(sizes) <= max(len(MAGIC), *(len(encoded(turn)) for turn in written))


@given(st.binary(max_size=200))
def test_any_bytes_decode_to_turns_a_torn_tail_or_damage(tail: bytes) -> None:
    for content in (tail, MAGIC + tail, MAGIC + framed(tail)):
        reader = NodeJournalReader(io.BytesIO(content).read)
        try:
            list(reader)
        except JournalDamageError:
            continue
        assert reader.sound_bytes + reader.torn_bytes == len(content)
