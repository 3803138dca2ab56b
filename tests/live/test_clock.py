"""Does the one clock go on where it must, and start anew where it must?"""

import json
from pathlib import Path

import pytest

from cotenant.live import clock as clock_module
from cotenant.live.clock import LiveClock, clock_kept_in, unix_ns


def test_two_clocks_differ_so_that_mixed_instants_show() -> None:
    assert len({LiveClock().offset_ns for _ in range(8)}) == 8


def test_a_new_clock_starts_after_the_instant_it_was_told() -> None:
    late = LiveClock().now() + (1 << 60)
    clock = LiveClock(not_before=late)
    assert clock.now() >= late


def test_a_restarted_node_goes_on_with_the_same_clock(tmp_path: Path) -> None:
    first = clock_kept_in(tmp_path / "clock", 0)
    second = clock_kept_in(tmp_path / "clock", first.now())
    assert second.offset_ns == first.offset_ns
    assert second.now() >= first.now() - 10**12


def test_a_clock_behind_the_journal_is_not_taken_up(tmp_path: Path) -> None:
    first = clock_kept_in(tmp_path / "clock", 0)
    ahead = first.now() + (1 << 50)
    second = clock_kept_in(tmp_path / "clock", ahead)
    assert second.now() >= ahead
    assert clock_kept_in(tmp_path / "clock", ahead).offset_ns == second.offset_ns


def test_after_another_boot_the_clock_is_new_and_not_before_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = clock_kept_in(tmp_path / "clock", 0)
    last = first.now()
    monkeypatch.setattr(clock_module, "boot_id", lambda: "another boot")
    second = clock_kept_in(tmp_path / "clock", last)
    assert second.offset_ns != first.offset_ns
    assert second.now() >= last
    assert json.loads((tmp_path / "clock").read_text())["boot"] == "another boot"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"boot": 1}', b"\xff\xfe", b'{"offset_ns": "x"}'])
def test_a_lost_or_foreign_file_means_a_new_clock(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "clock"
    file.write_bytes(content)
    clock = clock_kept_in(file, 7)
    assert clock.now() >= 7
    assert json.loads(file.read_text())["offset_ns"] == clock.offset_ns


def test_people_get_the_time_of_the_wall() -> None:
    assert unix_ns() > 1_600_000_000 * 10**9
