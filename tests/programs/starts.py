"""Hold device memory in one or more processes, started in the way that the first argument names.

Usage: starts.py WAY DIRECTORY [MEBIBYTES]. Each process that holds memory writes the file held-PID with the number of
its mebibytes to the directory; it ends when the file `go` appears there. Only the standard library is used, so that the
start of a process is fast and a fork server inherits no state of the driver.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

MEBIBYTE = 1 << 20
WAIT_S = 120.0


class Gpu:
    """A context on device 0."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._check("cuInit", 0)
        self._check("cuDeviceGet", ctypes.byref(device), 0)
        self._check("cuCtxCreate_v2", ctypes.byref(context), 0, device)

    def allocate(self, mebibytes: int) -> None:
        pointer = ctypes.c_uint64()
        self._check("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(mebibytes * MEBIBYTE))

    def _check(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            sys.exit(f"{name} failed with {code}")


def announce(directory: Path, mebibytes: int) -> None:
    part = directory / f"part-{os.getpid()}"
    part.write_text(str(mebibytes))
    part.rename(directory / f"held-{os.getpid()}")


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def hold(directory: Path, mebibytes: int) -> None:
    """Allocate, announce it, and wait for the end."""
    Gpu().allocate(mebibytes)
    announce(directory, mebibytes)
    wait_for(directory / "go")


def child_command(directory: Path, mebibytes: int) -> list[str]:
    return [sys.executable, __file__, "hold", str(directory), str(mebibytes)]


def wait_for_child(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit(f"a child ended with status {status}")


def hold_in_fork(directory: Path, mebibytes: int) -> int:
    """Fork a process that holds memory, and return its number."""
    pid = os.fork()
    if pid:
        return pid
    hold(directory, mebibytes)
    os._exit(0)


def double_fork(directory: Path) -> None:
    """The grandchild is a daemon of its own session; the first process waits for it by its file."""
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        hold(directory, 12)
        (directory / "over").touch()
        os._exit(0)
    os.wait()
    wait_for(directory / "over")


def orphan(directory: Path) -> None:
    """The first process ends as soon as its grandchild holds memory."""
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        for descriptor in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
        hold(directory, 12)
        os._exit(0)
    os.wait()
    wait_for(directory / "seen")


def fork_server(directory: Path) -> None:
    """A server forks three processes, and never uses the device itself."""
    for pid in [hold_in_fork(directory, mebibytes) for mebibytes in (4, 6, 8)]:
        wait_for_child(pid)


def with_multiprocessing(method: str, directory: Path) -> None:
    context = multiprocessing.get_context(method)
    processes = [context.Process(target=hold, args=(directory, mebibytes)) for mebibytes in (4, 8)]
    for process in processes:
        process.start()
    hold(directory, 2)
    for process in processes:
        process.join()
        if process.exitcode:
            sys.exit(f"a process ended with {process.exitcode}")


def thread_forks(directory: Path) -> None:
    pids: list[int] = []
    thread = threading.Thread(target=lambda: pids.append(hold_in_fork(directory, 12)))
    thread.start()
    thread.join()
    wait_for_child(pids[0])


def fork_after_init(directory: Path) -> None:
    """The parent uses the device; a child cannot use the inherited context and executes another program."""
    gpu = Gpu()
    gpu.allocate(4)
    child = os.fork()
    if not child:
        os.execv(sys.executable, child_command(directory, 8))
    announce(directory, 4)
    wait_for_child(child)


def exec_after_init(directory: Path) -> None:
    """What the process held before exec is released by it."""
    Gpu().allocate(64)
    os.execv(sys.executable, child_command(directory, 12))


def without_descriptors(directory: Path) -> None:
    os.closerange(3, 4096)
    hold(directory, 12)


def elsewhere(directory: Path) -> None:
    os.chdir("/proc")
    hold(directory.absolute(), 12)


def other_root(directory: Path) -> None:
    """Only an open context can be used after chroot, since nothing can be found by its path any more."""
    gpu = Gpu()
    gpu.allocate(4)
    os.chroot(directory)
    os.chdir("/")
    gpu.allocate(8)
    announce(Path("/"), 12)
    wait_for(Path("/go"))


def posix_spawn(directory: Path) -> None:
    wait_for_child(os.posix_spawn(sys.executable, child_command(directory, 12), os.environ))


WAYS = {
    "double-fork": double_fork,
    "orphan": orphan,
    "fork-server": fork_server,
    "multiprocessing-fork": lambda directory: with_multiprocessing("fork", directory),
    "multiprocessing-spawn": lambda directory: with_multiprocessing("spawn", directory),
    "multiprocessing-forkserver": lambda directory: with_multiprocessing("forkserver", directory),
    "subprocess": lambda directory: subprocess.run(child_command(directory, 12), close_fds=True, check=True),
    "posix-spawn": posix_spawn,
    "thread-forks": thread_forks,
    "fork-after-init": fork_after_init,
    "exec-after-init": exec_after_init,
    "without-descriptors": without_descriptors,
    "elsewhere": elsewhere,
    "other-root": other_root,
}

if __name__ == "__main__":
    if sys.argv[1] == "hold":
        hold(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        WAYS[sys.argv[1]](Path(sys.argv[2]))
