"""Identity of a node, user or controller: a PEM file with a line of JSON, the key, the certificate and the authority.

One file rather than three, so that a renewal replaces all of it in one step. OpenSSL skips the first line.
"""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path
from typing import Final

import msgspec

from cotenant.cluster.wire import Role
from cotenant.errors import ConfigError, PeerError, WorldError
from cotenant.runner.atomic_file import sync_directory

URI: Final = "cotenant"
_BLOCK: Final = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
_LARGEST_BYTES: Final = 64 << 10
_NOT_NOW: Final = (9, 10)  # OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED
PROTOCOL: Final = "cotenant-cluster"


class Holder(msgspec.Struct, frozen=True):
    """The subject of a certificate."""

    role: Role
    name: str
    serial: str

    def __str__(self) -> str:
        """For people."""
        return f"{self.role.value} {self.name}"


class Identity(msgspec.Struct, frozen=True):
    """Content of the first line of the file, its path, and the authority's certificate."""

    role: Role
    name: str
    controller: str
    """HOST:PORT."""
    from_ns: int
    until_ns: int
    """By the wall clock: when the certificate begins and ends to count."""
    path: Path = Path()
    authority: str = ""
    """PEM."""

    def is_old(self, unix_ns: int) -> bool:
        """Whether it is time to renew it: two thirds are over."""
        return unix_ns >= self.from_ns + (self.until_ns - self.from_ns) * 2 // 3


class _Line(msgspec.Struct, frozen=True):
    role: Role
    name: str
    controller: str
    from_ns: int
    until_ns: int


def read_identity(path: Path) -> Identity:
    """The identity in this file; raises `ConfigError` where there is none."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_BYTES).decode()
        line = msgspec.json.decode(text.partition("\n")[0], type=_Line)
    except FileNotFoundError:
        raise ConfigError("identity", str(path), "there is no such file; join first, or check the path") from None
    except OSError as error:
        raise ConfigError("identity", str(path), f"cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ConfigError("identity", str(path), "this is no identity that cotenant wrote; join anew") from None
    blocks = _BLOCK.findall(text)
    if len(blocks) != 2:
        raise ConfigError("identity", str(path), "has not one certificate and its authority; join anew")
    return Identity(line.role, line.name, line.controller, line.from_ns, line.until_ns, path, blocks[1] + "\n")


def write_identity(identity: Identity, key: str, certificate: str) -> None:
    """Write it, for its owner alone, in one step."""
    line = _Line(identity.role, identity.name, identity.controller, identity.from_ns, identity.until_ns)
    parts = (msgspec.json.encode(line).decode(), key.strip(), certificate.strip(), identity.authority.strip())
    write_private(identity.path, "\n".join(parts) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step; nobody but its owner may read it, and it is on the disk when this returns."""
    fresh = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        fresh.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise WorldError(f"cannot write {path}: {error.strerror}; mend its directory") from None


def client_context(identity: Identity) -> ssl.SSLContext:
    """How the holder of this identity connects: only to a controller of its own cluster."""
    context = _bare_client()
    context.load_verify_locations(cadata=identity.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    _load(context, identity)
    return context


def unauthenticated_context(authority: str = "") -> ssl.SSLContext:
    """How somebody without a certificate connects: to anybody, or only to a controller of this authority's cluster."""
    context = _bare_client()
    if authority:
        context.load_verify_locations(cadata=authority)
        context.verify_mode = ssl.CERT_REQUIRED
    else:
        context.verify_mode = ssl.CERT_NONE
    return context


def server_context(identity: Identity) -> ssl.SSLContext:
    """How a controller listens. Without a certificate one may ask for one, and nothing else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=identity.authority)
    context.set_alpn_protocols([PROTOCOL])
    context.num_tickets = 0  # each connection shows its certificate, so that one that was revoked is seen
    _load(context, identity)
    return context


def holder_of(connection: ssl.SSLSocket) -> Holder | None:
    """Whom the other end's certificate names; None where it showed none. OpenSSL has checked who signed it."""
    certificate = connection.getpeercert()
    if not certificate:
        return None
    names = certificate.get("subjectAltName", ())
    for kind, value in names if isinstance(names, tuple) else ():
        scheme, _, rest = str(value).partition(":")
        role, _, name = rest.partition(":")
        if kind == "URI" and scheme == URI and role in {known.value for known in Role}:
            return Holder(Role(role), name, str(certificate.get("serialNumber", "")).upper())
    raise PeerError("the certificate at the other end names nobody of a cluster")


def check_controller(connection: ssl.SSLSocket) -> None:
    """A node's certificate is of the same authority: only one that says so is the controller's."""
    holder = holder_of(connection)
    if holder is None or holder.role is not Role.CONTROLLER:
        raise PeerError(f"who answers there is no controller but {holder or 'nobody known'}; check its address")


def _bare_client() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a controller is known by its authority and its role, wherever it runs
    context.set_alpn_protocols([PROTOCOL])
    return context


def _load(context: ssl.SSLContext, identity: Identity) -> None:
    try:
        context.load_cert_chain(identity.path)
    except (OSError, ValueError) as error:
        why = f"its key and its certificate cannot be used: {error}; join anew"
        raise ConfigError("identity", str(identity.path), why) from None


def why_not(error: OSError, unix_ns: int, identity: Identity | None = None) -> str:
    """What a failed handshake means, in a sentence with its remedy."""
    reason = str(getattr(error, "reason", "") or "").upper()
    if identity is not None and unix_ns >= identity.until_ns:
        return f"the certificate in {identity.path} has expired; join anew, with a new token"
    if "CERTIFICATE_EXPIRED" in reason:
        return "the controller says that this certificate has expired; check both clocks, or join anew with a new token"
    if "UNKNOWN_CA" in reason:
        return "the controller does not know who signed this certificate; it is of another cluster, join this one anew"
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _NOT_NOW:
        return f"the controller's certificate counts at another time ({error.verify_message}); check both clocks"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the controller's certificate is not of this cluster ({error.verify_message}); check the address"
    if isinstance(error, ssl.SSLError):
        return f"no TLS 1.3 connection came about ({error.reason or error}); is that a cotenant controller?"
    return str(error.strerror or error)
