"""Commands of the MPS control daemon and their answers, in NVIDIA's text protocol."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant.errors import ConfigError
from cotenant.softgpu.mps import limits as text
from cotenant.softgpu.mps.daemon import parse_priority

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cotenant.softgpu.mps.daemon import Daemon, Peer, ServerProcess

_PARTIAL = len("GPU-xxxxxxxx-xxxx-xxxx")
_TIMEOUT_DIGITS = 6
_COMMAND_BYTES = 256
"""Bytes of a client's command line in the answer of ps, which is one message for all clients."""


def execute_command(daemon: Daemon, line: str, _peer: Peer) -> str | None:
    """Return the answer to one command, each line terminated; None: the daemon's end is the answer."""
    words = line.split()
    if not words:
        return "="
    usage, fewest, most, command = COMMANDS.get(words[0], ("", 0, 0, None))
    if command is None:
        return f'=Unknown command {words[0][:64]!r}: "help" lists the commands\n'
    if not fewest <= len(words) - 1 <= most:
        return f"=Usage: {' '.join(filter(None, (words[0], usage)))}\n"
    try:
        answer = command(daemon, words[1:])
    except ConfigError as error:
        return f"={error}\n"
    return None if answer is None else "=" + "".join(f"{row}\n" for row in answer)


def _number(word: str, field: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 10):
        raise ConfigError(field, word, "write a whole number")
    return int(word)


def _server(daemon: Daemon, word: str) -> ServerProcess:
    server = daemon.servers.get(_number(word, "PID"))
    if server is None:
        raise ConfigError("PID", word, "no MPS server has it; get_server_list lists the servers")
    return server


def _server_list(daemon: Daemon, _words: Sequence[str]) -> list[str]:
    return [str(pid) for pid in daemon.servers]


def _server_status(daemon: Daemon, words: Sequence[str]) -> list[str]:
    is_faulty = any(refuses for _, refuses in daemon.clients_by_gpu(_server(daemon, words[0])).values())
    _server(daemon, words[0])  # a server that did not answer has ended
    return ["FAULT" if is_faulty else "ACTIVE"]


def _start(daemon: Daemon, words: Sequence[str]) -> list[str]:
    if words[0] != "-uid":
        raise ConfigError("start_server", words[0], "write start_server -uid UID")
    uid = _number(words[1], "UID")
    if uid != os.getuid():
        raise ConfigError("UID", words[1], f"the software GPUs here are those of user {os.getuid()}")
    return [] if daemon.start_server(uid) else ["The MPS server failed to start, see server.log"]


def _shut_down(daemon: Daemon, words: Sequence[str]) -> list[str]:
    server = _server(daemon, words[0])
    if words[1:] not in ([], ["-f"]):
        raise ConfigError("shutdown_server", words[1], "write shutdown_server PID [-f]")
    if words[1:]:
        daemon.end_server(server)
    server.is_draining = True
    return []


def _client_list(daemon: Daemon, words: Sequence[str]) -> list[str]:
    return [str(peer.pid) for peer in daemon.clients_of(_server(daemon, words[0]).pid)]


def _device_client_list(daemon: Daemon, words: Sequence[str]) -> list[str]:
    rows = []
    for server in [_server(daemon, words[0])] if words else list(daemon.servers.values()):
        clients_by_gpu = daemon.clients_by_gpu(server)
        for ordinal, _, _, identity in server.gpus:
            rows.append(f"{ordinal} {identity}")
            rows += [str(pid) for pid in clients_by_gpu.get(ordinal, ([], False))[0]]
    return rows


def _ps(daemon: Daemon, words: Sequence[str]) -> list[str]:
    if words and words[0] != "-p":
        raise ConfigError("ps", words[0], "write ps [-p PID]")
    rows = [("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")]
    for server in [_server(daemon, words[1])] if words[1:] else list(daemon.servers.values()):
        clients_by_gpu = daemon.clients_by_gpu(server)
        for peer in daemon.clients_of(server.pid):
            for ordinal, _, _, identity in server.gpus:
                if peer.pid in clients_by_gpu.get(ordinal, ([], False))[0]:
                    columns = (str(peer.pid), str(peer.number), str(server.pid), identity[:_PARTIAL])
                    rows.append((*columns, _namespace(peer.pid), _command_of(peer.pid)))
    return [f"{a:<9} {b:<5} {c:<9} {d:<22} {e:<12} {f}".rstrip() for a, b, c, d, e, f in rows]


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink()).strip("pid:[]")
    except OSError:
        return "-"


def _command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()[:_COMMAND_BYTES].replace(b"\0", b" ")
        return words.decode("utf-8", "backslashreplace").strip().replace("\n", " ")
    except OSError:
        return "-"


