"""Read CSV tables of published data; an error names the file, the line and the field."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence

from cotenant.errors import ConfigError

REMEDY = "the file is damaged or of another version; fetch it again"


def text_of(content: bytes, where: str) -> str:
    """Return the UTF-8 text of a file; raise `ConfigError` if it is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            "file", error.object[error.start : error.start + 8], f"is not UTF-8; {REMEDY}", where=where
        ) from None


def table_rows(content: bytes, columns: Sequence[str], where: str) -> Iterator[tuple[str, list[str]]]:
    """Yield ("file:line", cells) for each row of a CSV file with exactly these columns; blank lines are skipped."""
    reader = csv.reader(io.StringIO(text_of(content, where)))
    try:
        header = next(reader, [])
        if header != list(columns):
            raise ConfigError(
                "header", ",".join(header), f"should be {','.join(columns)}; {REMEDY}", where=f"{where}:1"
            )
        for cells in reader:
            if not cells:
                continue
            location = f"{where}:{reader.line_num}"
            if len(cells) != len(columns):
                raise ConfigError(
                    "row", ",".join(cells), f"should have {len(columns)} fields; {REMEDY}", where=location
                )
            yield location, cells
    except csv.Error as error:
        raise ConfigError("row", str(error), REMEDY, where=f"{where}:{reader.line_num}") from None


def number(text: str, field: str, location: str, *, least: float, most: float = math.inf) -> float:
    """Return a finite number within bounds; raise `ConfigError` for any other text."""
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(field, text, f"should be a number; {REMEDY}", where=location) from None
    if not (math.isfinite(value) and least <= value <= most):
        bounds = f"at least {least:g}" if most == math.inf else f"{least:g} to {most:g}"
        raise ConfigError(field, text, f"should be {bounds}; {REMEDY}", where=location)
    return value


def whole(text: str, field: str, location: str, *, least: int, most: int = 10**15) -> int:
    """Return an integer within bounds; "12.0" is accepted."""
    value = number(text, field, location, least=least, most=most)
    if value != int(value):
        raise ConfigError(field, text, f"should be an integer; {REMEDY}", where=location)
    return int(value)
