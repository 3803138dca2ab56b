"""Who does what may take long? One thread beside the loop, in order; the outcomes come back in the loop."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from cotenant.live.loop import READ, LiveLoop

T = TypeVar("T")
_NUDGES_BYTES: Final = 64


@dataclass(slots=True)
class Outcome(Generic[T]):
    """What a deed came to: a value, or the exception that ended it."""

    value: T | None = None
    error: Exception | None = None

    def result(self) -> T:
        """The value; whatever ended the deed is raised here, on the loop's thread."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # T may include None


@dataclass(slots=True)
class _Errand:
    deed: Callable[[], Any]
    told: Callable[[Outcome[Any]], None]
    outcome: Outcome[Any] = field(default_factory=Outcome)


class Errands:
    """One thread, started with the first deed: a node that has none to do has no second thread.

    It is a daemon thread: a call into a driver that never comes back must not keep the node from ending.
    """

    def __init__(self, loop: LiveLoop, name: str) -> None:
        """Bring outcomes into this loop; the name is what `ps -T` shows."""
        self._loop = loop
        self._name = name
        self._todo: queue.SimpleQueue[_Errand | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_Errand] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self.under_way = 0

    def send(self, deed: Callable[[], T], told: Callable[[Outcome[T]], None]) -> None:
        """Have this done; `told` is called in the loop, never before this returns."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
            self._loop.watch(self._reader.fileno(), READ, self._deliver)
        self.under_way += 1
        self._todo.put(_Errand(deed, told))

    def close(self) -> None:
        """Take no more; a deed that is under way may go on, and nobody hears of it."""
        if self._thread is not None:
            self._todo.put(None)
            self._loop.forget(self._reader.fileno())
        self._reader.close()
        self._writer.close()

    def _work(self) -> None:
        while (errand := self._todo.get()) is not None:
            try:
                errand.outcome.value = errand.deed()
            except Exception as error:  # noqa: BLE001  it is raised where the outcome is asked for
                errand.outcome.error = error
            self._done.put(errand)
            with contextlib.suppress(OSError):  # closed, or enough nudges are waiting already
                self._writer.send(b"\0")

    def _deliver(self, mask: int) -> None:
        del mask
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(_NUDGES_BYTES)
        while True:
            try:
                errand = self._done.get_nowait()
            except queue.Empty:
                return
            self.under_way -= 1
            errand.told(errand.outcome)