def _terminate(daemon: Daemon, words: Sequence[str]) -> list[str]:
    server, pid = _server(daemon, words[0]), _number(words[1], "PID")
    if pid not in [peer.pid for peer in daemon.clients_of(server.pid)]:
        raise ConfigError("PID", words[1], "no client of this server has it; get_client_list lists the clients")
    return [daemon.ask(server, f"terminate {pid}") or "805"]


def _set_default_percentage(daemon: Daemon, words: Sequence[str]) -> list[str]:
    daemon.defaults.percentage = text.parse_percentage(words[0], field="percentage")
    return _default_percentage(daemon, [])


def _default_percentage(daemon: Daemon, _words: Sequence[str]) -> list[str]:
    return [f"{daemon.defaults.percentage:.1f}"]


def _set_percentage(daemon: Daemon, words: Sequence[str]) -> list[str]:
    _server(daemon, words[0]).percentage = text.parse_percentage(words[1], field="percentage")
    return _percentage(daemon, words)


def _percentage(daemon: Daemon, words: Sequence[str]) -> list[str]:
    return [f"{_server(daemon, words[0]).percentage:.1f}"]


def _set_default_memory(daemon: Daemon, words: Sequence[str]) -> list[str]:
    device = text.parse_device(words[0], field="dev")
    daemon.defaults.pinned[device] = text.parse_memory(words[1], field="value")
    return []


def _default_memory(daemon: Daemon, words: Sequence[str]) -> list[str]:
    device = text.parse_device(words[0], field="dev")
    return [text.show_memory(daemon.defaults.pinned.get(device, 0))]


def _set_memory(daemon: Daemon, words: Sequence[str]) -> list[str]:
    server, device = _server(daemon, words[0]), text.parse_device(words[1], field="dev")
    server.pinned[device] = text.parse_memory(words[2], field="value")
    return []


def _memory(daemon: Daemon, words: Sequence[str]) -> list[str]:
    server, device = _server(daemon, words[0]), text.parse_device(words[1], field="dev")
    return [text.show_memory(server.pinned.get(device, 0))]


def _set_priority(daemon: Daemon, words: Sequence[str]) -> list[str]:
    daemon.defaults.priority = parse_priority(words[0], field="priority")
    return []


def _priority(daemon: Daemon, _words: Sequence[str]) -> list[str]:
    return [str(daemon.defaults.priority)]


def _quit(daemon: Daemon, words: Sequence[str]) -> None:
    if words and (len(words) == 1 or words[0] != "-t" or len(words[1]) > _TIMEOUT_DIGITS):
        raise ConfigError("quit", " ".join(words), "write quit [-t TIMEOUT], in seconds")
    daemon.quit(_number(words[1], "TIMEOUT") if words else None)


def _help(_daemon: Daemon, _words: Sequence[str]) -> list[str]:
    return [" ".join(filter(None, (name, usage))) for name, (usage, _, _, _) in COMMANDS.items()]


COMMANDS: dict[str, tuple[str, int, int, Callable[[Daemon, Sequence[str]], list[str] | None] | None]] = {
    "get_server_list": ("", 0, 0, _server_list),
    "get_server_status": ("PID", 1, 1, _server_status),
    "start_server": ("-uid UID", 2, 2, _start),
    "shutdown_server": ("PID [-f]", 1, 2, _shut_down),
    "get_client_list": ("PID", 1, 1, _client_list),
    "get_device_client_list": ("[PID]", 0, 1, _device_client_list),
    "set_default_active_thread_percentage": ("percentage", 1, 1, _set_default_percentage),
    "get_default_active_thread_percentage": ("", 0, 0, _default_percentage),
    "set_active_thread_percentage": ("PID percentage", 2, 2, _set_percentage),
    "get_active_thread_percentage": ("PID", 1, 1, _percentage),
    "set_default_device_pinned_mem_limit": ("dev value", 2, 2, _set_default_memory),
    "get_default_device_pinned_mem_limit": ("dev", 1, 1, _default_memory),
    "set_device_pinned_mem_limit": ("PID dev value", 3, 3, _set_memory),
    "get_device_pinned_mem_limit": ("PID dev", 2, 2, _memory),
    "terminate_client": ("SERVER_PID CLIENT_PID", 2, 2, _terminate),
    "ps": ("[-p PID]", 0, 2, _ps),
    "set_default_client_priority": ("priority", 1, 1, _set_priority),
    "get_default_client_priority": ("", 0, 0, _priority),
    "quit": ("[-t TIMEOUT]", 0, 2, _quit),
    "help": ("", 0, 0, _help),
}
