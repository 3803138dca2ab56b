"""How does one model run at any number of cores with one copy of its weights? Sessions that map the same file.

ONNX Runtime fixes the threads of a session when it is made, and packs the weights for its kernels in each session
anew. So the model is optimised once, written with its weights as the kernels want them, and every session maps that
file: the system keeps one copy of its pages, whatever the number of sessions (docs/decisions/0023). A session of one
thread has no pool and may be run by many at once; one of more is lent to one run at a time, because runs of one pool
would be given each other's cores.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from cotenant.live.serve.model import LoadFailed

UNSHARED: Final = 0
"""The width of a run that has all cores, and others on them as well."""
_PREFIX: Final = "cotenant-weights-"
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
        """Optimise and map a model; the numbers of the cores are the machine's own."""
        self._cores = tuple(cores)
        self._lock = threading.Lock()
        self._idle: dict[int, list[_Pool]] = {}
        self._pinned: dict[int, int] = {}  # the core of each thread of a pool
        self._folder: Path | None = None
        self._path = path
        self.takes: tuple[Node, ...] = ()
        self.gives: tuple[Node, ...] = ()
        self._alone = self._map(path)
        self._unshared: Any = None

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
        """Have a session for each of these at hand, so that no run waits for it."""
        for width in widths:
            if width == UNSHARED:
                self._shared_by_all()
            elif width > 1 and not self._idle.get(width):
                pool = self._open(width)
                with self._lock:
                    self._idle.setdefault(width, []).append(pool)

    def close(self) -> None:
        """Let go of the sessions and of the file."""
        with self._lock:
            self._idle.clear()
            self._alone = self._unshared = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _take(self, width: int) -> _Pool:
        with self._lock:
            idle = self._idle.get(width)
            if idle:
                return idle.pop()
        return self._open(width)

    def _shared_by_all(self) -> Any:
        with self._lock:
            if self._unshared is None:
                self._unshared = self._open(len(self._cores)).session
            return self._unshared

    def _map(self, path: Path) -> Any:
        """Open it as it is, and leave its optimised form where others map it; without, each has its own copy."""
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_disk()))
        options = _options(1)
        options.optimized_model_filepath = str(folder / "model.onnx")
        for key, value in (
            ("optimized_model_external_initializers_file_name", "weights"),
            ("optimized_model_external_initializers_min_size_in_bytes", str(_KEPT_INSIDE_BYTES)),
            ("save_external_prepacked_constant_initializers", "1"),
        ):
            options.add_session_config_entry(f"session.{key}", value)
        try:
            self._look_at(_session(path, options))
            self._folder, self._path = folder, folder / "model.onnx"
            return self._open(1).session
        except LoadFailed:
            shutil.rmtree(folder, ignore_errors=True)
            self._folder, self._path = None, path
        session = _session(path, _options(1))
        self._look_at(session)
        return session

    def _look_at(self, session: Any) -> None:
        """The session is not kept: it has weights of its own."""
        sides = (session.get_inputs(), session.get_outputs())
        self.takes, self.gives = (tuple(Node(one.name, one.type, tuple(one.shape)) for one in side) for side in sides)

    def _open(self, width: int) -> _Pool:
        options = _options(width)
        if self._folder is not None:
            import onnxruntime  # noqa: PLC0415  an optional package, and slow to import

            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        with self._named() as name:
            session = _session(self._path, options)
            threads = _threads_named(name) if width > 1 else ()
        for thread in threads:
            os.sched_setaffinity(thread, self._cores)
        return _Pool(session, threads)

    @contextlib.contextmanager
    def _named(self) -> Iterator[str]:
        """Threads begin with the name of the one that made them: so those of a pool are told from all others."""
        own = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
        name = f"pool-{id(self) & 0xFFFFF:x}-{threading.get_native_id() & 0xFFFF:x}"[:15]
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
    import onnxruntime  # noqa: PLC0415  as above

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
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


def sweep() -> None:
    """Remove what processes left that could not clean up behind themselves."""
    for folder in Path(_disk()).glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.geteuid() and owner.isdigit() and not Path(f"/proc/{owner}").exists():
                shutil.rmtree(folder, ignore_errors=True)
