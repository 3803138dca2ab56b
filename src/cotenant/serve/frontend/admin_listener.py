"""Admin listener: HTTP/1.1 and gRPC on one port, where models and settings may be changed."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from cotenant.serve.frontend.connections import Admission, ConnectionTable, address_of, hand_over
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
    def table(self) -> ConnectionTable:
        """Return the limits of connections."""
        return self.http.table

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
    """A connection until its first bytes show the protocol; it counts as an idle one that never sent a request."""

    is_idle = True
    requests = 0

    def __init__(self, server: AdminServer) -> None:
        """Start unconnected."""
        self.idle_checks = 0
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first bytes for a limited time; close the connection at the limit."""
        self._transport = cast("asyncio.Transport", transport)
        if self._server.table.admit(self, address_of(transport)) is Admission.REFUSED:
            self._transport.abort()
        else:
            self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._transport.abort)

    def close_idle(self) -> None:
        """Close the connection in favour of another one."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        del exc
        self._transport = None
        self._leave()

    def _leave(self) -> None:
        self._server.table.remove(self)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Hand the connection to its protocol."""
        self._data += data
        if len(self._data) < _FIRST_BYTES or self._transport is None:
            return
        self._leave()
        is_http2 = self._data[:_FIRST_BYTES] == PREFACE[:_FIRST_BYTES]
        hand_over(self._transport, self._server.grpc() if is_http2 else self._server.http(), self._data)
