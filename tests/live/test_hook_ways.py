"""Does the hook get into programs, whichever way they come by the driver, and past nobody who stands there too?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.live.hook import door
from cotenant.live.hook.trace import driver_of, family
from cotenant.live.softgpu import manage
from tests.live.hooks import WAYS, Hook, compiled, hook_before, run

pytestmark = pytest.mark.timeout(180)
OURS = "cuLaunchKernel is the hook's, cuInit the driver's"
PAST = "cuLaunchKernel is the driver's, cuInit the driver's"


@pytest.fixture
def hook(softgpu: Path, tmp_path: Path) -> Hook:
    return hook_before(softgpu, tmp_path / "hook")


@pytest.fixture
def ways(tmp_path: Path) -> Path:
    return compiled(tmp_path, "hook_ways.c", "-lpthread", "-ldl")


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_open_the_driver(way: str, hook: Hook, ways: Path) -> None:
    for how in ("open", "lazy", "deep", "default", "next", "again"):
        done = run([ways, how], hook.environ(way))
        assert (done.returncode, done.stdout) == (0, f"{how}: {OURS}\n"), done.stderr
        assert [record.calls for record in hook.recorded()] == [3], how


@pytest.mark.parametrize("way", WAYS)
def test_threads_share_a_record_and_processes_have_their_own(way: str, hook: Hook, ways: Path) -> None:
    done = run([ways, "threads"], hook.environ(way))
    assert (done.returncode, done.stdout) == (0, f"thread: {OURS}\n" * 4), done.stderr
    records = hook.recorded()
    assert [record.calls + record.unbooked for record in records] == [12]
    done = run([ways, "children"], hook.environ(way))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"fork: {OURS}", f"open: {OURS}", f"parent: {OURS}"]
    records = hook.recorded()
    assert [record.calls for record in records] == [3, 3, 3]
    assert len({record.pid for record in records}) == 2  # the child executed itself anew


def test_the_shim_has_both_names_and_a_namespace_of_its_own(hook: Hook, ways: Path) -> None:
    for words in (["open", "libcuda.so"], ["space"]):
        done = run([ways, *words], hook.environ("shim"))
        assert (done.returncode, done.stdout) == (0, f"{words[0]}: {OURS}\n"), done.stderr
        assert [record.calls for record in hook.recorded()] == [3]


@pytest.mark.parametrize(
    "way, words", [("shim", ["open", str(manage.library())]), ("preload", ["space"])], ids=["by path", "own namespace"]
)
def test_what_escapes_works_and_leaves_no_record(way: str, words: list[str], hook: Hook, ways: Path) -> None:
    done = run([ways, *words], hook.environ(way))
    assert (done.returncode, done.stdout) == (0, f"{words[0]}: {PAST}\n"), done.stderr
    assert hook.recorded() == []


@pytest.mark.parametrize("way", WAYS)
def test_programs_without_a_gpu_notice_nothing(way: str, hook: Hook, ways: Path) -> None:
    shown = [sys.executable, "-c", "import os; print(sorted(os.listdir('/proc/self/task')) != [])"]
    for command in (["/bin/true"], [str(ways), "nothing"], shown):
        bare, hooked = run(command, hook.base), run(command, hook.environ(way))
        assert (bare.returncode, bare.stdout, bare.stderr) == (hooked.returncode, hooked.stdout, hooked.stderr)
        assert hook.recorded() == []


def test_a_linked_program_and_a_second_interposer(hook: Hook, tmp_path: Path) -> None:
    linked = compiled(tmp_path, "hook_linked.c", str(hook.shim / "libcuda-real.so.1"))
    neighbour = compiled(tmp_path, "hook_neighbour.c", "-shared", "-fPIC", "-ldl")
    ours = str(door.library())
    seen = "".join(f"neighbour saw launch {number}\n" for number in (1, 2, 3))
    for way, preload, said in (
        ("shim", "", ""),
        ("shim", f"{neighbour}", seen),
        ("preload", ours, ""),
        ("preload", f"{ours} {neighbour}", seen),
        ("preload", f"{neighbour} {ours}", seen),
    ):
        environ = {**hook.environ(way), "LD_PRELOAD": preload}
        done = run([linked], environ)
        assert (done.returncode, done.stdout, done.stderr) == (0, "linked\n", said), preload
        assert [record.calls for record in hook.recorded()] == [3], preload


def test_a_process_that_has_the_driver_without_the_hook_is_found(hook: Hook) -> None:
    library = manage.library()
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('loaded', flush=True); sys.stdin.read()"
    for name, way, wanted in ((str(library), "shim", str(library)), ("libcuda.so.1", "shim", "")):
        process = subprocess.Popen(
            [sys.executable, "-c", code, name],
            env=hook.environ(way),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "loaded\n"
        assert family(process.pid) == [process.pid]
        assert driver_of(process.pid, library.resolve(), hooked=False) == wanted
        assert driver_of(process.pid, library.resolve(), hooked=True) == str(library)
        process.communicate()


def test_the_driver_is_found_as_the_linker_would(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second):
        place.mkdir()
    (second / "libcuda.so.1").symlink_to(manage.library())
    path = {"LD_LIBRARY_PATH": f"{first}:{second}"}
    assert door.find_driver(path) == second / "libcuda.so.1"
    door.make_shim(tmp_path / "shim", second / "libcuda.so.1")
    nested = {"LD_LIBRARY_PATH": f"{tmp_path / 'shim'}:{second}"}
    assert door.find_driver(nested) == second / "libcuda.so.1"
    assert door.try_load(tmp_path / "shim", path) == ""
    (tmp_path / "shim" / "libcuda-real.so.1").unlink()
    assert "libcuda-real.so.1" in door.try_load(tmp_path / "shim", path)
