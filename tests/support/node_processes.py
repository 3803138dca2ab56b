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
from cotenant.node import wire
from cotenant.node.client.connection import list_tenants
from cotenant.node.directories import Directories
from cotenant.node.journal import NodeJournalReader, NodeTurn
from cotenant.node.model.action import NO_PEER, IssueGrant

COTENANT = [sys.executable, "-m", "cotenant"]
LAB = [sys.executable, "-m", "cotenant_lab"]
BOUND_S = 150.0
"""The timeout of any operation, long enough for a busy machine; tests do not assert durations."""
COTENANT_VARIABLES = ("COTENANT_", "XDG_", "CUDA_VISIBLE_DEVICES")


class NodeHarness:
    """Nodes and tenants below one short directory, since the path of a Unix socket has at most about 100 bytes."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="ct-", dir="/tmp"))
        self.directories = Directories(self.home / "run", self.home / "state")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(COTENANT_VARIABLES)}
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

    # -- processes -------------------------------------------------------------------------------------------------

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command of cotenant, or of cotenant-lab for `bench` and `study`, and leave it running."""
        program = LAB if arguments[:1] in {("bench",), ("study",)} else COTENANT
        return self.open([*program, *arguments], **options)

    def open(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start any program; it is killed when the harness is closed."""
        settings = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "env": self.environ,
            "cwd": self.home,
            **options,
        }
        process: subprocess.Popen[str] = subprocess.Popen(command, text=True, **settings)
        self._processes.append(process)
        return process

    def run(self, *arguments: str, bound_s: float = BOUND_S, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command of cotenant to its end."""
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=bound_s)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def node(self, *options: str, **popen_options: Any) -> subprocess.Popen[str]:
        """Start a node and wait until it answers."""
        node = self.start("node", *options, **{"stdout": subprocess.DEVNULL, **popen_options})
        until(lambda: node.poll() is not None or self.node_pid() == node.pid)
        assert node.poll() is None, node.communicate()
        return node

    def tenant(self, name: str, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start a tenant and wait until it has its slot; by default its program sleeps."""
        command = words or ("--", "sleep", "600")
        tenant = self.start("run", "--name", name, *command, **options)
        until(lambda: tenant.poll() is not None or name in self.names())
        assert tenant.poll() is None, tenant.communicate()
        return tenant

    def kill_node(self) -> None:
        """Kill the running node with SIGKILL and wait for its end."""
        pid = self.node_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid))

    # -- state ------------------------------------------------------------------------------------------------

    def tenant_list(self) -> wire.TenantList | None:
        """Return the tenants of the node; None while no node runs."""
        try:
            return list_tenants(self.directories)
        except CotenantError:
            return None

    def node_pid(self) -> int | None:
        tenant_list = self.tenant_list()
        return None if tenant_list is None else tenant_list.pid

    def names(self) -> list[str]:
        tenant_list = self.tenant_list()
        return [] if tenant_list is None else [view.tenant.name for view in tenant_list.tenants]

    def slots(self) -> dict[str, tuple[int, int]]:
        """Return slot and generation of the connected tenants by name."""
        tenant_list = self.tenant_list()
        views = [] if tenant_list is None else [view for view in tenant_list.tenants if view.connected]
        return {view.tenant.name: (view.tenant.grant.slot, view.tenant.grant.generation) for view in views}

    def endings(self) -> dict[str, str]:
        tenant_list = self.tenant_list()
        return (
            {}
            if tenant_list is None
            else {departure.tenant.name: departure.ending for departure in tenant_list.departed}
        )

    def json(self, *arguments: str) -> Any:
        """Return the JSON output of a command that must succeed."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, f"{done.stderr}{done.stdout}"
        return json.loads(done.stdout.splitlines()[-1])

    def journal(self) -> list[NodeTurn]:
        """Return every turn of the present journal segment."""
        with self.directories.journal.open("rb") as file:
            return list(NodeJournalReader(file.read))

    # -- the end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Kill all started processes, also nodes that detached themselves."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.kill()
        for pid in self._remaining_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.wait(BOUND_S)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def _remaining_processes(self) -> Iterator[int]:
        """Yield the processes whose environment or command line names this harness's directory."""
        mark = os.fsencode(self.home)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                        yield int(entry.name)


def until(condition: Callable[[], Any], bound_s: float = BOUND_S) -> Any:
    """Poll until the condition returns a true value, and return it; fail after a timeout that only a hang reaches."""
    deadline = time.monotonic() + bound_s
    while True:
        if answer := condition():
            return answer
        assert time.monotonic() < deadline, f"waited {bound_s:.0f} s without success"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def grants_in(turns: list[NodeTurn]) -> list[tuple[int, int, str]]:
    """Return slot, generation and name of every grant to a peer, in order, including grants after a restart."""
    grants = [action for turn in turns for action in turn.actions if isinstance(action, IssueGrant)]
    return [(grant.grant.slot, grant.grant.generation, grant.tenant) for grant in grants if grant.peer != NO_PEER]
