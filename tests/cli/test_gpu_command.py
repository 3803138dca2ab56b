"""Tests of `cotenant gpu`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.node_processes import BOUND_S, NodeHarness, until

pytestmark = pytest.mark.live

# A client that runs one short kernel and then keeps its context until its input ends.
HOLDER = ("--", sys.executable, "-m", "cotenant.softgpu.probe", "1", "1", "20000", "hold")


@pytest.fixture(scope="module")
def gpus() -> Iterator[NodeHarness]:
    with NodeHarness() as node_harness:
        done = node_harness.run("softgpu", "create", "--gpu", "a100", "--count", "2")
        assert done.returncode == 0, done.stderr
        yield node_harness
        node_harness.run("softgpu", "destroy")


def test_gpu_command_shows_every_gpu_as_nvml_reports_it(gpus: NodeHarness) -> None:
    result = gpus.json("gpu")["gpus"]
    assert [(gpu["index"], gpu["name"], gpu["is_soft"]) for gpu in result] == [
        (0, "NVIDIA A100-SXM4-40GB", True),
        (1, "NVIDIA A100-SXM4-40GB", True),
    ]
    for number, gpu in enumerate(result):
        counters = gpus.json("softgpu", "inspect", str(number))
        assert gpu["uuid"].removeprefix("GPU-").replace("-", "") == counters["uuid"]
        assert gpu["memory_bytes"] == counters["memory_bytes"]
        assert (gpu["memory_used_bytes"], gpu["utilization_pct"], gpu["processes"]) == (0, 0, [])
        assert (gpu["compute_mode"], gpu["sm_activity_pct"], gpu["power_limit_mw"]) == ("default", 0, 400_000)
    shown = gpus.run("gpu").stdout
    assert "2 software GPUs" in shown
    assert "0.0/40.0 GiB" in shown
    assert result[1]["uuid"] in shown


def test_process_is_shown_with_the_name_of_its_tenant(gpus: NodeHarness) -> None:
    tenant = gpus.start("run", "--name", "painter", "--gpu", "soft:1", *HOLDER, stdin=subprocess.PIPE)
    until(lambda: gpus.json("gpu")["gpus"][1]["processes"] != [])
    first, second = gpus.json("gpu")["gpus"]
    (process,) = second["processes"]
    assert process["tenant"] == "painter"
    assert process["pid"] in {client["pid"] for client in gpus.json("softgpu", "inspect", "1")["clients"]}
    assert first["processes"] == []
    assert "painter" in gpus.run("gpu").stdout
    tenant.communicate(timeout=BOUND_S)


def test_lost_gpu_does_not_hide_other_gpus(gpus: NodeHarness) -> None:
    assert gpus.run("softgpu", "fault", "device-lost", "--gpu", "0").returncode == 0
    lost, other = gpus.json("gpu")["gpus"]
    assert (lost["is_lost"], lost["utilization_pct"], lost["processes"]) == (True, None, [])
    assert (other["is_lost"], other["utilization_pct"]) == (False, 0)
    assert [line.split()[:2] for line in gpus.run("gpu").stdout.splitlines()[2:]] == [
        ["soft:0", "lost"],
        ["soft:1", "NVIDIA"],
    ]
    assert [gpu["is_lost"] for gpu in gpus.json("softgpu", "list")["gpus"]] == [True, False]
    assert "lost" in gpus.run("softgpu", "list").stdout
    assert gpus.run("softgpu", "reset", "0").returncode == 0
    assert [gpu["is_lost"] for gpu in gpus.json("gpu")["gpus"]] == [False, False]


def test_software_gpus_of_the_environment_precede_the_configured_ones(gpus: NodeHarness) -> None:
    with NodeHarness() as other:
        # The library need not be on the path: the directory is enough.
        bare = {**other.environ, "COTENANT_SOFTGPU": gpus.json("softgpu", "env")["COTENANT_SOFTGPU"]}
        assert len(json.loads(other.run("gpu", "--json", env=bare).stdout)["gpus"]) == 2


def test_watch_refreshes_until_interrupted(gpus: NodeHarness) -> None:
    watcher = gpus.start("gpu", "--watch", "--json")
    assert watcher.stdout is not None
    assert [len(json.loads(watcher.stdout.readline())["gpus"]) for _ in range(2)] == [2, 2]
    watcher.send_signal(signal.SIGINT)
    watcher.communicate(timeout=BOUND_S)
    assert watcher.returncode == 130


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has a real NVML")  # noqa: PTH110
def test_missing_nvml_prints_one_line_with_a_remedy(node_harness: NodeHarness) -> None:
    done = node_harness.run("gpu")
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr.count("\n") == 1
    assert "cotenant softgpu create" in done.stderr


def test_directory_without_software_gpus_is_named_in_the_error(node_harness: NodeHarness) -> None:
    done = node_harness.run("gpu", env={**node_harness.environ, "COTENANT_SOFTGPU": str(node_harness.home / "nowhere")})
    assert done.returncode == 69
    assert "nowhere" in done.stderr
    assert done.stderr.count("\n") == 1
