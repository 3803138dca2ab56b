"""Green contexts count towards the quota of a tenant, and those of the hook give way to the program's own memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from cotenant.node.client.connection import read_activity
from tests.support.node_processes import NodeHarness, until

pytestmark = pytest.mark.live

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
MIB = 1 << 20
CONTEXT_BYTES = 64 * MIB
OUT_OF_MEMORY = 2
START = """
import ctypes, sys
from cuda.bindings import driver
driver.cuInit(0)
device = driver.cuDeviceGet(0)[1]
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(device)[1])
def held():
    free, total = driver.cuMemGetInfo()[1:]
    return total - free
"""
GREEN = (
    START
    + """
SM = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
whole = driver.cuDeviceGetDevResource(device, SM)[1]
before = held()
part = driver.cuDevSmResourceSplitByCount(1, whole, 0, 8)[1][0]
error, green = driver.cuGreenCtxCreate(driver.cuDevResourceGenerateDesc([part], 1)[1], device, 1)
print(int(error), held() - before)
if not error:
    driver.cuGreenCtxDestroy(green)
    print(held() - before)
"""
)
WAIT = START + "print('ready', flush=True); sys.stdin.readline()"
LAUNCH = (
    START
    + """
image = "softgpu-image 1|kernel spin| params 8| duration_param 0| blocks_per_sm 8||".replace("|", chr(10))
module = driver.cuModuleLoadData(image.encode() + bytes(1))[1]
spin = driver.cuModuleGetFunction(module, b"spin")[1]
before = held()
def launch():
    errors = []
    for _ in range(20):
        errors += driver.cuLaunchKernel(spin, 640, 1, 1, 256, 1, 1, 0, 0, ((50_000,), (ctypes.c_uint64,)), 0)
    return [*errors, *driver.cuCtxSynchronize()]
assert not any(launch())
print(held() - before)
error, pointer = driver.cuMemAlloc(int(sys.argv[1]))
print(int(error), held() - before)
assert not any(launch())
print(held() - before)
"""
)


@pytest.fixture
def node_harness() -> Iterator[NodeHarness]:
    with NodeHarness() as harness:
        assert harness.run("softgpu", "create", "--gpu", "v100", "--context-memory", "64MiB").returncode == 0
        yield harness
        harness.run("softgpu", "destroy")


def start_node(harness: NodeHarness, *flags: str) -> None:
    harness.node("--watch-period", "50ms", *flags)
    until(lambda: (ledger := read_activity(harness.directories).gpus[0].ledger) and ledger.context_bytes)


def run_program(harness: NodeHarness, code: str, *arguments: object, quota: str) -> list[int]:
    command = ["run", "--gpu", "soft:0", "--memory", quota, "--", sys.executable, "-c", code, *map(str, arguments)]
    done = harness.run(*command)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_green_context_of_a_program_counts_towards_its_quota(node_harness: NodeHarness) -> None:
    start_node(node_harness)
    assert run_program(node_harness, GREEN, quota="200MiB") == [0, CONTEXT_BYTES, 0]
    assert run_program(node_harness, GREEN, quota="100MiB") == [OUT_OF_MEMORY, 0]


def test_partitions_of_the_hook_give_way_to_the_memory_of_the_program(node_harness: NodeHarness) -> None:
    start_node(node_harness, "--mps", "on", "--gate", "open", "--sms", "50%")
    holder = node_harness.start(
        *("run", "--gpu", "soft:0", "--online", "--", sys.executable, "-c", WAIT), stdin=subprocess.PIPE
    )
    with holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "ready\n"
            wanted = 250 * MIB
            assert run_program(node_harness, LAUNCH, wanted, quota="1GiB") == [
                *(CONTEXT_BYTES, 0, CONTEXT_BYTES + wanted, CONTEXT_BYTES + wanted)
            ]
            assert run_program(node_harness, LAUNCH, wanted, quota="350MiB") == [CONTEXT_BYTES, 0, wanted, wanted]
        finally:
            holder.communicate("\n")
