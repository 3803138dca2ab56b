"""With MPS, tenants are MPS clients, the next node takes over the daemon, and the last node ends it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from cotenant.softgpu import manage
from cotenant.softgpu.commands import home
from tests.support.node_processes import NodeHarness, until

pytestmark = pytest.mark.live


@pytest.fixture
def gpu(node_harness: NodeHarness) -> Iterator[NodeHarness]:
    node_harness.directories.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    manage.create(home(node_harness.directories), "v100", 1)
    yield node_harness
    manage.destroy(home(node_harness.directories))


def servers(node_harness: NodeHarness) -> list[int]:
    return [group["pid"] for group in manage.inspect(home(node_harness.directories), 0)["groups"]]


def test_tenants_are_clients_and_the_server_outlives_a_killed_node(gpu: NodeHarness) -> None:
    pipe = gpu.directories.runtime / "mps" / "pipe"
    gpu.node("--mps", "on")
    until(lambda: servers(gpu))
    tenant = gpu.tenant("web", "--gpu", "soft:0", "--", "sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY; sleep 600")
    assert tenant.stdout is not None
    assert tenant.stdout.readline() == f"{pipe}\n"
    before = servers(gpu)
    gpu.kill_node()
    assert servers(gpu) == before
    node = gpu.node("--mps", "on")
    until(lambda: "web" in gpu.slots())
    node.send_signal(signal.SIGTERM)
    node.wait()
    assert servers(gpu) == before  # the tenant goes on with it
    node = gpu.node("--mps", "on")
    until(lambda: "web" in gpu.slots())
    tenant.kill()
    until(lambda: gpu.names() == [])
    node.send_signal(signal.SIGTERM)
    node.wait()
    until(lambda: servers(gpu) == [] and not (pipe / "control").exists())


def test_node_without_mps_support_reports_it_and_does_not_start(node_harness: NodeHarness) -> None:
    done = node_harness.run("node", "--mps", "on")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "node.mps = 'on'" in line
    assert "nvidia-cuda-mps-control" in line
