"""A tenant with two software GPUs: quota, gate, pause and exit on each of them, and its collectives on both."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.hook import shim
from cotenant.runner.clock import pause
from cotenant.softgpu.commands import environment
from tests.support.node_processes import NodeHarness, until
from tests.support.software_gpus import PROGRAMS

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
GIB = 1 << 30
MIB = 1 << 20
KEPT_BYTES = 16 * MIB
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


class Program:
    """A tenant that launches on all of its devices in rounds."""

    def __init__(self, harness: NodeHarness, name: str, *options: str, kernel: str = "step") -> None:
        self.name = name
        path = Path(harness.home) / f"rounds-{name}"
        path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            self._shown = mmap.mmap(file.fileno(), 16)
        command = ("--", sys.executable, str(PROGRAMS / "several_devices.py"), str(path), kernel)
        self.run: subprocess.Popen[str] = harness.tenant(name, *options, *command)
        assert self.run.stdout is not None
        line = self.run.stdout.readline()
        self.report: dict[str, list[int]] = json.loads(line) if line.startswith("{") else {}
        assert self.report, (line, self.run.communicate())

    @property
    def rounds(self) -> int:
        return int.from_bytes(self._shown[0:8], "little")

    def advances(self, by: int = 20) -> None:
        """Wait until it has launched some more rounds."""
        before = self.rounds
        until(lambda: self.rounds >= before + by or self.run.poll() is not None)
        assert self.run.poll() is None, self.run.communicate()

    def stays(self) -> bool:
        """Return whether it launches nothing for a while."""
        before = self.rounds
        pause(0.3)
        return self.rounds == before

    def stop(self) -> int:
        self._shown[8] = 1
        self.run.communicate(timeout=60)
        return self.run.returncode


@pytest.fixture
def harness() -> Iterator[NodeHarness]:
    with NodeHarness() as node_harness:
        assert node_harness.run("softgpu", "create", "--gpu", "v100", "--count", "2").returncode == 0
        node_harness.node("--slots", "8")
        try:
            yield node_harness
        finally:
            node_harness.run("softgpu", "destroy")


def joining_environment(harness: NodeHarness) -> dict[str, str]:
    """Return the environment of a program with the hook that joins by itself and sees both devices."""
    software = environment(harness.directories, harness.environ)
    driver = shim.find_driver({**harness.environ, **software})
    assert driver is not None
    shim.make_shim(harness.home / "shim", driver)
    hooked = {**harness.environ, **software}
    hooked |= shim.environment("shim", harness.home / "shim", hooked)
    return hooked | {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "COTENANT_SOCKET": str(harness.directories.tenant_socket),
        "COTENANT_KIND": "offline",
        "COTENANT_MEMORY": "2GiB",
    }


def _held(harness: NodeHarness) -> list[int]:
    """Return what the tenant holds on each of its devices."""
    (tenant,) = listed(harness, "ps")["tenants"]
    return [device["held_bytes"] for device in tenant["on_devices"]]


def listed(harness: NodeHarness, *words: str) -> Any:
    done = harness.run(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_quota_holds_on_each_device(harness: NodeHarness) -> None:
    program = Program(harness, "both", "--gpu", "soft:0,soft:1", "--memory", "2GiB")
    report = program.report
    assert report["totals"] == [2 * GIB, 2 * GIB]
    for free_bytes, steps, again in zip(report["free"], report["steps"], report["again"], strict=True):
        assert GIB < free_bytes < 2 * GIB
        # The size of a context is measured meanwhile, and may change by less than a step.
        assert abs(steps - again) <= 1, report
        assert abs(steps - free_bytes // (64 * MIB)) <= 1, report
    program.advances()
    (tenant,) = listed(harness, "ps")["tenants"]
    assert tenant["gpus"] == [0, 1]
    assert [device["gpu"] for device in tenant["on_devices"]] == [0, 1]
    until(lambda: all(held >= KEPT_BYTES for held in _held(harness)))
    assert all(held < GIB for held in _held(harness))
    seen = {device["gpu"]: [one["name"] for one in device["tenants"]] for device in listed(harness, "top")["devices"]}
    assert seen == {0: ["both"], 1: ["both"]}
    assert program.stop() == 0
    until(lambda: not listed(harness, "ps")["tenants"])


def test_pause_and_eviction_concern_both_devices(harness: NodeHarness) -> None:
    harness.environ |= environment(harness.directories, harness.environ)
    program = Program(harness, "both", "--gpus", "2")
    program.advances()
    assert harness.run("pause", "both").returncode == 0
    until(program.stays)
    assert harness.run("resume", "both").returncode == 0
    program.advances()
    explained = listed(harness, "explain", "both")
    assert "GPUs 0 and 1" in str(explained)
    assert harness.run("evict", "both", "--grace", "1s").returncode == 0
    program.run.communicate(timeout=60)
    until(lambda: not listed(harness, "ps")["tenants"])


def test_first_device_of_the_program_is_the_first_that_was_named(harness: NodeHarness) -> None:
    program = Program(harness, "both", "--gpu", "soft:1,soft:0", "--memory", "3GiB")
    assert listed(harness, "ps")["tenants"][0]["gpus"] == [1, 0]
    program.advances()
    assert program.stop() == 0


def test_program_joins_by_itself_on_all_devices_that_it_sees(harness: NodeHarness) -> None:
    environ = joining_environment(harness)
    path = Path(harness.home) / "rounds-own"
    path.write_bytes(bytes(16))
    with path.open("r+b") as file:
        shown = mmap.mmap(file.fileno(), 16)
    command = [sys.executable, str(PROGRAMS / "several_devices.py"), str(path), "step"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert json.loads(program.stdout.readline())["totals"] == [2 * GIB, 2 * GIB]
        assert listed(harness, "ps")["tenants"][0]["gpus"] == [0, 1]
        shown[8] = 1
        assert program.wait(timeout=60) == 0
    until(lambda: not listed(harness, "ps")["tenants"])


@pytest.mark.parametrize("paused", [False, True])
def test_one_thread_launches_collectives_on_both_devices(harness: NodeHarness, paused: bool) -> None:
    """Each is launched on one device after the other, next to a service on both; pauses leave no device spinning."""
    service = Program(harness, "web", "--online", "--gpu", "soft:0,soft:1", kernel="service")
    program = Program(harness, "train", "--offline", "--gpu", "soft:0,soft:1", kernel=ALL_REDUCE)
    program.advances()
    if paused:
        assert harness.run("pause", "train").returncode == 0
        until(program.stays)
        service.advances()
        assert harness.run("resume", "train").returncode == 0
    program.advances(100)
    service.advances()
    assert program.stop() == 0
    assert service.stop() == 0


def test_devices_that_cannot_be_used_together_are_refused(harness: NodeHarness) -> None:
    for options, words in (
        (("--gpu", "soft:0,0"), "not both"),
        (("--gpu", "soft:0,soft:0"), "once"),
        (("--gpu", "soft:0,soft:7"), "soft:7"),
        (("--gpus", "0"), "--gpus"),
        (("--gpus", "3"), "requests 3 GPUs, and the node has 2"),
    ):
        refused = harness.run("run", *options, "--", "true")
        assert refused.returncode != 0
        assert words in refused.stderr, refused.stderr
