"""Software GPUs from the command line: made, listed, used by a tenant, looked into, and gone again."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_processes import NodeHarness, alive, until

pytestmark = pytest.mark.live

PROBE = ("--", sys.executable, "-m", "cotenant.softgpu.probe")


@pytest.fixture
def gpus(node_harness: NodeHarness) -> Iterator[NodeHarness]:
    done = node_harness.run("softgpu", "create", "--gpu", "v100", "--count", "2")
    assert done.returncode == 0, done.stderr
    yield node_harness
    node_harness.run("softgpu", "destroy")


def test_they_are_listed_with_their_model_and_memory(gpus: NodeHarness) -> None:
    listed = gpus.json("softgpu", "list")["gpus"]
    assert [(gpu["ordinal"], gpu["alive"], gpu["preset"]) for gpu in listed] == [
        (0, True, "v100-16"),
        (1, True, "v100-16"),
    ]
    shown = gpus.run("softgpu", "list").stdout
    assert "2 software GPUs" in shown
    assert "Tesla V100-SXM2-16GB" in shown


def test_a_tenant_runs_kernels_on_one_of_them_and_the_counters_say_so(gpus: NodeHarness) -> None:
    done = gpus.run("run", "--gpu", "soft:1", *PROBE, "3", "10", "20000")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout.splitlines()[-1])["launch_ns"]) == 3
    counted = [gpus.json("softgpu", "inspect", number)["counters"]["kernels"] for number in ("0", "1")]
    assert counted == [0, 33]
    shown = gpus.run("softgpu", "inspect", "1").stdout
    assert "soft:1" in shown
    assert "33" in shown


def test_a_missing_gpu_is_answered_with_the_existing_ones(gpus: NodeHarness) -> None:
    done = gpus.run("run", "--gpu", "soft:7", "--", "true")
    assert done.returncode == 2
    assert "no such software GPU, here are soft:0, soft:1" in done.stderr


def test_a_killed_tenant_leaves_nothing_on_the_device(gpus: NodeHarness) -> None:
    tenant = gpus.start("run", "--gpu", "soft:0", *PROBE, "1", "1", "600000000000")
    until(lambda: len(gpus.json("softgpu", "inspect")["clients"]) == 1)
    tenant.send_signal(signal.SIGKILL)
    until(lambda: gpus.json("softgpu", "inspect")["clients"] == [])
    counters = gpus.json("softgpu", "inspect")
    assert counters["memory_free_bytes"] == counters["memory_bytes"]


def test_the_environment_is_made_of_exports_that_a_shell_can_read(gpus: NodeHarness) -> None:
    lines = gpus.run("softgpu", "env").stdout.splitlines()
    assert all(line.startswith("export ") for line in lines)
    variables = gpus.json("softgpu", "env")
    assert Path(variables["COTENANT_SOFTGPU"]).is_dir()
    assert (Path(variables["LD_LIBRARY_PATH"].split(":")[0]) / "libcuda.so.1").exists()
    assert (Path(variables["PATH"].split(":")[0]) / "nvidia-cuda-mps-control").exists()


def test_a_second_creation_is_refused_and_destroying_makes_room(gpus: NodeHarness) -> None:
    refused = gpus.run("softgpu", "create")
    assert refused.returncode == 2
    assert "live there already" in refused.stderr
    assert "2 software GPUs ended" in gpus.run("softgpu", "destroy").stderr
    assert gpus.json("softgpu", "list")["gpus"] == []
    words = ("--gpu", "t4", "--memory", "1GiB", "--slice", "1ms", "--compute-mode", "exclusive-process")
    costs = ("--context-memory", "64MiB", "--module-memory", "on")
    assert gpus.run("softgpu", "create", *words, *costs).returncode == 0
    counters = gpus.json("softgpu", "inspect")
    assert (counters["compute_mode"], counters["context_bytes"], counters["counts_code"]) == (3, 64 << 20, True)
    [made] = gpus.json("softgpu", "list")["gpus"]
    assert (made["preset"], made["memory_bytes"]) == ("t4", 1 << 30)


@pytest.mark.parametrize(
    "words, said",
    [
        (["softgpu", "create", "--gpu", "k80"], ("gpu", "'k80'", "v100")),
        (["softgpu", "create", "--count", "0"], ("count", "0", "1 to 16")),
        (["softgpu", "create", "--count", "two"], ("--count", "'two'", "whole number")),
        (["softgpu", "create", "--memory", "lots"], ("--memory", "'lots'", "GiB")),
        (["softgpu", "create", "--slice", "2"], ("--slice", "'2'", "ms")),
        (["softgpu", "create", "--slice", "0ms"], ("--slice", "at least 10us")),
        (["softgpu", "create", "--memory", "0MiB"], ("--memory", "at least 1 MiB")),
        (["softgpu", "create", "--context-memory", "lots"], ("--context-memory", "'lots'", "GiB")),
        (["softgpu", "create", "--context-memory", "16GiB"], ("--context-memory", "leave some")),
        (["softgpu", "create", "--module-memory", "yes"], ("--module-memory", "'yes'", "on", "off")),
        (["softgpu", "create", "--compute-mode", "shared"], ("--compute-mode", "'shared'", "exclusive-process")),
        (["softgpu", "inspect", "0"], ("N", "'0'", "there is none")),
        (["softgpu", "inspect", "first"], ("N", "'first'", "whole number")),
        (["run", "--gpu", "soft:0", "--", "true"], ("--gpu", "'soft:0'", "softgpu create")),
        (["run", "--gpu", "hard:0", "--", "true"], ("--gpu", "'hard:0'", "soft:0")),
        (["bench", "device", "--rounds", "0"], ("--rounds", "0", "1 to 1000")),
    ],
)
def test_a_mistake_gets_one_sentence(node_harness: NodeHarness, words: list[str], said: tuple[str, ...]) -> None:
    done = node_harness.run(*words)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert all(part in done.stderr for part in said), done.stderr


def test_the_bench_prints_every_figure(node_harness: NodeHarness) -> None:
    figures = node_harness.json("bench", "device", "--rounds", "1")
    assert {"sim_kernels_per_s", "launch_ns", "wait_error_us_p50", "wait_error_us_p99", "idle_cpu_pct"} <= set(figures)
    assert {"query_ns", "confirmed_launch_ns"} <= set(figures)


def test_a_server_that_hangs_is_ended_all_the_same(gpus: NodeHarness) -> None:
    pid = gpus.json("softgpu", "inspect", "1")["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert "2 software GPUs ended" in gpus.run("softgpu", "destroy").stderr
    until(lambda: not alive(pid))
    assert gpus.json("softgpu", "list")["gpus"] == []


def test_a_number_that_only_looks_like_one_is_refused(node_harness: NodeHarness) -> None:
    for text in ("soft:²", "²", "soft:", "soft:0:1", "-1"):
        done = node_harness.run("run", f"--gpu={text}", "--", "true")
        assert done.returncode == 2, text
        assert "soft:0" in done.stderr
