"""A machine that several users share: a node of root in the system directories, and two unprivileged users.

The machine is a mount namespace with its own /run and /var/lib, so that several tests can run at once and none of them
touches a node of the real machine.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from cotenant.softgpu import manage
from tests.support.node_processes import BOUND_S, COTENANT, NodeHarness, until

SYSTEM_MOUNTS = """
set -e
mkdir -p "$1/run" "$1/state" "$1/root"
mount -t tmpfs none /run
mount -t tmpfs none /var/lib
mkdir /run/cotenant /var/lib/cotenant
mount --bind "$1/run" /run/cotenant
mount --bind "$1/state" /var/lib/cotenant
"""
"""The first part of the script that makes the directories of the machine; its argument is the directory behind them."""


def mounts_for_everyone() -> str:
    """Return a script that makes this installation readable for all users, also below a private home such as /root.

    A private directory is replaced by an empty one that holds only the directories of the installation.
    """
    blocked: dict[Path, list[Path]] = {}
    for needed in sorted({Path(sys.base_prefix), Path(sys.prefix), Path(__file__).resolve().parents[2]}):
        private = [parent for parent in reversed(needed.parents) if not parent.stat().st_mode & stat.S_IXOTH]
        if private:
            blocked.setdefault(private[0], []).append(needed)
    lines = []
    for private_home, kept in blocked.items():
        places = {path: f'"$1/kept-{number}"' for number, path in enumerate(kept)}
        lines += [f"mkdir -p {place}; mount --bind {shlex.quote(str(path))} {place}" for path, place in places.items()]
        lines.append(f"mount -t tmpfs -o mode=755 none {shlex.quote(str(private_home))}")
        for path, place in places.items():
            quoted = shlex.quote(str(path))
            lines.append(f"mkdir -p {quoted}; mount --bind {place} {quoted}")
    return "\n".join([*lines, "echo ready", "exec sleep infinity"])


class User(NamedTuple):
    """An unprivileged user; no account is needed, because nothing looks the name up."""

    name: str
    uid: int


ALICE = User("alice", 61_001)
BOB = User("bob", 61_002)
USERS = (ALICE, BOB)
ROOT = User("root", 0)


class SharedMachine(NodeHarness):
    """A node of root and the users of a machine; every process of them is killed at the end."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can start programs of several users")
        super().__init__()
        self.home.chmod(0o755)
        self.gpu = self.home / "gpu"
        for user in USERS:
            for directory in (self.home_of(user), self.home_of(user) / "run"):
                directory.mkdir(mode=0o700)
                os.chown(directory, user.uid, user.uid)
        script = SYSTEM_MOUNTS + mounts_for_everyone()
        unshare = ["unshare", "--mount", "--propagation", "private"]
        self._mounts = self.open([*unshare, "sh", "-c", script, "sh", str(self.home)])
        assert self._mounts.stdout is not None
        if self._mounts.stdout.readline() != "ready\n":
            why = self._mounts.communicate()[1].strip()
            self.close()
            pytest.skip(f"mount namespaces are not permitted here: {why}")
        probe = self.run_as(ALICE, "version")
        if probe.returncode:
            self.close()
            pytest.skip(f"an unprivileged user cannot run this installation: {probe.stderr.strip()}")

    def __enter__(self) -> Self:
        return self

    # -- users and their programs ----------------------------------------------------------------------------------

    def home_of(self, user: User) -> Path:
        return self.home / user.name if user.uid else self.home / "root"

    def environ_of(self, user: User, **variables: str) -> dict[str, str]:
        """Return the environment of a user's programs: own directories, and no variable of the harness."""
        home = self.home_of(user)
        names = ("COTENANT_DIRECTORY", "COTENANT_CONFIG")
        clean = {name: value for name, value in self.environ.items() if name not in names}
        own = {"XDG_RUNTIME_DIR": str(home / "run")} if user.uid else {}
        return {**clean, "HOME": str(home), "TMPDIR": str(home), **own, **variables}

    def inside(self, user: User, command: Sequence[str], directory: Path | None = None) -> list[str]:
        """Return the command as the user runs it on this machine, without supplementary groups."""
        place = directory or (self.home_of(user) if user.uid else self.home)
        identity = ["--setuid", str(user.uid), "--setgid", str(user.uid)]
        # A test run in the background ignores SIGINT, and so would everything that it starts.
        env = ["env", "--default-signal=SIGINT", "-C", str(place)]
        return ["nsenter", f"--mount=/proc/{self._mounts.pid}/ns/mnt", *identity, *env, *command]

    def open_as(
        self, user: User, command: Sequence[str], *, environ: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a program of a user."""
        variables = self.environ_of(user) if environ is None else dict(environ)
        return self.open(self.inside(user, command), env=variables, **options)

    def start_as(self, user: User, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command of cotenant as a user."""
        return self.open_as(user, [*COTENANT, *arguments], **options)

    def run_as(self, user: User, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command of cotenant as a user to its end."""
        process = self.start_as(user, *arguments, **options)
        out, err = process.communicate(timeout=BOUND_S)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    # -- the node and its devices ----------------------------------------------------------------------------------

    def start_node(self, *options: str) -> subprocess.Popen[str]:
        """Start root's node with one software GPU that every user may open, and wait until it answers."""
        if not manage.gpus(self.gpu):
            manage.create(self.gpu, "v100", 1)
            self.gpu.chmod(0o755)
            manage.socket_of(self.gpu, 0).chmod(0o666)
        environ = self.environ_of(ROOT, **manage.env(self.gpu))
        node = self.open_as(ROOT, [*COTENANT, "node", *options], environ=environ, stdout=subprocess.DEVNULL)
        until(lambda: node.poll() is not None or self.node_pid() == node.pid)
        assert node.poll() is None, node.communicate()
        return node

    def start_tenant(self, user: User, name: str, *words: str) -> subprocess.Popen[str]:
        """Start a tenant of a user and wait until it has its slot; by default its program sleeps."""
        command = words or ("--", "sleep", "600")
        tenant = self.start_as(user, "run", "--start-node", "no", "--name", name, *command)
        until(lambda: tenant.poll() is not None or name in self.names())
        assert tenant.poll() is None, tenant.communicate()
        return tenant

    def close(self) -> None:
        """End the processes and the software GPU."""
        if self.gpu.exists():
            manage.destroy(self.gpu)
        super().close()
