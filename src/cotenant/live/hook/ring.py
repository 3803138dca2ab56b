"""What do the programs of this machine ask of their devices, at this moment and the one before?"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cotenant.domain.trace import Ask, Program, TracedKernel
from cotenant.format.record import Part, kernels_of
from cotenant.format.ring import Fetched, entries_of, fetch_ring
from cotenant.live.hook.trace import TASK_FILE

_FILES_LIMIT: Final = 4096
_READ_LIMIT: Final = 1024
_NAME_LIMIT: Final = 60


class Rings:
    """Every ring under a directory, followed from look to look; a program that ends meanwhile keeps its place."""

    def __init__(self, home: Path) -> None:
        """Under the directory in which `cotenant run` puts the hook."""
        self._home = home
        self._files: dict[Path, _Ring] = {}

    def look(self) -> None:
        """Take over what is new."""
        for path in sorted(self._home.glob("run-*/records/record-*"))[:_FILES_LIMIT]:
            if path not in self._files:
                with contextlib.suppress(OSError):
                    self._files[path] = _Ring(path)
        for ring in self._files.values():
            ring.look()

    def programs(self) -> list[Program]:
        """What was taken over, per process that did anything."""
        return [ring.program() for ring in self._files.values() if ring.fetched]

    def close(self) -> None:
        """Let go of the files."""
        for ring in self._files.values():
            os.close(ring.descriptor)
        self._files.clear()


def latest_kernel(home: Path, pids: Sequence[int]) -> str:
    """What the latest launch of these processes was of, as they number themselves; empty where nothing says so."""
    for pid in pids:
        for path in sorted(home.glob(f"run-*/records/record-{pid}-*"))[:_FILES_LIMIT]:
            with contextlib.suppress(OSError):
                ring = _Ring(path)
                try:
                    ring.look()
                    program = ring.program()
                finally:
                    os.close(ring.descriptor)
                launches = [asked for asked in program.asked if asked.kind is Ask.LAUNCH]
                if launches and launches[-1].kernel < len(program.kernels):
                    return program.kernels[launches[-1].kernel].name
    return ""


class _Ring:
    def __init__(self, path: Path) -> None:
        # Not to wait for whoever opens the other end, if the tenant made it a pipe.
        self.descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        self.fetched: list[Fetched] = []
        self._path = path
        self._after = 0
        self._lost = 0
        self._name = _task_of(path.parent.parent) or "program"

    def _part(self) -> Part:
        # Read, never mapped: a tenant that cuts its file short must not end us.
        return lambda at, length: os.pread(self.descriptor, length, at)

    def look(self) -> None:
        with contextlib.suppress(OSError):
            fetched = fetch_ring(self._part(), self._after)
            if fetched.data:
                self.fetched.append(fetched)
                # What was gone at the first look was never to be seen.
                self._lost += fetched.first - self._after if self._after else 0
                self._after = fetched.following

    def program(self) -> Program:
        kernels = []
        with contextlib.suppress(OSError):
            for timing in kernels_of(self._part()):
                mean_ns = timing.device.total // timing.device.count if timing.device.count else 0
                kernels.append(TracedKernel(timing.kernel.function, timing.kernel.work, mean_ns))
        asked = sorted((one for fetched in self.fetched for one in entries_of(fetched)), key=lambda one: one.at_ns)
        return Program(_pid_of(self._path), self._name, tuple(kernels), asked, self._lost)


def _pid_of(path: Path) -> int:
    """By the file's name, as record.c makes it."""
    word = path.name.split("-")[1]
    return int(word) if word.isascii() and word.isdigit() else 0


def _task_of(run: Path) -> str:
    """A tenant's name, or its command without the directories."""
    try:
        with (run / TASK_FILE).open(encoding="utf-8", errors="replace") as file:
            words = file.read(_READ_LIMIT).split()
    except OSError:
        return ""
    return " ".join(word.rsplit("/", 1)[-1] for word in words)[:_NAME_LIMIT]
