"""Attacks on the node's sockets: floods, broken frames, hostile joins and attaches, and commands about others."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from cotenant.runner.clock import pause
from cotenant_lab.programs.attacker.context import AttackContext
from cotenant_lab.programs.attacker.pages import attack_received

_LENGTH: Final = struct.Struct("<I")
_PROCESS_BYTES: Final = 16384
_DESCRIPTORS: Final = 250
_CONNECTIONS: Final = 400
_LARGEST: Final = (1 << 63) - 1
_FUTURE_WRITE: Final = 0x10  # F_SEAL_FUTURE_WRITE, which Python 3.11 does not name
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _FUTURE_WRITE | fcntl.F_SEAL_SEAL
_ANSWER_S: Final = 0.3
_SEND_S: Final = 0.1
_PEER_DESCRIPTORS: Final = 16


class NodeConnection:
    """A connection to one of the node's sockets that sends anything."""

    def __init__(self, path: str) -> None:
        """Connect."""
        self.line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.line.settimeout(_SEND_S)
        try:
            self.line.connect(path)
        except OSError:
            self.line.close()
            raise

    def __enter__(self) -> Self:
        """Return the connection."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.line.close()

    def send(self, message: object, descriptors: list[int] | None = None) -> None:
        """Send a message as one frame, with descriptors."""
        payload = msgspec.msgpack.encode(message)
        self.send_bytes(_LENGTH.pack(len(payload)) + payload, descriptors)

    def send_bytes(self, data: bytes, descriptors: list[int] | None = None) -> None:
        """Send bytes as they are."""
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors or []))
        sent = self.line.sendmsg([data], [rights] if descriptors else [])
        self.line.sendall(data[sent:])

    def answer(self) -> tuple[dict[str, Any], list[int]]:
        """Return the first answer and the descriptors that came with it."""
        self.line.settimeout(_ANSWER_S)
        data, descriptors, _, _ = socket.recv_fds(self.line, 1 << 16, _PEER_DESCRIPTORS)
        if len(data) < _LENGTH.size:
            raise OSError("the node closed the connection")
        (length,) = _LENGTH.unpack_from(data)
        return msgspec.msgpack.decode(data[_LENGTH.size : _LENGTH.size + length]), descriptors


def sockets(context: AttackContext) -> list[str]:
    """Return the node's sockets that exist."""
    return [path for path in context.facts["sockets"] if Path(path).exists()]


def ask(context: AttackContext, path: str, message: object, descriptors: list[int] | None = None) -> None:
    """Send one message; count it as a success if the node accepts it."""

    def exchange() -> None:
        with NodeConnection(path) as connection:
            connection.send(message, descriptors)
            answer, received = connection.answer()
            for descriptor in received:
                os.close(descriptor)
            context.note("answer", asked=_type_of(message), answered=answer.get("type"))
            if answer.get("type") in ("refusal", "protocol-violation"):
                raise OSError("refused")

    context.attempt(exchange)


def _ask_to_attach(context: AttackContext, path: str, message: object) -> None:
    """Send one message with valid process pages."""
    file = pages_file(SEALS)
    ask(context, path, message, [file])
    os.close(file)


def _type_of(message: object) -> str:
    return str(message.get("type")) if isinstance(message, dict) else "?"


def _repeat(context: AttackContext, action: Callable[[str], None]) -> None:
    """Call the action for every socket, in a thread, while the program works."""

    def turn() -> None:
        for path in sockets(context):
            context.attempt(action, path)
        if not sockets(context):
            pause(0.01)

    context.in_background(turn)
    for _ in context.rounds():
        pass


# -- floods and broken frames ------------------------------------------------------------------------------------
def flood_connections(context: AttackContext) -> None:
    """Open as many connections as the limit of descriptors permits, and keep them open."""
    held: list[NodeConnection] = []

    def connect(path: str) -> None:
        if len(held) >= _CONNECTIONS:
            held.pop(0).line.close()
        held.append(NodeConnection(path))

    _repeat(context, connect)


def half_frames(context: AttackContext) -> None:
    """Begin frames and never end them."""
    held: list[NodeConnection] = []

    def begin(path: str) -> None:
        if len(held) >= _CONNECTIONS:
            held.pop(0).line.close()
        connection = NodeConnection(path)
        held.append(connection)
        connection.send_bytes(_LENGTH.pack(1000) + bytes(context.rng.randrange(0, 999)))

    _repeat(context, begin)


def huge_frames(context: AttackContext) -> None:
    """Announce and send frames of up to 4 GiB."""

    def send(path: str) -> None:
        size = context.rng.choice((0, 0xFFFFFFFF, 0x80000000, (64 << 10) + 1, 64 << 10))
        with NodeConnection(path) as connection:
            connection.send_bytes(_LENGTH.pack(size) + bytes(1 << 16))
            connection.send_bytes(bytes(1 << 18))

    _repeat(context, send)


