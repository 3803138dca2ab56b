"""Does a node find its GPUs by itself, and does a program see the one at whose gate it sits?"""

import sys
from collections.abc import Iterator

import pytest

from tests.e2e.stage import Stage

SEEN = (sys.executable, "-c", "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES', 'not set'))")


@pytest.fixture
def gpus(stage: Stage) -> Iterator[Stage]:
    """A node that knew no GPU when it was started, and two that were made later."""
    stage.node()
    assert stage.json("ps")["gpus"] == []
    assert stage.run("softgpu", "create", "--gpu", "v100", "--count", "2").returncode == 0
    yield stage
    stage.run("softgpu", "destroy")


def test_gpus_are_found_when_somebody_needs_them_and_seen_as_granted(gpus: Stage) -> None:
    assert gpus.run("run", "--gpu", "soft:1", "--name", "a", "--", *SEEN).stdout == "1\n"
    assert [name.split()[0] for name in gpus.json("ps")["gpus"]] == ["soft:0", "soft:1"]
    assert gpus.run("run", "--name", "b", "--", *SEEN).stdout == "0\n"
    in_force = {**gpus.environ, "COTENANT_SOFTGPU": str(gpus.places.runtime / "softgpu")}
    several = gpus.run("run", "--name", "c", "--", *SEEN, env={**in_force, "CUDA_VISIBLE_DEVICES": "1,0"})
    assert several.stdout == "1,0\n"
    seated = {gone["name"]: gone["gpu"] for gone in gpus.json("ps", "--all")["departed"]}
    assert seated == {"a": 1, "b": 0, "c": 1}
    refused = gpus.run("run", "--", *SEEN, env={**gpus.environ, "CUDA_VISIBLE_DEVICES": "7"})
    assert (refused.returncode, refused.stdout) == (75, "")
    assert "no GPU '7', only soft:0, soft:1" in refused.stderr


def test_where_none_is_wanted_none_is_found(stage: Stage) -> None:
    assert stage.run("softgpu", "create", "--gpu", "v100").returncode == 0
    try:
        stage.node("--gpu", "none")
        assert stage.run("run", "--gpu", "soft:0", "--", *SEEN).stdout == "0\n"
        assert stage.json("ps")["gpus"] == []
    finally:
        stage.run("softgpu", "destroy")
