"""The ranks of a job on two software GPUs launch collectives together, also while one is paused, evicted or killed."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.runner.clock import pause
from tests.support.node_processes import NodeHarness, until
from tests.support.software_gpus import PROGRAMS

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
ENOUGH = 40


class Program:
    """A tenant that counts its launches."""

    def __init__(
        self, harness: NodeHarness, name: str, gpu: int, *options: str, kernel: str = ALL_REDUCE, pause_ms: int = 0
    ) -> None:
        self.name = name
        path = Path(harness.home) / f"launches-{name}"
        path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            self._shown = mmap.mmap(file.fileno(), 16)
        command = ("--", sys.executable, str(PROGRAMS / "rank.py"), str(path), kernel, str(pause_ms))
        self.run = harness.tenant(name, "--gpu", f"soft:{gpu}", *options, *command)
        until(lambda: self.pid > 0 or self.run.poll() is not None)
        assert self.run.poll() is None, self.run.communicate()

    @property
    def launches(self) -> int:
        return int.from_bytes(self._shown[0:8], "little")

    @property
    def pid(self) -> int:
        return int.from_bytes(self._shown[8:16], "little")

    def advances(self, by: int = ENOUGH) -> None:
        """Wait until it has launched some more kernels."""
        before = self.launches
        until(lambda: self.launches >= before + by)


class Job:
    """Two GPUs with a service and a rank on each."""

    def __init__(self, harness: NodeHarness) -> None:
        self.harness = harness
        self.services = [
            Program(harness, f"web{gpu}", gpu, "--online", kernel="service", pause_ms=20) for gpu in (0, 1)
        ]
        self.ranks = [
            Program(harness, f"rank{gpu}", gpu, "--offline", "--gang", "job", "--ranks", "2") for gpu in (0, 1)
        ]
        for rank in self.ranks:
            rank.advances()

    def distance(self) -> int:
        """Return by how many collectives the first rank is ahead; the second one was read later."""
        first = self.ranks[0].launches
        return first - self.ranks[1].launches


@pytest.fixture
def job() -> Iterator[Job]:
    with NodeHarness() as harness:
        assert harness.run("softgpu", "create", "--gpu", "v100", "--count", "2").returncode == 0
        harness.node("--slots", "8")
        try:
            yield Job(harness)
        finally:
            harness.run("softgpu", "destroy")


def test_no_rank_is_ahead_of_another(job: Job) -> None:
    for _ in range(300):
        assert job.distance() <= 1
    for rank in job.ranks:
        rank.advances()


def test_a_paused_rank_holds_the_others_at_their_gates(job: Job) -> None:
    first, second = job.ranks
    assert job.harness.run("pause", second.name).returncode == 0
    stopped = until(lambda: _stays(second))
    assert abs(until(lambda: _stays(first)) - stopped) <= 1
    assert second.launches == stopped
    assert job.harness.run("resume", second.name).returncode == 0
    first.advances()
    second.advances()
    assert job.distance() <= 1


@pytest.mark.parametrize("way", ["evict", "kill"])
def test_a_rank_that_has_left_does_not_hold_the_others_for_ever(job: Job, way: str) -> None:
    first, second = job.ranks
    if way == "kill":
        os.kill(second.pid, signal.SIGKILL)
    else:
        assert job.harness.run("evict", second.name, "--grace", "1s").returncode == 0
    second.run.wait(timeout=60)
    first.advances()


def test_the_rank_of_another_job_is_not_waited_for(job: Job) -> None:
    other = Program(job.harness, "other", 0, "--offline", "--gang", "other", "--ranks", "2")
    for rank in job.ranks:
        rank.advances()
    other.advances(1)  # its own second rank never comes, and it goes on without it


def _stays(program: Program) -> int:
    """Return the number of launches if it does not change for a while; 0: it does."""
    before = program.launches
    pause(0.3)
    return before if program.launches == before else 0


def test_ranks_need_a_name_and_a_number() -> None:
    with NodeHarness() as harness:
        for options, field in ((("--gang", "job"), "run.gang"), (("--ranks", "2"), "run.ranks")):
            refused = harness.run("run", *options, "--", "true")
            assert refused.returncode == 2
            assert field in refused.stderr
            assert "--gang NAME --ranks N" in refused.stderr
        refused = harness.run("run", "--gang", "job", "--ranks", "1", "--", "true")
        assert refused.returncode == 2
        assert isinstance(refused, subprocess.CompletedProcess)
