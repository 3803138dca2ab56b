"""Follow the trace rings of the programs that run on this machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.hook.record import kernels_of
from cotenant.hook.records import TASK_FILE, open_record, reader
from cotenant.hook.ring_format import ENTRIES, RingEntries, decode_entries, read_ring, written_entries
from cotenant.trace.recording import Program, ProgramEventKind, TracedKernel

_FILES_LIMIT: Final = 4096
_READ_LIMIT: Final = 1024
_NAME_LIMIT: Final = 60
_RECENT_ENTRIES: Final = 2048


class LaunchRings:
    """Every ring below a directory; a program that ends meanwhile keeps its entries."""

    def __init__(self, home: Path) -> None:
        """Follow the rings below the directory in which `cotenant run` puts the hook."""
        self._home = home
        self._files: dict[Path, _Ring] = {}

    def poll(self) -> None:
        """Read the new entries of all rings."""
        for path in sorted(self._home.glob("run-*/records/record-*"))[:_FILES_LIMIT]:
            if path not in self._files:
                with contextlib.suppress(OSError):
                    self._files[path] = _Ring(path)
        for ring in self._files.values():
            ring.poll()

    def programs(self) -> list[Program]:
        """Return the entries read so far, by process, of processes that have any."""
        return [ring.program() for ring in self._files.values() if ring.fetched]

    def close(self) -> None:
        """Close the files."""
        for ring in self._files.values():
            os.close(ring.descriptor)
        self._files.clear()


def latest_kernel(home: Path, pids: Sequence[int]) -> str:
    """Return the kernel of the latest launch of these processes (numbers of their own namespace); empty if unknown."""
    for pid in pids:
        for path in sorted(home.glob(f"run-*/records/record-{pid}-*"))[:_FILES_LIMIT]:
            with contextlib.suppress(OSError):
                ring = _Ring(path)
                try:
                    ring.poll()
                    program = ring.program()
                finally:
                    os.close(ring.descriptor)
                launches = [event for event in program.events if event.kind is ProgramEventKind.LAUNCH]
                if launches and launches[-1].kernel < len(program.kernels):
                    return program.kernels[launches[-1].kernel].name
    return ""


def recent_programs(home: Path, pids: Sequence[int], since_ns: int) -> list[Program]:
    """Return the events of these processes since an instant, from the newest part of their rings."""
    programs = []
    for pid in pids:
        for path in sorted(home.glob(f"run-*/records/record-{pid}-*"))[:_FILES_LIMIT]:
            with contextlib.suppress(OSError):
                ring = _Ring(path)
                try:
                    ring.poll_recent(since_ns)
                    program = ring.program()
                finally:
                    os.close(ring.descriptor)
                events = [event for event in program.events if event.end_ns >= since_ns]
                programs.append(msgspec.structs.replace(program, events=events))
    return programs


class _Ring:
    def __init__(self, path: Path) -> None:
        self.descriptor = open_record(path)
        self.fetched: list[RingEntries] = []
        self._path = path
        self._after = 0
        self._lost = 0
        self._name = _task_of(path.parent.parent) or "program"

    def poll(self) -> None:
        with contextlib.suppress(OSError):
            fetched = read_ring(reader(self.descriptor), self._after)
            if fetched.data:
                self.fetched.append(fetched)
                # Entries that were overwritten before the first poll do not count as lost.
                self._lost += fetched.first - self._after if self._after else 0
                self._after = fetched.following

    def poll_recent(self, since_ns: int) -> None:
        """Read as few of the newest entries as reach back to an instant."""
        read_at = reader(self.descriptor)
        count = _RECENT_ENTRIES
        while True:
            fetched = read_ring(read_at, max(0, written_entries(read_at) - count))
            events = decode_entries(fetched)
            if count >= ENTRIES or not events or events[0].at_ns < since_ns or fetched.first == 0:
                self.fetched = [fetched]
                return
            count *= 4

    def program(self) -> Program:
        kernels = []
        with contextlib.suppress(OSError):
            for timing in kernels_of(reader(self.descriptor)):
                mean_ns = timing.device.total // timing.device.count if timing.device.count else 0
                kernels.append(TracedKernel(timing.kernel.function, timing.kernel.work, mean_ns))
        events = sorted(
            (event for fetched in self.fetched for event in decode_entries(fetched)), key=lambda event: event.at_ns
        )
        return Program(_pid_of(self._path), self._name, tuple(kernels), events, self._lost)


def _pid_of(path: Path) -> int:
    """Return the process number in the file's name."""
    word = path.name.split("-")[1]
    return int(word) if word.isascii() and word.isdigit() else 0


def _task_of(run: Path) -> str:
    """Return a tenant's name, or its command without directories."""
    try:
        with (run / TASK_FILE).open(encoding="utf-8", errors="replace") as file:
            words = file.read(_READ_LIMIT).split()
    except OSError:
        return ""
    return " ".join(word.rsplit("/", 1)[-1] for word in words)[:_NAME_LIMIT]
