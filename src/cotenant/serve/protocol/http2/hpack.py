"""HPACK (https://www.rfc-editor.org/rfc/rfc7541): a complete decoder, and an encoder without a dynamic table.

Decoded blocks are cached, because clients repeat them.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

Header = tuple[bytes, bytes]

TABLE_BYTES: Final = 4096
"""SETTINGS_HEADER_TABLE_SIZE; this server keeps the default."""
LIST_LIMIT_BYTES: Final = 16 << 10
_ENTRY_BYTES: Final = 32
_CACHED_BLOCKS: Final = 64
_CACHED_LENGTH_LIMIT: Final = 1024
"""Longer blocks are not cached, because every connection has its own cache."""
_CACHED_TEXTS: Final = 4096
_CODE_LENGTHS: Final = (
    "13 23 28x7 24 30 28x2 30 28x8 30 28x9 6 10x2 12 13 6 8 11 10x2 8 11 8 6x3 5x3 6x7 7 8 15 6 12 10 13 6 "
    "7x22 8 7 8 13 19 13 14 6 15 5 6 5 6 5 6x3 5 7x2 6x3 5 6 7 6 5x2 6 7x5 15 11 14 13 28 20 22 20x2 22x3 23 "
    "22 23x5 24 23 24x2 22 23 24 23x4 21 22 23 22 23x2 24 22 21 20 22x2 23x2 21 23 22x2 24 21 22 23x2 21x2 22 "
    "21 23 22 23x2 20 22x3 23 22x2 23 26x2 20 19 22 23 22 25 26x3 27x2 26 24 25 19 21 26 27x2 26 27 24 21x2 "
    "26x2 28 27x3 20 24 20 21 22 21x2 23 22x2 25x2 24x2 26 23 26 27 26x2 27x5 28 27x5 26 30 "
)
"""Huffman code lengths (RFC 7541, appendix B) of each byte and of EOS, as LENGTHxREPEAT; the code is canonical."""
_STATIC: Final = (
    ":authority|:method=GET|:method=POST|:path=/|:path=/index.html|:scheme=http|:scheme=https|:status=200|"
    ":status=204|:status=206|:status=304|:status=400|:status=404|:status=500|accept-charset|"
    "accept-encoding=gzip, deflate|accept-language|accept-ranges|accept|access-control-allow-origin|age|allow|"
    "authorization|cache-control|content-disposition|content-encoding|content-language|content-length|"
    "content-location|content-range|content-type|cookie|date|etag|expect|expires|from|host|if-match|if-modified-since|"
    "if-none-match|if-range|if-unmodified-since|last-modified|link|location|max-forwards|proxy-authenticate|"
    "proxy-authorization|range|referer|refresh|retry-after|server|set-cookie|strict-transport-security|"
    "transfer-encoding|user-agent|vary|via|www-authenticate"
)


class HpackError(Exception):
    """A header block is invalid; the connection must end."""


def _codes() -> dict[tuple[int, int], int]:
    lengths: list[int] = []
    for run in _CODE_LENGTHS.split():
        length, _, repeat = run.partition("x")
        lengths += [int(length)] * int(repeat or 1)
    codes = {}
    code = 0
    previous_length = 0
    for symbol in sorted(range(len(lengths)), key=lambda symbol: (lengths[symbol], symbol)):
        code <<= lengths[symbol] - previous_length
        previous_length = lengths[symbol]
        codes[previous_length, code] = symbol
        code += 1
    return codes


_END_SYMBOL: Final = 256


class _Step(NamedTuple):
    """What a byte of a Huffman-coded string means after a part of a code."""

    text: bytes
    """The symbols that end in this byte."""
    node: int
    """The part of a code that follows them: the bits after a leading 1; -1: the string is invalid."""


_ROOT: Final = 1
_INVALID: Final = _Step(b"", -1)
_STEPS_LIMIT: Final = 1 << 16


def _step(node: int, byte: int) -> _Step:
    out = bytearray()
    for shift in range(7, -1, -1):
        node = node << 1 | byte >> shift & 1
        length = node.bit_length() - 1
        symbol = _CODES.get((length, node - (1 << length)))
        if symbol is not None:
            if symbol == _END_SYMBOL:
                return _INVALID
            out.append(symbol)
            node = _ROOT
        elif length > _LONGEST:
            return _INVALID
    return _Step(bytes(out), node)


_CODES: Final = _codes()
_LONGEST: Final = max(length for length, _ in _CODES)
_steps: Final[dict[int, _Step]] = {}
"""Steps that occurred before, by node and byte: bytes are decoded about eight times as fast as single bits."""


def huffman_decode(packed: bytes) -> bytes:
    """Decode a Huffman-coded string."""
    parts = []
    node = _ROOT
    for byte in packed:
        key = node << 8 | byte
        step = _steps.get(key)
        if step is None:
            step = _step(node, byte)
            if len(_steps) < _STEPS_LIMIT:
                _steps[key] = step
        text, node = step
        if node < 0:
            raise HpackError("a string contains an invalid Huffman code")
        if text:
            parts.append(text)
    length = node.bit_length() - 1
    if length > 7 or node != (2 << length) - 1:
        raise HpackError("a Huffman-coded string has invalid padding")
    return b"".join(parts)


_cached_huffman_decode: Final = functools.lru_cache(_CACHED_TEXTS)(huffman_decode)


def _static() -> tuple[Header, ...]:
    pairs = []
    for entry in _STATIC.split("|"):
        name, _, value = entry.partition("=")
        pairs.append((name.encode(), value.encode()))
    return tuple(pairs)


STATIC: Final = _static()


class HpackDecoder:
    """Decoder of one connection, with its dynamic table."""

    def __init__(self) -> None:
        """Start with an empty dynamic table."""
        self._table: list[Header] = []
        self._size = 0
        self._limit = TABLE_BYTES
        self._cache: dict[bytes, tuple[Header, ...]] = {}

    def decode(self, block: bytes) -> tuple[Header, ...]:
        """Return the header fields of a block, in order."""
        cached = self._cache.get(block)
        if cached is not None:
            return cached
        headers: list[Header] = []
        total = 0
        position = 0
        is_cacheable = True
        while position < len(block):
            first_byte = block[position]
            if first_byte & 0x80:
                index, position = read_number(block, position, 7)
                header = self._entry(index)
            elif first_byte & 0xE0 == 0x20:
                size, position = read_number(block, position, 5)
                if size > TABLE_BYTES or headers:
                    raise HpackError("a table size update is invalid or not at the start of a block")
                self._limit = size
                self._evict(0)
                is_cacheable = False
                continue
            else:
                header, position = self._literal(block, position, first_byte)
                if first_byte & 0x40:
                    self._insert(header)
                    is_cacheable = False
            headers.append(header)
            total += len(header[0]) + len(header[1]) + _ENTRY_BYTES
            if total > LIST_LIMIT_BYTES:
                raise HpackError(f"the headers exceed the limit of {LIST_LIMIT_BYTES} bytes")
        if (
            is_cacheable and len(self._cache) < _CACHED_BLOCKS and len(block) <= _CACHED_LENGTH_LIMIT
        ):  # the result holds until the dynamic table changes
            self._cache[block] = tuple(headers)
        return tuple(headers)

    def _literal(self, block: bytes, position: int, first_byte: int) -> tuple[Header, int]:
        index, position = read_number(block, position, 6 if first_byte & 0x40 else 4)
        if index:
            name = self._entry(index)[0]
        else:
            name, position = _text(block, position)
        value, position = _text(block, position)
        return (name, value), position

    def _entry(self, index: int) -> Header:
        if 1 <= index <= len(STATIC):
            return STATIC[index - 1]
        position = len(self._table) - (index - len(STATIC))
        if index == 0 or position < 0:
            raise HpackError(f"header index {index} is not in the table")
        return self._table[position]

    def _insert(self, header: Header) -> None:
        size = len(header[0]) + len(header[1]) + _ENTRY_BYTES
        self._evict(size)
        if size <= self._limit:
            self._table.append(header)
            self._size += size

    def _evict(self, incoming_size: int) -> None:
        self._cache.clear()
        evicted = 0
        while evicted < len(self._table) and self._size + incoming_size > self._limit:
            name, value = self._table[evicted]
            self._size -= len(name) + len(value) + _ENTRY_BYTES
            evicted += 1
        del self._table[:evicted]


def read_number(block: bytes, position: int, bits: int) -> tuple[int, int]:
    """Decode an integer (RFC 7541, section 5.1); return it and the next position."""
    try:
        mask = (1 << bits) - 1
        number = block[position] & mask
        position += 1
        if number < mask:
            return number, position
        shift = 0
        while True:
            byte = block[position]
            position += 1
            number += (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return number, position
            if shift > 28:
                raise HpackError("an integer is too long")
    except IndexError:
        raise HpackError("a header block is truncated") from None


def _text(block: bytes, position: int) -> tuple[bytes, int]:
    if position >= len(block):
        raise HpackError("a header block is truncated")
    packed = block[position] & 0x80
    length, position = read_number(block, position, 7)
    end = position + length
    if end > len(block):
        raise HpackError("a header block is truncated")
    if length > LIST_LIMIT_BYTES:
        raise HpackError(f"a string of {length} bytes exceeds the limit of {LIST_LIMIT_BYTES} bytes")
    text = block[position:end]
    if packed:
        text = _cached_huffman_decode(text) if length <= _CACHED_LENGTH_LIMIT else huffman_decode(text)
    return text, end


def write_number(number: int, bits: int, flags: int) -> bytes:
    """Encode an integer (RFC 7541, section 5.1) behind the flags of its first byte."""
    mask = (1 << bits) - 1
    if number < mask:
        return bytes((flags | number,))
    out = bytearray((flags | mask,))
    number -= mask
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_header(name: bytes, value: bytes) -> bytes:
    """Encode a literal header field without indexing (RFC 7541, section 6.2.2)."""
    return b"\x00" + write_number(len(name), 7, 0) + name + write_number(len(value), 7, 0) + value
