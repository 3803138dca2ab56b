"""The keys of `cotenant top` on a terminal: quit, scroll and sort."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from typing import Any, Final

from cotenant.runner.clock import monotonic_ns, pause

SORTS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "p": ("priority", lambda row: (row[1].priority, row[0])),
    "n": ("name", lambda row: row[0]),
    "d": ("device", lambda row: (-row[1].device_ppm, row[0])),
    "l": ("launches", lambda row: (-row[1].launches_per_s, row[0])),
    "w": ("waits", lambda row: (-row[1].waits_per_s, row[0])),
}
"""Sort keys: the name of the order, and the sort value of a tenant's name and activity."""
_ARROWS: Final = {b"\x1b[A": -1, b"\x1bOA": -1, b"\x1b[B": 1, b"\x1bOB": 1, b"\x1b[5~": -10, b"\x1b[6~": 10}
_QUIT: Final = (b"q", b"Q", b"\x1b")


class TopKeys:
    """The order and the first shown row that the user has chosen."""

    def __init__(self) -> None:
        self.sort = "p"
        self.first = 0
        self.is_ended = False

    def press(self, key: bytes) -> bool:
        """Take one key; return whether something changed."""
        if key in _QUIT:
            self.is_ended = True
        elif key in _ARROWS:
            self.first = max(0, self.first + _ARROWS[key])
        elif (letter := key.decode("latin-1").lower()) in SORTS:
            self.sort = letter
        else:
            return False
        return True

    def arrange(self, tenants: list[Any]) -> list[Any]:
        """Return the rows of one GPU in the chosen order, from the first shown one on; the last row stays visible."""
        rows = sorted(tenants, key=SORTS[self.sort][1])
        self.first = min(self.first, max(0, len(tenants) - 1)) if len(tenants) > 1 else self.first
        return rows[min(self.first, max(0, len(rows) - 1)) :]

    def legend(self) -> str:
        """Return the line that explains the keys."""
        sorts = ", ".join(f"{key} {name}" for key, (name, _) in SORTS.items())
        return f"q quit   ↑ ↓ scroll   sort: {sorts} (now {SORTS[self.sort][0]})"

    def wait(self, seconds: float, redraw: Callable[[], None]) -> None:
        """Wait, and handle keys meanwhile; `redraw` is called after each that changed something."""
        until_ns = monotonic_ns() + int(seconds * 1e9)
        while not self.is_ended and (remaining_s := (until_ns - monotonic_ns()) / 1e9) > 0:
            if not sys.stdin.isatty():
                pause(remaining_s)
                return
            ready, _, _ = select.select([sys.stdin], [], [], remaining_s)
            if ready and self.press(os.read(sys.stdin.fileno(), 16)):
                redraw()


@contextlib.contextmanager
def raw_keys() -> Iterator[None]:
    """Deliver keys at once and without echo inside the block, if standard input is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
