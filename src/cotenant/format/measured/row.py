"""What does one row of a published table hold? Numbers with a name, or a sentence that says which row is damaged."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence

from cotenant.errors import ConfigError

REMEDY = "the file is damaged or of another version; fetch it again"


def text_of(content: bytes, where: str) -> str:
    """The text of a file; ConfigError if it is none."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            "file", error.object[error.start : error.start + 8], f"is not UTF-8; {REMEDY}", where=where
        ) from None


def table_rows(content: bytes, columns: Sequence[str], where: str) -> Iterator[tuple[str, list[str]]]:
    """Each row of a CSV file with exactly these columns, after its place ("file:line"); blank lines are passed over."""
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
            place = f"{where}:{reader.line_num}"
            if len(cells) != len(columns):
                raise ConfigError("row", ",".join(cells), f"should have {len(columns)} fields; {REMEDY}", where=place)
            yield place, cells
    except csv.Error as error:
        raise ConfigError("row", str(error), REMEDY, where=f"{where}:{reader.line_num}") from None


def number(text: str, field: str, place: str, *, least: float, most: float = math.inf) -> float:
    """A finite number within bounds."""
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(field, text, f"should be a number; {REMEDY}", where=place) from None
    if not (math.isfinite(value) and least <= value <= most):
        bounds = f"at least {least:g}" if most == math.inf else f"{least:g} to {most:g}"
        raise ConfigError(field, text, f"should be {bounds}; {REMEDY}", where=place)
    return value


def whole(text: str, field: str, place: str, *, least: int, most: int = 10**15) -> int:
    """A whole number within bounds; "12.0" is one."""
    value = number(text, field, place, least=least, most=most)
    if value != int(value):
        raise ConfigError(field, text, f"should be a whole number; {REMEDY}", where=place)
    return int(value)
