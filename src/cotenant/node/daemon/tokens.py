"""Tokens: of a tenant, for its own processes; of operators, each for one join; and of pods.

A tenant's token is a message authentication code of its slot and generation, so it needs no table and outlives a
restart of the node. The key is a file that only the node's user can read. The token of a pod contains the spec of its
tenant, authenticated in the same way. It works only for processes in the cgroup of that pod, and a pod's uid is never
used again: the token of a pod that has ended is useless. The list of revoked tokens therefore matters only between the
revocation and the end of the pod's last process, and may forget old entries.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cotenant.errors import WorldError
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.ports import TenantKey
from cotenant.runner.atomic_file import read_limited, write_atomically
from cotenant.units.instant import Instant

_KEY_BYTES: Final = 32
_SUPERVISED, _SELF_JOINED = "run", "self"
ISSUED_LIMIT: Final = 1000
"""The largest number of unused tokens of operators."""
POD_TOKEN_PREFIX: Final = "pod."  # noqa: S105  not a secret
LOOKUP_TOKEN: Final = "pod"  # noqa: S105  not a secret
"""The text with which a process of a pod asks for the spec that an operator assigns to its pod."""
REVOKED_LIMIT: Final = 4096
"""The number of revoked tokens that are remembered."""
_REVOKED_FILE_LIMIT_BYTES: Final = 1 << 20
_specs = msgspec.msgpack.Decoder(TenantSpec)


class TenantToken(NamedTuple):
    """A valid token of a tenant, which may have left."""

    tenant: TenantKey
    is_self_joined: bool
    """Whether its processes joined by themselves, without `cotenant run`."""


class Tokens:
    """Makes and checks tokens."""

    def __init__(self, key: bytes, revoked: Path | None = None) -> None:
        """Use this key; the file remembers revoked tokens over restarts."""
        self._key = key
        self._file = revoked
        self._revoked = _load_revoked(revoked)
        self._issued: dict[str, tuple[TenantSpec, Instant]] = {}

    def of_tenant(self, tenant: TenantKey, *, is_self_joined: bool) -> str:
        """Return the token of a tenant."""
        return self._signed(f"{_SELF_JOINED if is_self_joined else _SUPERVISED}.{tenant[0]}.{tenant[1]}")

    def _signed(self, head: str) -> str:
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

    def issue_for_pod(self, spec: TenantSpec) -> str:
        """Return the token of a pod's tenant; it is valid from now on, even if it was revoked before."""
        payload = msgspec.msgpack.encode(spec)
        token = self._signed(POD_TOKEN_PREFIX + base64.urlsafe_b64encode(payload).decode().rstrip("="))
        if self._revoked.pop(_code_of(token), 0):
            self._store_revoked()
        return token

    def read_of_pod(self, token: str) -> TenantSpec | None:
        """Return the spec in the token of a pod; None if the node did not issue it."""
        head = token.rpartition(".")[0]
        if not token.startswith(POD_TOKEN_PREFIX) or not token.isascii():
            return None
        if not hmac.compare_digest(self._signed(head).encode(), token.encode()):
            return None
        return claimed_spec(token)

    def revoke_of_pod(self, token: str) -> None:
        """Let nobody join with this token any more."""
        self._revoked.pop(_code_of(token), 0)
        self._revoked[_code_of(token)] = 1
        while len(self._revoked) > REVOKED_LIMIT:
            del self._revoked[next(iter(self._revoked))]
        self._store_revoked()

    def is_revoked(self, token: str) -> bool:
        """Return whether the token of a pod was revoked."""
        return _code_of(token) in self._revoked

    def _store_revoked(self) -> None:
        if self._file is None:
            return
        try:
            write_atomically(self._file, msgspec.json.encode(list(self._revoked)))
        except OSError as error:
            raise WorldError(f"cannot write {self._file}: {error.strerror}; repair its directory") from None

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


def claimed_spec(token: str) -> TenantSpec | None:
    """Return the spec that the token of a pod claims to have, unchecked; None if it has none."""
    payload = token.rpartition(".")[0].removeprefix(POD_TOKEN_PREFIX)
    try:
        return _specs.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (msgspec.MsgspecError, binascii.Error, ValueError):  # of another version
        return None


def _code_of(token: str) -> str:
    return token.rpartition(".")[2]


def _load_revoked(path: Path | None) -> dict[str, int]:
    data = None if path is None else read_limited(path, _REVOKED_FILE_LIMIT_BYTES)
    try:
        return dict.fromkeys(msgspec.json.decode(data, type=list[str]) if data else [], 1)
    except msgspec.MsgspecError:
        return {}


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
