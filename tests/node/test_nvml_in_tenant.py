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

NVML_PROGRAM = (sys.executable, str(Path(__file__).parents[1] / "programs" / "nvmlmemory.py"))
HOOK_MODES = ("shim", "preload")
GIB = 1 << 30
ALLOCATED_BYTES = 512 << 20


@pytest.fixture(scope="module")
def gpus() -> Iterator[NodeHarness]:
    """A node and two software GPUs."""
    with NodeHarness() as node_harness:
        assert node_harness.run("softgpu", "create", "--gpu", "v100", "--count", "2").returncode == 0
        node_harness.node()
        yield node_harness
        node_harness.run("softgpu", "destroy")


def report_of(node_harness: NodeHarness, *words: str, **options: Any) -> dict[str, dict[str, int]]:
    done = node_harness.run(*words, **options)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("mode", HOOK_MODES)
def test_tenant_gets_its_quota_as_device_memory(mode: str, gpus: NodeHarness) -> None:
    report = report_of(gpus, "run", "--gpu", "soft:1", "--memory", "4GiB", "--hook", mode, "--", *NVML_PROGRAM, "1")
    before, after = report["before"], report["after"]
    assert (before["total"], before["used"], before["free"]) == (4 * GIB, 0, 4 * GIB)
    for memory in (before, after):
        assert memory["total"] == memory["used"] + memory["free"] == 4 * GIB
        assert (memory["total_v2"], memory["used_v2"], memory["free_v2"]) == (
            memory["total"],
            memory["used"],
            memory["free"],
        )
        assert memory["reserved_v2"] == 0
    assert ALLOCATED_BYTES <= after["used"] < 2 * GIB  # its context and its allocation
    assert report["cuda"] == {"total": after["total"], "free": after["free"]}


def test_other_devices_and_tenants_without_a_quota_are_unchanged(gpus: NodeHarness) -> None:
    for mode, words in zip(HOOK_MODES, (("--gpu", "soft:1", "--memory", "4GiB"), ("--gpu", "soft:0")), strict=True):
        report = report_of(gpus, "run", *words, "--hook", mode, "--", *NVML_PROGRAM, "0")
        assert report["before"]["total"] == report["after"]["total"] == 16 * GIB


def test_nvml_outside_a_tenant_is_unchanged(gpus: NodeHarness) -> None:
    environ = {**gpus.environ, **manage.env(gpus.directories.runtime / "softgpu", base=gpus.environ)}
    process = gpus.open(NVML_PROGRAM, env=environ)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    report = json.loads(out)
    assert report["before"]["total"] == 16 * GIB
    assert report["after"]["used"] >= report["before"]["used"] + ALLOCATED_BYTES


@pytest.mark.parametrize("mode", HOOK_MODES)
def test_machine_without_nvml_works(mode: str, gpus: NodeHarness) -> None:
    """With the driver alone a program does not find NVML, as outside a tenant, and everything else works."""
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
