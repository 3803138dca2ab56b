"""Move a program's device memory to the host and back with the driver's checkpoint calls.

`python -m cotenant.node.client.checkpoint suspend|restore DRIVER PID...` runs in its own process, because a process
that loads a driver is itself a program on the device. The calls are in cuda.h since CUDA 12.8 (cuCheckpointProcess*).
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

_LOCK_MS: Final = 5000
_SUCCESS: Final = 0
_NOT_ON_DEVICE: Final = (1, 3)  # invalid value, not initialised: a process that has the driver's file and no context
_NOT_SUPPORTED: Final = 801
_NO_SUCH_CALL: Final = -1
_ARGUMENT_BYTES: Final = 64
Call: TypeAlias = Callable[[str, int], int]
"""Calls one function of the driver for a process and returns its result code."""


class MoveResult(msgspec.Struct, frozen=True):
    """The result of a move."""

    ok: bool
    detail: str


class CheckpointProcess:
    """A move in progress, to the host or back."""

    def __init__(self, verb: str, driver: Path, pids: Sequence[int], environ: Mapping[str, str]) -> None:
        """Start the move; `environ` is the program's environment without the hook."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cotenant.node.client.checkpoint", verb, str(driver), *map(str, pids)],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout

    def fileno(self) -> int:
        """Return a descriptor that is readable once the move is done."""
        return self._output.fileno()

    def finish(self) -> MoveResult:
        """Wait for the end of the move and return its result."""
        output = self._output.read()
        self._output.close()
        self._process.wait()
        try:
            return msgspec.json.decode(output, type=MoveResult)
        except msgspec.MsgspecError:
            return MoveResult(
                ok=False,
                detail=f"the driver's checkpoint calls ended the helper process ({self._process.returncode})",
            )

    def give_up(self) -> None:
        """Kill the move; processes that it has locked stay locked until they end."""
        self._process.kill()
        self.finish()


def suspend(call: Call, pids: Sequence[int]) -> MoveResult:
    """Move the memory of all these processes to the host, or of none."""
    locked: list[int] = []
    moved: list[int] = []
    for pid in pids:
        code = call("Lock", pid)
        if code in _NOT_ON_DEVICE or (code and not _exists(pid)):
            continue
        if code:
            return _undo(call, locked, moved, _failure_text("Lock", pid, code))
        locked.append(pid)
    for pid in locked:
        code = call("Checkpoint", pid)
        if code and _exists(pid):
            return _undo(call, locked, moved, _failure_text("Checkpoint", pid, code))
        moved.append(pid)
    return MoveResult(ok=True, detail=f"{len(moved)} process{'' if len(moved) == 1 else 'es'} moved to the host")


def restore(call: Call, pids: Sequence[int]) -> MoveResult:
    """Move the memory of these processes back; if one fails, all stay on the host for another attempt."""
    restored: list[int] = []
    for pid in pids:
        code = call("Restore", pid)
        if code in _NOT_ON_DEVICE or (code and not _exists(pid)):
            continue
        if code:
            for other in restored:
                call("Checkpoint", other)
            return MoveResult(ok=False, detail=_failure_text("Restore", pid, code))
        restored.append(pid)
    failures = [
        _failure_text("Unlock", pid, code) for pid in restored if (code := call("Unlock", pid)) and _exists(pid)
    ]
    if failures:
        return MoveResult(ok=False, detail=failures[0])
    return MoveResult(
        ok=True, detail=f"{len(restored)} process{'' if len(restored) == 1 else 'es'} moved back to the device"
    )


def _undo(call: Call, locked: Sequence[int], moved: Sequence[int], why: str) -> MoveResult:
    for pid in moved:
        call("Restore", pid)
    for pid in locked:
        call("Unlock", pid)
    return MoveResult(ok=False, detail=why)


def _failure_text(name: str, pid: int, code: int) -> str:
    if code in (_NOT_SUPPORTED, _NO_SUCH_CALL):
        return "the driver cannot move a program's memory to the host: it has or supports no checkpoint calls here"
    return f"cuCheckpointProcess{name} of process {pid} returned {code}"


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _calls(driver: str) -> Call:
    """Load the driver into this process and return a function that makes its calls."""
    library = ctypes.CDLL(driver)
    init_code = library.cuInit(0)  # needed by a restore if the driver does not stay loaded

    def call(name: str, pid: int) -> int:
        function = getattr(library, f"cuCheckpointProcess{name}", None)
        if function is None:
            return _NO_SUCH_CALL
        if init_code != _SUCCESS:
            return int(init_code)
        arguments = _LOCK_MS.to_bytes(4, sys.byteorder) if name == "Lock" else b""  # other calls have none
        code: int = function(ctypes.c_int(pid), ctypes.create_string_buffer(arguments, _ARGUMENT_BYTES))
        return code

    return call


def _no_call(name: str, pid: int) -> int:
    """Stand in for the driver when there is no process to move: no call may be made."""
    raise AssertionError(f"{name} of {pid}")


def main(arguments: list[str]) -> int:
    """Run a move and print its result as one JSON object."""
    verb, driver, *pids = arguments
    try:
        call = _calls(driver) if pids else _no_call
        result = (suspend if verb == "suspend" else restore)(call, [int(pid) for pid in pids])
    except (OSError, AttributeError) as error:
        result = MoveResult(ok=False, detail=f"the driver {driver} cannot be loaded: {error}"[:200])
    os.write(1, json.dumps(msgspec.structs.asdict(result)).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
