"""A ledger file outlives its node, grows, never shrinks, and has a separate account for each generation."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cotenant import _native
from cotenant.errors import WorldError
from cotenant.gate.ledger_file import LiveLedgers, ledger_path, read_ledger_snapshot
from cotenant.gate.sim import SimLedgers
from cotenant.node.ports import Ledgers

pytestmark = pytest.mark.live

OWNER = _native.ledger_identity(7, 8, 9)
_ACCOUNT_HEAD = 128
_LINE_BYTES = 128


def scribble(directory: Path, slot: int, line: int, **words: int) -> None:
    """Write words of a line as its process would, by their places in native/ledger/ledger.h."""
    first = ("owner", "booked_bytes", "own_bytes", "own_version", "managed_bytes", "begun", "ended")
    places = (*first, "denied", "denied_bytes", "wanted_bytes", "fault", "contexts", "code_bytes")
    account = _native.LEDGER_HEADER_BYTES + slot * _native.LEDGER_ACCOUNT_BYTES
    with ledger_path(directory, 0).open("r+b") as file:
        file.seek(account + 8)
        file.write((line + 1).to_bytes(8, "little"))  # lines_used
        for name, value in words.items():
            file.seek(account + _ACCOUNT_HEAD + line * _LINE_BYTES + 8 * places.index(name))
            file.write(value.to_bytes(8, "little"))


@pytest.mark.parametrize("make", [lambda path: LiveLedgers(path, 4), lambda _: SimLedgers()], ids=["live", "sim"])
def test_live_and_simulated_ledgers_grant_and_hand_over(make: Callable[[Path], Ledgers], tmp_path: Path) -> None:
    ledgers = make(tmp_path / "pages")
    ledgers.grant(0, 2, 5)
    assert ledgers.held(0, 2) == 0
    assert ledgers.held(1, 0) == 0  # a device without any tenants so far
    assert ledgers.handles(-1) == ()
    ledgers.grant(-1, 0, 1)  # a node without devices
    if isinstance(ledgers, LiveLedgers):
        ledgers.close()


def test_account_belongs_to_its_generation_and_keeps_its_lines(tmp_path: Path) -> None:
    ledgers = LiveLedgers(tmp_path, 4)
    ledgers.grant(0, 2, 5)
    scribble(tmp_path, 2, 3, owner=OWNER, booked_bytes=700, own_bytes=50, wanted_bytes=9, denied=2, denied_bytes=11)
    assert ledgers.held(0, 2) == 750
    (line,) = ledgers.lines(0)
    assert (line.slot, line.generation, line.line, line.owner, line.held_bytes) == (2, 5, 3, OWNER, 750)
    ledgers.grant(0, 2, 5)
    assert ledgers.lines(0) == [line]
    ledgers.close()

    again = LiveLedgers(tmp_path, 4)  # the next node
    assert again.lines(0) == [line]
    assert again.measured(0, line, 800)
    assert again.held(0, 2) == 800
    snapshot = read_ledger_snapshot(tmp_path, 0)
    assert snapshot is not None
    account = snapshot.accounts[2]
    assert (account.held_bytes, account.wanted_bytes, account.denied, account.denied_bytes) == (800, 9, 2, 11)
    again.clear(0, 2, 3, OWNER + 1)  # the line of another owner
    assert again.held(0, 2) == 800
    again.clear(0, 2, 3, OWNER)
    assert again.lines(0) == []
    scribble(tmp_path, 2, 3, owner=OWNER, booked_bytes=700)
    again.grant(0, 2, 6)
    assert again.held(0, 2) == 0
    again.close()


def test_file_grows_with_the_slots_and_never_shrinks(tmp_path: Path) -> None:
    large = LiveLedgers(tmp_path, 8)
    large.grant(0, 7, 1)
    size = ledger_path(tmp_path, 0).stat().st_size
    large.close()
    small = LiveLedgers(tmp_path, 2)
    small.grant(0, 7, 1)
    assert ledger_path(tmp_path, 0).stat().st_size == size
    small.grant(0, 9, 1)
    assert ledger_path(tmp_path, 0).stat().st_size > size
    reading, writing = small.handles(0)
    assert os.fstat(reading).st_ino == os.fstat(writing).st_ino
    with pytest.raises(OSError, match="descriptor"):
        os.write(reading, b"x")
    assert small.devices() == [0]
    small.close()


def test_file_that_is_no_ledger_has_no_snapshot(tmp_path: Path) -> None:
    assert read_ledger_snapshot(tmp_path, 0) is None
    ledger_path(tmp_path, 0).write_bytes(b"not a ledger" * 1000)
    assert read_ledger_snapshot(tmp_path, 0) is None
    with pytest.raises(ValueError, match="not a ledger"):
        _native.ledger_lines(bytearray(8192))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "ledger-0").symlink_to(tmp_path / "elsewhere")
    ledgers = LiveLedgers(tmp_path / "sub", 2)
    with pytest.raises(WorldError, match="ledger-0"):
        ledgers.grant(0, 0, 1)
