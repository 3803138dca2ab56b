"""Request spans: written by a server to a ring in a file, read by `cotenant trace`.

Records are written only while a reader is active, or always if configured; otherwise a request costs one comparison.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
from pathlib import Path
from typing import Final

from cotenant.runner.clock import monotonic_ns
from cotenant.serve.frontend.pending import PendingRequest
from cotenant.serve.span_format import (
    COUNT_AT,
    FILE_BYTES,
    HEAD,
    MAGIC,
    NAME_BYTES,
    NAMES,
    NAMES_AT,
    PID_AT,
    RECORD,
    RECORDS_AT,
    SLOTS,
    UNTIL_AT,
    WORD,
    SpanBatch,
    fetch_spans,
    names_in,
    requests_of,
)
from cotenant.trace.recording import RequestEnd, ServerRecording
from cotenant.units.instant import Duration, Instant

HOME: Final = "serve"
_PREFIX: Final = "spans-"
_FOREVER: Final = 1 << 62
_LEASE_NS: Final = 2_000_000_000
_FILES_LIMIT: Final = 256
_UNNAMED: Final = 0xFFFF
_PACK: Final = RECORD.pack_into


class SpanWriter:
    """Writes the spans of one server."""

    def __init__(self, home: Path | None, offset_ns: Duration, *, always: bool = False) -> None:
        """Create a file in the directory; None: no spans are written. The offset is that of the engine's clock."""
        self._offset_ns = offset_ns
        self._names: dict[str, int] = {}
        self._count = 0
        self._descriptor = -1
        self._path: Path | None = None
        self._ring: mmap.mmap | None = None
        self._words = memoryview(bytearray(HEAD.size)).cast("Q")
        self.is_always = False
        """Whether requests are recorded without a reader."""
        if home is not None:
            self._open(home, always=always)

    def _open(self, home: Path, *, always: bool) -> None:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_stale_files(home)
        path = home / f"{_PREFIX}{os.getpid()}"
        path.unlink(missing_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._path = path
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        os.ftruncate(self._descriptor, FILE_BYTES)
        self._ring = mmap.mmap(self._descriptor, FILE_BYTES)
        self._words = memoryview(self._ring)[: HEAD.size].cast("Q")
        self._words[PID_AT // 8] = os.getpid()
        self._words[0] = MAGIC
        self.set_always(always=always)

    def set_always(self, *, always: bool) -> None:
        """Record requests without a reader, or stop that; without a directory, nothing is recorded."""
        if self._ring is not None:
            self.is_always = always
            self._words[UNTIL_AT // 8] = _FOREVER if always else 0

    def is_read(self, now: Instant) -> bool:
        """Return whether a reader is active."""
        return self._words[UNTIL_AT // 8] > now - self._offset_ns

    def write(
        self, pending: PendingRequest, end: RequestEnd, now: Instant, began: Instant = 0, ended: Instant = 0
    ) -> None:
        """Write the span of a request; `began` and `ended` are used if it has no run result."""
        ring = self._ring
        if ring is None:
            return
        run = units = 0
        result = pending.result
        offset_ns = self._offset_ns
        if result is not None:
            core = result.run.cores[0] + 1 if result.run.cores else 0
            run = result.run.run & 0xFFFFFFFFFFFF | core << 48
            units = min(result.run.units, 0xFF)
            began, ended = result.ended - result.took_ns, result.ended
        elif ended:
            began, ended = began - offset_ns, ended - offset_ns
        chosen = pending.started - offset_ns if pending.started else began
        offset = RECORDS_AT + self._count % SLOTS * RECORD.size
        model = self._names.get(pending.model.spec.name)
        if model is None:
            model = self._name(pending.model.spec.name)
        fields = (pending.checked.rows, pending.number, pending.arrived - offset_ns, chosen, began, ended)
        _PACK(ring, offset, end, units, model, *fields, now - offset_ns, run)
        self._count += 1
        self._words[COUNT_AT // 8] = self._count

    def _name(self, name: str) -> int:
        number = len(self._names)
        if number >= NAMES or self._ring is None:
            return _UNNAMED
        self._names[name] = number
        text = name.encode()[:NAME_BYTES]
        offset = NAMES_AT + number * NAME_BYTES
        self._ring[offset : offset + len(text)] = text
        return number

    def close(self) -> None:
        """Remove the file."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._path = None


def _remove_stale_files(home: Path) -> None:
    """Remove the files of servers that were killed."""
    for path in sorted(home.glob(f"{_PREFIX}*"))[:_FILES_LIMIT]:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)


class SpanReader:
    """Reads the spans of all servers of a directory."""

    def __init__(self, home: Path) -> None:
        """`home` is a directory below the runtime directory."""
        self._home = home
        self._files: dict[Path, _File] = {}

    def read_new(self, *, follow: bool) -> None:
        """Read new records; with `follow`, extend the period in which servers write them."""
        for path in sorted(self._home.glob(f"{_PREFIX}*"))[:_FILES_LIMIT]:
            if path not in self._files:
                with contextlib.suppress(OSError):
                    self._files[path] = _File(path)
        for file in self._files.values():
            with contextlib.suppress(OSError, struct.error):  # the file may have been truncated
                file.read_new(follow=follow)

    def servers(self) -> list[ServerRecording]:
        """Return the recordings of all servers, with the records read so far."""
        return [file.recording() for file in self._files.values()]

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            os.close(file.descriptor)
        self._files.clear()


class _File:
    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        self._fetched: list[SpanBatch] = []
        self._next_record = 0
        self._lost = 0

    def _part(self, offset: int, length: int) -> bytes:
        return os.pread(self.descriptor, length, offset)

    def read_new(self, *, follow: bool) -> None:
        if follow:
            (until,) = WORD.unpack(self._part(UNTIL_AT, WORD.size))
            lease_end = monotonic_ns() + _LEASE_NS
            if until < lease_end:
                os.pwrite(self.descriptor, WORD.pack(lease_end), UNTIL_AT)
        batch = fetch_spans(self._part, self._next_record)
        if batch.following > self._next_record:
            if self._next_record:  # records lost before the first read do not count
                self._lost += batch.first - self._next_record
            self._fetched.append(batch)
            self._next_record = batch.following

    def recording(self) -> ServerRecording:
        names = names_in(self._part)
        requests = [request for batch in self._fetched for request in requests_of(batch.records, names)]
        (pid,) = WORD.unpack(self._part(PID_AT, WORD.size).ljust(WORD.size, b"\0"))
        return ServerRecording(pid & 0xFFFFFFFF, requests, self._lost)
