"""NVML shows a tenant its quota, and shows programs outside a tenant the whole device."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.softgpu import manage
from tests.support.node_processes import NodeHarness

pytestmark = pytest.mark.live

LOOK = (sys.executable, str(Path(__file__).parents[1] / "programs" / "nvmlmemory.py"))
HOOK_MODES = ("shim", "preload")
GIB = 1 << 30
TAKEN = 512 << 20


@pytest.fixture(scope="module")
def gpus() -> Iterator[NodeHarness]:
    """A node and two software GPUs."""
    with NodeHarness() as node_harness:
        assert node_harness.run("softgpu", "create", "--gpu", "v100", "--count", "2").returncode == 0
        node_harness.node()
        yield node_harness
        node_harness.run("softgpu", "destroy")


def seen(node_harness: NodeHarness, *words: str, **options: Any) -> dict[str, dict[str, int]]:
    done = node_harness.run(*words, **options)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("mode", HOOK_MODES)
def test_a_tenant_sees_its_quota(mode: str, gpus: NodeHarness) -> None:
    found = seen(gpus, "run", "--gpu", "soft:1", "--memory", "4GiB", "--hook", mode, "--", *LOOK, "1")
    before, after = found["before"], found["after"]
    assert (before["total"], before["used"], before["free"]) == (4 * GIB, 0, 4 * GIB)
    for one in (before, after):
        assert one["total"] == one["used"] + one["free"] == 4 * GIB
        assert (one["total_v2"], one["used_v2"], one["free_v2"]) == (one["total"], one["used"], one["free"])
        assert one["reserved_v2"] == 0
    assert TAKEN <= after["used"] < 2 * GIB  # its context and what it asked for
    assert found["cuda"] == {"total": after["total"], "free": after["free"]}


def test_other_devices_and_tenants_without_a_quota_are_unchanged(gpus: NodeHarness) -> None:
    for mode, words in zip(HOOK_MODES, (("--gpu", "soft:1", "--memory", "4GiB"), ("--gpu", "soft:0")), strict=True):
        found = seen(gpus, "run", *words, "--hook", mode, "--", *LOOK, "0")
        assert found["before"]["total"] == found["after"]["total"] == 16 * GIB


def test_nvml_outside_a_tenant_is_unchanged(gpus: NodeHarness) -> None:
    environ = {**gpus.environ, **manage.env(gpus.directories.runtime / "softgpu", base=gpus.environ)}
    process = gpus.open(LOOK, env=environ)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert found["before"]["total"] == 16 * GIB
    assert found["after"]["used"] >= found["before"]["used"] + TAKEN


@pytest.mark.parametrize("mode", HOOK_MODES)
def test_machine_without_nvml_works(mode: str, gpus: NodeHarness) -> None:
    """The driver alone: a program that looks for NVML does not find it, as without us, and all else works."""
    soft = gpus.directories.runtime / "softgpu"
    alone = gpus.home / f"alone-{mode}"
    alone.mkdir()
    (alone / "libcuda.so.1").symlink_to(manage.library())
    tries = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0) and exit(3)\n"
    tries += "try:\n  ctypes.CDLL('libnvidia-ml.so.1')\nexcept OSError: print('none')\nelse: print('some')\n"
    environ = {**gpus.environ, "LD_LIBRARY_PATH": str(alone), "COTENANT_SOFTGPU": str(soft)}
    bare = gpus.open((sys.executable, "-c", tries), env=environ).communicate(timeout=60)[0]
    done = gpus.run("run", "--memory", "1GiB", "--hook", mode, "--", sys.executable, "-c", tries, env=environ)
    assert (done.returncode, done.stdout) == (0, bare), done.stderr
