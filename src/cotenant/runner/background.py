"""Run slow calls on one background thread, in order, and deliver their results in the event loop."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from cotenant.runner.live_loop import READ, IoLoop

T = TypeVar("T")
_WAKEUPS_BYTES: Final = 64


@dataclass(slots=True)
class TaskResult(Generic[T]):
    """The result of a task: a value, or the exception that it raised."""

    value: T | None = None
    error: Exception | None = None

    def result(self) -> T:
        """Return the value, or raise the task's exception on the loop's thread."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # T may include None


@dataclass(slots=True)
class _Task:
    call: Callable[[], Any]
    done: Callable[[TaskResult[Any]], None]
    result: TaskResult[Any] = field(default_factory=TaskResult)


class BackgroundTasks:
    """One thread, started with the first task: a process without tasks has no second thread.

    It is a daemon thread: a call into a driver that never returns must not keep the process from ending.
    """

    def __init__(self, loop: IoLoop, name: str) -> None:
        """Deliver results in this loop; `name` is the thread's name in `ps -T`."""
        self._loop = loop
        self._name = name
        self._waiting: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self.under_way = 0
        """The number of tasks whose result was not delivered yet."""

    def submit(self, call: Callable[[], T], done: Callable[[TaskResult[T]], None]) -> None:
        """Run `call` on the thread; `done` is called in the loop, never before this method returns."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
            self._loop.watch(self._reader.fileno(), READ, self._deliver)
        self.under_way += 1
        self._waiting.put(_Task(call, done))

    def close(self) -> None:
        """Accept no more tasks; the result of a task that is running is dropped."""
        if self._thread is not None:
            self._waiting.put(None)
            self._loop.forget(self._reader.fileno())
        self._reader.close()
        self._writer.close()

    def _work(self) -> None:
        while (task := self._waiting.get()) is not None:
            try:
                task.result.value = task.call()
            except Exception as error:  # noqa: BLE001  raised again by `TaskResult.result`
                task.result.error = error
            self._finished.put(task)
            with contextlib.suppress(OSError):  # closed, or enough wake-up bytes are waiting already
                self._writer.send(b"\0")

    def _deliver(self, mask: int) -> None:
        del mask
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(_WAKEUPS_BYTES)
        while True:
            try:
                task = self._finished.get_nowait()
            except queue.Empty:
                return
            self.under_way -= 1
            task.done(task.result)
