"""Software GPUs that disappear, return or change are handled while the node runs."""

import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cotenant.node.daemon.rediscovery import Rediscovery
from cotenant.node.model.event import (
    Event,
    GpuLost,
    GpuRecovered,
    GpusFound,
    NodeSettings,
    NodeStarted,
    SettingsChanged,
)
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import Block
from cotenant.node.state.node import NodeMachine
from tests.support.node_processes import NodeHarness, until
from tests.support.software_gpus import PROGRAMS

SOFT_0 = Gpu("soft:0 V100", 100, ("soft:0", "GPU-a"))
SOFT_1 = Gpu("soft:1 V100", 100, ("soft:1", "GPU-b"))
OTHER_0 = Gpu("soft:0 T4", 50, ("soft:0", "GPU-c"))
REAL = Gpu("0 A100", 100, ("GPU-d", "0"))


def rediscovery_of(*gpus: Gpu) -> tuple[Rediscovery, NodeMachine, list[Event]]:
    machine = NodeMachine()
    machine.handle(NodeStarted(NodeSettings(4, 10, gpus=gpus), "1", 0), now=0)
    posted: list[Event] = []

    def post(event: Event) -> None:
        posted.append(event)
        machine.handle(event, now=1)
        machine.check()

    unused: Any = None
    return Rediscovery(machine, unused, unused, post), machine, posted


def test_nothing_is_posted_while_nothing_changes() -> None:
    rediscovery, _, posted = rediscovery_of(SOFT_0, SOFT_1)
    rediscovery.compare([SOFT_0, SOFT_1])
    assert posted == []


def test_device_is_lost_once_and_returns() -> None:
    rediscovery, machine, posted = rediscovery_of(SOFT_0, SOFT_1)
    for _ in range(3):
        rediscovery.compare([SOFT_1])
    assert posted == [GpuLost(0, "its server does not answer")]
    assert machine.watches()[0].blocked == (Block.DEVICE,)
    rediscovery.compare([SOFT_0, SOFT_1])
    assert posted[1:] == [GpuRecovered(0)]
    assert machine.watches()[0].blocked == ()


def test_device_that_nvml_reported_as_lost_is_left_to_the_monitor() -> None:
    rediscovery, machine, posted = rediscovery_of(SOFT_0)
    machine.handle(GpuLost(0, "NVML has not answered for 5 s"), now=1)
    rediscovery.compare([SOFT_0])
    assert posted == []
    assert machine.watches()[0].blocked == (Block.DEVICE,)


def test_device_that_was_created_again_has_its_new_properties() -> None:
    rediscovery, machine, posted = rediscovery_of(SOFT_0, SOFT_1)
    rediscovery.compare([OTHER_0, SOFT_1])
    assert [type(event) for event in posted] == [GpuLost, SettingsChanged, GpuRecovered]
    assert machine.settings.gpus == (OTHER_0, SOFT_1)
    assert machine.plan().capacity(0).memory_free_bytes == 50
    posted.clear()
    rediscovery.compare([OTHER_0, SOFT_1])
    assert posted == []


def test_new_devices_are_added_unless_the_node_has_real_gpus() -> None:
    rediscovery, machine, posted = rediscovery_of(SOFT_0)
    rediscovery.compare([SOFT_0, SOFT_1])
    assert posted == [GpusFound((SOFT_1,))]
    assert machine.settings.gpus == (SOFT_0, SOFT_1)
    rediscovery, machine, posted = rediscovery_of(REAL)
    rediscovery.compare([SOFT_0])
    assert posted == []


@pytest.fixture
def gpu(node_harness: NodeHarness) -> Iterator[NodeHarness]:
    assert node_harness.run("softgpu", "create", "--gpu", "v100", "--memory", "1GiB").returncode == 0
    node_harness.environ["PYTHONPATH"] = str(PROGRAMS)
    node_harness.node()
    yield node_harness
    node_harness.run("softgpu", "destroy")


def health_of(harness: NodeHarness) -> str:
    tenant_list = harness.tenant_list()
    assert tenant_list is not None
    return tenant_list.devices[0].health.value


def memory_of(harness: NodeHarness) -> int:
    tenant_list = harness.tenant_list()
    assert tenant_list is not None
    return tenant_list.gpus[0].memory_bytes


@pytest.mark.live
def test_destroyed_gpu_ends_its_tenants_and_is_used_again(gpu: NodeHarness) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
    pid = gpu.node_pid()
    spins = (sys.executable, str(PROGRAMS / "spins.py"), "100000000")
    tenant = gpu.tenant("a", "--gpu", "soft:0", "--", *spins)
    assert gpu.run("softgpu", "destroy").returncode == 0
    until(lambda: tenant.poll() is not None)
    until(lambda: health_of(gpu) == "disabled")
    refused = gpu.run("run", "--", "true")
    assert refused.returncode == 75
    assert "try again in" in refused.stderr
    assert gpu.run("softgpu", "create", "--gpu", "v100", "--memory", "2GiB").returncode == 0
    until(lambda: memory_of(gpu) == 2 << 30)
    until(lambda: health_of(gpu) != "disabled")
    fits = gpu.tenant("b", "--gpu", "soft:0", "--memory", "1536MiB", "--", *spins)
    fits.send_signal(signal.SIGTERM)
    fits.wait()
    assert gpu.node_pid() == pid, "the node was not restarted"
    assert gpu.json("replay", str(gpu.directories.journal))["reproduced"]


@pytest.mark.live
def test_idle_node_notices_that_its_gpu_is_gone(gpu: NodeHarness) -> None:
    gpu.run("softgpu", "destroy")
    until(lambda: health_of(gpu) == "disabled")
    gpu.run("softgpu", "create", "--gpu", "v100", "--count", "2", "--memory", "1GiB")
    until(lambda: health_of(gpu) != "disabled")
    until(lambda: len(gpu.json("ps")["gpus"]) == 2)
