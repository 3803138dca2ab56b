"""The device memory of all processes of a tenant moves together or not at all."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.node.client.checkpoint import CheckpointProcess, restore, suspend
from tests.support.node_in_process import open_files

pytestmark = pytest.mark.live

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
def test_all_processes_are_suspended_or_none(count: int, failing: set[tuple[str, int]]) -> None:
    pids = own_pids(count)
    fails = {(name, pids[index]) for name, index in failing if index < len(pids)}
    driver = Driver(dict.fromkeys(pids, RUNNING), fails)
    result = suspend(driver, pids)
    assert result.ok == (not fails)
    assert set(driver.states.values()) == {MOVED if result.ok else RUNNING}


@given(st.integers(1, 3), st.sets(st.integers(0, 2), max_size=2))
def test_all_processes_are_restored_or_none(count: int, failing: set[int]) -> None:
    pids = own_pids(count)
    fails = {("Restore", pids[index]) for index in failing if index < len(pids)}
    driver = Driver(dict.fromkeys(pids, MOVED), fails)
    back = restore(driver, pids)
    assert back.ok == (not fails)
    assert set(driver.states.values()) == {RUNNING if back.ok else MOVED}


def test_process_without_a_context_or_dead_process_is_skipped() -> None:
    own_pid = os.getpid()
    driver = Driver({own_pid: RUNNING, GONE: RUNNING}, {("Lock", GONE)})
    idle = os.getppid()
    assert suspend(driver, [idle, GONE, own_pid]).ok
    assert driver.states[own_pid] == MOVED
    assert restore(driver, [idle, own_pid]).ok


@pytest.mark.parametrize("code", [801, -1])
def test_driver_without_checkpoint_calls_is_reported(code: int) -> None:
    result = suspend(lambda name, pid: code, [os.getpid()])
    assert not result.ok
    assert "no checkpoint calls" in result.detail


def test_driver_that_cannot_be_loaded_fails_the_move(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    move = CheckpointProcess("suspend", tmp_path / "libcuda.so.1", [os.getpid()], os.environ)
    done = move.finish()
    assert not done.ok
    assert "cannot be loaded" in done.detail
    nothing = CheckpointProcess("suspend", tmp_path / "libcuda.so.1", [], os.environ)
    assert nothing.finish().ok, "no process uses the driver, so no memory has to be moved"


def test_abandoned_move_ends_its_process() -> None:
    before = open_files()
    CheckpointProcess("suspend", Path("/nowhere"), [1], os.environ).give_up()
    assert open_files() <= before
