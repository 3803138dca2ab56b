"""A stage for real processes: nodes and tenants in directories of their own, and nothing left of them afterwards."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from cotenant.domain.action import NO_PEER, Grant
from cotenant.errors import CotenantError
from cotenant.format import wire
from cotenant.format.journal import Turn, TurnReader
from cotenant.live.client import tenants_of
from cotenant.live.directory import Places
from cotenant.live.page import LivePages

COTENANT = [sys.executable, "-m", "cotenant"]
BOUND_S = 150.0
"""How long anything may take on a machine that others use too; nothing is asserted about how long it took."""
OURS = ("COTENANT_", "XDG_", "CUDA_VISIBLE_DEVICES")


class Stage:
    """Everything below one short directory: a Unix socket's path has room for a hundred bytes."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="ct-", dir="/tmp"))
        self.places = Places(self.home / "run", self.home / "state")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        self.environ = {
            **clean,
            "COTENANT_DIRECTORY": str(self.home),
            "COTENANT_CONFIG": str(self.home / "config.toml"),
            "HOME": str(self.home),
            "COLUMNS": "220",
        }
        (self.home / "config.toml").touch()
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- doing -------------------------------------------------------------------------------------------------

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """One command of cotenant, left running."""
        return self.open([*COTENANT, *arguments], **options)

    def open(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Any program, left running; it ends with the stage."""
        given = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "env": self.environ,
            "cwd": self.home,
            **options,
        }
        process: subprocess.Popen[str] = subprocess.Popen(command, text=True, **given)
        self._processes.append(process)
        return process

    def run(self, *arguments: str, bound_s: float = BOUND_S, **options: Any) -> subprocess.CompletedProcess[str]:
        """One command of cotenant, to its end."""
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=bound_s)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def node(self, *options: str, **given: Any) -> subprocess.Popen[str]:
        """A node that answers."""
        node = self.start("node", *options, **{"stdout": subprocess.DEVNULL, **given})
        until(lambda: node.poll() is not None or self.node_pid() == node.pid)
        assert node.poll() is None, node.communicate()
        return node

    def tenant(self, name: str, *words: str, **options: Any) -> subprocess.Popen[str]:
        """A tenant that has its slot; without words it waits for ever."""
        command = words or ("--", "sleep", "600")
        tenant = self.start("run", "--name", name, *command, **options)
        until(lambda: tenant.poll() is not None or name in self.names())
        assert tenant.poll() is None, tenant.communicate()
        return tenant

    def kill_node(self) -> None:
        """SIGKILL to whichever node serves, and wait until it is gone."""
        pid = self.node_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid))

    # -- seeing ------------------------------------------------------------------------------------------------

    def roll(self) -> wire.Tenants | None:
        """What the node says, None while there is none."""
        try:
            return tenants_of(self.places.socket)
        except CotenantError:
            return None

    def node_pid(self) -> int | None:
        roll = self.roll()
        return None if roll is None else roll.pid

    def names(self) -> list[str]:
        roll = self.roll()
        return [] if roll is None else [view.tenant.name for view in roll.tenants]

    def slots(self) -> dict[str, tuple[int, int]]:
        """Slot and generation of everybody who is connected."""
        roll = self.roll()
        views = [] if roll is None else [view for view in roll.tenants if view.connected]
        return {view.tenant.name: (view.tenant.terms.slot, view.tenant.terms.generation) for view in views}

    def endings(self) -> dict[str, str]:
        roll = self.roll()
        return {} if roll is None else {gone.tenant.name: gone.ending for gone in roll.departed}

    def json(self, *arguments: str) -> Any:
        """The last line of a command that must succeed."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, f"{done.stderr}{done.stdout}"
        return json.loads(done.stdout.splitlines()[-1])

    def journal(self) -> list[Turn]:
        """Every turn of the present segment."""
        with self.places.journal.open("rb") as file:
            return list(TurnReader(file.read))

    def granted_pages(self) -> list[int]:
        """Slots whose page still says that somebody holds them; only for a node that is not running."""
        pages = LivePages(self.places.pages)
        try:
            slots = [int(file.name.removeprefix("terms-")) for file in sorted(self.places.pages.glob("terms-*"))]
            return [slot for slot in slots if pages.read(slot) is not None]
        finally:
            pages.close()

    # -- the end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all that was started here, nodes that detached themselves too."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.kill()
        for pid in self._left_behind():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.wait(BOUND_S)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def _left_behind(self) -> Iterator[int]:
        """Processes whose environment or command line names our directory: it is ours alone."""
        mark = os.fsencode(self.home)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                        yield int(entry.name)


def until(wanted: Callable[[], Any], bound_s: float = BOUND_S) -> Any:
    """Ask again and again until the answer is true; fails after a bound that only a hang reaches."""
    deadline = time.monotonic() + bound_s
    while True:
        if answer := wanted():
            return answer
        assert time.monotonic() < deadline, f"waited {bound_s:.0f} s in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether it runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def granted(turns: list[Turn]) -> list[tuple[int, int, str]]:
    """Slot, generation and name of every grant made to a peer, in order; those made anew after a restart included."""
    grants = [action for turn in turns for action in turn.actions if isinstance(action, Grant)]
    return [(grant.terms.slot, grant.terms.generation, grant.tenant) for grant in grants if grant.peer != NO_PEER]
