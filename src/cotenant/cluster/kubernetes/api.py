"""Thin access to the Kubernetes API: requests, paged lists, and watches, over HTTP/1.1 with one connection per thread.

Objects stay JSON bytes until the caller decodes them into a type of its own with msgspec: the controller reads a few
fields of thousands of objects, and building complete models of them would cost most of its time and memory.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from cotenant import __version__
from cotenant.cluster.kubernetes.api_config import ApiConfig
from cotenant.errors import WorldError

MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
JSON: Final = "application/json"
NO_ANSWER: Final = 0
"""Status of a request that got no answer: it may have taken effect or not."""
GONE: Final = 410
CONFLICT: Final = 409
NOT_FOUND: Final = 404
TOO_MANY_REQUESTS: Final = 429

_REQUEST_TIMEOUT_S: Final = 30.0
_WATCH_SECONDS: Final = 240
"""The server ends a watch after this time, and the client resumes it."""
_WATCH_TIMEOUT_S: Final = _WATCH_SECONDS + 30.0
_PAGE: Final = 500
_CHUNK_BYTES: Final = 1 << 16
_LINE_LIMIT_BYTES: Final = 16 << 20
"""More than the largest object that etcd accepts."""
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""A watch over a connection that a firewall dropped ends after 35 s instead of after its timeout."""

T = TypeVar("T")


