"""Does NVML inside of a tenant show its quota, and outside the device?"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.live.softgpu import manage
from tests.e2e.stage import Stage

LOOK = (sys.executable, str(Path(__file__).parents[1] / "live" / "programs" / "nvmlmemory.py"))
WAYS = ("shim", "preload")
GIB = 1 << 30
TAKEN = 512 << 20


@pytest.fixture(scope="module")
def gpus() -> Iterator[Stage]:
    """A node and two soft GPUs."""
    with Stage() as stage:
        assert stage.run("softgpu", "create", "--gpu", "v100", "--count", "2").returncode == 0
        stage.node()
        yield stage
        stage.run("softgpu", "destroy")


def seen(stage: Stage, *words: str, **options: Any) -> dict[str, dict[str, int]]:
    done = stage.run(*words, **options)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("way", WAYS)
def test_a_tenant_sees_its_quota(way: str, gpus: Stage) -> None:
    found = seen(gpus, "run", "--gpu", "soft:1", "--memory", "4GiB", "--hook", way, "--", *LOOK, "1")
    before, after = found["before"], found["after"]
    assert (before["total"], before["used"], before["free"]) == (4 * GIB, 0, 4 * GIB)
    for one in (before, after):
        assert one["total"] == one["used"] + one["free"] == 4 * GIB
        assert (one["total_v2"], one["used_v2"], one["free_v2"]) == (one["total"], one["used"], one["free"])
        assert one["reserved_v2"] == 0
    assert TAKEN <= after["used"] < 2 * GIB  # its context and what it asked for
    assert found["cuda"] == {"total": after["total"], "free": after["free"]}


def test_another_device_and_a_tenant_without_a_quota_are_shown_as_they_are(gpus: Stage) -> None:
    for way, words in zip(WAYS, (("--gpu", "soft:1", "--memory", "4GiB"), ("--gpu", "soft:0")), strict=True):
        found = seen(gpus, "run", *words, "--hook", way, "--", *LOOK, "0")
        assert found["before"]["total"] == found["after"]["total"] == 16 * GIB


def test_outside_of_a_tenant_nothing_changes(gpus: Stage) -> None:
    environ = {**gpus.environ, **manage.env(gpus.places.runtime / "softgpu", base=gpus.environ)}
    process = gpus.open(LOOK, env=environ)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert found["before"]["total"] == 16 * GIB
    assert found["after"]["used"] >= found["before"]["used"] + TAKEN


@pytest.mark.parametrize("way", WAYS)
def test_a_machine_without_nvml_needs_none(way: str, gpus: Stage) -> None:
    """The driver alone: a program that looks for NVML does not find it, as without us, and all else works."""
    soft = gpus.places.runtime / "softgpu"
    alone = gpus.home / f"alone-{way}"
    alone.mkdir()
    (alone / "libcuda.so.1").symlink_to(manage.library())
    tries = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0) and exit(3)\n"
    tries += "try:\n  ctypes.CDLL('libnvidia-ml.so.1')\nexcept OSError: print('none')\nelse: print('some')\n"
    environ = {**gpus.environ, "LD_LIBRARY_PATH": str(alone), "COTENANT_SOFTGPU": str(soft)}
    bare = gpus.open((sys.executable, "-c", tries), env=environ).communicate(timeout=60)[0]
    done = gpus.run("run", "--memory", "1GiB", "--hook", way, "--", sys.executable, "-c", tries, env=environ)
    assert (done.returncode, done.stdout) == (0, bare), done.stderr
