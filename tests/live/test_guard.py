"""Does nothing of a program outlive what must not be outlived, and is its end told as it was?"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.live.guard import Child
from tests.e2e.stage import BOUND_S, alive, until
from tests.live.indoors import open_files

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
from cotenant.live.guard import Child
child = Child([sys.executable, "-c", sys.argv[1], sys.argv[2]], os.environ, [])
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
    started.append(Child(command, os.environ, []))
    return started[-1]


def family_of(said: Path) -> list[int]:
    until(said.exists)
    return [int(word) for word in said.read_text().split()]


def ended(child: Child) -> int:
    poller = select.poll()
    poller.register(child.fileno(), select.POLLIN)
    assert poller.poll(BOUND_S * 1000)
    child.hear()
    assert child.code is not None
    return child.code


@pytest.mark.parametrize(
    "command, code", [(["true"], 0), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -USR1 $$"], 138)]
)
def test_the_end_is_told_as_it_was(started: list[Child], command: list[str], code: int) -> None:
    assert ended(start(started, *command)) == code


def test_what_cannot_be_started_raises_as_exec_would() -> None:
    before = open_files()
    for command, error in ((["no-such-program"], FileNotFoundError), (["/etc/passwd"], PermissionError)):
        with pytest.raises(error):
            Child(command, os.environ, [])
    assert open_files() <= before


def test_the_program_keeps_only_what_it_is_given(started: list[Child], tmp_path: Path) -> None:
    given, kept = os.pipe()
    secret = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(secret, True)
    child = Child(
        ["sh", "-c", f"ls /proc/self/fd > {tmp_path / 'seen'}; echo > /proc/self/fd/{kept}"], os.environ, [kept]
    )
    started.append(child)
    os.close(kept)
    assert os.read(given, 8) == b"\n"
    assert ended(child) == 0
    assert os.read(given, 8) == b"", "the guard holds nothing of the program's open"
    assert str(secret) not in (tmp_path / "seen").read_text().split()
    os.close(given)
    os.close(secret)


def test_all_that_it_started_is_found_also_what_detached_itself(started: list[Child], tmp_path: Path) -> None:
    child = start(started, sys.executable, "-c", FAMILY, str(tmp_path / "said"))
    family = family_of(tmp_path / "said")
    assert set(family) <= set(child.others())
    child.end_all()
    assert ended(child) == 137
    until(lambda: not any(alive(pid) for pid in family))


def test_what_is_let_go_lives_on(started: list[Child], tmp_path: Path) -> None:
    child = start(started, sys.executable, "-c", FAMILY, str(tmp_path / "said"), "3")
    family = family_of(tmp_path / "said")
    assert ended(child) == 3
    started.clear()
    child.release(let_go=True)
    assert not alive(child.guard)
    assert all(alive(pid) for pid in family)
    for pid in family:
        os.kill(pid, signal.SIGKILL)


def test_when_we_are_killed_all_of_it_goes(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, FAMILY, str(tmp_path / "said")], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        program, guard = map(int, parent.stdout.readline().split())
        everybody = [program, guard, *family_of(tmp_path / "said")]
        assert all(alive(pid) for pid in everybody)
        parent.kill()
    until(lambda: not any(alive(pid) for pid in everybody))


def test_a_guard_that_is_killed_takes_the_program_along(started: list[Child]) -> None:
    child = start(started, "sleep", "600")
    os.kill(child.guard, signal.SIGKILL)
    assert ended(child) == 137
    until(lambda: not alive(child.pid))
