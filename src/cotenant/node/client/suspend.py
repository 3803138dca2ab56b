"""Suspension of a tenant: find its processes with the driver, and move their memory to the host and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant.hook.records import mapped_driver
from cotenant.hook.shim import DRIVER_NAME
from cotenant.node import wire

if TYPE_CHECKING:
    from cotenant.node.client.checkpoint import CheckpointProcess, MoveResult


class MemoryMover:
    """Moves one tenant's memory. One move runs at a time; a request meanwhile is queued."""

    def __init__(self, driver: Path | None, environ: Mapping[str, str]) -> None:
        """Use the checkpoint calls of this driver; `environ` is the program's environment, which selects the device."""
        self._driver = driver
        self._environ = environ
        self._move: CheckpointProcess | None = None
        self._verb = ""
        self._suspended_pids: list[int] = []
        self._queued: list[tuple[str, list[int]]] = []

    def fileno(self) -> int:
        """Return a descriptor that is readable once a move is done; -1 without a move."""
        return -1 if self._move is None else self._move.fileno()

    @property
    def is_suspended(self) -> bool:
        """Return whether memory was moved to the host and not back."""
        return bool(self._suspended_pids)

    def uses_driver(self, pid: int) -> bool:
        """Return whether a process has loaded the driver."""
        return self._driver is not None and bool(mapped_driver(pid, self._driver.resolve(), hooked=True))

    def suspend(self, pids: Sequence[int]) -> None:
        """Move the device memory of these processes to the host."""
        self._start_or_queue("suspend", [pid for pid in pids if self.uses_driver(pid)])

    def restore(self) -> None:
        """Move the memory back to the device."""
        self._start_or_queue("restore", [])

    def finish(self) -> wire.SuspendResult | wire.RestoreResult:
        """Return the result of the move for the node, and start the next move."""
        assert self._move is not None
        result = self._move.finish()
        self._move = None
        return self._result_message(result)

    def forget(self) -> None:
        """Forget the moves of a program that has ended."""
        self._queued.clear()
        self._suspended_pids.clear()
        if self._move is not None:
            self._move.give_up()
            self._move = None

    def _result_message(self, result: MoveResult) -> wire.SuspendResult | wire.RestoreResult:
        verb = self._verb
        if result.ok == (verb == "restore"):  # all memory is back, or none was moved
            self._suspended_pids = []
        if self._queued:
            self._begin(*self._queued.pop(0))
        return (wire.SuspendResult if verb == "suspend" else wire.RestoreResult)(result.ok, result.detail)

    def _start_or_queue(self, verb: str, pids: list[int]) -> None:
        if self._move is not None:
            self._queued.append((verb, pids))
        else:
            self._begin(verb, pids)

    def _begin(self, verb: str, pids: list[int]) -> None:
        from cotenant.node.client.checkpoint import CheckpointProcess  # noqa: PLC0415  few tenants are suspended

        self._verb = verb
        if verb == "suspend":
            self._suspended_pids = pids
        self._move = CheckpointProcess(verb, self._driver or Path(DRIVER_NAME), self._suspended_pids, self._environ)
