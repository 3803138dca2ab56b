"""Attacks by the behaviour of processes: floods, stops, crashes, and memory up to and beyond the quota."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cotenant.runner.clock import pause
from cotenant.softgpu import fault
from cotenant_lab.programs.attacker.context import AttackContext
from cotenant_lab.programs.client import CudaClient, CudaError

MIB: Final = 1 << 20
GIB: Final = 1 << 30
_THREADS: Final = 8
_CHILDREN: Final = 4
_MANY_CHILDREN: Final = 8
_STOPS: Final = 6
_FLOOD: Final = 400
_SHORT_KERNEL_NS: Final = 20_000
_HANDLE_BYTES: Final = 64
_LAZY_PEERS: Final = 1
_POLL_S: Final = 0.01
_WORKER_READY: Final = '"worker-ready"'


def _client(context: AttackContext) -> CudaClient:
    if context.client is None:
        raise OSError("the attacker has no device")
    return context.client


# -- floods ------------------------------------------------------------------------------------------------------
def flood_launches(context: AttackContext) -> None:
    """Launch without waiting."""
    client = _client(context)
    while context.has_time:
        for _ in range(_FLOOD):
            client.launch(_SHORT_KERNEL_NS)
            context.count(1)
        client.wait()


def flood_claims(context: AttackContext) -> None:
    """Ask the gate from several threads without pause."""
    client = _client(context)

    def ask() -> None:
        with contextlib.suppress(CudaError):
            client.use_in_thread()
            client.launch(_SHORT_KERNEL_NS)
            context.count(1)

    threads = [context.in_background(ask) for _ in range(_THREADS)]
    for thread in threads:
        thread.join()
    client.wait()


def flood_processes(context: AttackContext) -> Iterator[None]:
    """Start several processes that all ask the gate."""
    yield from _run_workers(context, _MANY_CHILDREN, "work")


def churn_processes(context: AttackContext) -> None:
    """Start processes that join and end at once, one after the other."""
    while context.has_time:
        context.count(1)
        _worker(context, "once").wait()


def _worker(context: AttackContext, order: str) -> subprocess.Popen[bytes]:
    """Start a process of the same tenant, with the hook."""
    command = [sys.executable, "-m", "cotenant_lab.programs.attacker.processes", order, str(context.home)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def _start_workers(context: AttackContext, count: int, order: str) -> list[subprocess.Popen[bytes]]:
    """Start processes and wait until they use the device; they begin with the attack."""
    workers = [_worker(context, order) for _ in range(count)]
    while any(worker.poll() is None for worker in workers):
        if (context.home / "report").read_text().count(_WORKER_READY) == count:
            break
        pause(_POLL_S)
    return workers


def _run_workers(context: AttackContext, count: int, order: str) -> Iterator[None]:
    workers = _start_workers(context, count, order)
    yield
    context.count(count)
    context.wait_for_end()
    (context.home / "workers-end").touch()
    for worker in workers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(0.5)
        worker.kill()  # a stopped process cannot end by itself
        worker.wait()


# -- stopped processes -------------------------------------------------------------------------------------------
def stop_while_launching(context: AttackContext) -> Iterator[None]:
    """Stop processes at random instants while they launch: one of them may hold the claim."""
    yield from _run_workers(context, _CHILDREN, "stop-launching")


def stop_while_allocating(context: AttackContext) -> Iterator[None]:
    """Stop processes at random instants while they allocate and free."""
    yield from _run_workers(context, _CHILDREN, "stop-allocating")


def stop_for_good(context: AttackContext) -> None:
    """Stop every process of the tenant, so that nothing reads what the node sends."""
    context.count(1)
    context.note("done", attempts=1, successes=1, ended="stopped")
    os.kill(os.getpid(), signal.SIGSTOP)


def _stop_at_random(number: int) -> None:
    """Stop this process several times; a child continues it, and leaves it stopped at the end."""
    pid = os.getpid()
    child = os.fork()
    if child:
        return
    pauses_s = [0.02 + (number * 37 + turn * 53) % 100 / 1000 for turn in range(_STOPS)]
    for pause_s in pauses_s:
        pause(pause_s)
        os.kill(pid, signal.SIGSTOP)
        pause(0.05)
        os.kill(pid, signal.SIGCONT)
    pause(0.05)
    os.kill(pid, signal.SIGSTOP)
    os._exit(0)


# -- memory ------------------------------------------------------------------------------------------------------
def leak(context: AttackContext) -> None:
    """Allocate until the quota refuses, and continue to try."""
    client = _client(context)
    for _ in context.rounds():
        context.attempt(client.allocate, 64 * MIB)


def allocation_storm(context: AttackContext) -> None:
    """Allocate and free from several threads."""
    client = _client(context)

    def turn() -> None:
        with contextlib.suppress(CudaError):
            client.use_in_thread()
            client.free(client.allocate(16 * MIB))
            context.count(1)

    threads = [context.in_background(turn) for _ in range(_THREADS)]
    for thread in threads:
        thread.join()


def allocate_in_children(context: AttackContext) -> Iterator[None]:
    """Allocate the whole quota in each of several processes at the same time."""
    yield from _run_workers(context, _CHILDREN, "hoard")


def export_and_exit(context: AttackContext) -> Iterator[None]:
    """Open memory that another process exported and whose owner then ended; then allocate the quota again."""
    client = _client(context)
    handles = context.home / "handles"
    [owner] = _start_workers(context, 1, "export")
    yield
    data = handles.read_bytes()
    for start in range(0, len(data), _HANDLE_BYTES):
        context.attempt(_open_handle, client, data[start : start + _HANDLE_BYTES])
    (context.home / "opened").touch()
    owner.wait()
    for _ in context.rounds():
        context.attempt(client.allocate, 64 * MIB)


def _open_handle(client: CudaClient, data: bytes) -> None:
    handle = (ctypes.c_byte * _HANDLE_BYTES).from_buffer_copy(data)
    pointer = ctypes.c_uint64()

    class Handle(ctypes.Structure):
        _fields_ = (("reserved", ctypes.c_byte * _HANDLE_BYTES),)

    client.call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), Handle(handle), ctypes.c_uint(_LAZY_PEERS))


def _export(context: AttackContext, client: CudaClient) -> None:
    """Export as much memory as the quota permits, and end when it was opened."""
    data = b""
    with contextlib.suppress(CudaError):
        while len(data) < 12 * _HANDLE_BYTES:
            pointer = client.allocate(64 * MIB)
            handle = ctypes.create_string_buffer(_HANDLE_BYTES)
            client.call("cuIpcGetMemHandle", handle, ctypes.c_uint64(pointer))
            data += handle.raw
    (context.home / "handles").write_bytes(data)
    context.note("worker-ready")
    while not context.is_ordered("opened") and not context.is_ordered("stop"):
        pause(0.01)


# -- crashes -----------------------------------------------------------------------------------------------------
def crash_illegal_address(context: AttackContext) -> None:
    """Fail a kernel of the own process with an illegal address."""
    client = _client(context)
    context.count(1)
    for _ in range(4):
        client.launch(200_000)
    fault.inject(Path(context.facts["gpus"]), 0, fault.KINDS["illegal-address"], client=os.getpid())
    client.wait()


def crash_abort(context: AttackContext) -> None:
    """Abort while a thread launches."""
    client = _client(context)

    def launch() -> None:
        client.use_in_thread()
        client.launch(_SHORT_KERNEL_NS)

    context.in_background(launch)
    context.count(1)
    context.note("done", attempts=1, successes=1, ended="abort")
    pause(0.05)
    os.abort()


def crash_kill_children(context: AttackContext) -> Iterator[None]:
    """Kill own processes with work in flight."""
    workers = _start_workers(context, _CHILDREN, "work")
    yield
    context.count(_CHILDREN)
    pause(context.facts["attack_s"] / 2)
    for worker in workers:
        worker.kill()
    context.wait_for_end()
    for worker in workers:
        worker.wait()


# -- workers -----------------------------------------------------------------------------------------------------
def main(arguments: Sequence[str]) -> int:
    """Run as a further process of the tenant: `python -m cotenant_lab.programs.attacker.processes ORDER HOME`."""
    order, context = arguments[0], AttackContext(Path(arguments[1]))
    client = CudaClient()
    if order == "once":
        client.launch(_SHORT_KERNEL_NS)
        client.wait()
        return 0
    if order == "export":
        _export(context, client)
        return 0
    context.note("worker-ready")
    while not context.is_ordered("go") and not context.is_ordered("stop"):
        pause(_POLL_S)
    if order.startswith("stop-"):
        _stop_at_random(os.getpid())
    while not context.is_ordered("workers-end") and not context.is_ordered("stop"):
        if order == "stop-allocating":
            with contextlib.suppress(CudaError):
                client.free(client.allocate(8 * MIB))
        elif order == "hoard":
            with contextlib.suppress(CudaError):
                client.allocate(64 * MIB)
            pause(0.002)
        else:
            for _ in range(4):
                client.launch(100_000)
            client.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
