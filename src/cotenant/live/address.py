"""Where is it served? HOST:PORT; an IPv6 address stands in brackets, port 0 is one that is free."""

from __future__ import annotations

import socket

from cotenant.errors import ConfigError, WorldError


def split_address(address: str, field: str) -> tuple[str, int]:
    """The host, without brackets, and the port."""
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_port = colon and port.isascii() and port.isdigit() and int(port) <= 0xFFFF
    if not bare or not is_port or (":" in bare) != host.startswith("["):
        raise ConfigError(field, address, 'write HOST:PORT, as in "127.0.0.1:9836" or "[::1]:9836"')
    return bare, int(port)


def joined(host: str, port: int) -> str:
    """HOST:PORT again."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def listen_at(address: str, field: str, backlog: int) -> socket.socket:
    """A listening socket there, that does not block."""
    host, port = split_address(address, field)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # who restarts takes its port again
        listener.bind((host, port))
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        why = error.strerror or str(error)
        raise WorldError(f"cannot serve at {field} = {address!r}: {why}; name another address") from None
    listener.setblocking(False)
    return listener
