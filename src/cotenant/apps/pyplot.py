"""With what are pictures drawn? matplotlib, in one style, and the same bytes for the same figures."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any, Final

from cotenant.errors import ConfigError

_STYLE: Final = {
    "svg.hashsalt": "cotenant",
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


def need_matplotlib(flag: str, value: str) -> None:
    """ConfigError now, rather than after the work, where nothing can be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(flag, value, "needs matplotlib: pip install 'cotenant[plots]'")


@contextlib.contextmanager
def drawn_with() -> Iterator[Any]:
    """A pyplot that draws SVG."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("svg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    with matplotlib.rc_context(_STYLE):
        yield pyplot
