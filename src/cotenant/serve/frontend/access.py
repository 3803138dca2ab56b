"""Who may use a listener: bearer tokens, and the web pages whose scripts may send requests."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.errors import ConfigError
from cotenant.serve.protocol.oip.infer import InferError

HEALTH: Final = frozenset(("live", "ready"))
"""Routes that need no token, because orchestrators probe them."""
_SCHEME: Final = "bearer "
_MIN_TOKEN: Final = 16
ANY_ORIGIN: Final = "*"


class Access(NamedTuple):
    """The access rules of a listener."""

    token: str = ""
    """Token that every request must have, except for health checks; empty: none."""
    origins: frozenset[str] = frozenset()
    """Web pages (scheme, host and port) whose requests are accepted; requests without Origin always are."""
    may_control: bool = False
    """Whether models and settings may be changed here."""

    def check(self, authorization: str, origin: str, *, is_health: bool = False) -> None:
        """Raise `InferError` unless the request may be answered."""
        if origin and not self.allows_origin(origin):
            text = f"requests of web pages at {origin[:200]!r} are refused: --allow-origin names the ones to accept"
            raise InferError(text, "forbidden")
        if self.token and not is_health and not self._has_token(authorization):
            raise InferError("this server requires a token: send 'Authorization: Bearer TOKEN'", "unauthenticated")

    def check_control(self) -> None:
        """Raise `InferError` unless models and settings may be changed on this listener."""
        if not self.may_control:
            text = "models and settings are changed on the admin listener only: --model-control explicit starts it"
            raise InferError(text, "forbidden")

    def check_shared_memory(self, *, is_local: bool) -> None:
        """Raise `InferError` unless the client may use shared memory of this machine."""
        if not is_local and not self.may_control:
            text = "shared memory is for clients on this machine, and for those of the admin listener"
            raise InferError(text, "forbidden")

    def allows_origin(self, origin: str) -> bool:
        """Return whether a web page may send requests."""
        return origin in self.origins or ANY_ORIGIN in self.origins

    def _has_token(self, authorization: str) -> bool:
        is_bearer = authorization[: len(_SCHEME)].lower() == _SCHEME
        given = authorization[len(_SCHEME) :].strip() if is_bearer else ""
        return hmac.compare_digest(given.encode(), self.token.encode())


def read_token(path: str, flag: str) -> str:
    """Return the token in a file."""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(flag, path, f"cannot be read: {error}") from None
    if len(token) < _MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        reason = f"must contain one line with at least {_MIN_TOKEN} printable ASCII characters without spaces"
        raise ConfigError(flag, path, reason)
    return token


def create_token(path: Path) -> str:
    """Return the token in a file that only its user can read; create the file with a random token if it is missing."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{secrets.token_urlsafe(32)}\n")
    return read_token(str(path), "--admin-token-file")
