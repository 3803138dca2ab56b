"""Tokens: of a tenant, for its own processes, and of operators, each for one join.

A tenant's token is a message authentication code of its slot and generation, so it needs no table and outlives a
restart of the node. The key is a file that only the node's user can read.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.errors import WorldError
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.ports import TenantKey
from cotenant.units.instant import Instant

_KEY_BYTES: Final = 32
_SUPERVISED, _SELF_JOINED = "run", "self"
ISSUED_LIMIT: Final = 1000
"""The largest number of unused tokens of operators."""


class TenantToken(NamedTuple):
    """A valid token of a tenant, which may have left."""

    tenant: TenantKey
    is_self_joined: bool
    """Whether its processes joined by themselves, without `cotenant run`."""


class Tokens:
    """Makes and checks tokens."""

    def __init__(self, key: bytes) -> None:
        """Use this key for the tokens of tenants."""
        self._key = key
        self._issued: dict[str, tuple[TenantSpec, Instant]] = {}

    def of_tenant(self, tenant: TenantKey, *, is_self_joined: bool) -> str:
        """Return the token of a tenant."""
        head = f"{_SELF_JOINED if is_self_joined else _SUPERVISED}.{tenant[0]}.{tenant[1]}"
        return f"{head}.{hmac.new(self._key, head.encode(), hashlib.sha256).hexdigest()}"

    def read(self, token: str) -> TenantToken | None:
        """Return the tenant of a token; None if it is not a token of a tenant of this node."""
        kind, slot, generation, *_ = [*token.split("."), "", "", ""]
        if not (slot.isascii() and slot.isdigit() and generation.isascii() and generation.isdigit()):
            return None
        if len(slot) > len(str(1 << 64)) or len(generation) > len(str(1 << 64)):
            return None
        tenant = (int(slot), int(generation))
        expected = self.of_tenant(tenant, is_self_joined=kind == _SELF_JOINED)
        if not hmac.compare_digest(expected.encode(), token.encode("utf-8", "replace")):
            return None
        return TenantToken(tenant, kind == _SELF_JOINED)

    def issue(self, spec: TenantSpec, until: Instant, now: Instant) -> str | None:
        """Return a new token for one join with this spec; None if too many are unused."""
        self._issued = {token: entry for token, entry in self._issued.items() if entry[1] > now}
        if len(self._issued) >= ISSUED_LIMIT:
            return None
        token = f"join.{secrets.token_hex(_KEY_BYTES)}"
        self._issued[token] = (spec, until)
        return token

    def take(self, token: str, now: Instant) -> TenantSpec | None:
        """Return the spec of an operator's token and forget it; None if it is unknown, used or expired."""
        entry = self._issued.pop(token, None)
        return None if entry is None or entry[1] <= now else entry[0]


def load_key(path: Path) -> bytes:
    """Return the key in a file; create it if it is missing or too short."""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.parent.chmod(0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            key = os.read(descriptor, _KEY_BYTES)
            if len(key) < _KEY_BYTES:
                key = secrets.token_bytes(_KEY_BYTES)
                os.pwrite(descriptor, key, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise WorldError(f"cannot create the token key {path}: {error.strerror}; repair its directory") from None
    return key
