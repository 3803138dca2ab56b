"""Enrolment of a node by a join token: a secret, and the fingerprint of the cluster's authority.

The node first compares the authority's certificate with the fingerprint, and sends the secret only over a connection
that this authority has signed. (kubeadm's `--discovery-token-ca-cert-hash` does the same.)
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cotenant.cluster import wire
from cotenant.cluster.daemon.authority import fingerprint_of, make_request, validity_of
from cotenant.cluster.daemon.client import talk, talk_unauthenticated
from cotenant.cluster.daemon.identity import Identity, write_identity, write_private
from cotenant.cluster.model.cluster import Name
from cotenant.cluster.wire import Role
from cotenant.errors import ConfigError, PeerError

_TOKEN: Final = re.compile(r"(?P<secret>[A-Za-z0-9_-]{16,64})\.(?P<fingerprint>[0-9a-f]{64})")

NAME_REMEDY: Final = "write 1 to 128 letters, digits and ._:/@-, beginning with a letter or a digit"


def token_text(secret: str, authority: str) -> str:
    """A join token, as it is handed from the operator to a node."""
    return f"{secret}.{fingerprint_of(authority)}"


def read_token(path: Path) -> str:
    """The token in a file."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(1024).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError("join-token-file", str(path), f"cannot be read: {why}; check the path") from None
    if not _TOKEN.fullmatch(text):
        remedy = "this is no join token; write into it what `cotenant cluster token` printed"
        raise ConfigError("join-token-file", str(path), remedy)
    return text


def check_name(name: str, field: str) -> str:
    """A name that can be in a certificate."""
    try:
        return msgspec.convert(name, Name)
    except msgspec.ValidationError:
        raise ConfigError(field, name, NAME_REMEDY) from None


def enrol(controller: str, token: str, name: str, path: Path, say: Callable[[str], None]) -> Identity:
    """Become the node of this name; the key stays here. The identity is written into the file, and returned."""
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise ConfigError("join token", "(secret)", "write what `cotenant cluster token` printed, all of it")
    check_name(name, "node-name")
    with talk_unauthenticated(controller) as first:
        authority = first.ask(wire.GetAuthority(wire.VERSION), wire.AuthorityCertificate).certificate
    try:
        shown = fingerprint_of(authority)
    except ValueError:
        raise PeerError(f"who answers at {controller} shows no certificate of an authority") from None
    if not hmac.compare_digest(shown, found["fingerprint"]):
        raise PeerError(
            f"the peer at {controller} is not the controller that made this token (its fingerprint differs); "
            "check the address, and make a new token with: cotenant cluster token"
        )
    # Kept until the answer is here: the peer that asks again with the same key is the same node, and not an impostor.
    key_path = path.with_name(path.name + ".key")
    key, request = _kept_request(key_path)
    with talk_unauthenticated(controller, authority) as second:
        answer = second.ask(wire.Enrol(wire.VERSION, found["secret"], name, request), wire.EnrolledIdentity)
    identity = Identity(Role.NODE, name, controller, *validity_of(answer.certificate), path, authority)
    write_identity(identity, key, answer.certificate)
    key_path.unlink(missing_ok=True)
    say(f"joined the cluster at {controller} as node {name}; its identity is {path}")
    return identity


def obtain_user(operator: Identity, user: str, path: Path) -> Identity:
    """A certificate for a user, made by an operator; the key is made here, and is in the file."""
    check_name(user, "USER")
    key, request = make_request()
    with talk(operator) as controller:
        answer = controller.ask(wire.Issue(wire.VERSION, user, request), wire.EnrolledIdentity)
    identity = Identity(Role.USER, user, answer.controller, *validity_of(answer.certificate), path, operator.authority)
    write_identity(identity, key, answer.certificate)
    return identity


def _kept_request(path: Path) -> tuple[str, str]:
    """A key and its request, the same as at the last try if that was interrupted."""
    try:
        key, request = msgspec.json.decode(path.read_bytes(), type=tuple[str, str])
    except (OSError, msgspec.MsgspecError):
        key, request = make_request()
        write_private(path, msgspec.json.encode((key, request)).decode())
    return key, request
