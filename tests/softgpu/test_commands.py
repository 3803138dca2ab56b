"""Software GPUs from the command line: created, listed, used by a tenant, inspected and destroyed."""

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


def test_gpus_are_listed_with_their_model(gpus: NodeHarness) -> None:
    listed = gpus.json("softgpu", "list")["gpus"]
    assert [(gpu["ordinal"], gpu["alive"], gpu["preset"]) for gpu in listed] == [
        (0, True, "v100-16"),
        (1, True, "v100-16"),
    ]
    shown = gpus.run("softgpu", "list").stdout
    assert "2 software GPUs" in shown
    assert "Tesla V100-SXM2-16GB" in shown


def test_kernels_of_a_tenant_are_counted_on_its_gpu(gpus: NodeHarness) -> None:
    done = gpus.run("run", "--gpu", "soft:1", *PROBE, "3", "10", "20000")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout.splitlines()[-1])["launch_ns"]) == 3
    counted = [gpus.json("softgpu", "inspect", number)["counters"]["kernels"] for number in ("0", "1")]
    assert counted == [0, 33]
    shown = gpus.run("softgpu", "inspect", "1").stdout
    assert "soft:1" in shown
    assert "33" in shown


def test_error_about_a_missing_gpu_lists_the_existing_ones(gpus: NodeHarness) -> None:
    done = gpus.run("run", "--gpu", "soft:7", "--", "true")
    assert done.returncode == 2
    assert "no such software GPU, the existing ones are soft:0, soft:1" in done.stderr


def test_a_killed_tenant_leaves_nothing_on_the_device(gpus: NodeHarness) -> None:
    tenant = gpus.start("run", "--gpu", "soft:0", *PROBE, "1", "1", "600000000000")
    until(lambda: len(gpus.json("softgpu", "inspect")["clients"]) == 1)
    tenant.send_signal(signal.SIGKILL)
    until(lambda: gpus.json("softgpu", "inspect")["clients"] == [])
    counters = gpus.json("softgpu", "inspect")
    assert counters["memory_free_bytes"] == counters["memory_bytes"]


def test_environment_is_printed_as_shell_exports(gpus: NodeHarness) -> None:
    lines = gpus.run("softgpu", "env").stdout.splitlines()
    assert all(line.startswith("export ") for line in lines)
    variables = gpus.json("softgpu", "env")
    assert Path(variables["COTENANT_SOFTGPU"]).is_dir()
    assert (Path(variables["LD_LIBRARY_PATH"].split(":")[0]) / "libcuda.so.1").exists()
    assert (Path(variables["PATH"].split(":")[0]) / "nvidia-cuda-mps-control").exists()


def test_second_creation_is_refused_until_the_gpus_are_destroyed(gpus: NodeHarness) -> None:
    refused = gpus.run("softgpu", "create")
    assert refused.returncode == 2
    assert "already holds running software GPUs" in refused.stderr
    assert "2 software GPUs ended" in gpus.run("softgpu", "destroy").stderr
    assert gpus.json("softgpu", "list")["gpus"] == []
    words = ("--gpu", "t4", "--memory", "1GiB", "--slice", "1ms", "--compute-mode", "exclusive-process")
    costs = ("--context-memory", "64MiB", "--module-memory", "on")
    assert gpus.run("softgpu", "create", *words, *costs).returncode == 0
    counters = gpus.json("softgpu", "inspect")
    assert (counters["compute_mode"], counters["context_bytes"], counters["counts_code"]) == (3, 64 << 20, True)
    [gpu] = gpus.json("softgpu", "list")["gpus"]
    assert (gpu["preset"], gpu["memory_bytes"]) == ("t4", 1 << 30)


def test_gpus_in_the_foreground_end_with_the_command(node_harness: NodeHarness) -> None:
    creating = node_harness.start("softgpu", "create", "--count", "2", "--foreground")
    until(lambda: len(node_harness.json("softgpu", "list")["gpus"]) == 2)
    creating.send_signal(signal.SIGTERM)
    assert creating.wait(60) == 0
    assert node_harness.json("softgpu", "list")["gpus"] == []


@pytest.mark.parametrize(
    "words, parts",
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
def test_invalid_option_is_reported_in_one_line(
    node_harness: NodeHarness, words: list[str], parts: tuple[str, ...]
) -> None:
    done = node_harness.run(*words)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert all(part in done.stderr for part in parts), done.stderr


def test_device_bench_prints_every_result(node_harness: NodeHarness) -> None:
    results = node_harness.json("bench", "device", "--rounds", "1")
    assert {"sim_kernels_per_s", "launch_ns", "wait_error_us_p50", "wait_error_us_p99", "idle_cpu_pct"} <= set(results)
    assert {"query_ns", "confirmed_launch_ns"} <= set(results)


def test_hung_server_is_killed_on_destroy(gpus: NodeHarness) -> None:
    pid = gpus.json("softgpu", "inspect", "1")["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert "2 software GPUs ended" in gpus.run("softgpu", "destroy").stderr
    until(lambda: not alive(pid))
    assert gpus.json("softgpu", "list")["gpus"] == []


def test_invalid_gpu_number_is_refused(node_harness: NodeHarness) -> None:
    for text in ("soft:²", "²", "soft:", "soft:0:1", "-1"):
        done = node_harness.run("run", f"--gpu={text}", "--", "true")
        assert done.returncode == 2, text
        assert "soft:0" in done.stderr
