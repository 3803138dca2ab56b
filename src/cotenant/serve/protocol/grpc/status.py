"""gRPC status codes and request headers.

See https://grpc.github.io/grpc/core/md_doc_statuscodes.html and the PROTOCOL-HTTP2 document of gRPC.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

from cotenant.units.instant import Duration

OK: Final = 0
CANCELLED: Final = 1
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
UNAUTHENTICATED: Final = 16
MALFORMED: Final = -1
"""No status of gRPC: the request violates HTTP/2, so that its stream is reset."""

NAMES: Final = {
    OK: "OK",
    CANCELLED: "CANCELLED",
    INVALID_ARGUMENT: "INVALID_ARGUMENT",
    DEADLINE_EXCEEDED: "DEADLINE_EXCEEDED",
    NOT_FOUND: "NOT_FOUND",
    PERMISSION_DENIED: "PERMISSION_DENIED",
    RESOURCE_EXHAUSTED: "RESOURCE_EXHAUSTED",
    UNIMPLEMENTED: "UNIMPLEMENTED",
    INTERNAL: "INTERNAL",
    UNAVAILABLE: "UNAVAILABLE",
    UNAUTHENTICATED: "UNAUTHENTICATED",
}
"""Names of the status codes."""

_UNITS_NS: Final = {"H": 3600 * 10**9, "M": 60 * 10**9, "S": 10**9, "m": 10**6, "u": 10**3, "n": 1}
_TIMEOUT_LIMIT_NS: Final = 1 << 62
_CACHED_HEADERS: Final = 1024
_REQUIRED: Final = frozenset((b":method", b":scheme", b":path"))
_PSEUDO: Final = _REQUIRED | {b":authority"}
_CONNECTION_SPECIFIC: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)


def read_timeout(text: str) -> Duration:
    """Parse a grpc-timeout; zero if there is none."""
    if not text:
        return 0
    digits, unit = text[:-1], text[-1]
    if not digits.isascii() or not digits.isdigit() or len(digits) > 8 or unit not in _UNITS_NS:
        raise ValueError(text)
    return max(min(int(digits) * _UNITS_NS[unit], _TIMEOUT_LIMIT_NS), 1)


class CallHeaders(NamedTuple):
    """Parsed request headers; a status other than OK rejects the call."""

    status: int
    text: str = ""
    path: str = ""
    encoding: str = ""
    timeout_ns: Duration = 0
    authorization: str = ""
    origin: str = ""


def _is_well_formed(headers: tuple[tuple[bytes, bytes], ...]) -> bool:
    """Return whether the headers are those of a request (RFC 9113, section 8.2 and 8.3)."""
    names = [name for name, _ in headers]
    pseudo = [name for name in names if name[:1] == b":"]
    by_name = dict(headers)
    return (
        names[: len(pseudo)] == pseudo
        and _REQUIRED <= set(pseudo) <= _PSEUDO
        and len(set(pseudo)) == len(pseudo)
        and bool(by_name[b":path"])
        and not any(name != name.lower() or name in _CONNECTION_SPECIFIC for name in names)
        and by_name.get(b"te", b"trailers") == b"trailers"
    )


@functools.lru_cache(_CACHED_HEADERS)
def read_call_headers(headers: tuple[tuple[bytes, bytes], ...]) -> CallHeaders:
    """Parse request headers; cached, because a client's calls have mostly the same headers."""
    by_name = dict(headers)
    if not _is_well_formed(headers):
        return CallHeaders(MALFORMED)
    if by_name.get(b":method") != b"POST" or not by_name.get(b"content-type", b"").startswith(b"application/grpc"):
        return CallHeaders(INTERNAL, "this port speaks gRPC: POST with content-type application/grpc")
    encoding = by_name.get(b"grpc-encoding", b"identity").decode("latin-1")
    if encoding not in ("identity", "gzip", "deflate"):
        return CallHeaders(UNIMPLEMENTED, f"grpc-encoding {encoding!r} is not supported, only gzip and deflate")
    timeout = by_name.get(b"grpc-timeout", b"").decode("latin-1")
    try:
        timeout_ns = read_timeout(timeout)
    except ValueError:
        return CallHeaders(INTERNAL, f"grpc-timeout {timeout!r} is not a number of at most 8 digits and a unit")
    path, authorization, origin = (
        by_name.get(name, b"").decode("latin-1") for name in (b":path", b"authorization", b"origin")
    )
    return CallHeaders(OK, "", path, encoding, timeout_ns, authorization, origin)
