"""ONNX Runtime sessions of one model for any number of cores that share one copy of the weights.

ONNX Runtime fixes the threads of a session when it is created, and packs the weights for its kernels in each session.
Therefore, when a second session is needed, the optimised model is written to a file once, with packed weights, and
every session maps that file: the system keeps one copy of its pages. Sessions open private copies only, so that changes
of the model's own files affect none of them. A session of one thread has no thread pool and may
be used by many threads; one with a pool is used by one run at a time, because concurrent runs would use each other's
cores.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from cotenant.serve.runtime.model import ModelLoadError
from cotenant.serve.runtime.onnx_files import GRAPH, PrivateFiles, copy_model

UNSHARED: Final = 0
"""Width of a run that shares all cores with other runs."""
_KEPT_INSIDE_BYTES: Final = 1024
"""Smaller weights stay in the graph's own file, since each external one occupies whole pages."""


class NodeArg(NamedTuple):
    """An input or output as the model file declares it."""

    name: str
    type: str
    shape: tuple[Any, ...]


class _Pool(NamedTuple):
    session: Any
    threads: tuple[int, ...]
    """Thread IDs of its pool; the thread that calls `run` is not among them."""


class OnnxSessions:
    """All sessions of one loaded model."""

    def __init__(self, path: Path, cores: Sequence[int]) -> None:
        """Open the single-thread session; `cores` are the machine's core numbers."""
        self._name = path.name
        self._cores = tuple(cores)
        self._lock = threading.Lock()
        self._mapping = threading.Lock()
        self._opening = threading.Lock()
        self._is_mapped = False
        self._files = copy_model(path)
        """The copy that sessions open: first of the model as it is, later of the optimised one."""
        self._forget = weakref.finalize(self, self._files.close)  # also at process exit
        self._closed = False
        self._idle: dict[int, list[_Pool]] = {}
        self._pinned: dict[int, int] = {}  # the core of each pool thread
        self._unshared: Any = None
        self._is_optimised = False
        self._alone = self._session(self._files, _options(1))
        sides = (self._alone.get_inputs(), self._alone.get_outputs())
        self.takes, self.gives = (
            tuple(NodeArg(node.name, node.type, tuple(node.shape)) for node in side) for side in sides
        )

    @contextlib.contextmanager
    def on(self, cores: Sequence[int]) -> Iterator[Any]:
        """Lend a session for a run on these cores; the calling thread is on the first one.

        An empty list means a run that shares all cores.
        """
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
        """Return the single-thread session, which any number of threads may use."""
        return self._alone

    def prepare(self, widths: Sequence[int]) -> None:
        """Open a session for each of these widths in advance; errors are reported by the run that needs it."""
        with contextlib.suppress(ModelLoadError):  # for example because the model was closed meanwhile
            for width in widths:
                if width == UNSHARED:
                    self._shared_by_all()
                elif width > 1 and not self._idle.get(width) and not self._closed:
                    pool = self._open(width)
                    with self._lock:
                        self._idle.setdefault(width, []).append(pool)

    def close(self) -> None:
        """Release the sessions and the file."""
        with self._lock:
            self._closed = True
            self._idle.clear()
            self._alone = self._unshared = None
        self._forget()

    def _take(self, width: int) -> _Pool:
        with self._lock:
            idle = self._idle.get(width)
            if idle:
                return idle.pop()
        return self._open(width)

    def _shared_by_all(self) -> Any:
        with self._opening:  # other callers wait for it
            if self._unshared is None:
                self._unshared = self._open(len(self._cores)).session
            return self._unshared

    def _open(self, width: int) -> _Pool:
        self._map()
        with self._lock:
            if self._closed:
                raise ModelLoadError(f"{self._name} is closed")
            files, is_optimised = self._files, self._is_optimised
        with _unique_thread_name() as name:
            session = self._session(files, _mapped_options(width) if is_optimised else _options(width))
            threads = _threads_named(name) if width > 1 else ()
        for thread in threads:
            os.sched_setaffinity(thread, self._cores)
        _trim_memory()
        return _Pool(session, threads)

    def _map(self) -> None:
        """Before the second session, write the optimised model for all sessions to map, if possible."""
        with self._mapping:
            if self._is_mapped:
                return
            self._is_mapped = True
            optimised = PrivateFiles()
            try:
                self._session(self._files, _writing_options(optimised.folder))
                alone = self._session(optimised, _mapped_options(1))
            except ModelLoadError:  # a model that cannot be written, or a full disk: each session has its own copy
                optimised.close()
                return
            with self._lock:
                if self._closed:
                    optimised.close()
                    return
                self._alone, self._is_optimised = alone, True
                self._files, forget = optimised, self._forget
                self._forget = weakref.finalize(self, optimised.close)
            forget()

    def _session(self, files: PrivateFiles, options: Any) -> Any:
        import onnxruntime  # noqa: PLC0415  an optional package, and slow to import

        try:
            return onnxruntime.InferenceSession(str(files.graph), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001  its exceptions have no common base class
            reason = str(error).replace(str(files.graph), self._name)[:500]
            raise ModelLoadError(f"ONNX Runtime cannot load {self._name}: {reason}") from None


@contextlib.contextmanager
def _unique_thread_name() -> Iterator[str]:
    """Give the calling thread a unique name, which the threads it creates inherit: this identifies a session's pool."""
    comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
    name = f"pool-{threading.get_native_id()}"
    previous = comm.read_text()
    comm.write_text(name)
    try:
        yield name
    finally:
        comm.write_text(previous)


def _threads_named(name: str) -> tuple[int, ...]:
    threads = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            if int(task.name) != threading.get_native_id() and (task / "comm").read_text().strip() == name:
                (task / "comm").write_text("pool")  # so that the next session does not find it
                threads.append(int(task.name))
    return tuple(sorted(threads))


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
    options.optimized_model_filepath = str(folder / GRAPH)
    for key, value in (
        ("optimized_model_external_initializers_file_name", "weights"),
        ("optimized_model_external_initializers_min_size_in_bytes", str(_KEPT_INSIDE_BYTES)),
        ("save_external_prepacked_constant_initializers", "1"),
    ):
        options.add_session_config_entry(f"session.{key}", value)
    return options


def _mapped_options(threads: int) -> Any:
    """Return options for the written model, which is already optimised."""
    import onnxruntime  # noqa: PLC0415  an optional package, and slow to import

    options = _options(threads)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def _trim_memory() -> None:
    """Return freed memory to the system: opening a session temporarily takes as much memory as the weights."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # a glibc function
    if trim is not None:
        trim(0)
