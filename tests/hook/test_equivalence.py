"""Programs print the same output and get the same result codes with and without the hook."""

from __future__ import annotations

import contextlib
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
    """Return the names of the driver functions that the hook replaces."""
    listed = (NATIVE.parent / "hook" / "entry" / "hooked.def").read_text()
    return re.findall(r"^(?:ONE|TWO)\(\w+, (\w+)", listed, re.MULTILINE)


NOT_COMPARED = {
    "anycalls.py": "compared below, answer by answer",
    "attached_process.py": "follows the commands of a test, line by line",
    "blocked.py": "waits for a device that is lost",
    "busy_threads.py": "prints its progress",
    "crasher.py": "runs until it is killed",
    "data_duration.py": "prints how long things took",
    "spin.py": "needs two devices",
    "external.py": "needs other people's packages",
    "external_cuda.py": "needs other people's packages",
    "external_kserve.py": "needs other people's packages",
    "external_server.py": "needs other people's packages",
    "external_tinygrad.py": "needs other people's packages",
    "external_triton.py": "needs other people's packages",
    "exporter.py": "prints what NVML measures",
    "cuda_helpers.py": "no program",
    "joining.py": "follows the commands of a test, line by line",
    "hostends.py": "waits for a device that is broken from outside",
    "memory_holder.py": "runs until it is killed",
    "longwait.py": "waits for a device that is lost",
    "launch_commands.py": "follows the commands of a test, line by line",
    "killed_tenants.py": "its children run until they are killed",
    "orphan.py": "runs until it is killed",
    "service.py": "runs until it is killed",
    "several_devices.py": "launches until its test tells it to end",
    "unreported_requests.py": "serves a number of requests, and prints nothing",
    "rank.py": "runs until it is killed",
    "request_reporter.py": "prints whether requests are recorded",
    "paced.py": "prints how long things took",
    "ptx_clusters.py": "needs a device that has clusters",
    "ptx_faults.py": "ends by a fault that its argument names",
    "ptx_kernels.py": "no program",
    "ptx_random.py": "generates programs until its argument's number is reached",
    "scripted_program.py": "speaks over a socket",
    "script.py": "prints how long things took",
    "killed_children.py": "its children run until they are killed",
    "driver_commands.py": "prints its pid",
    "starts.py": "waits for a file that its test creates",
    "tenant.py": "runs until it is killed",
    "newer_driver.py": "for a driver that does not exist yet",
    "fault_waiter.py": "waits for a device that is lost",
}
ARGUMENTS = {  # arguments; all others have none
    "green.py": ("2", "2"),
    "sliced_launches.py": ("10",),
    "hoard.py": ("1",),
    "smallcalls.py": ("none",),
    "spins.py": ("10",),
    "steps.py": ("5", "100000"),
}
WORKER_COMMANDS = "spin 100000 80\ncopy 4096\ntake 65536\n"
INPUT = {"worker.py": WORKER_COMMANDS, "zeros.py": " ".join(hooked_symbols())}
ON_TWO_DEVICES = ("peers.py", "two.py")
WITHOUT_RECORD = {"obedient.py"}  # it does not call the driver
LOWER_PRIORITY = {"capture.py", "capture_beside.py", "contexts.py", "oldlaunch.py", "spins.py", "twins.py"}
LOWER_PRIORITY |= {"linking.py", "ptx_rules.py", "sliced_launches.py"}
NOT_LOWER_PRIORITY = {  # a launch at lower priority may wait until earlier work has ended
    "deep.py": "queues more than ever ends: it takes seconds until the gate gives up",
    "graph_memory.py": "expects a launch to return while earlier work runs",
    "graphs.py": "expects a launch to return while earlier work runs",
    "memops.py": "expects a launch to return while earlier work runs",
    "streams.py": "expects a launch to return while earlier work runs",
}
SLOTS = (None, ONLINE, OFFLINE)
TIMINGS = ((True, 0), (False, 2))  # every launch timed; about every second one


# By discovery: a new program is compared unless NOT_COMPARED gives a reason.
COMPARED = sorted(path.name for path in PROGRAMS.glob("*.py") if path.name not in NOT_COMPARED)


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hook]:
    """One device for all programs: state left by one must not affect the next."""
    home = tmp_path_factory.mktemp("same")
    manage.create(home / "gpu", "v100", 1)
    yield hook_before(home / "gpu", home / "hook")
    manage.destroy(home / "gpu")


def test_every_listed_exception_is_a_program() -> None:
    listed = {*NOT_COMPARED, *ARGUMENTS, *INPUT, *ON_TWO_DEVICES, *WITHOUT_RECORD, *LOWER_PRIORITY, *NOT_LOWER_PRIORITY}
    assert listed <= {path.name for path in PROGRAMS.glob("*.py")}


@contextlib.contextmanager
def gated(environ: dict[str, str], slot: int | None) -> Iterator[dict[str, str]]:
    """Yield the environment with a gate whose other tenant is idle, or without a gate."""
    if slot is None:
        yield environ
        return
    gate = Gate()
    try:
        yield gate.environ(environ, slot)
    finally:
        gate.close()


def assert_same(program: str, hook: Hook) -> None:
    command = [sys.executable, str(PROGRAMS / program), *ARGUMENTS.get(program, ())]
    bare = run(command, hook.base, INPUT.get(program, ""))
    assert bare.returncode == 0, bare.stderr
    mode, (measure, sample) = list(itertools.product(HOOK_MODES, TIMINGS))[COMPARED.index(program) % 4]
    slot = (
        OFFLINE
        if program in LOWER_PRIORITY
        else SLOTS[COMPARED.index(program) % (2 if program in NOT_LOWER_PRIORITY else 3)]
    )
    with gated(hook.environ(mode, measure=measure, sample=sample), slot) as environ:
        hooked = run(command, environ, INPUT.get(program, ""))
    assert (hooked.returncode, hooked.stdout, hooked.stderr) == (0, bare.stdout, bare.stderr)
    assert bool(hook.recorded()) == (program not in WITHOUT_RECORD)


@pytest.mark.parametrize("program", [name for name in COMPARED if name not in ON_TWO_DEVICES])
def test_programs_run_the_same(program: str, hook: Hook) -> None:
    if program.startswith("core"):
        pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra dev)")
    assert_same(program, hook)


@pytest.mark.parametrize("program", ON_TWO_DEVICES)
def test_programs_on_two_devices_run_the_same(program: str, tmp_path: Path) -> None:
    manage.create(tmp_path / "gpu", "t4", 2)
    try:
        assert_same(program, hook_before(tmp_path / "gpu", tmp_path / "hook"))
    finally:
        manage.destroy(tmp_path / "gpu")


@pytest.mark.parametrize("mode", HOOK_MODES)
def test_examples_do_the_same_work(mode: str, hook: Hook, tmp_path: Path) -> None:
    """Only the amount of work depends on the clock."""
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
    with gated(hook.environ(mode, measure=measure, sample=sample), (*SLOTS, OFFLINE)[seed]) as environ:
        hooked = run(command, environ)
    assert hooked.returncode == 0, hooked.stderr
    for number, (bare_line, hooked_line) in enumerate(
        zip(bare.stdout.splitlines(), hooked.stdout.splitlines(), strict=True)
    ):
        assert bare_line == hooked_line, f"answer {number} of seed {seed}"
    [record] = hook.recorded()
    launched = sum("cuLaunch" in line and line.endswith("-> 0") for line in bare.stdout.splitlines())
    kernels = [timing for timing in record.profile.timings if timing.kernel.function in ("turn", "spin")]
    assert sum(timing.launches for timing in kernels) == launched
    assert launched > 20
