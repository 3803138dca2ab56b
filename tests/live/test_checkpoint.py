"""Does the memory of all processes of a tenant move, or of none?"""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.live.checkpoint import Move, restore, suspend
from tests.live.indoors import open_files

GONE = 1 << 22  # above the largest number that a process may have
RULES = {"Lock": (0, 1), "Checkpoint": (1, 2), "Restore": (2, 1), "Unlock": (1, 0)}
RUNNING, LOCKED, MOVED = range(3)


class Driver:
    """The states of some processes, as cuda.h has them, and calls that may fail."""

    def __init__(self, states: dict[int, int], failing: set[tuple[str, int]] = frozenset()) -> None:  # type: ignore[assignment]
        self.states = states
        self.failing = failing
        self.calls: list[tuple[str, int]] = []

    def __call__(self, name: str, pid: int) -> int:
        self.calls.append((name, pid))
        before, after = RULES[name]
        if pid not in self.states:
            return 3  # not initialised
        if (name, pid) in self.failing or self.states[pid] != before:
            return 401
        self.states[pid] = after
        return 0


def own_pids(count: int) -> list[int]:
    """Numbers of processes that are there for as long as this one is: what matters is only that they are."""
    return list(dict.fromkeys((1, os.getppid(), os.getpid())))[:count]


@given(st.integers(1, 3), st.sets(st.tuples(st.sampled_from(["Lock", "Checkpoint"]), st.integers(0, 2)), max_size=2))
def test_all_move_or_none(count: int, failing: set[tuple[str, int]]) -> None:
    pids = own_pids(count)
    fails = {(name, pids[index]) for name, index in failing if index < len(pids)}
    driver = Driver(dict.fromkeys(pids, RUNNING), fails)
    moved = suspend(driver, pids)
    assert moved.ok == (not fails)
    assert set(driver.states.values()) == {MOVED if moved.ok else RUNNING}


@given(st.integers(1, 3), st.sets(st.integers(0, 2), max_size=2))
def test_all_come_back_or_all_stay(count: int, failing: set[int]) -> None:
    pids = own_pids(count)
    fails = {("Restore", pids[index]) for index in failing if index < len(pids)}
    driver = Driver(dict.fromkeys(pids, MOVED), fails)
    back = restore(driver, pids)
    assert back.ok == (not fails)
    assert set(driver.states.values()) == {RUNNING if back.ok else MOVED}


def test_a_process_without_a_context_or_that_is_gone_does_not_matter() -> None:
    here = os.getpid()
    driver = Driver({here: RUNNING, GONE: RUNNING}, {("Lock", GONE)})
    idle = os.getppid()
    assert suspend(driver, [idle, GONE, here]).ok
    assert driver.states[here] == MOVED
    assert restore(driver, [idle, here]).ok


@pytest.mark.parametrize("code", [801, -1])
def test_a_driver_without_the_calls_says_so(code: int) -> None:
    moved = suspend(lambda name, pid: code, [os.getpid()])
    assert not moved.ok
    assert "no checkpoint calls" in moved.detail


def test_a_driver_that_cannot_be_loaded_is_a_move_that_failed(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    move = Move("suspend", tmp_path / "libcuda.so.1", [os.getpid()], os.environ)
    done = move.finish()
    assert not done.ok
    assert "cannot be loaded" in done.detail
    nothing = Move("suspend", tmp_path / "libcuda.so.1", [], os.environ)
    assert nothing.finish().ok, "where nobody has the driver, nothing has to be moved"


def test_a_move_that_is_given_up_is_gone() -> None:
    before = open_files()
    Move("suspend", Path("/nowhere"), [1], os.environ).give_up()
    assert open_files() <= before
