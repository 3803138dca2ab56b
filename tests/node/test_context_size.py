"""The node measures the size of a CUDA context before its first tenant creates one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.node.client.connection import read_activity
from cotenant.node.daemon.monitor.context_size import ContextProber
from cotenant.node.model.gpu import Gpu
from cotenant.runner.background import TaskResult
from cotenant.softgpu import manage
from tests.support.node_processes import NodeHarness, alive, until

pytestmark = pytest.mark.live

MIB = 1 << 20
CONTEXT_BYTES = 300 * MIB
OUT_OF_MEMORY = 2
FIRST_CONTEXT = """
from cuda.bindings import driver
driver.cuInit(0)
print(int(driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])[0]))
"""
SOFT = Gpu("soft:0", 0, ("soft:0",))


@pytest.fixture
def node_harness() -> Iterator[NodeHarness]:
    with NodeHarness() as harness:
        assert harness.run("softgpu", "create", "--gpu", "v100", "--context-memory", "300MiB").returncode == 0
        yield harness
        harness.run("softgpu", "destroy")


def known_context_bytes(node_harness: NodeHarness) -> int:
    snapshot = read_activity(node_harness.directories).gpus[0].ledger
    return 0 if snapshot is None else snapshot.context_bytes


def first_context(node_harness: NodeHarness, quota: str) -> int:
    done = node_harness.run("run", "--gpu", "soft:0", "--memory", quota, "--", sys.executable, "-c", FIRST_CONTEXT)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def test_first_context_of_the_first_tenant_counts_towards_its_quota(node_harness: NodeHarness) -> None:
    node_harness.node("--watch-period", "50ms")
    until(lambda: known_context_bytes(node_harness) == CONTEXT_BYTES)
    assert node_harness.names() == []
    assert manage.inspect(node_harness.directories.runtime / "softgpu", 0)["memory_free_bytes"] > 0
    assert first_context(node_harness, "100MiB") == OUT_OF_MEMORY
    assert first_context(node_harness, "400MiB") == 0


def test_no_context_is_created_when_the_config_forbids_it(node_harness: NodeHarness) -> None:
    node_harness.node("--watch-period", "50ms", "--probe", "off")
    assert first_context(node_harness, "100MiB") == 0  # the size is learned from the first context


class _AtOnce:
    """Background tasks that run at once, without a loop or a thread."""

    def submit(self, call: Callable[[], int], done: Callable[[TaskResult[int]], None]) -> None:
        done(TaskResult(call()))

    def close(self) -> None:
        """Do nothing: no task is running."""


def measure(tmp_path: Path, deadline_s: float) -> int:
    sizes: list[int] = []
    tasks: Any = _AtOnce()
    ContextProber(tasks, [tmp_path], dict, deadline_s).measure(0, SOFT, sizes.append)
    return sizes[0]


def test_hanging_driver_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is ended, and the size of a context stays unknown."""
    number, stuck = tmp_path / "number", tmp_path / "stuck"
    stuck.write_text(f"#!/bin/sh\necho $$ > {number}\nexec sleep 1000\n")
    stuck.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(stuck))
    for deadline_s in (0.5, 2.0, 8.0, 32.0):  # on a busy machine it may take a while to begin
        assert measure(tmp_path, deadline_s) == 0
        if number.exists() and number.read_text():
            break
    until(lambda: not alive(int(number.read_text())))


@pytest.mark.parametrize("answer", ["echo nonsense", "echo 5; exit 1", "kill -9 $$", "true"])
def test_useless_answer_of_a_driver_gives_no_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    odd = tmp_path / "odd"
    odd.write_text(f"#!/bin/sh\n{answer}\n")
    odd.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(odd))
    assert measure(tmp_path, 30.0) == 0
