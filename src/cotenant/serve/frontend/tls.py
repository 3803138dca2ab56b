"""TLS of the listeners, with a certificate that the user names."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, cast

from cotenant.errors import ConfigError
from cotenant.serve.frontend.connections import Admission, ConnectionTable, client_of, hand_over

_HANDSHAKE_S: Final = 10.0
"""Time for a TLS handshake. Our choice."""
_ACCEPTED_AT_ONCE: Final = 256
_PAUSE_S: Final = 0.1


class TlsFiles(NamedTuple):
    """Paths of the certificate and the key (PEM)."""

    certificate: Path
    key: Path
    clients: Path | None = None
    """Certificate authorities of clients; if set, clients need a certificate."""


def tls_files(certificate: str, key: str, clients: str) -> TlsFiles | None:
    """Check the options; return None without TLS."""
    if not certificate:
        for flag, value in (("--tls-key", key), ("--tls-clients", clients)):
            if value:
                raise ConfigError(flag, value, "name the certificate with --tls-cert")
        return None
    if not key:
        raise ConfigError("--tls-cert", certificate, "name its key with --tls-key")
    return TlsFiles(Path(certificate), Path(key), Path(clients) if clients else None)


def tls_context(files: TlsFiles, *alpn_protocols: str) -> ssl.SSLContext:
    """Create the context of a listener with these ALPN protocols."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(list(alpn_protocols))
    try:
        context.load_cert_chain(files.certificate, files.key, _no_password)
    except (OSError, ValueError) as error:
        reason = f"it and --tls-key {files.key} are not a matching certificate and key in PEM format: {error}"
        raise ConfigError("--tls-cert", str(files.certificate), reason) from None
    if files.clients is not None:
        try:
            context.load_verify_locations(files.clients)
        except (OSError, ValueError) as error:
            reason = f"is not a file of certificates in PEM format: {error}"
            raise ConfigError("--tls-clients", str(files.clients), reason) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    raise ValueError("the key is protected by a password")


class TlsListener:
    """Accepts connections and completes their TLS handshakes.

    A TLS listener of asyncio begins the handshake before any protocol knows of the connection: clients that send
    nothing would use up all descriptors, whatever the limits of connections are.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        table: ConnectionTable,
        context: ssl.SSLContext,
        protocol_of: Callable[[], asyncio.Protocol],
    ) -> None:
        """`protocol_of` creates the protocol of a connection with TLS."""
        self.table = table
        self.context = context
        self.protocol_of = protocol_of
        self._loop = loop
        self._socket = listener
        listener.setblocking(False)
        loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept no more connections."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor is free: try again when connections may have ended
                self._loop.remove_reader(self._socket)
                self._loop.call_later(_PAUSE_S, self._resume)
                return
            accepted.setblocking(False)
            _Handshake(self, accepted, client_of(str(address[0])))

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket, self._accept)


class _Handshake:
    """A connection until its handshake is complete; it counts as an idle one that never sent a request."""

    is_idle = True
    requests = 0

    def __init__(self, listener: TlsListener, accepted: socket.socket, client: str) -> None:
        self.idle_checks = 0
        self._listener = listener
        self._socket = accepted
        self._task: asyncio.Task[None] | None = None
        if listener.table.admit(self, client) is Admission.REFUSED:
            accepted.close()
        else:
            self._task = asyncio.get_running_loop().create_task(self._shake_hands())

    def close_idle(self) -> None:
        """Close the connection in favour of another one; the handshake then fails."""
        if self._task is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    async def _shake_hands(self) -> None:
        loop, context = asyncio.get_running_loop(), self._listener.context
        try:
            await loop.connect_accepted_socket(
                lambda: _SecuredProtocol(self), self._socket, ssl=context, ssl_handshake_timeout=_HANDSHAKE_S
            )
        except OSError:
            self._socket.close()  # a client without TLS or a valid certificate, or one that is gone or too slow
        finally:
            self._listener.table.remove(self)

    def complete(self, transport: asyncio.Transport) -> None:
        """Leave the connection to the protocol that reads its requests."""
        self._task = None  # from now on, the protocol decides when the connection ends
        self._listener.table.remove(self)
        hand_over(transport, self._listener.protocol_of(), b"")


class _SecuredProtocol(asyncio.Protocol):
    """Receives the end of a handshake."""

    def __init__(self, handshake: _Handshake) -> None:
        self._handshake = handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._handshake.complete(cast("asyncio.Transport", transport))
