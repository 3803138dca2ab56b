"""Do programs run the same with the hook as without: what they print, every code they get, call by call?"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from cotenant.live.softgpu import manage
from tests.live.hooks import WAYS, Hook, hook_before, run
from tests.live.softgpus import PROGRAMS

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = pytest.mark.timeout(240)

SAME = (
    "capture.py",
    "capture_errors.py",
    "compute.py",
    "contexts.py",
    "deep.py",
    "errors.py",
    "forked.py",
    "freed.py",
    "graph_contexts.py",
    "graph_memory.py",
    "graph_update.py",
    "graphs.py",
    "hostqueue.py",
    "leftovers.py",
    "oldlaunch.py",
    "twins.py",
    "variables.py",
)
STAGES = ((True, 0), (False, 2))  # every launch timed; every second or so


@pytest.fixture
def hook(softgpu: Path, tmp_path: Path) -> Hook:
    return hook_before(softgpu, tmp_path / "hook")


@pytest.mark.parametrize("program", SAME)
def test_bindings_programs_run_the_same(program: str, hook: Hook) -> None:
    command = [sys.executable, str(PROGRAMS / program)]
    bare = run(command, hook.base)
    assert bare.returncode == 0, bare.stderr
    way, (measure, sample) = list(itertools.product(WAYS, STAGES))[SAME.index(program) % 4]
    hooked = run(command, hook.environ(way, measure=measure, sample=sample))
    assert (hooked.returncode, hooked.stdout, hooked.stderr) == (0, bare.stdout, bare.stderr)
    assert hook.recorded() or program == "contexts.py"


@pytest.mark.parametrize("way", WAYS)
def test_cuda_core_runs_the_same(way: str, hook: Hook) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra dev)")
    command = [sys.executable, str(PROGRAMS / "core.py")]
    bare, hooked = run(command, hook.base), run(command, hook.environ(way, measure=True))
    assert (hooked.returncode, hooked.stdout) == (0, bare.stdout), hooked.stderr
    assert sum(record.calls for record in hook.recorded()) > 0


def test_two_devices(tmp_path: Path) -> None:
    manage.create(tmp_path / "gpu", "t4", 2)
    try:
        hook = hook_before(tmp_path / "gpu", tmp_path / "hook")
        done = run([sys.executable, str(PROGRAMS / "two.py")], hook.environ("shim", measure=True))
        assert (done.returncode, "two" in done.stdout) == (0, True), done.stderr
    finally:
        manage.destroy(tmp_path / "gpu")


@pytest.mark.parametrize("seed", range(4))
def test_any_calls_are_answered_the_same(seed: int, hook: Hook) -> None:
    command = [sys.executable, str(PROGRAMS / "anycalls.py"), str(seed), "1500"]
    bare = run(command, hook.base)
    assert bare.returncode == 0, bare.stderr
    way, (measure, sample) = list(itertools.product(WAYS, STAGES))[seed]
    hooked = run(command, hook.environ(way, measure=measure, sample=sample))
    assert hooked.returncode == 0, hooked.stderr
    for number, (one, other) in enumerate(zip(bare.stdout.splitlines(), hooked.stdout.splitlines(), strict=True)):
        assert one == other, f"answer {number} of seed {seed}"
    [record] = hook.recorded()
    launched = sum("cuLaunch" in line and line.endswith("-> 0") for line in bare.stdout.splitlines())
    kernels = [timing for timing in record.profile.timings if timing.kernel.function in ("turn", "spin")]
    assert sum(timing.launches for timing in kernels) == launched
    assert launched > 20
