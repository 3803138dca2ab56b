"""Attacks around the hook: programs that use the device without it, and hold 15 GiB under a quota of 1 GiB."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from cotenant.runner.clock import pause
from cotenant_lab.programs.attacker.context import LIBC, AttackContext, check_result
from cotenant_lab.programs.client import CudaClient, CudaError

GIB: Final = 1 << 30
_PIECES: Final = 15
_NEW_PID_NAMESPACE: Final = 0x20000000
_NEW_USER_NAMESPACE: Final = 0x10000000
_NEW_MOUNT_NAMESPACE: Final = 0x00020000
_OTHER_USER: Final = 65534
_LONG_KERNEL_NS: Final = 20_000_000
_CHAIN: Final = 4
# Requests of native/softgpu/wire.h, which stand for the system calls of a real driver.
_HELLO: Final = 1
_CONTEXT_CREATE: Final = 2
_MEMORY_TAKE: Final = 8
_WIRE_VERSION: Final = 7
_REQUEST: Final = struct.Struct("=IIQQQ")


def hoard(driver: str, home: str, *, launches: bool = False) -> None:
    """Take 15 GiB with the driver of this path, and hold them until the bench ends the attack."""
    context = AttackContext(Path(home))
    context.note("bypass")
    client = CudaClient(driver)
    for number in range(0 if launches else _PIECES):
        try:
            client.allocate(GIB)
        except CudaError as error:
            if not number:
                context.note("bypass-refused", detail=str(error))
            break
        context.note("bypass-allocated")
    while not context.is_ordered("stop"):
        if launches:
            client.launch(_LONG_KERNEL_NS)
            client.wait()
        else:
            pause(0.01)


def _hoard_command(context: AttackContext, driver: str) -> list[str]:
    return [sys.executable, "-m", "cotenant_lab.programs.attacker.bypass", driver, str(context.home)]


def _hold(context: AttackContext) -> None:
    """Look like a program that does nothing until the end of the attack."""
    context.count(1)
    context.wait_for_end()


def _clean_environment(context: AttackContext) -> dict[str, str]:
    """Return only the variable that stands for the device files."""
    return {"COTENANT_SOFTGPU": context.facts["gpus"]}


def by_path(context: AttackContext) -> None:
    """Load the driver by its real path in this process, beside the hook."""
    driver = context.facts["driver"]
    context.note("bypass")
    client = CudaClient(driver)
    for _ in range(_PIECES):
        context.attempt(client.allocate, GIB)
    context.note("bypass-allocated" if context.successes else "bypass-refused")
    _hold(context)


def copied_driver(context: AttackContext) -> str:
    """Return a copy of the driver, which a forked process can initialize although its parent uses the driver."""
    copy = context.home / "libother.so"
    shutil.copyfile(context.facts["driver"], copy)
    return str(copy)


def by_copy(context: AttackContext) -> None:
    """Start a program that loads a copy of the driver under another name."""
    command = _hoard_command(context, copied_driver(context))
    _in_child(context, lambda: os.execv(command[0], command))


def by_environment(context: AttackContext) -> None:
    """Start a program with an empty environment."""
    command = _hoard_command(context, context.facts["driver"])
    _in_child(context, lambda: os.execve(command[0], command, _clean_environment(context)))


def by_library_path(context: AttackContext) -> None:
    """Start a program whose library path lacks the hook and is otherwise the same."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "COTENANT_"))}
    environ |= {"LD_LIBRARY_PATH": str(Path(context.facts["gpus"]) / "lib"), **_clean_environment(context)}
    command = _hoard_command(context, "libcuda.so.1")
    _in_child(context, lambda: os.execve(command[0], command, environ))


def by_fork(context: AttackContext) -> None:
    """Load the driver in a forked child, whose parent has the hook."""
    driver = copied_driver(context)
    _in_child(context, lambda: hoard(driver, str(context.home)))


def by_spawn(context: AttackContext) -> None:
    """Start a program by posix_spawn, which uses vfork."""
    command = _hoard_command(context, context.facts["driver"])
    pid = os.posix_spawn(command[0], command, _clean_environment(context))
    _hold(context)
    context.await_children([pid])


