"""How does one model run at any number of cores with one copy of its weights? Sessions that map the same file.

ONNX Runtime fixes the threads of a session when it is made, and packs the weights for its kernels in each session
anew. So when a second session is needed the model is written once, optimised and with its weights as the kernels want
them, and every session maps that file: the system keeps one copy of its pages, whatever the number of sessions
(docs/decisions/0023). A session of one thread has no pool and may be run by many at once; one of more is lent to one
run at a time, because runs of one pool would be given each other's cores.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from cotenant.live.serve.model import LoadFailed

UNSHARED: Final = 0
"""The width of a run that has all cores, and others on them as well."""
_PREFIX: Final = "cotenant-weights-"
_GRAPH: Final = "model.onnx"
_KEPT_INSIDE_BYTES: Final = 1024
"""Weights smaller than this stay in the graph's own file: a page would be lost for each."""


class Node(NamedTuple):
    """A tensor as a model's file has it."""

    name: str
    type: str
    shape: tuple[Any, ...]


class _Pool(NamedTuple):
    session: Any
    threads: tuple[int, ...]
    """Of its pool, by the system's numbers; the thread that runs is none of them."""


class Sessions:
    """All sessions of one loading of a model."""

    def __init__(self, path: Path, cores: Sequence[int]) -> None:
        """Open the one of one thread, which is all that many a model needs; the cores are the machine's own numbers."""
        self._path = path
        self._cores = tuple(cores)
        self._lock = threading.Lock()
        self._mapping = threading.Lock()
        self._opening = threading.Lock()
        self._is_mapped = False
        self._folder: Path | None = None
        self._forget: weakref.finalize[..., Sessions] | None = None
        self._closed = False
        self._idle: dict[int, list[_Pool]] = {}
        self._pinned: dict[int, int] = {}  # the core of each thread of a pool
        self._unshared: Any = None
        self._alone = _session(path, _options(1))
        sides = (self._alone.get_inputs(), self._alone.get_outputs())
        self.takes, self.gives = (tuple(Node(one.name, one.type, tuple(one.shape)) for one in side) for side in sides)

    @contextlib.contextmanager
    def on(self, cores: Sequence[int]) -> Iterator[Any]:
        """A session for a run led by a thread on the first of these cores; none: a run that shares them all."""
        if not cores:
            yield self._shared_by_all()
            return
        if len(cores) == 1:
            yield self._alone
            return
        pool = self._take(len(cores))
        try:
            for thread, core in zip(pool.threads, cores[1:], strict=False):
                if self._pinned.get(thread) != core:
                    os.sched_setaffinity(thread, {core})
                    self._pinned[thread] = core
            yield pool.session
        finally:
            with self._lock:
                self._idle.setdefault(len(cores), []).append(pool)

    @property
    def alone(self) -> Any:
        """The session of the thread that runs it, which any number may run at once."""
        return self._alone

    def prepare(self, widths: Sequence[int]) -> None:
        """Have a session for each of these at hand, so that no run waits for it; what cannot be, its run will tell."""
        with contextlib.suppress(LoadFailed):  # as when the model is let go of meanwhile
            for width in widths:
                if width == UNSHARED:
                    self._shared_by_all()
                elif width > 1 and not self._idle.get(width) and not self._closed:
                    pool = self._open(width)
                    with self._lock:
                        self._idle.setdefault(width, []).append(pool)

    def close(self) -> None:
        """Let go of the sessions and of the file."""
        with self._lock:
            self._closed = True
            self._idle.clear()
            self._alone = self._unshared = None
            self._folder = None
        if self._forget is not None:
            self._forget()

    def _take(self, width: int) -> _Pool:
        with self._lock:
            idle = self._idle.get(width)
            if idle:
                return idle.pop()
        return self._open(width)

    def _shared_by_all(self) -> Any:
        with self._opening:  # whoever else comes waits for it
            if self._unshared is None:
                self._unshared = self._open(len(self._cores)).session
            return self._unshared

    def _open(self, width: int) -> _Pool:
        self._map()
        folder = self._folder
        options = _options(width) if folder is None else _mapped_options(width)
        with _named() as name:
            session = _session(self._path if folder is None else folder / _GRAPH, options)
            threads = _threads_named(name) if width > 1 else ()
        for thread in threads:
            os.sched_setaffinity(thread, self._cores)
        _give_back()
        return _Pool(session, threads)

    def _map(self) -> None:
        """Before the second session: write the optimised model, which all map from now on; if it must be, without."""
        with self._mapping:
            if self._is_mapped:
                return
            self._is_mapped = True
            folder, lock = _new_folder()
            try:
                _session(self._path, _writing_options(folder))
                alone = _session(folder / _GRAPH, _mapped_options(1))
            except LoadFailed:  # a model that cannot be written, or a full disk: each session has its own copy
                _remove(folder, lock)
                return
            with self._lock:
                closed = self._closed
                if not closed:
                    self._folder, self._alone = folder, alone
                    self._forget = weakref.finalize(self, _remove, folder, lock)  # also when the process ends
            if closed:
                _remove(folder, lock)


@contextlib.contextmanager
def _named() -> Iterator[str]:
    """Threads begin with the name of the one that made them: so those of a pool are told from all others."""
    own = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
    name = f"pool-{threading.get_native_id()}"
    before = own.read_text()
    own.write_text(name)
    try:
        yield name
    finally:
        own.write_text(before)


def _threads_named(name: str) -> tuple[int, ...]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            if int(task.name) != threading.get_native_id() and (task / "comm").read_text().strip() == name:
                (task / "comm").write_text("pool")  # the next one of this name is not to be confused with it
                found.append(int(task.name))
    return tuple(sorted(found))


def _options(threads: int) -> Any:
    import onnxruntime  # noqa: PLC0415  an optional package, and slow to import

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _writing_options(folder: Path) -> Any:
    options = _options(1)
    options.optimized_model_filepath = str(folder / _GRAPH)
    for key, value in (
        ("optimized_model_external_initializers_file_name", "weights"),
        ("optimized_model_external_initializers_min_size_in_bytes", str(_KEPT_INSIDE_BYTES)),
        ("save_external_prepacked_constant_initializers", "1"),
    ):
        options.add_session_config_entry(f"session.{key}", value)
    return options


def _mapped_options(threads: int) -> Any:
    """What is written is optimised already."""
    import onnxruntime  # noqa: PLC0415  as above

    options = _options(threads)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def _session(path: Path, options: Any) -> Any:
    import onnxruntime  # noqa: PLC0415  as above

    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001  its own exceptions have no common ancestor
        raise LoadFailed(f"ONNX Runtime cannot load {path.name}: {str(error)[:500]}") from None


def _disk() -> str:
    """Where files are on a disk by convention: in memory, the file would hold each weight twice."""
    return next((one for one in ("/var/tmp",) if os.access(one, os.W_OK)), tempfile.gettempdir())  # noqa: S108


def _give_back() -> None:
    """To open a session takes as much memory as the weights, for a while; the C library would keep it for later."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def _new_folder() -> tuple[Path, int]:
    """A folder, and the lock on it by which others see that it is in use: process numbers mean nothing elsewhere."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_disk()))
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return folder, lock


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def sweep() -> None:
    """Remove what processes left that were killed."""
    for folder in Path(_disk()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
