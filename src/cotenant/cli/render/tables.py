"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cotenant.units.instant import SECOND_NS

_NAME_CELLS: Final = 14


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, fold: bool = False) -> Table:
    """Return a table without borders. Rows stay on one line and the last column is cut, unless cells may `fold`."""
    result = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    all_rows = [list(row) for row in rows]
    for index, column in enumerate(columns):
        can_shrink = fold or index == len(columns) - 1
        width = max((len(row[index]) for row in all_rows), default=0)
        min_width = None if can_shrink else max(width, len(column))
        result.add_column(column, overflow="fold" if fold else "ellipsis", no_wrap=not fold, min_width=min_width)
    for row in all_rows:
        result.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row))
    return result


def printable(text: str) -> str:
    """Replace control characters, so that text of other programs cannot move the cursor."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def capped(name: str) -> str:
    """Return a name, shortened to 14 characters."""
    return name if len(name) <= _NAME_CELLS else name[: _NAME_CELLS - 1] + "…"


def age_text(age_ns: int) -> str:
    """Return an age in its two largest units, such as 3h20m."""
    seconds = age_ns // SECOND_NS
    for unit, size, inner, inner_size in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // inner_size}{inner}"
    return f"{seconds}s"


def show_metrics(console: Console, metrics: Mapping[str, object]) -> None:
    """Print metrics by name."""
    rows = [[name, f"{value:,.3f}" if isinstance(value, float) else str(value)] for name, value in metrics.items()]
    console.print(table("medians of interleaved runs", ["METRIC", "VALUE"], rows))
