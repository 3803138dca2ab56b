"""A node with MPS: tenants are clients without knowing it, a new node takes over, the last one to go ends it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from cotenant.apps.softgpu import home
from cotenant.live.softgpu import manage
from tests.e2e.stage import Stage, until


@pytest.fixture
def gpu(stage: Stage) -> Iterator[Stage]:
    stage.places.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    manage.create(home(stage.places), "v100", 1)
    yield stage
    manage.destroy(home(stage.places))


def servers(stage: Stage) -> list[int]:
    return [group["pid"] for group in manage.inspect(home(stage.places), 0)["groups"]]


def test_tenants_are_clients_and_the_server_outlives_a_node_that_dies(gpu: Stage) -> None:
    pipe = gpu.places.runtime / "mps" / "pipe"
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


def test_a_node_that_cannot_have_mps_says_so_and_does_not_start(stage: Stage) -> None:
    done = stage.run("node", "--mps", "on")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "node.mps = 'on'" in line
    assert "nvidia-cuda-mps-control" in line
