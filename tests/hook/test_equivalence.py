"""Programs print the same output and get the same result codes with and without the hook."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.softgpu import manage
from cotenant.workload.kernel import WorkKind
from tests.support.gate_files import OFFLINE, ONLINE, Gate
from tests.support.hook_runs import HOOK_MODES, NATIVE, Hook, compiled, hook_before, run
from tests.support.software_gpus import PROGRAMS

pytestmark = pytest.mark.live

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
EXAMPLES = Path(__file__).parents[2] / "examples"


def hooked_symbols() -> list[str]:
    """Names that the hook stands in for."""
    listed = (NATIVE.parent / "hook" / "entry" / "hooked.def").read_text()
    return re.findall(r"^(?:ONE|TWO)\(\w+, (\w+)", listed, re.MULTILINE)


NOT_COMPARED = {
    "anycalls.py": "compared below, answer by answer",
    "blocked.py": "waits for a device that is lost",
    "busybody.py": "prints how far it came",
    "crasher.py": "runs until it is killed",
    "exporter.py": "prints what NVML measures",
    "face.py": "no program",
    "hostends.py": "waits for a device that is broken from outside",
    "memory_holder.py": "runs until it is killed",
    "longwait.py": "waits for a device that is lost",
    "ordered.py": "does what a test says, line by line",
    "mortals.py": "its children run until they are killed",
    "orphan.py": "runs until it is killed",
    "service.py": "runs until it is killed",
    "served.py": "serves as many as a test says, and prints nothing",
    "teller.py": "prints whether anybody listens",
    "paced.py": "prints how long things took",
    "puppet.py": "speaks over a socket",
    "script.py": "prints how long things took",
    "shortlived.py": "its children run until they are killed",
    "steered.py": "prints its pid",
    "tenant.py": "runs until it is killed",
    "tomorrow.py": "for a driver that does not exist yet",
    "victim.py": "waits for a device that is lost",
}
GIVEN = {  # arguments; all others have none
    "green.py": ("2", "2"),
    "hoard.py": ("1",),
    "smallcalls.py": ("none",),
    "spins.py": ("10",),
    "steps.py": ("5", "100000"),
}
WORK_FOR_IT = "spin 100000 80\ncopy 4096\ntake 65536\n"
HEARD = {"worker.py": WORK_FOR_IT, "zeros.py": " ".join(hooked_symbols())}
ON_TWO = ("peers.py", "two.py")
WITHOUT_RECORD = {"bus.py", "obedient.py"}  # that ask nothing of a driver
BELOW = {"capture.py", "capture_beside.py", "contexts.py", "oldlaunch.py", "spins.py", "twins.py"}
NOT_BELOW = {  # a launch below another tenant may wait until earlier work has ended
    "deep.py": "queues more than ever ends: it takes seconds until the gate gives up",
    "graph_memory.py": "expects a launch to return while earlier work runs",
    "graphs.py": "expects a launch to return while earlier work runs",
    "memops.py": "expects a launch to return while earlier work runs",
    "streams.py": "expects a launch to return while earlier work runs",
}
SLOTS = (None, ONLINE, OFFLINE)
TIMINGS = ((True, 0), (False, 2))  # every launch timed; every second or so


# By discovery: a new program is compared unless somebody says why not.
SAME = sorted(path.name for path in PROGRAMS.glob("*.py") if path.name not in NOT_COMPARED)


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hook]:
    """One device for all: what a program leaves behind must not change what the next one sees."""
    home = tmp_path_factory.mktemp("same")
    manage.create(home / "gpu", "v100", 1)
    yield hook_before(home / "gpu", home / "hook")
    manage.destroy(home / "gpu")


def test_every_listed_exception_is_a_program() -> None:
    named = {*NOT_COMPARED, *GIVEN, *HEARD, *ON_TWO, *WITHOUT_RECORD, *BELOW, *NOT_BELOW}
    assert named <= {path.name for path in PROGRAMS.glob("*.py")}


def gated(hook: Hook, environ: dict[str, str], slot: int | None) -> dict[str, str]:
    """At the gate of a device whose other tenant does nothing, or at none."""
    return environ if slot is None else Gate(hook.records.parent / "gates").environ(environ, hook.records, slot)


def assert_same(program: str, hook: Hook) -> None:
    command = [sys.executable, str(PROGRAMS / program), *GIVEN.get(program, ())]
    bare = run(command, hook.base, HEARD.get(program, ""))
    assert bare.returncode == 0, bare.stderr
    mode, (measure, sample) = list(itertools.product(HOOK_MODES, TIMINGS))[SAME.index(program) % 4]
    slot = OFFLINE if program in BELOW else SLOTS[SAME.index(program) % (2 if program in NOT_BELOW else 3)]
    environ = gated(hook, hook.environ(mode, measure=measure, sample=sample), slot)
    hooked = run(command, environ, HEARD.get(program, ""))
    assert (hooked.returncode, hooked.stdout, hooked.stderr) == (0, bare.stdout, bare.stderr)
    assert bool(hook.recorded()) == (program not in WITHOUT_RECORD)


@pytest.mark.parametrize("program", [name for name in SAME if name not in ON_TWO])
def test_programs_run_the_same(program: str, hook: Hook) -> None:
    if program.startswith("core"):
        pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra dev)")
    assert_same(program, hook)


@pytest.mark.parametrize("program", ON_TWO)
def test_programs_on_two_devices_run_the_same(program: str, tmp_path: Path) -> None:
    manage.create(tmp_path / "gpu", "t4", 2)
    try:
        assert_same(program, hook_before(tmp_path / "gpu", tmp_path / "hook"))
    finally:
        manage.destroy(tmp_path / "gpu")


@pytest.mark.parametrize("mode", HOOK_MODES)
def test_examples_do_the_same_work(mode: str, hook: Hook, tmp_path: Path) -> None:
    """How much they get done depends on the clock, and nothing else."""
    program = compiled(tmp_path, str(EXAMPLES / "replay.c"), "-ldl", "-lm")
    for command in ([str(program), "training"], [sys.executable, str(EXAMPLES / "replay.py"), "--mode", "training"]):
        result = run([*command, "--seconds", "0.2", "--json"], hook.environ(mode, measure=True))
        assert (result.returncode, result.stderr) == (0, "")
        answer = json.loads(result.stdout)
        [record] = hook.recorded()
        kernels = [timing for timing in record.profile.timings if timing.kernel.work is WorkKind.KERNEL]
        assert sum(timing.launches for timing in kernels) == answer["kernels"] > 0


@pytest.mark.parametrize("seed", range(4))
def test_random_calls_return_the_same_codes(seed: int, hook: Hook) -> None:
    command = [sys.executable, str(PROGRAMS / "anycalls.py"), str(seed), "1500"]
    bare = run(command, hook.base)
    assert bare.returncode == 0, bare.stderr
    mode, (measure, sample) = list(itertools.product(HOOK_MODES, TIMINGS))[seed]
    hooked = run(command, gated(hook, hook.environ(mode, measure=measure, sample=sample), (*SLOTS, OFFLINE)[seed]))
    assert hooked.returncode == 0, hooked.stderr
    for number, (one, other) in enumerate(zip(bare.stdout.splitlines(), hooked.stdout.splitlines(), strict=True)):
        assert one == other, f"answer {number} of seed {seed}"
    [record] = hook.recorded()
    launched = sum("cuLaunch" in line and line.endswith("-> 0") for line in bare.stdout.splitlines())
    kernels = [timing for timing in record.profile.timings if timing.kernel.function in ("turn", "spin")]
    assert sum(timing.launches for timing in kernels) == launched
    assert launched > 20
