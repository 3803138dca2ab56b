"""The listeners of a server: HTTP, gRPC, metrics and admin, with their shared limits."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.errors import WorldError
from cotenant.serve.frontend.access import Access
from cotenant.serve.frontend.access_log import AccessLog
from cotenant.serve.frontend.admin import NONE, AdminService
from cotenant.serve.frontend.admin_listener import AdminServer
from cotenant.serve.frontend.connections import IDLE_CHECKS, ClientLimits, ConnectionTable
from cotenant.serve.frontend.grpc import GrpcServer
from cotenant.serve.frontend.http import HttpServer
from cotenant.serve.frontend.large_requests import LargeRequestDecoder
from cotenant.serve.frontend.metrics import exposition
from cotenant.serve.frontend.tls import TlsFiles, TlsListener, tls_context
from cotenant.serve.runtime.runtime import ModelRuntime
from cotenant.serve.state.server import ServerSettings

OFF: Final = -1
_BACKLOG: Final = 2048
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""In seconds and probes: a client whose machine is gone is detected after two minutes."""
_METRICS_CONNECTIONS: Final = 256
_ADMIN_CONNECTIONS: Final = 64
AnyServer = HttpServer | GrpcServer | AdminServer


class ServeOptions(NamedTuple):
    """Options of the server."""

    models: tuple[Path, ...]
    host: str
    http_port: int
    """0 chooses a free port; negative: no such listener."""
    grpc_port: int
    metrics_port: int
    admin_port: int
    cores: tuple[int, ...]
    """The machine's core numbers."""
    runtime: ModelRuntime
    settings: ServerSettings
    limits: ClientLimits
    drain_s: float
    profiles: Path
    """Directory of the profiles."""
    tls: TlsFiles | None = None
    spans: Path | None = None
    """Directory for request spans; None: spans are not written."""
    always_spans: bool = False
    access: Access = Access()
    admin_host: str = "127.0.0.1"
    admin_access: Access = Access()
    admin_tls: TlsFiles | None = None
    control: str = NONE
    poll_s: float = 5.0
    access_log: str = ""
    """File of the access log; empty: none."""


class BoundPorts(NamedTuple):
    """The ports of the listeners; negative: none."""

    http: int
    grpc: int
    metrics: int
    admin: int


class Listeners:
    """All listeners; metrics and admin have connection limits of their own, so that clients cannot lock them out."""

    def __init__(self, options: ServeOptions, admin: AdminService, log: AccessLog | None) -> None:
        """Start without listening."""
        self._options = options
        limits, access, admin_access = options.limits, options.access, options.admin_access
        clients = ConnectionTable(limits.connections, limits.client_connections)
        probes = ConnectionTable(_METRICS_CONNECTIONS, _METRICS_CONNECTIONS)
        operators = ConnectionTable(_ADMIN_CONNECTIONS, _ADMIN_CONNECTIONS)
        self._tables = (clients, probes, operators)
        self.large_requests = LargeRequestDecoder(limits.held_bytes)
        large, metrics = self.large_requests, lambda: exposition(admin, self.clients())
        self._http = HttpServer(admin, limits, metrics, clients, access=access, log=log, large=large)
        self._grpc = GrpcServer(admin, limits, clients, access=access, log=log, large=large)
        self._metrics = HttpServer(admin, limits, metrics, probes, access=access, log=log, metrics_only=True)
        self._admin = AdminServer(
            HttpServer(admin, limits, metrics, operators, access=admin_access, log=log, large=large),
            GrpcServer(admin, limits, operators, access=admin_access, log=log, large=large),
        )
        self._servers: tuple[AnyServer, ...] = (self._http, self._grpc, self._metrics, self._admin)
        self._listeners: list[asyncio.Server | TlsListener] = []

    def clients(self) -> dict[str, int]:
        """Return the number of connections by listener."""
        return dict(zip(BoundPorts._fields, (len(server.connections) for server in self._servers), strict=True))

    async def open(self, loop: asyncio.AbstractEventLoop) -> BoundPorts:
        """Listen; return the ports."""
        options = self._options
        ports_of_clients = (options.http_port, options.grpc_port, options.metrics_port)
        addresses = [*((options.host, port) for port in ports_of_clients), (options.admin_host, options.admin_port)]
        ports = []
        for address, server, name in zip(addresses, self._servers, BoundPorts._fields, strict=True):
            if address[1] < 0:
                ports.append(OFF)
                continue
            files = options.admin_tls if server is self._admin else options.tls
            protocols = _ALPN[name]
            listener, port = await _listen(
                loop, server, address, f"--{name}-port", None if files is None else tls_context(files, *protocols)
            )
            self._listeners.append(listener)
            ports.append(port)
        return BoundPorts(*ports)

    async def sweep(self) -> None:
        """Close stalled connections periodically."""
        while True:
            await asyncio.sleep(self._options.limits.patience_s)
            for server in self._servers:
                server.sweep()

    async def close_idle(self) -> None:
        """Close connections after the idle timeout."""
        while True:
            await asyncio.sleep(self._options.limits.idle_s / IDLE_CHECKS)
            for table in self._tables:
                table.check_idle()

    async def close(self) -> None:
        """Accept no more connections, and close each one after its current response."""
        for listener in self._listeners:
            listener.close()
        for server in self._servers:
            server.drain()
        for _ in range(20):  # time for the last responses
            if not any(server.connections for server in self._servers):
                break
            await asyncio.sleep(0.05)


_ALPN: Final = {"http": ("http/1.1",), "grpc": ("h2",), "metrics": ("http/1.1",), "admin": ("h2", "http/1.1")}


async def _listen(
    loop: asyncio.AbstractEventLoop,
    server: AnyServer,
    address: tuple[str, int],
    name: str,
    tls: ssl.SSLContext | None,
) -> tuple[asyncio.Server | TlsListener, int]:
    """Return the listener and its port."""
    listener = _bound_socket(address, name)
    port: int = listener.getsockname()[1]
    if tls is None:
        return await loop.create_server(server, sock=listener, backlog=_BACKLOG), port
    listener.listen(_BACKLOG)
    return TlsListener(loop, listener, server.table, tls, server), port


def _bound_socket(address: tuple[str, int], name: str) -> socket.socket:
    host, port = address
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # accepted sockets inherit these
        for option, value in _KEEPALIVE:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise WorldError(f"cannot listen at {host}:{port}: {reason}; choose another port with {name}") from None
    return listener