def garbage(context: AttackContext) -> None:
    """Send frames of random bytes, and valid messages with random changes."""

    def send(path: str) -> None:
        message = context.rng.choice([context.facts["join"], attach(context), *_foreign_commands(context)])
        payload = bytearray(msgspec.msgpack.encode(message))
        for _ in range(context.rng.randrange(1, 8)):
            payload[context.rng.randrange(len(payload))] = context.rng.randrange(256)
        if context.rng.random() < 0.3:
            payload = bytearray(context.rng.randbytes(context.rng.randrange(1, 2000)))
        with NodeConnection(path) as connection:
            connection.send_bytes(_LENGTH.pack(len(payload)) + payload)

    _repeat(context, send)


def nested(context: AttackContext) -> None:
    """Send deeply nested arrays and maps, and long texts."""
    payloads = [b"\x91" * 60000, b"\x81\xa1a" * 20000, b"\xdb\x7f\xff\xff\xff" + bytes(60000), b"\xc6\xff\xff\xff\xff"]

    def send(path: str) -> None:
        payload = context.rng.choice(payloads)
        with NodeConnection(path) as connection:
            connection.send_bytes(_LENGTH.pack(len(payload)) + payload)

    _repeat(context, send)


def flood_descriptors(context: AttackContext) -> None:
    """Send messages with hundreds of descriptors each."""
    file = os.memfd_create("flood")
    held: list[NodeConnection] = []

    def send(path: str) -> None:
        if len(held) >= _CONNECTIONS // 4:
            held.pop(0).line.close()
        connection = NodeConnection(path)
        held.append(connection)
        connection.send(attach(context), [file] * _DESCRIPTORS)
        connection.send_bytes(b"\x10", [file] * _DESCRIPTORS)

    _repeat(context, send)


# -- joins -------------------------------------------------------------------------------------------------------
def flood_joins(context: AttackContext) -> None:
    """Join and close the connection at once, again and again."""

    def turn(path: str) -> None:
        with NodeConnection(path) as connection:
            connection.send(join(context, name=f"flood-{context.rng.randrange(10**9)}"))

    _repeat(context, turn)


def join(context: AttackContext, **spec: object) -> dict[str, Any]:
    """Return the message with which `cotenant run` joins; the spec is an array on the wire."""
    join = context.facts["join"]
    values = dict(zip(context.facts["spec_fields"], join["spec"], strict=False)) | spec
    return {**join, "spec": list(values.values())}


def hostile_joins(context: AttackContext) -> None:
    """Join with values that no tenant may have."""
    specs: list[dict[str, object]] = [
        {"priority": -1},
        {"priority": 10},
        {"priority": "0"},
        {"kind": "root"},
        {"memory_bytes": -1},
        {"memory_bytes": _LARGEST},
        {"memory_bytes": 1 << 63},
        {"share_ppm": 10**9},
        {"name": "a\x1b[2J\x07\n"},
        {"name": "../../../etc/passwd"},
        {"name": "service"},
        {"command": "x" * (60 << 10)},
        {"task": "\x00\x1b]0;title\x07" * 40},
        {"gpu": "../" * 20},
        {"grace_ns": _LARGEST},
        {"slo_ns": 1},
        {"kind": "online", "priority": 0, "memory_bytes": _LARGEST},
        {"kind": None},
    ]
    for number in context.rounds():
        for path in sockets(context):
            ask(context, path, join(context, **specs[number % len(specs)]))


def join_as_online(context: AttackContext) -> None:
    """Ask for the highest priority and the online kind, as a user who may have neither."""
    for _ in context.rounds():
        for path in sockets(context):
            ask(context, path, join(context, kind="online", priority=0, memory_bytes=1 << 34, share_ppm=900_000))
            _ask_to_attach(context, path, attach(context, kind="online", priority="0", share="90"))


def resume_others(context: AttackContext) -> None:
    """Resume the slots of other tenants with all likely generations."""
    for number in context.rounds():
        for path in sockets(context):
            version = context.facts["version"]
            slot, generation = number % 4, number // 4 % 8
            ask(context, path, {"type": "resume", "version": version, "slot": slot, "generation": generation})
            _ask_to_attach(context, path, {**attach(context), "index": slot, "generation": generation})


def guess_tokens(context: AttackContext) -> None:
    """Attach with guessed tokens of other tenants."""
    for number in context.rounds():
        token = ["", "service", "0", "1/1", "0" * 32, context.rng.randbytes(16).hex()][number % 6]
        for path in sockets(context):
            _ask_to_attach(context, path, {**attach(context), "token": token, "fields": {}})


