"""HTTPS server of the webhook: bounded bodies and connections, and a certificate that is replaced while it runs."""

from __future__ import annotations

import socket
import ssl
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Final

from cotenant.cluster.kubernetes.webhook.certificate_source import ServerPair
from cotenant.errors import PeerError, WorldError

BODY_LIMIT: Final = 8 << 20
"""More than an AdmissionReview can have: the API server accepts objects of 3 MiB, and a review may contain two."""
CONNECTIONS_LIMIT: Final = 256
_TIMEOUT_S: Final = 30.0
"""A peer that sends nothing for this long is disconnected; the API server waits 30 s at most."""
_BACKLOG: Final = 128

Decide = Callable[[bytes], bytes]
"""Return the body of the answer to a body; PeerError if it is not one of the protocol."""


class WebhookServer(ThreadingMixIn, HTTPServer):
    """Answers AdmissionReviews; each connection has a thread."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = _BACKLOG

    def __init__(self, address: tuple[str, int], routes: Mapping[str, Decide], pair: ServerPair) -> None:
        """Listen at an address; `routes` are the functions that answer POST requests, by path."""
        self.routes = routes
        self.is_ready = True
        self._places = threading.BoundedSemaphore(CONNECTIONS_LIMIT)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._pair: ServerPair | None = None
        self.use(pair)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, WebhookHandler)

    def use(self, pair: ServerPair) -> None:
        """Serve new connections with this certificate."""
        if pair == self._pair:
            return
        # The ssl module reads certificates from files only. The directory is readable by this user alone.
        with tempfile.TemporaryDirectory(prefix="cotenant-webhook-") as directory:
            certificate, key = Path(directory) / "tls.crt", Path(directory) / "tls.key"
            certificate.write_bytes(pair.certificate)
            key.write_bytes(pair.key)
            try:
                self._context.load_cert_chain(certificate, key)
            except (ssl.SSLError, OSError) as error:
                raise WorldError(f"the certificate of the webhook cannot be used: {error}") from None
        self._pair = pair

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection; close it if there are too many."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer the requests of a connection; the handshake is done here, where it delays no other connection."""
        try:
            request.settimeout(_TIMEOUT_S)
            encrypted = self._context.wrap_socket(request, server_side=True)
        except (OSError, ValueError):  # a peer that does not speak TLS, does not trust us, or went away
            self.shutdown_request(request)
        else:
            super().process_request_thread(encrypted, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore what a peer causes by going away; anything else is a defect and shown."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class WebhookHandler(BaseHTTPRequestHandler):
    """One connection of the API server or of a probe of the kubelet."""

    protocol_version = "HTTP/1.1"
    server_version = "cotenant"
    sys_version = ""
    timeout = _TIMEOUT_S
    server: WebhookServer

    def do_POST(self) -> None:
        """Answer an AdmissionReview."""
        decide = self.server.routes.get(self.path.partition("?")[0])
        length = self.headers.get("Content-Length", "")
        if decide is None:
            self._refuse(HTTPStatus.NOT_FOUND, f"no webhook at {self.path[:100]}")
        elif not length.isascii() or not length.isdigit():
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "a request needs a Content-Length")
        elif len(length) > 10 or int(length) > BODY_LIMIT:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body may have {BODY_LIMIT} bytes")
        else:
            body = self.rfile.read(int(length))
            if len(body) < int(length):
                self.close_connection = True
                return
            try:
                answer = decide(body)
            except PeerError as error:
                self._answer(HTTPStatus.BAD_REQUEST, str(error).encode(), "text/plain; charset=utf-8")
            else:
                self._answer(HTTPStatus.OK, answer, "application/json")

    def do_GET(self) -> None:
        """Answer a probe."""
        if self.path == "/healthz":
            self._answer(HTTPStatus.OK, b"ok", "text/plain")
        elif self.path == "/readyz":
            status = HTTPStatus.OK if self.server.is_ready else HTTPStatus.SERVICE_UNAVAILABLE
            self._answer(status, b"ok" if self.server.is_ready else b"the certificate expired", "text/plain")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"no page at {self.path[:100]}")

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer a request whose body is not read; the connection cannot be used again."""
        self.close_connection = True
        self._answer(status, message.encode(), "text/plain; charset=utf-8")

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name of the base class
        """Write no line for each request: the API server logs refusals."""
