"""Finds and removes what a test cluster leaves on the machine: processes, mounts, cgroups, interfaces, directories."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cotenant.runner.clock import monotonic_ns, pause
from cotenant_lab.kubernetes import cgroups

PREFIX: Final = "ctk-"
"""The names of temporary directories and cgroups of test clusters begin with it."""

OWNER: Final = "owner"
"""The file in a cluster's directory that contains the pid of the process that started it."""

_REMOVE_S: Final = 20
_SETTLE_S: Final = 5


def find(directory: Path) -> list[str]:
    """Return what is left of the cluster of a directory, after some seconds in which the kernel may finish its part."""
    until = monotonic_ns() + _SETTLE_S * 10**9
    while (found := _find(directory)) and monotonic_ns() < until:
        pause(0.2)
    return found


def remove_directory(directory: Path) -> None:
    """Remove a cluster's directory; mounts inside end with the node's processes, which may take the kernel a moment."""
    until = monotonic_ns() + _REMOVE_S * 10**9
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)
        if monotonic_ns() > until:
            break
        if directory.exists():
            pause(0.2)


def remove_abandoned(parent: Path) -> list[str]:
    """Remove directories and cgroups of clusters whose process was killed; return their names."""
    removed = []
    for directory in sorted(parent.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError, ValueError):
            owner = int((directory / OWNER).read_text())
            if not Path(f"/proc/{owner}").exists():
                cgroups.remove(directory.name)
                remove_directory(directory)
                removed.append(directory.name)
    return removed


def _find(directory: Path) -> list[str]:
    name = directory.name
    found = [f"process {pid}: {command}" for pid, command in _processes(str(directory), name)]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {line.split()[4]}" for line in mounts if str(directory) in line]
    found += [f"cgroup {path}" for path in cgroups.directories(name)]
    if directory.exists():
        found.append(f"directory {directory}")
    return found


def _processes(directory: str, name: str) -> Iterator[tuple[int, str]]:
    """Yield processes that name the directory in their command, or are in a cgroup of the cluster."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if directory in command or f"/{name}/" in (entry / "cgroup").read_text():
                yield int(entry.name), command
