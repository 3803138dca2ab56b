"""Attacks by what a process says about itself: its name, its devices, its job, its fields, and reports as a parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.runner.clock import pause
from cotenant_lab.programs.attacker.bypass import copied_driver, hoard
from cotenant_lab.programs.attacker.context import LIBC, AttackContext
from cotenant_lab.programs.attacker.sockets import SEALS, NodeConnection, ask, attach, join, pages_file, sockets

_SET_NAME: Final = 15
_NAMES: Final = (
    b"\rNSpid: 1",
    b"\rUid: 0 0 0 0",
    b") R 1 1 1 1",
    b"\rPPid: 1\rUid:0",
    b"\x1b[2J\x1b]0;x\x07",
    b"\xff\xfe\xe2\x80",
)
_DIGITS: Final = (
    "²",
    "٣",
    "½",
    "0,²",
    "9" * 4000,
    "-1",
    "1e3",
    "\0",
    "\u2028",
    "soft:²",
    "GPU-" + "0" * 4000,
    "," * 4000,
)
_TEXTS: Final = (
    "²",
    "9" * 4000,
    "1e999",
    "nan",
    "-0",
    "99999999TiB",
    "\u202e",
    "\0",
    "../../x",
    "\x1b[31m",
    "{}",
    "[]",
)
_FIELDS: Final = ("kind", "priority", "slo", "memory", "share", "task", "name", "gpus")
_LARGEST: Final = (1 << 63) - 1
_GANGS: Final = 64
_HELD: Final = 48
_ANSWERS: Final = 64


def _set_name(name: bytes) -> None:
    LIBC.prctl(_SET_NAME, name, 0, 0, 0)


def forge_status(context: AttackContext) -> Iterator[None]:
    """Take names that look like lines of /proc/PID/status and end of /proc/PID/stat, and bypass the hook meanwhile."""
    driver = copied_driver(context)
    yield
    context.count(1)

    def work() -> None:
        child = os.fork()
        _set_name(_NAMES[child == 0])
        if not child:
            hoard(driver, str(context.home))
        pause(30)

    child = context.child(work)
    number = 0
    while context.has_time:
        _set_name(_NAMES[number % len(_NAMES)])
        number += 1
        pause(0.01)
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)


def _attach(context: AttackContext, path: str, message: dict[str, Any]) -> None:
    """Send an attach with valid pages."""
    file = pages_file(SEALS)
    try:
        ask(context, path, message, [file])
    finally:
        os.close(file)


def hostile_devices(context: AttackContext) -> None:
    """Attach with numbers of devices that are none, as a container may number its devices by itself."""
    for number in context.rounds():
        for path in sockets(context):
            visible = _DIGITS[number % len(_DIGITS)]
            _attach(context, path, {**attach(context), "visible": visible, "ordinal": number % 16})


def hostile_fields(context: AttackContext) -> None:
    """Attach with fields and grants that no tenant may have."""
    for number in context.rounds():
        field, text = _FIELDS[number % len(_FIELDS)], _TEXTS[number // len(_FIELDS) % len(_TEXTS)]
        for path in sockets(context):
            _attach(context, path, attach(context, **{field: text}))
            grant = "\n".join([f"{field} = {text}"] * (15000 // (len(text.encode()) + 12)))
            _attach(context, path, {**attach(context), "grant": grant})


def many_gangs(context: AttackContext) -> None:
    """Attach as ranks of many jobs, and fill the pages on which their ranks agree."""
    held: list[NodeConnection] = []

    def join_gang(path: str, number: int) -> None:
        connection = NodeConnection(path)
        held.append(connection)
        file = pages_file(SEALS)
        message = {**attach(context), "gang": f"gang-{number % _GANGS}", "ranks": 2 + number % 30}
        connection.send(message, [file])
        os.close(file)
        _, received = connection.answer()
        for descriptor in received:
            with contextlib.suppress(OSError):
                os.pwrite(descriptor, context.rng.randbytes(4096), 0)
            os.close(descriptor)
        if len(held) >= _HELD:
            held.pop(0).line.close()

    for number in context.rounds():
        for path in sockets(context):
            context.attempt(join_gang, path, number)


def reattach(context: AttackContext) -> None:
    """Attach, close, and attach again under the same and under other indexes, without pause."""
    for number in context.rounds():
        for path in sockets(context):
            _attach(context, path, {**attach(context), "index": number % 300, "generation": number % 5})
            _attach(context, path, {**attach(context), "index": _LARGEST, "generation": _LARGEST})
            _attach(context, path, {**attach(context), "index": -_LARGEST, "generation": -_LARGEST})


def _as_parent(context: AttackContext, act: Callable[[NodeConnection, int], None]) -> None:
    """Join as the parent of a tenant and act; leave or break the connection, again and again."""

    def turn(path: str, number: int) -> None:
        with NodeConnection(path) as connection:
            connection.send(join(context, name=f"claim-{number % 1000}", memory_bytes=1 << 20))
            answer, _ = connection.answer()
            if answer.get("type") != "welcome":
                raise OSError("refused")
            act(connection, number)

    for number in context.rounds():
        for path in sockets(context):
            context.attempt(turn, path, number)


def false_reports(context: AttackContext) -> None:
    """Report restarts, suspensions and endings of a program that does not exist."""
    reports: list[dict[str, Any]] = [
        {"type": "suspend-result", "ok": True, "detail": ""},
        {"type": "restore-result", "ok": True, "detail": ""},
        {"type": "suspend-result", "ok": False, "detail": "\x1b[2J" * 60},
        {"type": "restart-report", "ending": "exit 0", "restarts": _LARGEST},
        {"type": "restart-report", "ending": "\u202e\r\n" * 60, "restarts": 0},
        {"type": "quit", "grace_ns": _LARGEST},
        {"type": "leave", "ending": "\u2028" * 200},
    ]

    def report(connection: NodeConnection, number: int) -> None:
        for shift in range(len(reports)):
            connection.send(reports[(number + shift) % len(reports)])

    _as_parent(context, report)


def join_and_leave(context: AttackContext) -> None:
    """Become a tenant and leave, as fast as the node answers."""
    _as_parent(context, lambda connection, _: connection.send({"type": "leave", "ending": "exit 0"}))


def many_tenants(context: AttackContext) -> None:
    """Claim to be many tenants at once, with all the memory and the whole device, and keep the connections."""
    held: list[NodeConnection] = []

    def claim(path: str, number: int) -> None:
        connection = NodeConnection(path)
        held.append(connection)
        connection.send(join(context, name=f"many-{number}", share_ppm=900_000, memory_bytes=1 << 33))
        connection.answer()

    for number in range(_HELD):
        for path in sockets(context) if context.has_time else ():
            context.attempt(claim, path, number)
    for _ in context.rounds():
        pass


def read_storm(context: AttackContext, way: str) -> None:
    """Ask for lists and counters, hundreds of requests at once; `deaf`: without reading the answers."""
    version = context.facts["version"]
    requests = b"".join(
        len(payload).to_bytes(4, "little") + payload
        for kind in ("snapshot", "list-tenants", "status", "own-grant")
        for payload in [msgspec.msgpack.encode({"type": kind, "version": version})]
    )
    held: list[NodeConnection] = []

    def storm(path: str) -> None:
        connection = NodeConnection(path)
        held.append(connection)
        connection.send_bytes(requests * _ANSWERS)
        if way == "reading":
            with contextlib.suppress(TimeoutError):
                while connection.line.recv(1 << 20):
                    pass
        if len(held) > _HELD:
            held.pop(0).line.close()

    while context.has_time:
        for path in sockets(context):
            context.attempt(storm, path)


def unusual_descriptors(context: AttackContext) -> None:
    """Attach with descriptors that contain themselves, never answer, or block: sockets, epoll, pipes, timers."""
    for _ in context.rounds():
        pair = socket.socketpair(socket.AF_UNIX)
        epoll, nested = select.epoll(), select.epoll()
        nested.register(epoll.fileno())
        looped = [pair[0].fileno(), epoll.fileno(), nested.fileno(), os.memfd_create("huge", 0x4 | 2)]
        pair[0].sendmsg([b"x"], [(1, 1, (ctypes.c_int * 1)(pair[1].fileno()))])
        for path in sockets(context):
            for descriptor in looped:
                ask(context, path, attach(context), [descriptor])
        os.close(looped[-1])
        epoll.close()
        nested.close()
        for one in pair:
            one.close()


def talk_to_mps(context: AttackContext) -> None:
    """Send commands to the control daemon of MPS, as anyone may who reaches its pipe."""
    directory = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent"))
    commands = ("get_server_list", "set_default_active_thread_percentage 1", "ps", "quit -t 0", "quit")

    def command(words: str) -> None:
        for path in (directory / "control", *directory.glob("*")):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
                line.settimeout(0.3)
                line.connect(str(path))
                line.send(f"ui\n{words}".encode())
                context.note("mps", command=words, answer=line.recv(4096).decode(errors="replace")[:80])
                return

    for _ in context.rounds():
        for words in commands:
            context.attempt(command, words)
