"""No process of a program outlives its parent's death, and the exit status is reported unchanged."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.node.client.guard import Child
from tests.support.node_in_process import open_files
from tests.support.node_processes import BOUND_S, alive, until

pytestmark = pytest.mark.live

# Starts a child, a grandchild that detaches itself twice over, and one that ignores SIGTERM; says who they are.
FAMILY = """
import os, signal, subprocess, sys, time
from pathlib import Path
said = Path(sys.argv[1])
child = subprocess.Popen(["sleep", "600"])
detached = subprocess.Popen(["sh", "-c", "setsid sleep 600 & echo $!"], stdout=subprocess.PIPE, text=True)
lost = int(detached.stdout.readline())
detached.wait()
stubborn = os.fork()
if not stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
said.with_suffix(".new").write_text(f"{child.pid} {lost} {stubborn}")
said.with_suffix(".new").rename(said)
if len(sys.argv) > 2:
    sys.exit(int(sys.argv[2]))
time.sleep(600)
"""
# Starts a family below a guard and waits.
PARENT = """
import os, sys, time
from cotenant.node.client.guard import Child
child = Child([sys.executable, "-c", sys.argv[1], sys.argv[2]], os.environ)
print(child.pid, child.guard, flush=True)
time.sleep(600)
"""


@pytest.fixture
def started() -> Iterator[list[Child]]:
    children: list[Child] = []
    yield children
    for child in children:
        child.release()


def start(started: list[Child], *command: str) -> Child:
    started.append(Child(command, os.environ))
    return started[-1]


def family_of(said: Path) -> list[int]:
    until(said.exists)
    return [int(word) for word in said.read_text().split()]


def ended(child: Child) -> int:
    poller = select.poll()
    poller.register(child.fileno(), select.POLLIN)
    assert poller.poll(BOUND_S * 1000)
    child.receive()
    assert child.code is not None
    return child.code


@pytest.mark.parametrize(
    "command, code", [(["true"], 0), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -USR1 $$"], 138)]
)
def test_exit_status_is_reported_unchanged(started: list[Child], command: list[str], code: int) -> None:
    assert ended(start(started, *command)) == code


def test_program_that_cannot_start_raises_like_exec() -> None:
    before = open_files()
    for command, error in ((["no-such-program"], FileNotFoundError), (["/etc/passwd"], PermissionError)):
        with pytest.raises(error):
            Child(command, os.environ)
    assert open_files() <= before


def test_program_inherits_no_descriptors(started: list[Child], tmp_path: Path) -> None:
    given, kept = os.pipe()
    os.set_inheritable(kept, True)
    child = Child(["sh", "-c", f"ls /proc/self/fd > {tmp_path / 'seen'}"], os.environ)
    started.append(child)
    os.close(kept)
    assert os.read(given, 8) == b"", "neither the program nor its guard holds it open"
    assert ended(child) == 0
    assert str(kept) not in (tmp_path / "seen").read_text().split()
    os.close(given)


def test_detached_descendants_are_found(started: list[Child], tmp_path: Path) -> None:
    child = start(started, sys.executable, "-c", FAMILY, str(tmp_path / "said"))
    family = family_of(tmp_path / "said")
    assert set(family) <= set(child.others())
    child.end_all()
    assert ended(child) == 137
    until(lambda: not any(alive(pid) for pid in family))


def test_released_processes_live_on(started: list[Child], tmp_path: Path) -> None:
    child = start(started, sys.executable, "-c", FAMILY, str(tmp_path / "said"), "3")
    family = family_of(tmp_path / "said")
    assert ended(child) == 3
    started.clear()
    child.release(keep_running=True)
    assert not alive(child.guard)
    assert all(alive(pid) for pid in family)
    for pid in family:
        os.kill(pid, signal.SIGKILL)


def test_killing_the_parent_kills_all_processes(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, FAMILY, str(tmp_path / "said")], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        program, guard = map(int, parent.stdout.readline().split())
        everybody = [program, guard, *family_of(tmp_path / "said")]
        assert all(alive(pid) for pid in everybody)
        parent.kill()
    until(lambda: not any(alive(pid) for pid in everybody))


def test_killing_the_guard_kills_the_program(started: list[Child]) -> None:
    child = start(started, "sleep", "600")
    os.kill(child.guard, signal.SIGKILL)
    assert ended(child) == 137
    until(lambda: not alive(child.pid))
