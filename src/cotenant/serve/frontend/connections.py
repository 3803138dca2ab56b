"""Limits of client connections: in total, per client address, and in time without a request.

At a limit, idle connections are closed in favour of new ones, those that never sent a request first. If no connection
is idle, a reserve of connections still answers health checks and metrics.
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from typing import Final, NamedTuple, Protocol

IDLE_CHECKS: Final = 4
"""Checks of idle connections per idle timeout."""
_RESERVE: Final = 64
"""Connections beyond the limit that answer health checks and metrics only. Our choice."""
_CLOSED_AT_ONCE: Final = 16
"""At the limit, this fraction (1/16) of the idle connections is closed together, so that few searches are needed."""


class ClientLimits(NamedTuple):
    """Limits of clients."""

    body_bytes: int = 256 << 20
    held_bytes: int = 1 << 30
    """Limit of the tensors of all pending requests."""
    connections: int = 4096
    """Connections of all clients."""
    client_connections: int = 2048
    """Connections of one client address."""
    idle_s: float = 300.0
    """A connection without a request is closed after this time."""
    patience_s: float = 60.0
    """Interval of the sweep for stalled connections."""


class Admission(enum.Enum):
    """What a new connection may do."""

    FULL = "full"
    HEALTH = "health"
    """Health checks and metrics only: the limit is reached, and no connection is idle."""
    REFUSED = "refused"


class ClientConnection(Protocol):
    """A connection as the limits see it."""

    idle_checks: int
    """Consecutive checks at which it was idle without a request since the one before."""

    @property
    def is_idle(self) -> bool:
        """Return whether no request is pending or partly received, and nothing remains to be sent."""
        ...

    @property
    def requests(self) -> int:
        """Return the number of requests so far."""
        ...

    def close_idle(self) -> None:
        """Close the connection, which is idle."""
        ...


class _Entry:
    __slots__ = ("address", "requests")

    def __init__(self, address: str) -> None:
        self.address = address
        self.requests = 0


class ConnectionTable:
    """The connections of all listeners that share these limits."""

    def __init__(self, total: int, per_client: int) -> None:
        """Start empty."""
        self._total = total
        self._per_client = per_client
        self._entries: dict[ClientConnection, _Entry] = {}
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._entries)

    def admit(self, connection: ClientConnection, address: str) -> Admission:
        """Register a connection; at a limit, close idle ones first."""
        if self._by_address[address] >= self._per_client and not self._close_idle_of(address):
            return Admission.REFUSED
        admission = Admission.FULL
        if len(self._entries) >= self._total and not self._close_idle_of(None):
            if len(self._entries) >= self._total + _RESERVE:
                return Admission.REFUSED
            admission = Admission.HEALTH
        self._entries[connection] = _Entry(address)
        self._by_address[address] += 1
        return admission

    def remove(self, connection: ClientConnection) -> None:
        """Forget a connection that was closed."""
        entry = self._entries.pop(connection, None)
        if entry is not None:
            self._by_address[entry.address] -= 1
            if not self._by_address[entry.address]:
                del self._by_address[entry.address]

    def check_idle(self) -> None:
        """Close the connections that were idle at every check of the idle timeout; called periodically."""
        for connection, entry in list(self._entries.items()):
            is_unused = connection.is_idle and connection.requests == entry.requests
            connection.idle_checks = connection.idle_checks + 1 if is_unused else 0
            entry.requests = connection.requests
            if connection.idle_checks > IDLE_CHECKS:
                self._close(connection)

    def _close_idle_of(self, address: str | None) -> bool:
        """Close some idle connections of this client (None: of all); return False if there are none."""
        idle = [
            connection
            for connection, entry in self._entries.items()
            if (address is None or entry.address == address) and connection.is_idle
        ]
        idle.sort(key=lambda connection: (connection.requests > 0, -connection.idle_checks))
        for connection in idle[: max(len(idle) // _CLOSED_AT_ONCE, 1)]:
            self._close(connection)
        return bool(idle)

    def _close(self, connection: ClientConnection) -> None:
        self.remove(connection)
        connection.close_idle()


def hand_over(transport: asyncio.Transport, protocol: asyncio.Protocol, data: bytes) -> None:
    """Connect a transport to the protocol that reads its requests, which begin with `data`."""
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if data and not transport.is_closing():
        protocol.data_received(data)


def address_of(transport: asyncio.BaseTransport) -> str:
    """Return what identifies the client of a connection."""
    peer = transport.get_extra_info("peername")
    return client_of(str(peer[0])) if isinstance(peer, tuple) else ""


def client_of(host: str) -> str:
    """Return what identifies the client at an address: the address itself, or the /64 network of an IPv6 address."""
    if ":" not in host or host.startswith("::ffff:"):
        return host
    groups = host.partition("%")[0].split(":")
    return ":".join(groups[:4]) if "" not in groups[:4] else host