# -- attaching ---------------------------------------------------------------------------------------------------
def attach(context: AttackContext, **fields: str) -> dict[str, Any]:
    """Return the message with which a hook joins."""
    return {
        "type": "attach",
        "version": context.facts["hook_version"],
        "fields": {"kind": "offline", "memory": "1GiB", **fields},
        "grant": "",
        "token": "",
        "command": "attacker",
        "visible": "",
        "index": -1,
        "generation": 0,
    }


def pages_file(seals: int, size_bytes: int = _PROCESS_BYTES, *, content: bytes = b"") -> int:
    """Return a memory file like that of a process's pages."""
    file = os.memfd_create("attack", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size_bytes)
    if content:
        os.pwrite(file, content, 0)
    if seals:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def _hostile_files(context: AttackContext) -> Iterator[list[int]]:
    """Return what is sent in place of process pages."""
    reader, writer = os.pipe()
    same = pages_file(SEALS)
    directory = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    files = [
        [pages_file(SEALS, 0)],
        [pages_file(SEALS, 4096)],
        [pages_file(SEALS, 1 << 40)],
        [pages_file(0)],
        [pages_file(fcntl.F_SEAL_SHRINK)],
        [pages_file(SEALS, content=context.rng.randbytes(_PROCESS_BYTES))],
        [reader],
        [writer],
        [directory],
        [os.open("/dev/zero", os.O_RDWR)],
        [os.open("/dev/null", os.O_RDWR)],
        [os.open(context.home / "report", os.O_RDONLY)],
        [os.open("/proc/self/mem", os.O_RDONLY)],
        [socket.socket(socket.AF_UNIX).detach()],
        [same],
        [same],
        [same, same],
        [],
    ]
    yield from files
    for descriptor in {one for several in files for one in several}:
        os.close(descriptor)


def attach_hostile_files(context: AttackContext) -> None:
    """Attach with files that are not process pages."""
    for _ in context.rounds():
        for descriptors in _hostile_files(context):
            for path in sockets(context):
                ask(context, path, attach(context), descriptors)
            if not context.has_time:
                break


def attach_and_shrink(context: AttackContext) -> None:
    """Attach with pages that may still be resized, and resize them while the node reads them."""
    held: list[NodeConnection] = []
    for _ in context.rounds():
        for path in sockets(context):
            file = pages_file(0)
            with contextlib.suppress(OSError):
                connection = NodeConnection(path)
                held.append(connection)
                connection.send(attach(context), [file])
            context.attempt(os.ftruncate, file, 0)
            os.close(file)
        if len(held) > _CONNECTIONS // 10:
            held.pop(0).line.close()


def attach_flood(context: AttackContext) -> None:
    """Attach with valid pages until no index is left, and keep all connections open."""
    held: list[NodeConnection] = []

    def turn(path: str) -> None:
        if len(held) >= _CONNECTIONS:
            pause(0.01)
            return
        connection = NodeConnection(path)
        held.append(connection)
        file = pages_file(SEALS)
        connection.send(attach(context), [file])
        os.close(file)

    _repeat(context, turn)


def attack_what_is_received(context: AttackContext) -> None:
    """Join and attach, then resize and overwrite every descriptor that the node sends."""
    for _ in context.rounds():
        for path in sockets(context):
            file = pages_file(SEALS)
            for message, descriptors in ((attach(context), [file]), (join(context, name=""), None)):
                with contextlib.suppress(OSError, msgspec.MsgspecError), NodeConnection(path) as connection:
                    context.count(1)
                    connection.send(message, descriptors)
                    _, received = connection.answer()
                    for descriptor in received:
                        attack_received(context, descriptor)
                        os.close(descriptor)
            os.close(file)


# -- commands about others ---------------------------------------------------------------------------------------
def _foreign_commands(context: AttackContext) -> list[dict[str, Any]]:
    version = context.facts["version"]
    return [
        {"type": "pause", "version": version, "names": ["service"], "all_offline": False, "paused": True},
        {"type": "set-priority", "version": version, "name": "service", "priority": 9},
        {"type": "set-share", "version": version, "name": "service", "share_ppm": 1, "limit": "static"},
        {"type": "set-objective", "version": version, "name": "service", "slo_ns": 1},
        {"type": "set-rules", "version": version, "change": {"policy": "open"}},
        {"type": "evict", "version": version, "names": ["service"], "grace_ns": 1},
        {"type": "list-tenants", "version": version},
        {"type": "leave", "ending": "exit 0"},
        {"type": "quit", "grace_ns": 1},
        {"type": "restart-report", "ending": "exit 0", "restarts": 1},
        {"type": "suspend-result", "ok": False, "detail": ""},
    ]


def command_others(context: AttackContext) -> None:
    """Send every command about the online tenant, as a peer that is no operator."""
    commands = _foreign_commands(context)
    for number in context.rounds():
        for path in sockets(context):
            ask(context, path, commands[number % len(commands)])
