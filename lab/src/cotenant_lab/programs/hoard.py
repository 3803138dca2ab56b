"""Allocate and free device memory at random in several processes, some of which are killed.

`python -m cotenant_lab.programs.hoard lead BOARD MAIL WORKERS OPERATIONS KILLS SEED LARGEST_BYTES` keeps the workers
running, each until it has done its operations, and kills one at random at times. `work BOARD MAIL WORKERS WORKER
OPERATIONS SEED LARGEST_BYTES` is one of them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Final

from cotenant.runner.clock import pause
from cotenant_lab.programs.board import KINDS, QUIET, STOP, WORK, Board, Mail
from cotenant_lab.programs.client import OUT_OF_MEMORY, CudaClient, CudaError
from cotenant_lab.programs.memory import MemoryMethods, Undo

_LOOK_S: Final = 0.002
_MOST_HELD: Final = 48
_SMALLEST_BYTES: Final = 4096
_HUGE: Final = 20
"""One in this many allocations requests far more than there is."""
_STALE: Final = {1, 201, 205, 400}
"""Driver codes for a handle whose memory was freed, or is our own."""
_CALLS: Final = ("?", *KINDS)


class _Worker:
    def __init__(self, board: Board, mail: Mail, worker: int, seed: int, largest_bytes: int) -> None:
        self._board = board
        self._worker = worker
        self._rng = Random(seed * 1000 + board.get(worker, "lives"))
        board.add(worker, "lives")
        self._largest_bytes = largest_bytes
        self._mail = mail
        self._held: list[Undo] = []

    def run(self, operations: int) -> None:
        """Run until ordered to stop; after its operations the worker only keeps what it has."""
        while (client := self._begin()) is None:
            if self._board.order == STOP:
                return
            self._rest(None)
        self._client, self._methods = client, MemoryMethods(client, self._rng, self._mail)
        while (order := self._board.order) != STOP:
            if order == QUIET:
                self._rest(client)
            elif self._board.get(self._worker, "done") < operations:
                self._step()
            else:
                pause(_LOOK_S)

    def _begin(self) -> CudaClient | None:
        """Create a context, which needs memory too; there may be none at the moment."""
        try:
            return CudaClient()
        except CudaError as error:
            if error.code != OUT_OF_MEMORY:
                raise
        self._board.add(self._worker, "denied")
        return None

    def _rest(self, client: CudaClient | None) -> None:
        turn = self._board.turn
        if client is not None:
            client.wait()
        if self._board.order == QUIET:
            self._board.set(self._worker, "turn", turn)
        pause(_LOOK_S)

    def _step(self) -> None:
        kind = self._rng.choice(KINDS)
        self._board.add(self._worker, "done")
        is_free = self._held and (len(self._held) >= _MOST_HELD or self._rng.random() < 0.5)
        try:
            if is_free:
                self._held.pop(self._rng.randrange(len(self._held)))()
            else:
                self._held.append(self._methods.methods[kind](self._size()))
                self._board.add(self._worker, kind)
        except CudaError as error:
            self._failed("" if is_free else kind, error)

    def _size(self) -> int:
        if self._rng.randrange(_HUGE) == 0:
            return 16 * self._largest_bytes
        most = self._largest_bytes.bit_length()
        return min(self._largest_bytes, int(_SMALLEST_BYTES + 2 ** self._rng.uniform(12, most)))

    def _failed(self, kind: str, error: CudaError) -> None:
        """Count a refusal; print any other error."""
        if kind and error.code == OUT_OF_MEMORY:
            self._board.add(self._worker, "denied")
        elif kind == "open" and error.code in _STALE:
            self._board.add(self._worker, "stale")
        else:
            self._board.add(self._worker, "failed")
            self._board.set(self._worker, "failed_call", _CALLS.index(kind or "?"))
            self._board.set(self._worker, "failed_code", error.code)
            sys.stderr.write(f"{kind or 'free'}: {error}\n")


class _Lead:
    """Keeps the workers of a tenant running."""

    def __init__(self, words: list[str]) -> None:
        self._board_path, self._mail_path = words[:2]
        self._workers, self._operations, self._kills, self._seed, self._largest_bytes = map(int, words[2:])
        self._board = Board(Path(self._board_path), self._workers)
        self._rng = Random(self._seed)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def run(self) -> None:
        killed = 0
        while self._board.order != STOP:
            for worker in range(self._workers):
                process = self._processes.get(worker)
                if process is None or process.poll() is not None:
                    self._start(worker)
            done = self._board.total("done")
            goal = self._operations * self._workers
            if killed < self._kills and self._board.order == WORK and done * (self._kills + 1) >= goal * (killed + 1):
                self._processes[self._rng.randrange(self._workers)].kill()
                killed += 1
            pause(_LOOK_S)
        for process in self._processes.values():
            if self._rng.random() < 0.5:
                process.kill()
            process.wait()
        sys.stdin.read()  # the tenant stays until its input is closed: the node cleans up after its workers

    def _start(self, worker: int) -> None:
        numbers = [self._board_path, self._mail_path, self._workers, worker, self._operations]
        numbers += [self._seed * self._workers + worker, self._largest_bytes]
        command = [sys.executable, "-m", "cotenant_lab.programs.hoard", "work", *map(str, numbers)]
        self._processes[worker] = subprocess.Popen(command, stdin=subprocess.DEVNULL)


def main(words: list[str]) -> int:
    """Run the program that the first word names."""
    if words[0] == "lead":
        _Lead(words[1:]).run()
        return 0
    workers, worker, operations, seed, largest_bytes = map(int, words[3:])
    board, mail = Board(Path(words[1]), workers), Mail(Path(words[2]))
    _Worker(board, mail, worker, seed, largest_bytes).run(operations)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
