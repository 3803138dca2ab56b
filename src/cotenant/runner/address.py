"""Listening addresses: HOST:PORT, with an IPv6 address in brackets; port 0 selects a free port."""

from __future__ import annotations

import socket

from cotenant.errors import ConfigError, WorldError


def split_address(address: str, field: str) -> tuple[str, int]:
    """Return the host without brackets and the port; raise `ConfigError` for `field` if the address is malformed."""
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_port = colon and port.isascii() and port.isdigit() and int(port) <= 0xFFFF
    if not bare or not is_port or (":" in bare) != host.startswith("["):
        raise ConfigError(field, address, 'write HOST:PORT, as in "127.0.0.1:9836" or "[::1]:9836"')
    return bare, int(port)


def join_address(host: str, port: int) -> str:
    """Return HOST:PORT, with an IPv6 address in brackets."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def listen_at(address: str, field: str, backlog: int) -> socket.socket:
    """Return a non-blocking listening socket at this address."""
    host, port = split_address(address, field)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restarted process takes its port again
        listener.bind((host, port))
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        why = error.strerror or str(error)
        raise WorldError(f"cannot listen at {field} = {address!r}: {why}; choose another address") from None
    listener.setblocking(False)
    return listener
