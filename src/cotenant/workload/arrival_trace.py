"""Request arrival instants of published traces, in nanoseconds.

Sources: Azure/AzurePublicDataset (CC BY 4.0), whose instants keep their time of day; kvcache-ai/Mooncake (Apache-2.0).
"""

from __future__ import annotations

import gzip
import zlib
from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.units.table_row import REMEDY, number, table_rows, text_of

_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_SECOND_NS: Final = 1_000_000_000


class _Row(msgspec.Struct):
    timestamp: int


def read_azure(packed: bytes, where: str) -> tuple[int, ...]:
    """Return instants since midnight of the first day; the days of the trace are assumed to be consecutive."""
    days: list[str] = []
    instants = []
    for location, (stamp, _, _) in table_rows(_unpacked(packed, where), _COLUMNS, where):
        date, _, clock = stamp.partition(" ")
        parts = clock.split(":")
        if len(parts) != 3:
            raise ConfigError("TIMESTAMP", stamp, f"should be a date and hh:mm:ss; {REMEDY}", where=location)
        hours, minutes, seconds = (number(part, "TIMESTAMP", location, least=0, most=61) for part in parts)
        if date not in days:
            days.append(date)
        since_s = ((days.index(date) * 24 + hours) * 60 + minutes) * 60 + seconds
        instants.append(round(since_s * _SECOND_NS))
    return tuple(sorted(instants))


def read_mooncake(packed: bytes, where: str) -> tuple[int, ...]:
    """Return instants since the first request."""
    instants = []
    for line, row in enumerate(text_of(_unpacked(packed, where), where).splitlines(), start=1):
        try:
            instants.append(msgspec.json.decode(row, type=_Row).timestamp * 1_000_000)
        except msgspec.DecodeError as error:
            raise ConfigError("row", str(error), REMEDY, where=f"{where}:{line}") from None
    return tuple(sorted(instants))


def _unpacked(packed: bytes, where: str) -> bytes:
    try:
        return gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError("file", str(error), f"is not a complete gzip file; {REMEDY}", where=where) from None