class Response(NamedTuple):
    """Answer of the API server."""

    status: int
    body: bytes
    retry_after_s: float = 0.0
    """Delay for which the server asked; 0: none."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_temporary(self) -> bool:
        """Return whether the same request may succeed later."""
        return self.status in {NO_ANSWER, 408, TOO_MANY_REQUESTS} or self.status >= 500


class ApiError(WorldError):
    """The API server refused a request, or could not be reached (`status` 0)."""

    def __init__(self, status: int, detail: str, reason: str = "") -> None:
        self.status = status
        self.reason = reason
        super().__init__(detail)


class ApiRequest(NamedTuple):
    """A request to the API."""

    method: str
    path: str
    """Path from the root, such as /api/v1/pods."""
    body: bytes | None = None
    content_type: str = JSON
    query: Mapping[str, str] = {}


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: int = 0


class ListMeta(msgspec.Struct):
    """Metadata of a list."""

    resource_version: str = msgspec.field(default="", name="resourceVersion")
    next_page: str = msgspec.field(default="", name="continue")


class ObjectPage(msgspec.Struct, Generic[T]):
    """A page of a list."""

    metadata: ListMeta
    items: list[T] = []


class Listing(NamedTuple, Generic[T]):
    """All objects of a list, and the version from which a watch continues it."""

    items: list[T]
    resource_version: str


class WatchEvent(msgspec.Struct):
    """One line of a watch; `object` is decoded by the caller."""

    type: str
    object: msgspec.Raw


_status_decoder: Final = msgspec.json.Decoder(_Status)
_watch_decoder: Final = msgspec.json.Decoder(WatchEvent)


def resource_path(group_version: str, plural: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """Return the path of a resource; `group_version` is "v1" for the core group, else as in "batch/v1"."""
    parts = ["/api" if "/" not in group_version else "/apis", group_version]
    if namespace:
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(plural)
    parts += [quote(part, safe="") for part in (name, subresource) if part]
    return "/".join(parts)


class ApiClient:
    """Sends requests; every thread has its own connection, which is kept open."""

    def __init__(self, config: ApiConfig, user_agent: str = f"cotenant/{__version__}") -> None:
        self.config = config
        self._user_agent = user_agent
        self._local = threading.local()
        self._watches: set[http.client.HTTPConnection] = set()
        self._is_aborted = False

    # -- single requests --------------------------------------------------------------------------------------------

    def send(self, request: ApiRequest) -> Response:
        """Send a request and return the answer, whatever its status; `NO_ANSWER` if there was none.

        If the server closed the kept connection without an answer, the request is sent once more over a new one. It
        may then take effect twice, so requests must be conditional or have a fixed name.
        """
        connection, is_new = self._connection()
        try:
            return self._exchange(connection, request)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
            self._drop()
            if is_new or (request.method != "GET" and not isinstance(error, http.client.RemoteDisconnected)):
                return Response(NO_ANSWER, str(error).encode())
            return self._send_again(request)
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            return Response(NO_ANSWER, (str(error) or type(error).__name__).encode())

    def call(self, request: ApiRequest) -> bytes:
        """Send a request and return the body; raise `ApiError` for any status that is not a success."""
        response = self.send(request)
        if not response.is_success:
            raise error_of(response, request, self.config.server)
        return response.body

    def get(self, path: str, kind: type[T], **query: str) -> T:
        """Return one object or list, decoded as `kind`."""
        return msgspec.json.decode(self.call(ApiRequest("GET", path, query=query)), type=kind)

    def create(self, path: str, body: object, **query: str) -> bytes:
        """Create an object in the collection at `path`."""
        return self.call(ApiRequest("POST", path, msgspec.json.encode(body), query=query))

    def replace(self, path: str, body: object) -> bytes:
        """Replace an object; `metadata.resourceVersion` makes that conditional."""
        return self.call(ApiRequest("PUT", path, msgspec.json.encode(body)))

    def patch(self, path: str, body: object, content_type: str = MERGE_PATCH, **query: str) -> bytes:
        """Patch an object or its subresource."""
        return self.call(ApiRequest("PATCH", path, msgspec.json.encode(body), content_type, query))

    def delete(self, path: str, body: object | None = None) -> bytes:
        """Delete an object; `body` are DeleteOptions, for example with preconditions."""
        return self.call(ApiRequest("DELETE", path, None if body is None else msgspec.json.encode(body)))

    def close(self) -> None:
        """Close the connection of this thread."""
        self._drop()

    def abort(self) -> None:
        """End all watches of this client, from any thread; they raise `ApiError`."""
        self._is_aborted = True
        for connection in list(self._watches):
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    # -- lists and watches ------------------------------------------------------------------------------------------

    def list(self, path: str, kind: type[T], **query: str) -> Listing[T]:
        """Return all objects of a collection, read in pages so that neither side holds all JSON at once.

        `query` may contain labelSelector, fieldSelector and limit, the size of a page. If the server drops the version
        of the first page before the last one is read, the list begins anew.
        """
        decoder: msgspec.json.Decoder[ObjectPage[T]] = msgspec.json.Decoder(ObjectPage[kind])  # type: ignore[valid-type]
        for _ in range(3):
            with contextlib.suppress(_ExpiredError):
                return self._list(path, decoder, query)
        raise ApiError(GONE, f"the list {path} changed faster than it could be read; try again")

    def _list(self, path: str, decoder: msgspec.json.Decoder[ObjectPage[T]], query: Mapping[str, str]) -> Listing[T]:
        items: list[T] = []
        next_page = ""
        while True:
            more = {"continue": next_page} if next_page else {}
            request = ApiRequest("GET", path, query={"limit": str(_PAGE), **query, **more})
            response = self.send(request)
            if response.status == GONE:
                raise _ExpiredError
            if not response.is_success:
                raise error_of(response, request, self.config.server)
            part = decoder.decode(response.body)
            items += part.items
            next_page = part.metadata.next_page
            if not next_page:
                return Listing(items, part.metadata.resource_version)

    def watch(self, path: str, resource_version: str, **query: str) -> Iterator[WatchEvent]:
        """Yield the changes of a collection after a version, until the server ends the watch or it fails.

        Uses a connection of its own. Raises `ApiError`, with status 410 if the version is too old, so that the
        caller must list again. An event of type ERROR is raised and not returned.
        """
        options = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
            "resourceVersion": resource_version,
        }
        request = ApiRequest("GET", path, query={**query, **options})
        connection = self._connect(_WATCH_TIMEOUT_S)
        self._watches.add(connection)
        try:
            answer = self._request(connection, request)
            if self._is_aborted:
                raise ApiError(NO_ANSWER, f"the watch of {path} was ended")
            if answer.status != 200:
                body = answer.read()
                raise error_of(Response(answer.status, body), request, self.config.server)
            for line in _lines_of(answer):
                event = _watch_decoder.decode(line)
                if event.type == "ERROR":
                    status = _status_decoder.decode(event.object)
                    raise ApiError(status.code, f"the watch of {path} ended: {status.message}", status.reason)
                yield event
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(NO_ANSWER, f"the watch of {path} at {self.config.server} failed: {error}") from None
        except msgspec.MsgspecError as error:
            raise ApiError(NO_ANSWER, f"the watch of {path} sent what is not JSON of an event: {error}") from None
        finally:
            self._watches.discard(connection)
            connection.close()

    # -- connections ------------------------------------------------------------------------------------------------

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            return connection, False
        connection = self._local.connection = self._connect(_REQUEST_TIMEOUT_S)
        return connection, True

    def _drop(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _send_again(self, request: ApiRequest) -> Response:
        try:
            return self._exchange(self._connection()[0], request)
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            return Response(NO_ANSWER, (str(error) or type(error).__name__).encode())

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        config = self.config
        if config.tls is None:
            connection = http.client.HTTPConnection(config.host, config.port, timeout=timeout_s)
        else:
            connection = http.client.HTTPSConnection(config.host, config.port, timeout=timeout_s, context=config.tls)
        return connection

    def _request(self, connection: http.client.HTTPConnection, request: ApiRequest) -> http.client.HTTPResponse:
        if connection.sock is None:
            connection.connect()
            _set_keepalive(connection)
        headers = {"Accept": JSON, "User-Agent": self._user_agent}
        if authorization := self.config.authorization():
            headers["Authorization"] = authorization
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        target = self.config.path + request.path
        if request.query:
            target += "?" + urlencode(request.query)
        connection.request(request.method, target, request.body, headers)
        return connection.getresponse()

    def _exchange(self, connection: http.client.HTTPConnection, request: ApiRequest) -> Response:
        answer = self._request(connection, request)
        body = answer.read()
        if answer.will_close:
            self._drop()
        return Response(answer.status, body, _retry_after_s(answer))


class _ExpiredError(Exception):
    """The server dropped the version of a list that was being read."""


def error_of(response: Response, request: ApiRequest, server: str) -> ApiError:
    """Return the error that says what was refused and why."""
    if response.status == NO_ANSWER:
        why = response.body.decode(errors="replace")
        return ApiError(NO_ANSWER, f"the Kubernetes API at {server} does not answer: {why}")
    detail, reason = detail_of(response)
    return ApiError(response.status, f"{request.method} {request.path}: {detail} (status {response.status})", reason)


def detail_of(response: Response) -> tuple[str, str]:
    """Return the message and the reason of a refusal."""
    try:
        status = _status_decoder.decode(response.body)
    except msgspec.MsgspecError:
        return response.body[:300].decode(errors="replace").strip() or "no message", ""
    return status.message or "no message", status.reason


def _lines_of(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the complete lines of a chunked answer."""
    pending = b""
    while chunk := answer.read1(_CHUNK_BYTES):
        lines = (pending + chunk).split(b"\n")
        pending = lines.pop()
        if len(pending) > _LINE_LIMIT_BYTES:
            raise http.client.HTTPException("an event is larger than any object can be")
        for line in lines:
            if line:
                yield line


def _retry_after_s(answer: http.client.HTTPResponse) -> float:
    text = answer.getheader("Retry-After") or ""
    return float(text) if text.isascii() and text.isdigit() else 0.0


def _set_keepalive(connection: http.client.HTTPConnection) -> None:
    connected: socket.socket = connection.sock
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
