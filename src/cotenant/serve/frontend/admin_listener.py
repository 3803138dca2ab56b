"""Admin listener: HTTP/1.1 and gRPC on one port, where models and settings may be changed."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from cotenant.serve.frontend.grpc import GrpcProtocol, GrpcServer
from cotenant.serve.frontend.http import HttpConnection, HttpServer
from cotenant.serve.protocol.http2.frames import PREFACE

_FIRST_BYTES: Final = 4
"""The preface of HTTP/2 begins with `PRI `, which is no method of HTTP/1.1."""
_PATIENCE_S: Final = 10.0


class AdminServer:
    """The servers of both protocols, which share a port."""

    def __init__(self, http: HttpServer, grpc: GrpcServer) -> None:
        """Both have the access rules of the admin listener."""
        self.http = http
        self.grpc = grpc

    def __call__(self) -> ProtocolDetection:
        """Create the protocol of a new connection."""
        return ProtocolDetection(self)

    @property
    def connections(self) -> set[HttpConnection | GrpcProtocol]:
        """Return the connections whose protocol is known."""
        return {*self.http.connections, *self.grpc.connections}

    def sweep(self) -> None:
        """Close stalled connections; called periodically."""
        self.http.sweep()
        self.grpc.sweep()

    def drain(self) -> None:
        """Close each connection after its current response."""
        self.http.drain()
        self.grpc.drain()


class ProtocolDetection(asyncio.Protocol):
    """A connection until its first bytes show the protocol."""

    def __init__(self, server: AdminServer) -> None:
        """Start unconnected."""
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first bytes for a limited time."""
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        del exc
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Hand the connection to its protocol."""
        self._data += data
        if len(self._data) < _FIRST_BYTES or self._transport is None:
            return
        transport = self._transport
        if self._timer is not None:
            self._timer.cancel()
        is_http2 = self._data[:_FIRST_BYTES] == PREFACE[:_FIRST_BYTES]
        protocol: HttpConnection | GrpcProtocol = self._server.grpc() if is_http2 else self._server.http()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if not transport.is_closing():
            protocol.data_received(self._data)
