"""A node discovers its GPUs, and a program sees only the GPU that it was granted."""

import sys
from collections.abc import Iterator

import pytest

from tests.support.node_processes import NodeHarness

pytestmark = pytest.mark.live

SEEN = (sys.executable, "-c", "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES', 'not set'))")


@pytest.fixture
def gpus(node_harness: NodeHarness) -> Iterator[NodeHarness]:
    """A node that knew no GPU when it was started, and two that were made later."""
    node_harness.node()
    assert node_harness.json("ps")["gpus"] == []
    assert node_harness.run("softgpu", "create", "--gpu", "v100", "--count", "2").returncode == 0
    yield node_harness
    node_harness.run("softgpu", "destroy")


def test_gpus_are_discovered_on_demand_and_visible_as_granted(gpus: NodeHarness) -> None:
    assert gpus.run("run", "--gpu", "soft:1", "--name", "a", "--", *SEEN).stdout == "1\n"
    assert [name.split()[0] for name in gpus.json("ps")["gpus"]] == ["soft:0", "soft:1"]
    assert gpus.run("run", "--name", "b", "--", *SEEN).stdout == "0\n"
    in_force = {**gpus.environ, "COTENANT_SOFTGPU": str(gpus.directories.runtime / "softgpu")}
    several = gpus.run("run", "--name", "c", "--", *SEEN, env={**in_force, "CUDA_VISIBLE_DEVICES": "1,0"})
    assert several.stdout == "1,0\n"
    gpu_of = {departure["name"]: departure["gpu"] for departure in gpus.json("ps", "--all")["departed"]}
    assert gpu_of == {"a": 1, "b": 0, "c": 1}
    refused = gpus.run("run", "--", *SEEN, env={**gpus.environ, "CUDA_VISIBLE_DEVICES": "7"})
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "no GPU '7', only soft:0, soft:1" in refused.stderr


def test_no_gpu_is_discovered_when_discovery_is_off(node_harness: NodeHarness) -> None:
    assert node_harness.run("softgpu", "create", "--gpu", "v100").returncode == 0
    try:
        node_harness.node("--gpu", "none")
        assert node_harness.run("run", "--gpu", "soft:0", "--", *SEEN).stdout == "0\n"
        assert node_harness.json("ps")["gpus"] == []
    finally:
        node_harness.run("softgpu", "destroy")
