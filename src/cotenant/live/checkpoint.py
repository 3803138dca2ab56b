"""How does a program's device memory get to the host and back? By the driver's own checkpoint calls.

`python -m cotenant.live.checkpoint suspend|restore DRIVER PID...` does it, in a process of its own: whoever loads a
driver is a program on the device itself. The calls are those of cuda.h since CUDA 12.8 (cuCheckpointProcess*).
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
"""Makes one of the driver's calls for a process and returns its code."""


class Moved(msgspec.Struct, frozen=True):
    """How it went."""

    ok: bool
    detail: str


class Move:
    """One way, under way."""

    def __init__(self, verb: str, driver: Path, pids: Sequence[int], environ: Mapping[str, str]) -> None:
        """Start it; `environ` is what the program itself has, without the hook."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cotenant.live.checkpoint", verb, str(driver), *map(str, pids)],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self._said = self._process.stdout

    def fileno(self) -> int:
        """Readable once it is done."""
        return self._said.fileno()

    def finish(self) -> Moved:
        """How it went."""
        said = self._said.read()
        self._said.close()
        self._process.wait()
        try:
            return msgspec.json.decode(said, type=Moved)
        except msgspec.MsgspecError:
            return Moved(
                ok=False, detail=f"the driver's checkpoint calls ended our process ({self._process.returncode})"
            )

    def give_up(self) -> None:
        """End it; what it held locked stays so until its processes end."""
        self._process.kill()
        self.finish()


def suspend(call: Call, pids: Sequence[int]) -> Moved:
    """Move the memory of all these processes to the host, or of none."""
    locked: list[int] = []
    moved: list[int] = []
    for pid in pids:
        code = call("Lock", pid)
        if code in _NOT_ON_DEVICE or (code and not _is_there(pid)):
            continue
        if code:
            return _undo(call, locked, moved, _told("Lock", pid, code))
        locked.append(pid)
    for pid in locked:
        code = call("Checkpoint", pid)
        if code and _is_there(pid):
            return _undo(call, locked, moved, _told("Checkpoint", pid, code))
        moved.append(pid)
    return Moved(ok=True, detail=f"{len(moved)} process{'' if len(moved) == 1 else 'es'} moved to the host")


def restore(call: Call, pids: Sequence[int]) -> Moved:
    """Move the memory of these processes back; where one cannot, all stay on the host, to be tried again."""
    back: list[int] = []
    for pid in pids:
        code = call("Restore", pid)
        if code in _NOT_ON_DEVICE or (code and not _is_there(pid)):
            continue
        if code:
            for other in back:
                call("Checkpoint", other)
            return Moved(ok=False, detail=_told("Restore", pid, code))
        back.append(pid)
    failed = [_told("Unlock", pid, code) for pid in back if (code := call("Unlock", pid)) and _is_there(pid)]
    if failed:
        return Moved(ok=False, detail=failed[0])
    return Moved(ok=True, detail=f"{len(back)} process{'' if len(back) == 1 else 'es'} moved back to the device")


def _undo(call: Call, locked: Sequence[int], moved: Sequence[int], why: str) -> Moved:
    for pid in moved:
        call("Restore", pid)
    for pid in locked:
        call("Unlock", pid)
    return Moved(ok=False, detail=why)


def _told(name: str, pid: int, code: int) -> str:
    if code in (_NOT_SUPPORTED, _NO_SUCH_CALL):
        return "the driver cannot move a program's memory to the host (it has no checkpoint calls, or not here)"
    return f"cuCheckpointProcess{name} of process {pid} gives {code}"


def _is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _calls(driver: str) -> Call:
    """The calls of a driver that is loaded into this process."""
    library = ctypes.CDLL(driver)
    started = library.cuInit(0)  # a restore needs it where the driver does not stay loaded by itself

    def call(name: str, pid: int) -> int:
        found = getattr(library, f"cuCheckpointProcess{name}", None)
        if found is None:
            return _NO_SUCH_CALL
        if started != _SUCCESS:
            return int(started)
        told = _LOCK_MS.to_bytes(4, sys.byteorder) if name == "Lock" else b""  # else all of it is reserved
        code: int = found(ctypes.c_int(pid), ctypes.create_string_buffer(told, _ARGUMENT_BYTES))
        return code

    return call


def _no_call(name: str, pid: int) -> int:
    """Where no process has the driver, nobody needs to load it."""
    raise AssertionError(f"{name} of {pid}")


def main(words: list[str]) -> int:
    """Say in one JSON object how it went."""
    verb, driver, *pids = words
    try:
        call = _calls(driver) if pids else _no_call
        done = (suspend if verb == "suspend" else restore)(call, [int(pid) for pid in pids])
    except (OSError, AttributeError) as error:
        done = Moved(ok=False, detail=f"the driver {driver} cannot be loaded: {error}"[:200])
    os.write(1, json.dumps(msgspec.structs.asdict(done)).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
