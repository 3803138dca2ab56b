"""Join tokens, issued certificates and revocations, in one file.

Of a token the file contains the hash of its secret, its expiry and its remaining uses. Every change is on disk before
it is announced.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Final

import msgspec

from cotenant.cluster.daemon.authority import SignedCertificate
from cotenant.cluster.daemon.identity import Holder, write_private
from cotenant.cluster.wire import Role
from cotenant.errors import ConfigError
from cotenant.node.model.admission import Reason, Reject

TOKENS_LIMIT: Final = 1000
MOST_COUNTING: Final = 8
"""Certificates of one holder that count at once, beyond which none is signed for the asking."""
_SECRET_BYTES: Final = 18


class Token(msgspec.Struct):
    """A stored join token."""

    until_ns: int
    uses: int
    node: str = ""
    """The only node that may use it; empty: any that is new."""
    claims: list[str] = []
    """Keys and names to which it has led: who lost the answer asks again, and that is no second use."""


class IssuedCertificate(msgspec.Struct, frozen=True):
    """A certificate that is valid."""

    serial: str
    key: str
    until_ns: int


class _RegistryFile(msgspec.Struct):
    tokens: dict[str, Token] = {}
    issued: dict[str, list[IssuedCertificate]] = {}
    """By role and name."""
    revoked: dict[str, int] = {}
    """Serial numbers, and when they would have ended anyway."""


class CertificateRegistry:
    """The registry, in memory and on disk."""

    def __init__(self, path: Path) -> None:
        """Read the file, if there is one."""
        self._path = path
        self._kept = _RegistryFile()
        if path.exists():
            try:
                self._kept = msgspec.json.decode(path.read_bytes(), type=_RegistryFile)
            except (OSError, msgspec.MsgspecError) as error:
                why = f"cannot be read as the cluster's register ({error}); restore it from a copy"
                raise ConfigError("directories.state", str(path), why) from None

    def make_token(self, uses: int, until_ns: int, node: str, unix_ns: int) -> str | Reject:
        """A new secret; only its hash is kept."""
        self._forget(unix_ns)
        if len(self._kept.tokens) >= TOKENS_LIMIT:
            detail = f"there are {TOKENS_LIMIT} join tokens that can still be used; let some run out first"
            return Reject(Reason.QUEUE_FULL, detail)
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        self._kept.tokens[_hash(secret)] = Token(until_ns, uses, node)
        self._write()
        return secret

    def admit(self, secret: str, name: str, key: str, unix_ns: int) -> Reject | None:
        """Whether this token makes the holder of this key the node of this name; a use of it is spent."""
        token = self._kept.tokens.get(_hash(secret))
        claim = _claim(key, name)
        if token is None or unix_ns >= token.until_ns or (token.uses <= 0 and claim not in token.claims):
            # Which of them it is, is nobody's business who has no token.
            detail = "this join token is not known, was used up or has expired; make one with: cotenant cluster token"
            return Reject(Reason.STALE, detail)
        if token.node not in ("", name):
            return Reject(Reason.NOT_YOURS, f"this join token is for node {token.node!r} only")
        counting = self._kept.issued.get(_who(Role.NODE, name), [])
        if any(issued.key == key for issued in counting):
            return None if len(counting) < MOST_COUNTING else too_many(Holder(Role.NODE, name, ""))
        if not token.node and any(issued.until_ns > unix_ns for issued in counting):
            detail = (
                f"there is a node {name!r} already; choose another name, or, if it is the same machine, make a token "
                f"with: cotenant cluster token --node {name}"
            )
            return Reject(Reason.NAME_TAKEN, detail)
        for issued in counting:
            self._kept.revoked[issued.serial] = issued.until_ns
        self._kept.issued.pop(_who(Role.NODE, name), None)
        if claim not in token.claims:
            token.uses -= 1
            self._void_claims(name)
            token.claims.append(claim)
        self._write()
        return None

    def note(self, role: Role, name: str, signed: SignedCertificate, key: str, unix_ns: int) -> None:
        """A certificate was signed."""
        self._forget(unix_ns)
        self._kept.issued.setdefault(_who(role, name), []).append(
            IssuedCertificate(signed.serial, key, signed.until_ns)
        )
        self._write()

    def revoke(self, role: Role, name: str, unix_ns: int) -> Reject | None:
        """None of this holder's certificates counts from now on."""
        counting = self._kept.issued.pop(_who(role, name), [])
        if not counting:
            return Reject(Reason.UNKNOWN_NODE, f"no {role.value} {name!r} has a certificate that counts")
        for issued in counting:
            self._kept.revoked[issued.serial] = issued.until_ns
        if role is Role.NODE:
            self._void_claims(name)
        self._forget(unix_ns)
        self._write()
        return None

    def counting(self, holder: Holder) -> int:
        """How many certificates of this holder count."""
        return len(self._kept.issued.get(_who(holder.role, holder.name), []))

    def is_revoked(self, holder: Holder) -> bool:
        """Whether this certificate was taken back."""
        return holder.serial in self._kept.revoked

    def _void_claims(self, name: str) -> None:
        """A node that was this node does not become it again by the token that it has used."""
        for token in self._kept.tokens.values():
            token.claims = [claim for claim in token.claims if not claim.endswith(_claim("", name))]

    def _forget(self, unix_ns: int) -> None:
        """What has ended by itself need not be remembered."""
        kept = self._kept
        kept.tokens = {key: token for key, token in kept.tokens.items() if token.until_ns > unix_ns}
        kept.revoked = {serial: until_ns for serial, until_ns in kept.revoked.items() if until_ns > unix_ns}
        still = {
            who: [issued for issued in several if issued.until_ns > unix_ns] for who, several in kept.issued.items()
        }
        kept.issued = {who: several for who, several in still.items() if several}

    def _write(self) -> None:
        write_private(self._path, msgspec.json.encode(self._kept).decode())


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _claim(key: str, name: str) -> str:
    return f"{key} {name}"


def too_many(holder: Holder) -> Reject:
    """Why no more is signed for somebody."""
    detail = f"{holder} has {MOST_COUNTING} certificates that count, which is enough; let some run out first"
    return Reject(Reason.QUEUE_FULL, detail)


def _who(role: Role, name: str) -> str:
    return f"{role.value} {name}"
