"""Wires suspension: which processes of a tenant have the driver, and the calls that move their memory and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cotenant.format import wire
from cotenant.live.checkpoint import Move, Moved
from cotenant.live.hook.door import DRIVER_NAME
from cotenant.live.hook.trace import driver_of


class Mover:
    """One tenant's memory, here or there. One move at a time; what is asked meanwhile comes after it."""

    def __init__(self, driver: Path | None, environ: Mapping[str, str]) -> None:
        """Move by the calls of this driver, which finds its device by the program's own environment."""
        self._driver = driver
        self._environ = environ
        self._move: Move | None = None
        self._verb = ""
        self._moved: list[int] = []
        self._waiting: list[tuple[str, list[int]]] = []

    def fileno(self) -> int:
        """Readable once a move is done; -1 while there is none."""
        return -1 if self._move is None else self._move.fileno()

    @property
    def is_aside(self) -> bool:
        """Whether anything was moved and did not come back."""
        return bool(self._moved)

    def uses_driver(self, pid: int) -> bool:
        """Whether a process has the driver in it."""
        return self._driver is not None and bool(driver_of(pid, self._driver.resolve(), hooked=True))

    def suspend(self, pids: Sequence[int]) -> None:
        """Move the memory of those of these processes that have any to the host."""
        self._ask("suspend", [pid for pid in pids if self.uses_driver(pid)])

    def restore(self) -> None:
        """Bring back what was moved."""
        self._ask("restore", [])

    def finish(self) -> wire.Suspended | wire.Restored:
        """How the move went, as the node is told; the next one begins."""
        assert self._move is not None
        done = self._move.finish()
        self._move = None
        return self._answer(done)

    def forget(self) -> None:
        """The program is gone."""
        self._waiting.clear()
        self._moved.clear()
        if self._move is not None:
            self._move.give_up()
            self._move = None

    def _answer(self, done: Moved) -> wire.Suspended | wire.Restored:
        verb = self._verb
        if done.ok == (verb == "restore"):  # all of it is back, or none of it went
            self._moved = []
        if self._waiting:
            self._begin(*self._waiting.pop(0))
        return (wire.Suspended if verb == "suspend" else wire.Restored)(done.ok, done.detail)

    def _ask(self, verb: str, pids: list[int]) -> None:
        if self._move is not None:
            self._waiting.append((verb, pids))
        else:
            self._begin(verb, pids)

    def _begin(self, verb: str, pids: list[int]) -> None:
        self._verb = verb
        if verb == "suspend":
            self._moved = pids
        self._move = Move(verb, self._driver or Path(DRIVER_NAME), self._moved, self._environ)
