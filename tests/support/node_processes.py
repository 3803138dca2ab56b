"""A harness for nodes and tenants as real processes in their own directories, which cleans up after them."""

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

from cotenant.errors import CotenantError
from cotenant.gate.grant_file import LiveGrantPages
from cotenant.node import wire
from cotenant.node.client.connection import list_tenants
from cotenant.node.directories import Directories
from cotenant.node.journal import NodeJournalReader, NodeTurn
from cotenant.node.model.action import NO_PEER, IssueGrant

COTENANT = [sys.executable, "-m", "cotenant"]
LAB = [sys.executable, "-m", "cotenant_lab"]
BOUND_S = 150.0
"""How long anything may take on a machine that others use too; nothing is asserted about how long it took."""
OURS = ("COTENANT_", "XDG_", "CUDA_VISIBLE_DEVICES")


class NodeHarness:
    """Everything below one short directory: a Unix socket's path has room for a hundred bytes."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="ct-", dir="/tmp"))
        self.directories = Directories(self.home / "run", self.home / "state")
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
        """Start a command of cotenant, or of cotenant-lab for `bench` and `study`, and leave it running."""
        program = LAB if arguments[:1] in {("bench",), ("study",)} else COTENANT
        return self.open([*program, *arguments], **options)

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

    def tenant_list(self) -> wire.TenantList | None:
        """What the node says, None while there is none."""
        try:
            return list_tenants(self.directories.socket)
        except CotenantError:
            return None

    def node_pid(self) -> int | None:
        tenant_list = self.tenant_list()
        return None if tenant_list is None else tenant_list.pid

    def names(self) -> list[str]:
        tenant_list = self.tenant_list()
        return [] if tenant_list is None else [view.tenant.name for view in tenant_list.tenants]

    def slots(self) -> dict[str, tuple[int, int]]:
        """Slot and generation of everybody who is connected."""
        tenant_list = self.tenant_list()
        views = [] if tenant_list is None else [view for view in tenant_list.tenants if view.connected]
        return {view.tenant.name: (view.tenant.grant.slot, view.tenant.grant.generation) for view in views}

    def endings(self) -> dict[str, str]:
        tenant_list = self.tenant_list()
        return {} if tenant_list is None else {gone.tenant.name: gone.ending for gone in tenant_list.departed}

    def json(self, *arguments: str) -> Any:
        """The last line of a command that must succeed."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, f"{done.stderr}{done.stdout}"
        return json.loads(done.stdout.splitlines()[-1])

    def journal(self) -> list[NodeTurn]:
        """Every turn of the present segment."""
        with self.directories.journal.open("rb") as file:
            return list(NodeJournalReader(file.read))

    def granted_pages(self) -> list[int]:
        """Slots whose page still says that somebody holds them; only for a node that is not running."""
        pages = LiveGrantPages(self.directories.pages)
        try:
            slots = [int(file.name.removeprefix("grant-")) for file in sorted(self.directories.pages.glob("grant-*"))]
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


def grants_in(turns: list[NodeTurn]) -> list[tuple[int, int, str]]:
    """Slot, generation and name of every grant made to a peer, in order; those made anew after a restart included."""
    grants = [action for turn in turns for action in turn.actions if isinstance(action, IssueGrant)]
    return [(grant.grant.slot, grant.grant.generation, grant.tenant) for grant in grants if grant.peer != NO_PEER]
