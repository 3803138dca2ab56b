"""The hook's C test has no data race under the thread sanitizer, which the other sanitizers exclude."""

import subprocess

import pytest

from tests.support.tools import ROOT, run_or_fail, tool

pytestmark = pytest.mark.live

LIMIT_S = 500  # against hangs alone: others build and test at the same time


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_hook_has_no_data_races() -> None:
    build = ROOT / "build" / "tsan"
    kind = ["-DCMAKE_BUILD_TYPE=Debug", "-DCOTENANT_SANITIZE_THREADS=ON", "-DCOTENANT_NATIVE_TESTS=ON"]
    ninja = f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"
    run_or_fail([tool("cmake"), "-S", ROOT, "-B", build, "-G", "Ninja", *kind, ninja], ROOT)
    programs = ["hook_threads", "hook_gate", "hook_gate_edges", "hook_memory", "hook_pools"]
    run_or_fail([tool("cmake"), "--build", build, "--target", *programs], ROOT, timeout_s=LIMIT_S)
    for command in (*programs, "hook_threads sharing"):
        name, *arguments = command.split()
        program = [str(build / "native" / "tests" / name), *arguments]
        # Address randomisation of newer kernels is more than the sanitizer's memory layout expects.
        done = subprocess.run(
            ["setarch", "-R", *program], capture_output=True, text=True, check=False, timeout=LIMIT_S, cwd=ROOT
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert "WARNING" not in done.stderr
