"""Control groups of a test cluster, in version 1 hierarchies or the unified one."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cotenant.runner.clock import monotonic_ns, pause

_ROOT: Final = Path("/sys/fs/cgroup")
_REMOVE_S: Final = 20
_CPUSET: Final = ("cpuset.cpus", "cpuset.mems")


def hierarchies() -> list[Path]:
    """Return the mounted hierarchies."""
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return sorted({path.resolve() for path in _ROOT.iterdir() if (path / "cgroup.procs").exists()})


def create(name: str) -> None:
    """Create a control group in every hierarchy."""
    for hierarchy in hierarchies():
        group = hierarchy
        for part in Path(name).parts:
            _enable_controllers(group)
            group /= part
            group.mkdir(exist_ok=True)
            _copy_cpuset(group)


def set_weight(name: str, factor: int) -> None:
    """Let a control group have this many times the processor time of a usual one, if both want more than there is."""
    for directory in directories(name):
        for file, usual in ((directory / "cpu.shares", 1024), (directory / "cpu.weight", 100)):
            if file.exists():
                file.write_text(str(usual * factor))


def directories(name: str) -> list[Path]:
    """Return the directories of a control group that exist."""
    return [hierarchy / name for hierarchy in hierarchies() if (hierarchy / name).is_dir()]


def remove(name: str) -> None:
    """Kill what is left in a control group and remove it with all groups below it."""
    until = monotonic_ns() + _REMOVE_S * 10**9
    while (left := directories(name)) and monotonic_ns() < until:
        for directory in left:
            for group in _groups_below(directory):
                _kill(group)
                with contextlib.suppress(OSError):  # a process in it has not ended yet
                    group.rmdir()
        if directories(name):
            pause(0.1)


def _groups_below(directory: Path) -> Iterator[Path]:
    """Yield the group and all groups below it, innermost first."""
    for path, _, _ in os.walk(directory, topdown=False):
        yield Path(path)


def _kill(group: Path) -> None:
    with contextlib.suppress(OSError):
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def _enable_controllers(group: Path) -> None:
    """Let groups below this one of the unified hierarchy use all controllers that it has."""
    file = group / "cgroup.subtree_control"
    if not file.exists():
        return
    for controller in (group / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):  # a controller may be in use where it cannot be delegated
            file.write_text(f"+{controller}")


def _copy_cpuset(group: Path) -> None:
    """Fill what a new version 1 group leaves empty: no process can enter a cpuset without processors."""
    for name in _CPUSET:
        file = group / name
        if file.exists() and not file.read_text().strip():
            with contextlib.suppress(OSError):
                file.write_text((group.parent / name).read_text())
