"""A small HTTP/1.1 server on asyncio: one short request per connection, answered completely or with a stream of events.

Requests come from browsers, and on other addresses than loopback from anybody: heads and bodies are bounded, a client
has limited time to send its request, and the number of connections is limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote

CONNECTIONS: Final = 64
HEAD_LIMIT_BYTES: Final = 16 << 10
BODY_LIMIT_BYTES: Final = 64 << 10
PATIENCE_S: Final = 10.0
"""Time in which a client must send its request, and must take what is sent to it."""
_FIELDS_LIMIT: Final = 64
_PHRASES: Final = {
    200: "OK",
    204: "No Content",
    304: "Not Modified",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Request(NamedTuple):
    """A request, and the address of the client."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    peer: tuple[str, int]
    own: tuple[str, int]
    """The address at which the client reached the server."""


class Response(NamedTuple):
    """A complete response, or with `stream` an endless one."""

    status: int
    body: bytes = b""
    kind: str = "application/json"
    headers: Mapping[str, str] = {}
    stream: AsyncIterator[bytes] | None = None


Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


class RequestError(Exception):
    """The client sent something that cannot be answered otherwise."""

    def __init__(self, status: int, text: str) -> None:
        """Take the status of the response and its text."""
        super().__init__(text)
        self.status = status


class HttpServer:
    """Accepts connections and passes their requests to a handler."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._open = 0

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> asyncio.Server:
        """Listen; port 0 selects a free one."""
        return await asyncio.start_server(self._serve, host, port, ssl=tls, limit=HEAD_LIMIT_BYTES)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > CONNECTIONS:
                await _send(writer, _problem(503, f"{CONNECTIONS} connections are open; close another page"))
                return
            async with asyncio.timeout(PATIENCE_S):
                request = await _read(reader, writer)
            if request is not None:
                response = await self._handler(request)
                await _send(writer, response, head_only=request.method == "HEAD")
        except RequestError as error:
            with contextlib.suppress(OSError, TimeoutError):
                await _send(writer, _problem(error.status, str(error)))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client left, or was too slow
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError, TimeoutError, ssl.SSLError):
                async with asyncio.timeout(PATIENCE_S):
                    await writer.wait_closed()


def _problem(status: int, text: str) -> Response:
    return Response(status, text.encode() + b"\n", "text/plain; charset=utf-8")


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise RequestError(431, "the head of the request is too long") from None
    except asyncio.IncompleteReadError:
        return None
    lines = head[:-4].decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        raise RequestError(400, "this is not an HTTP/1.1 request")
    headers: dict[str, str] = {}
    for line in lines[1 : 1 + _FIELDS_LIMIT]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise RequestError(400, "a header field is malformed")
        headers[name.lower()] = value.strip()
    if "transfer-encoding" in headers:
        raise RequestError(400, "a body needs a Content-Length")
    path, _, query = words[1].partition("?")
    return Request(
        words[0],
        unquote(path),
        dict(parse_qsl(query, max_num_fields=_FIELDS_LIMIT)),
        headers,
        await _body(reader, headers),
        writer.get_extra_info("peername")[:2],
        writer.get_extra_info("sockname")[:2],
    )


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit()):
        raise RequestError(400, "the Content-Length is not a number")
    if len(text) > 9 or int(text) > BODY_LIMIT_BYTES:
        raise RequestError(413, f"a body has at most {BODY_LIMIT_BYTES} bytes")
    return await reader.readexactly(int(text)) if int(text) else b""


async def _send(writer: asyncio.StreamWriter, response: Response, *, head_only: bool = False) -> None:
    fields = {**SECURITY_HEADERS, "Content-Type": response.kind, "Connection": "close", "Cache-Control": "no-store"}
    if response.stream is None:
        fields["Content-Length"] = str(len(response.body))
    fields |= response.headers
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    status = f"HTTP/1.1 {response.status} {_PHRASES.get(response.status, '')}\r\n"
    writer.write(f"{status}{head}\r\n".encode("latin-1") + (b"" if head_only else response.body))
    await _drain(writer)
    if response.stream is not None and not head_only:
        async with contextlib.aclosing(response.stream) as stream:  # type: ignore[type-var]
            async for chunk in stream:
                writer.write(chunk)
                await _drain(writer)


async def _drain(writer: asyncio.StreamWriter) -> None:
    """Wait until the client takes data; one that does not is disconnected."""
    async with asyncio.timeout(PATIENCE_S):
        await writer.drain()
    if writer.is_closing():
        raise ConnectionResetError
