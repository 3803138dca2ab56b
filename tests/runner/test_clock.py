"""The clock continues after a restart of the daemon and starts anew after a boot."""

import json
from pathlib import Path

import pytest

from cotenant.runner import clock as clock_module
from cotenant.runner.clock import LiveClock, load_clock, unix_ns

pytestmark = pytest.mark.live


def test_clocks_start_apart_so_that_mixed_instants_are_visible() -> None:
    assert len({LiveClock().offset_ns for _ in range(8)}) == 8


def test_new_clock_starts_after_the_given_instant() -> None:
    late = LiveClock().now() + (1 << 60)
    clock = LiveClock(not_before=late)
    assert clock.now() >= late


def test_restarted_node_continues_its_clock(tmp_path: Path) -> None:
    first = load_clock(tmp_path / "clock", 0)
    second = load_clock(tmp_path / "clock", first.now())
    assert second.offset_ns == first.offset_ns
    assert second.now() >= first.now() - 10**12


def test_stored_clock_behind_the_journal_is_ignored(tmp_path: Path) -> None:
    first = load_clock(tmp_path / "clock", 0)
    ahead = first.now() + (1 << 50)
    second = load_clock(tmp_path / "clock", ahead)
    assert second.now() >= ahead
    assert load_clock(tmp_path / "clock", ahead).offset_ns == second.offset_ns


def test_clock_after_a_boot_is_new_and_after_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_clock(tmp_path / "clock", 0)
    last = first.now()
    monkeypatch.setattr(clock_module, "boot_id", lambda: "another boot")
    second = load_clock(tmp_path / "clock", last)
    assert second.offset_ns != first.offset_ns
    assert second.now() >= last
    assert json.loads((tmp_path / "clock").read_text())["boot"] == "another boot"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"boot": 1}', b"\xff\xfe", b'{"offset_ns": "x"}'])
def test_missing_or_invalid_file_starts_a_new_clock(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "clock"
    file.write_bytes(content)
    clock = load_clock(file, 7)
    assert clock.now() >= 7
    assert json.loads(file.read_text())["offset_ns"] == clock.offset_ns


def test_local_time_is_wall_clock_time() -> None:
    assert unix_ns() > 1_600_000_000 * 10**9
