"""The hook records a program's kernel names, counts, times and captures, and the calls that it does not know."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.hook.record import Record
from cotenant.hook.records import read_records
from cotenant.workload.kernel import WorkKind
from tests.support.fake_node import ONE_TENANT, Connection, FakeNode, NodePages
from tests.support.hook_runs import HOOK_MODES, Hook, compiled, hook_before, run
from tests.support.software_gpus import PROGRAMS

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]
TOMORROW = [sys.executable, str(PROGRAMS / "newer_driver.py")]
SPINS = [sys.executable, str(PROGRAMS / "spins.py")]


@pytest.fixture
def hook(softgpu: Path, tmp_path: Path) -> Hook:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
    return hook_before(softgpu, tmp_path / "hook")


@pytest.fixture
def future(tmp_path: Path) -> Hook:
    """A driver that is newer than the hook, as a program finds it."""
    library = compiled(
        tmp_path, "hook_future_driver.c", "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1"
    )
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libcuda.so.1").symlink_to(library)
    return Hook(tmp_path / "hook", library, {"LD_LIBRARY_PATH": str(tmp_path / "lib")})


@pytest.mark.parametrize("mode", HOOK_MODES)
def test_calls_of_a_newer_driver_are_passed_on_and_reported(mode: str, future: Hook) -> None:
    bare = run(TOMORROW, future.base)
    hooked = run(TOMORROW, future.environ(mode, measure=True))
    assert (bare.returncode, bare.stdout) == (0, hooked.stdout), hooked.stderr
    assert hooked.stderr == ""
    [record] = future.recorded()
    assert (record.unknown, record.unknown_names, record.export_tables) == (1, ("cuLaunchKernel",), 1)


def test_newer_call_version_is_refused_on_request(future: Hook) -> None:
    lines = run(TOMORROW, future.environ("shim", unknown="refuse")).stdout.splitlines()
    assert lines[:4] == ["known 0 True 0", "newer 500 False 1", "never heard of 0 True 0 1234", "none 500 False 1"]


def test_capture_is_no_work_and_a_graph_is_one_launch(future: Hook) -> None:
    for measure in (True, False):
        done = run(TOMORROW, future.environ("shim", measure=measure, sample=1))
        assert (done.returncode, done.stderr) == (0, "")
        [record] = future.recorded()
        timings = {timing.kernel.work: timing for timing in record.profile.timings}
        assert sum(timing.device.count for timing in record.profile.timings) > 0
        assert (record.captured, record.calls) == (2, 7)
        assert (timings[WorkKind.GRAPH].launches, timings[WorkKind.KERNEL].launches) == (5, 2)
        assert timings[WorkKind.GRAPH].kernel.function.startswith("graph of 3 #")


def test_measuring_mode_times_every_kernel(hook: Hook) -> None:
    done = run([*SPINS, "60"], hook.environ("shim", measure=True))
    assert done.returncode == 0, done.stderr
    [record] = hook.recorded()
    assert record.measuring
    assert (record.timed, record.untimed, record.unbooked) == (120, 0, 0)
    assert record.profile.device == "Tesla V100-SXM2-16GB"
    short, long = record.profile.timings
    assert (short.kernel.function, short.kernel.grid, short.kernel.block) == ("spin", (80, 1, 1), (128, 1, 1))
    assert (short.launches, long.launches) == (60, 60)
    # One whose end was marked late, since the host got no processor, shows but a bound and is left out.
    assert 0 < short.device.count <= 60
    assert 0 < long.device.count <= 60
    assert short.blocks_per_sm > 0
    # The device's own clock: never shorter than the kernel, and in the median hardly longer.
    assert 100_000 * 0.97 < short.device.quantile(0.5) < 100_000 * 1.05
    assert 300_000 * 0.97 < long.device.quantile(0.5) < 300_000 * 1.05
    assert record.profile.busy_ns >= 60 * 350_000  # what the host lost between a mark and its own clock is not counted
    assert record.profile.span_ns >= record.profile.busy_ns
    histories = {tuple(kernel.block[0] for kernel in interval.after) for interval in record.profile.intervals}
    assert histories == {(128,), (128, 256), (128, 256, 128), (256, 128, 256)}
    assert sum(interval.host.count for interval in record.profile.intervals) == 119


def test_sharing_mode_samples_kernel_times(hook: Hook) -> None:
    environ = hook.environ("preload", sample=4)
    assert run([*SPINS, "100"], environ).returncode == 0
    [record] = hook.recorded()
    assert not record.measuring
    assert sum(timing.launches for timing in record.profile.timings) == 200
    assert 20 < record.timed < 90
    assert all(timing.device.count for timing in record.profile.timings)  # not always the same one
    assert record.profile.span_ns == 0
    assert run([*SPINS, "100"], {**environ, "COTENANT_SAMPLE": "0"}).returncode == 0
    [record] = hook.recorded()
    assert (record.timed, record.calls) == (0, 200)


@pytest.fixture
def node() -> Iterator[FakeNode]:
    """A node that has no gate for the device, so that only the grant says who else is there."""

    def attach_without_device(node: FakeNode, connection: Connection) -> None:
        node.add(connection)
        node.send_attached(connection, has_device=False)

    with tempfile.TemporaryDirectory(prefix="cotenant-") as directory:
        pages = NodePages()
        with FakeNode(Path(directory) / "tenant.sock", pages, attach_without_device) as made:
            yield made
        pages.close()


@pytest.mark.parametrize("measure", [False, True])
def test_only_a_tenant_alone_on_the_device_records_kernel_times(measure: bool, hook: Hook, node: FakeNode) -> None:
    environ = {**hook.environ("shim", measure=measure, sample=2), "COTENANT_SOCKET": str(node.path)}

    def times_recorded() -> int:
        done = run([*SPINS, "20"], environ)
        assert (done.returncode, done.stderr) == (0, "")
        [record] = hook.recorded()
        assert (record.timed > 0) == (measure or timed_launches(record) > 0)
        return timed_launches(record)

    assert times_recorded() > 0
    node.pages.grants.set_neighbour_count(ONE_TENANT.gpu, 1)
    assert times_recorded() == 0
    node.pages.grants.set_neighbour_count(ONE_TENANT.gpu, 0)
    assert times_recorded() > 0
    node.pages.grants.revoke(ONE_TENANT.slot, ONE_TENANT.generation)
    assert times_recorded() == 0


def timed_launches(record: Record) -> int:
    return sum(timing.device.count for timing in record.profile.timings)


def test_arriving_neighbour_discards_measurements_in_progress(hook: Hook, node: FakeNode) -> None:
    environ = {**hook.environ("shim", measure=True), "COTENANT_SOCKET": str(node.path)}
    program = subprocess.Popen([*SPINS, "3", "ask"], env=environ, stdin=-1, stdout=-1, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "launched\n"
    for others in (1, 0):  # gone again before the hook checks
        node.pages.grants.set_neighbour_count(ONE_TENANT.gpu, others)
    assert program.communicate("\n", timeout=60)[0] == "spun\n"
    [record] = hook.recorded()
    assert (record.calls, record.timed, timed_launches(record)) == (6, 6, 0)


def test_killed_program_leaves_its_record(hook: Hook) -> None:
    done = run([*SPINS, "50", "die"], hook.environ("shim", measure=True))
    assert done.returncode == -signal.SIGKILL
    [record] = hook.recorded()
    assert sum(timing.launches for timing in record.profile.timings) == 100
    assert all(timing.device.sound for timing in record.profile.timings)


def test_failed_launch_does_not_end_the_timing(hook: Hook) -> None:
    done = run([sys.executable, str(PROGRAMS / "strays.py")], hook.environ("shim", measure=True))
    assert done.stdout.split().count("CUDA_SUCCESS") == 4, done.stderr
    [record] = hook.recorded()
    assert (record.calls, record.timed, timed_launches(record) > 0) == (4, 4, True)


def test_reused_handle_is_another_kernel(hook: Hook) -> None:
    done = run([sys.executable, str(PROGRAMS / "reloaded.py")], hook.environ("shim"))
    assert done.returncode == 0, done.stderr
    [record] = hook.recorded()
    counts = {timing.kernel.function: timing.launches for timing in record.profile.timings}
    assert counts == {f"kernel{number}": 2 for number in range(20)}


def test_file_size_limit_does_not_end_the_program(hook: Hook) -> None:
    code = (  # Python ignores the signal, C programs do not
        "import resource, runpy, signal, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); "
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL); sys.path.insert(0, sys.argv[1]); sys.argv[1:] = ['3']; "
        "runpy.run_path(sys.path[0] + '/spins.py')"
    )
    done = run([sys.executable, "-c", code, str(PROGRAMS)], hook.environ("shim", measure=True))
    assert (done.returncode, done.stdout, done.stderr) == (0, "spun\n", "")
    assert hook.recorded() == []


def test_path_that_is_no_file_has_no_record(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "record-1-0")  # no process opens the other end
    (tmp_path / "record-2-0").mkdir()
    (tmp_path / "record-3-0").symlink_to("/dev/zero")
    assert list(read_records(tmp_path, "task")) == []


def test_missing_record_directory_is_no_error(hook: Hook) -> None:
    for directory in ("/nowhere/at/all", "relative", "/proc", ""):
        done = run([*SPINS, "3"], {**hook.environ("shim"), "COTENANT_RECORD": directory})
        assert (done.returncode, done.stdout, done.stderr) == (0, "spun\n", "")
    assert list(hook.records.iterdir()) == []