def by_exec_chain(context: AttackContext) -> None:
    """Replace the program several times, each time through a shell, with an empty environment at the end."""
    program = " ".join(_hoard_command(context, context.facts["driver"]))
    script = f"exec env -i COTENANT_SOFTGPU={context.facts['gpus']} {program}"
    command = ["sh", "-c", script]
    for _ in range(_CHAIN):
        command = ["env", "sh", "-c", 'exec "$@"', "sh", *command]
    _in_child(context, lambda: os.execvp(command[0], command))


def by_daemon(context: AttackContext) -> None:
    """Detach a process by two forks and a session of its own."""

    def detach() -> None:
        os.setsid()
        if os.fork() == 0:
            command = _hoard_command(context, context.facts["driver"])
            os.execve(command[0], command, _clean_environment(context))

    os.waitpid(context.child(detach), 0)
    _hold(context)


def by_other_user(context: AttackContext) -> None:
    """Become another user in a child."""
    driver = copied_driver(context)

    def become() -> None:
        os.setgroups([])
        os.setgid(_OTHER_USER)
        os.setuid(_OTHER_USER)
        hoard(driver, str(context.home))

    _in_child(context, become)


def by_namespace(context: AttackContext, kind: str) -> None:
    """Move a child into namespaces of its own (`pid` or `user`), as a container runtime does."""
    flags = _NEW_MOUNT_NAMESPACE | (_NEW_PID_NAMESPACE if kind == "pid" else _NEW_USER_NAMESPACE | _NEW_PID_NAMESPACE)
    driver = copied_driver(context)

    def separate() -> None:
        check_result(LIBC.unshare(flags))
        pid = os.fork()
        if pid == 0:
            hoard(driver, str(context.home))
            os._exit(0)
        os.waitpid(pid, 0)

    _in_child(context, separate)


def by_raw_socket(context: AttackContext) -> None:
    """Speak to the device without any driver library."""
    _hoard_raw(context, _hold)


def _hoard_raw(context: AttackContext, then: Callable[[AttackContext], None]) -> None:
    """Take 15 GiB through the socket of the device, and hold them while `then` runs."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        context.note("bypass")
        line.connect(str(Path(context.facts["gpus"]) / "gpu0.sock"))
        line.send(_REQUEST.pack(_HELLO, 0, _WIRE_VERSION, 0, 0))
        _, descriptors, _, _ = socket.recv_fds(line, 65536, 4)
        line.send(_REQUEST.pack(_CONTEXT_CREATE, 0, 0, 0, 0))
        reply = line.recv(65536)
        (cuda_context,) = struct.unpack_from("=Q", reply, 8)
        for _ in range(_PIECES):
            line.send(_REQUEST.pack(_MEMORY_TAKE, 0, cuda_context, GIB, 0))
            (result,) = struct.unpack_from("=i", line.recv(65536))
            context.count(1)
            context.successes += result == 0
        context.note("bypass-allocated")
        then(context)
        for descriptor in descriptors:
            os.close(descriptor)


def by_raw_socket_first(context: AttackContext) -> None:
    """Take memory without any driver library in a child, which joins only then, through the hook."""
    command = _hoard_command(context, "")
    _in_child(context, lambda: os.execv(command[0], command))


def while_training(context: AttackContext) -> None:
    """Hold memory in a child without the hook while this process works through the hook."""
    context.count(1)
    driver = copied_driver(context)
    pid = context.child(lambda: hoard(driver, str(context.home)))
    for _ in context.rounds():
        pass
    context.await_children([pid])


def launch(context: AttackContext) -> None:
    """Launch long kernels without asking the gate."""
    driver = copied_driver(context)
    _in_child(context, lambda: hoard(driver, str(context.home), launches=True))


def _use_hook(context: AttackContext) -> None:
    context.attempt(lambda: CudaClient("libcuda.so.1").allocate(1 << 20))
    while not context.is_ordered("stop"):
        pause(0.01)


def _in_child(context: AttackContext, action: Callable[[], object]) -> None:
    pid = context.child(action)
    _hold(context)
    context.await_children([pid])


def main(arguments: Sequence[str]) -> None:
    """Run as a program of its own: `python -m cotenant_lab.programs.attacker.bypass DRIVER HOME`.

    Without a driver it takes the memory through the socket of the device, and then uses the hook.
    """
    driver, home = arguments
    if driver:
        hoard(driver, home)
    else:
        _hoard_raw(AttackContext(Path(home)), _use_hook)


if __name__ == "__main__":
    main(sys.argv[1:])
