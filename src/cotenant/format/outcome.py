"""How did a program under `cotenant run` end, and whose doing was it? As JSON, for whoever started it."""

from __future__ import annotations

import enum

import msgspec

from cotenant.errors import PeerError

OUTCOME_LIMIT_BYTES = 64 << 10
_WHY_LIMIT = 500


class Doing(enum.Enum):
    """Whose doing the end was; the exit code does not tell."""

    OWN = "own"
    """The program's: it was done, or it failed."""
    ASKED = "asked"
    """Somebody told `cotenant run` to end it."""
    NODE = "node"
    """The node's, which had to make room, or sees harm."""
    REFUSED = "refused"
    """The program never began: there was no node, no room, or no such GPU."""


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An end."""

    code: int
    """The exit code of `cotenant run`."""
    doing: Doing
    why: str = ""
    """One sentence."""


def encode_outcome(outcome: Outcome) -> bytes:
    """One line."""
    return msgspec.json.encode(msgspec.structs.replace(outcome, why=outcome.why[:_WHY_LIMIT])) + b"\n"


def decode_outcome(text: bytes) -> Outcome:
    """What such a file says; raises `PeerError` for one that says nothing."""
    try:
        return msgspec.json.decode(text, type=Outcome)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise PeerError(f"this is not how a program ended: {error}") from None
