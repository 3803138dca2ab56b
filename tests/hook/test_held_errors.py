"""The hook keeps errors of the device from a program for a limited time, so that its pod is evicted before it fails."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.softgpu.fault import KINDS, inject
from tests.support.hook_runs import Hook, hook_before
from tests.support.node_processes import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]
CLOCK_NANOSLEEP = {"x86_64": "230", "aarch64": "115"}
PROGRAM = '''
import ctypes, signal
IMAGE = b"""softgpu-image 1
kernel spin
  params 8
  duration_param 0
  blocks_per_sm 8
"""
cuda = ctypes.CDLL("libcuda.so.1")
context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()


def stop(*_):
    print("stopped", flush=True)
    raise SystemExit(0)


signal.signal(signal.SIGTERM, stop)
assert cuda.cuInit(0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), IMAGE) == 0
assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"spin") == 0
value = ctypes.c_uint64(1_000_000)
values = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(value), ctypes.c_void_p))
print("at work", flush=True)
result = 0
while not result:
    result = cuda.cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, None, values, None) or cuda.cuCtxSynchronize()
print("error", result, flush=True)
'''


@pytest.fixture
def hook(softgpu: Path, tmp_path: Path) -> Hook:
    return hook_before(softgpu, tmp_path / "hook")


def start(hook: Hook, hold_ms: int) -> subprocess.Popen[str]:
    environ = {**hook.environ("preload"), "COTENANT_HOLD_ERRORS_MS": str(hold_ms)}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=environ)
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    return process


def is_held(process: subprocess.Popen[str]) -> bool:
    """Return whether the program waits in the hook: it does not sleep by itself."""
    return Path(f"/proc/{process.pid}/syscall").read_text().split()[0] in CLOCK_NANOSLEEP.values()


def test_a_signal_reaches_the_program_before_the_error(softgpu: Path, hook: Hook) -> None:
    process = start(hook, 60_000)
    inject(softgpu, 0, KINDS["device-lost"])
    until(lambda: is_held(process))
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == "stopped\n"
    assert process.returncode == 0


@pytest.mark.parametrize("hold_ms", [0, 1])
def test_the_program_gets_the_error_afterwards(hold_ms: int, softgpu: Path, hook: Hook) -> None:
    process = start(hook, hold_ms)
    inject(softgpu, 0, KINDS["device-lost"])
    assert process.communicate(timeout=60)[0] == "error 999\n"


def test_an_error_of_the_program_itself_is_not_held(softgpu: Path, hook: Hook) -> None:
    process = start(hook, 60_000)
    inject(softgpu, 0, KINDS["illegal-address"], client=process.pid)
    assert process.communicate(timeout=60)[0] == "error 700\n"
