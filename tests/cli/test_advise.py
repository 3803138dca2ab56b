"""Tests of `cotenant advise`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_processes import NodeHarness, until

pytestmark = pytest.mark.live

REPLAY = [sys.executable, str(Path(__file__).parents[2] / "examples" / "replay.py"), "--mode", "training"]


@pytest.fixture
def gpu(node_harness: NodeHarness) -> Iterator[NodeHarness]:
    assert node_harness.run("softgpu", "create", "--gpu", "v100").returncode == 0
    yield node_harness
    node_harness.run("softgpu", "destroy")


def count_operations(node_harness: NodeHarness) -> int:
    """Return the number of kernels and copies that the device has run."""
    counters = node_harness.json("softgpu", "inspect")["counters"]
    return int(counters["kernels"] + counters["copies"])


def test_advise_observes_a_program_without_a_node(gpu: NodeHarness) -> None:
    script = gpu.home / "launches"
    script.write_text("conv 80 256 20000 500000\n" * 5 + "@htod 1048576 100000\n")
    program = [*REPLAY, "--seconds", "1", "--script", str(script)]
    runs = launched = 0

    def result_with_memory() -> Any:
        """Return the result if its memory samples include the peak: a starved observer may miss it."""
        nonlocal runs, launched
        before = count_operations(gpu)
        done = gpu.run("advise", "--gpu", "soft:0", "--json", "--", *program)
        assert done.returncode == 0, done.stderr
        runs, launched = runs + 1, count_operations(gpu) - before
        result = json.loads(done.stdout.splitlines()[-1])
        return result if [use["peak_bytes"] for use in result["memory"]] == [2 << 20] else None

    result = until(result_with_memory)
    (device,) = result["devices"]
    assert device["measured"]
    assert device["device"] == "Tesla V100-SXM2-16GB"
    assert device["busy_ns"] + device["idle_ns"] == device["observed_ns"]
    assert min(device["idle_ns"], device["busy_ns"]) > 0  # a kernel whose end is marked late seems to take that long
    assert device["launches"] == launched
    assert [fill["kernel_ns"] for fill in device["fill"]] == [10_000, 50_000, 100_000, 500_000]
    assert device["fill"][0]["filled_ns"] > 0
    (memory,) = result["memory"]
    assert memory["peak_bytes"] + memory["headroom_bytes"] == memory["memory_bytes"]
    assert not gpu.directories.tenant_socket.exists(), "advise starts no node"
    assert [profile["runs"] for profile in gpu.json("profile", "list")["profiles"]] == [runs]


def test_advise_exits_with_the_code_of_the_program(gpu: NodeHarness) -> None:
    done = gpu.run("advise", "--gpu", "soft:0", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7
    assert "no GPU work was recorded" in done.stdout
    done = gpu.run("advise", "--gpu", "soft:0", "--", "no-such-program")
    assert done.returncode == 127


def test_advise_observes_a_running_tenant(gpu: NodeHarness) -> None:
    tenant = gpu.start(
        "run", "--name", "job", "--measure", "never", "--gpu", "soft:0", "--", *REPLAY, "--seconds", "600"
    )

    def is_recorded() -> bool:
        done = gpu.run("advise", "--tenant", "job", "--json")
        return done.returncode == 0 and '"launches":' in done.stdout

    until(is_recorded)
    (device,) = gpu.json("advise", "--tenant", "job")["devices"]
    assert not device["measured"]
    assert device["busy_ns"] + device["idle_ns"] == device["observed_ns"]
    tenant.terminate()
    tenant.wait()
    done = gpu.run("advise", "--tenant", "job")
    assert done.returncode == 2
    assert "cotenant ps" in done.stderr


def test_advise_requires_either_a_program_or_a_tenant(gpu: NodeHarness) -> None:
    for words in (["advise"], ["advise", "--tenant", "job", "--", "true"]):
        done = gpu.run(*words)
        assert done.returncode == 2
        assert "not both" in done.stderr
