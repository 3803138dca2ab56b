"""The hook intercepts the driver however a program loads it, and coexists with other interposers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.hook import shim
from cotenant.hook.records import mapped_driver, process_tree
from cotenant.softgpu import manage
from tests.support.hook_runs import HOOK_MODES, Hook, compiled, hook_before, run

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]
OURS = "cuLaunchKernel is the hook's, cuDriverGetVersion the driver's"
PAST = "cuLaunchKernel is the driver's, cuDriverGetVersion the driver's"


@pytest.fixture
def hook(softgpu: Path, tmp_path: Path) -> Hook:
    return hook_before(softgpu, tmp_path / "hook")


@pytest.fixture
def opener(tmp_path: Path) -> Path:
    return compiled(tmp_path, "hook_entry_paths.c", "-lpthread", "-ldl")


@pytest.mark.parametrize("mode", HOOK_MODES)
def test_every_mode_of_loading_the_driver_is_intercepted(mode: str, hook: Hook, opener: Path) -> None:
    for method in ("open", "lazy", "deep", "default", "next", "again"):
        done = run([opener, method], hook.environ(mode))
        assert (done.returncode, done.stdout) == (0, f"{method}: {OURS}\n"), done.stderr
        assert [record.calls for record in hook.recorded()] == [3], method


@pytest.mark.parametrize("mode", HOOK_MODES)
def test_threads_share_a_record_and_processes_have_their_own(mode: str, hook: Hook, opener: Path) -> None:
    done = run([opener, "threads"], hook.environ(mode))
    assert (done.returncode, done.stdout) == (0, f"thread: {OURS}\n" * 4), done.stderr
    records = hook.recorded()
    assert [record.calls + record.unbooked for record in records] == [12]
    done = run([opener, "children"], hook.environ(mode))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"fork: {OURS}", f"open: {OURS}", f"parent: {OURS}"]
    records = hook.recorded()
    assert [record.calls for record in records] == [3, 3, 3]
    assert len({record.pid for record in records}) == 2  # the child executed itself anew


def test_shim_has_both_names_and_its_own_namespace(hook: Hook, opener: Path) -> None:
    for words in (["open", "libcuda.so"], ["space"]):
        done = run([opener, *words], hook.environ("shim"))
        assert (done.returncode, done.stdout) == (0, f"{words[0]}: {OURS}\n"), done.stderr
        assert [record.calls for record in hook.recorded()] == [3]


@pytest.mark.parametrize(
    "mode, words", [("shim", ["open", str(manage.library())]), ("preload", ["space"])], ids=["by path", "own namespace"]
)
def test_program_that_escapes_the_hook_works_without_a_record(
    mode: str, words: list[str], hook: Hook, opener: Path
) -> None:
    done = run([opener, *words], hook.environ(mode))
    assert (done.returncode, done.stdout) == (0, f"{words[0]}: {PAST}\n"), done.stderr
    assert hook.recorded() == []


@pytest.mark.parametrize("mode", HOOK_MODES)
def test_program_without_a_gpu_is_unchanged(mode: str, hook: Hook, opener: Path) -> None:
    list_threads = [sys.executable, "-c", "import os; print(sorted(os.listdir('/proc/self/task')) != [])"]
    for command in (["/bin/true"], [str(opener), "nothing"], list_threads):
        bare, hooked = run(command, hook.base), run(command, hook.environ(mode))
        assert (bare.returncode, bare.stdout, bare.stderr) == (hooked.returncode, hooked.stdout, hooked.stderr)
        assert hook.recorded() == []


def test_linked_program_and_a_second_interposer_work(hook: Hook, tmp_path: Path) -> None:
    linked = compiled(tmp_path, "hook_linked.c", str(hook.shim / "libcuda-real.so.1"))
    neighbour = compiled(tmp_path, "hook_interposer.c", "-shared", "-fPIC", "-ldl")
    ours = str(shim.hook_library())
    neighbour_output = "".join(f"neighbour saw launch {number}\n" for number in (1, 2, 3))
    for mode, preload, expected in (
        ("shim", "", ""),
        ("shim", f"{neighbour}", neighbour_output),
        ("preload", ours, ""),
        ("preload", f"{ours} {neighbour}", neighbour_output),
        ("preload", f"{neighbour} {ours}", neighbour_output),
    ):
        environ = {**hook.environ(mode), "LD_PRELOAD": preload}
        done = run([linked], environ)
        assert (done.returncode, done.stdout, done.stderr) == (0, "linked\n", expected), preload
        assert [record.calls for record in hook.recorded()] == [3], preload


def test_process_with_the_driver_but_without_the_hook_is_detected(hook: Hook) -> None:
    library = manage.library()
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('loaded', flush=True); sys.stdin.read()"
    for name, mode, expected in ((str(library), "shim", str(library)), ("libcuda.so.1", "shim", "")):
        process = subprocess.Popen(
            [sys.executable, "-c", code, name],
            env=hook.environ(mode),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "loaded\n"
        assert process_tree(process.pid) == [process.pid]
        assert mapped_driver(process.pid, library.resolve(), hooked=False) == expected
        assert mapped_driver(process.pid, library.resolve(), hooked=True) == str(library)
        process.communicate()


def test_driver_search_follows_the_dynamic_linker(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
    (second / "libcuda.so.1").symlink_to(manage.library())
    path = {"LD_LIBRARY_PATH": f"{first}:{second}"}
    assert shim.find_driver(path) == second / "libcuda.so.1"
    shim.make_shim(tmp_path / "shim", second / "libcuda.so.1")
    nested = {"LD_LIBRARY_PATH": f"{tmp_path / 'shim'}:{second}"}
    assert shim.find_driver(nested) == second / "libcuda.so.1"
    assert shim.try_load(tmp_path / "shim", path) == ""
    (tmp_path / "shim" / "libcuda-real.so.1").unlink()
    assert "libcuda-real.so.1" in shim.try_load(tmp_path / "shim", path)
