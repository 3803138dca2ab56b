"""Who may see the web console, and who may act through it.

On loopback, the user who started the console reads without a token: the kernel tells to which user the other end of a
loopback connection belongs. Every other reader needs the token, and so does every action. A page in another tab must
not use the rights of its reader: a request must name a host that is the console's own, actions must come from the
console's own page, and the cookie is not sent by other sites.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cotenant.runner.atomic_file import read_limited, write_atomically
from cotenant.web.http import Request

COOKIE: Final = "cotenant-token"
ACTION_HEADER: Final = "x-cotenant-action"
_TOKEN_BYTES: Final = 24
_TOKEN_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{32}")
_ESTABLISHED: Final = "01"


def load_token(path: Path) -> str:
    """Return the token in a file that only its owner can read; create it if it does not exist."""
    stored = read_limited(path, 256)
    text = "" if stored is None else stored.decode("ascii", "replace").strip()
    if not _TOKEN_PATTERN.fullmatch(text):
        text = secrets.token_urlsafe(_TOKEN_BYTES)
        write_atomically(path, f"{text}\n".encode())
    return text


class WebAccess:
    """Decides about requests."""

    def __init__(self, token: str, hosts: tuple[str, ...], *, may_operate: bool, is_secure: bool) -> None:
        """`hosts` are names by which browsers may call this server; its own addresses are always allowed."""
        self._token = token
        self._hosts = frozenset(host.lower() for host in hosts)
        self._may_operate = may_operate
        self._is_secure = is_secure

    def is_own_host(self, request: Request) -> bool:
        """Return whether the request names this server: a foreign name is a sign of DNS rebinding."""
        host = _host_of(request.headers.get("host", ""))
        if host in self._hosts or host == "localhost":
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True  # an address cannot be rebound

    def has_token(self, request: Request) -> bool:
        """Return whether the request carries the token, as a cookie or as a bearer token."""
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        for part in request.headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == COOKIE:
                given = value
        return self.is_token(given)

    def is_token(self, text: str) -> bool:
        """Return whether this is the token."""
        return hmac.compare_digest(text.encode(), self._token.encode())

    def may_read(self, request: Request) -> bool:
        """Return whether the client may see the console."""
        return self.has_token(request) or self._is_own_user(request)

    def may_act(self, request: Request) -> bool:
        """Return whether the client may change tenants."""
        return self._may_operate and self.has_token(request)

    def is_from_own_page(self, request: Request) -> bool:
        """Return whether a script of the console sent the request: other sites cannot add this header."""
        return request.headers.get(ACTION_HEADER) == "1"

    def cookie(self) -> str:
        """Return the header field that makes a browser remember the token."""
        secure = "; Secure" if self._is_secure else ""
        return f"{COOKIE}={self._token}; Path=/; HttpOnly; SameSite=Strict; Max-Age=604800{secure}"

    @property
    def may_operate(self) -> bool:
        """Whether clients with the token may act."""
        return self._may_operate

    def _is_own_user(self, request: Request) -> bool:
        host = ipaddress.ip_address(request.peer[0])
        return host.is_loopback and os.geteuid() in _owners(request.peer, request.own)


def _host_of(field: str) -> str:
    if field.startswith("["):
        return field[1:].partition("]")[0].lower()
    return field.rpartition(":")[0].lower() if ":" in field else field.lower()


def _owners(peer: tuple[str, int], own: tuple[str, int]) -> Iterator[int]:
    """Yield the user of the client's end of a loopback connection, from the kernel's table of connections."""
    family, table = (6, "tcp6") if ":" in peer[0] else (4, "tcp")
    local, remote = (_table_address(address, family) for address in (peer, own))
    try:
        lines = Path(f"/proc/self/net/{table}").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        words = line.split()
        if words[1:4] == [local, remote, _ESTABLISHED]:
            yield int(words[7])


def _table_address(address: tuple[str, int], family: int) -> str:
    packed = ipaddress.ip_address(address[0]).packed
    words = [packed[at : at + 4][::-1].hex().upper() for at in range(0, len(packed), 4)]
    assert len(packed) == (16 if family == 6 else 4)
    return f"{''.join(words)}:{address[1]:04X}"
