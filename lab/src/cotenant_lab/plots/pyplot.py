"""matplotlib in one style, with reproducible SVG files."""

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
    """Raise ConfigError before the work if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(flag, value, "needs matplotlib: pip install cotenant-lab")


@contextlib.contextmanager
def drawn_with() -> Iterator[Any]:
    """Yield a pyplot that draws SVG."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("svg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    with matplotlib.rc_context(_STYLE):
        yield pyplot
