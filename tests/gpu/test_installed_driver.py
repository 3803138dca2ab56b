"""The hook works with the driver that is installed here, and programs run unchanged: `make test-gpu`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cotenant.hook import shim
from tests.support.hook_runs import HOOK_MODES, Hook, run

DRIVER = shim.find_driver(os.environ)
PROGRAM = [sys.executable, str(Path(__file__).parent / "programs" / "ptx.py")]
if DRIVER is None:
    pytest.skip("no NVIDIA driver (libcuda.so.1) is installed here", allow_module_level=True)
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def hook(tmp_path: Path) -> Hook:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
    assert DRIVER is not None
    return Hook(tmp_path / "hook", DRIVER, {})


@pytest.mark.parametrize("measure", [True, False])
@pytest.mark.parametrize("mode", HOOK_MODES)
def test_program_is_unchanged_and_recorded(mode: str, measure: bool, hook: Hook) -> None:
    bare = run(PROGRAM, hook.base)
    assert bare.returncode == 0, bare.stderr
    hooked = run(PROGRAM, hook.environ(mode, measure=measure, sample=8))
    assert (hooked.returncode, hooked.stdout) == (0, bare.stdout), hooked.stderr
    [record] = hook.recorded()
    launches = {timing.kernel.function: timing.launches for timing in record.profile.timings}
    assert launches["twice"] == 200
    assert record.timed > 0
    assert record.unknown == 0, record.unknown_names


def test_hook_knows_every_requested_symbol_of_this_driver(hook: Hook) -> None:
    """cuda-bindings requests all its functions by cuGetProcAddress when it is first used."""
    code = "from cuda.bindings import driver; print(driver.cuInit(0)[0].name, driver.cuDriverGetVersion()[1])"
    bare = run([sys.executable, "-c", code], hook.base)
    hooked = run([sys.executable, "-c", code], hook.environ("shim"))
    assert (hooked.returncode, hooked.stdout) == (0, bare.stdout), hooked.stderr
    [record] = hook.recorded()
    assert record.unknown_names == ()


def test_selftest_passes_in_front_of_this_driver(tmp_path: Path) -> None:
    done = run(
        [sys.executable, "-m", "cotenant", "selftest", "--report", str(tmp_path / "report.json")], os.environ.copy()
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
