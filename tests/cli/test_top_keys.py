"""The keys of `cotenant top`, in a terminal and alone."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from cotenant.cli.top_keys import SORTS, TopKeys
from tests.support.node_processes import BOUND_S, NodeHarness

ROWS = [
    ("b", SimpleNamespace(priority=2, device_ppm=10, launches_per_s=5.0, waits_per_s=0.0)),
    ("a", SimpleNamespace(priority=7, device_ppm=900, launches_per_s=1.0, waits_per_s=3.0)),
    ("c", SimpleNamespace(priority=7, device_ppm=30, launches_per_s=9.0, waits_per_s=8.0)),
]


def names(keys: TopKeys) -> str:
    return "".join(name for name, _ in keys.arrange(ROWS))


def test_every_sort_key_orders_the_rows_and_is_in_the_legend() -> None:
    keys = TopKeys()
    orders = {"p": "bac", "n": "abc", "d": "acb", "l": "cba", "w": "cab"}
    assert set(orders) == set(SORTS)
    for key, order in orders.items():
        assert keys.press(key.upper().encode())
        assert names(keys) == order
        assert f"(now {SORTS[key][0]})" in keys.legend()
        assert f"{key} {SORTS[key][0]}" in keys.legend()


def test_arrows_scroll_and_the_last_row_stays_visible() -> None:
    keys = TopKeys()
    assert not keys.press(b"x")
    for key, shown in ((b"\x1b[A", "bac"), (b"\x1b[B", "ac"), (b"\x1bOB", "c"), (b"\x1b[6~", "c"), (b"\x1b[A", "ac")):
        assert keys.press(key)
        assert names(keys) == shown
    assert not keys.is_ended
    assert keys.press(b"q")
    assert keys.is_ended


class Terminal:
    """A terminal in which a program runs."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        self.text = ""

    def press(self, keys: bytes) -> None:
        self.text = ""
        os.write(self.master, keys)

    def until(self, pattern: str) -> None:
        """Read what the program writes until it matches; control sequences are removed."""
        deadline = time.monotonic() + BOUND_S
        while not re.search(pattern, self.text, re.DOTALL):
            assert time.monotonic() < deadline, f"{pattern!r} is not in {self.text[-3000:]!r}"
            ready, _, _ = select.select([self.master], [], [], 1)
            if ready:
                read = os.read(self.master, 1 << 16).decode(errors="replace")
                self.text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read)

    def settings(self) -> list[object]:
        return termios.tcgetattr(self.slave)

    def close(self) -> None:
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


@pytest.mark.live
@pytest.mark.timeout(400)
def test_top_in_a_terminal_sorts_scrolls_and_quits(node_harness: NodeHarness, terminal: Terminal) -> None:
    node_harness.node("--gpu", "a=16GiB")
    for name, priority in (("zebra", "1"), ("apple", "9")):
        node_harness.tenant(name, "--priority", priority, "--gpu", "0", "--", "sleep", "600")
    before = terminal.settings()
    environ = {**node_harness.environ, "TERM": "xterm-256color"}
    environ.pop("COLUMNS")
    ends = {"stdin": terminal.slave, "stdout": terminal.slave, "stderr": subprocess.STDOUT}
    top = node_harness.start("top", env=environ, **ends)
    terminal.until(r"zebra.*apple.*now priority")
    assert terminal.settings() != before, "keys are read without waiting for a line, and are not shown"
    terminal.press(b"n")
    terminal.until(r"apple.*zebra.*now name")
    terminal.press(b"\x1b[B")
    terminal.until(r"zebra.*now name")
    assert "apple" not in terminal.text.partition("now name")[0]
    terminal.press(b"q")
    assert top.wait(BOUND_S) == 0
    assert terminal.settings() == before
