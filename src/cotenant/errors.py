"""Who must act when something fails?

CotenantError
├── ConfigError      you: a field, its value and the remedy (exit code 2, nothing lost)
├── WorldError       wait, or mend the machine: what we need from it is not there now (exit code 75)
├── PeerError        that peer or tenant: it broke the protocol or its own terms (exit code 76)
└── InvariantError   we: a state that must not exist, with the story that led to it (exit code 70)

A refusal that was decided is not here: it is a value, `domain.plan.Reject`.
"""

from __future__ import annotations

from typing import Final

_SHOWN_LIMIT: Final = 200


class CotenantError(Exception):
    """Anything cotenant says went wrong; `exit_code` is what the command line returns for it."""

    exit_code = 70


class ConfigError(CotenantError):
    """You must act: this field has a value that cannot be, and here is what could."""

    exit_code = 2

    def __init__(self, field: str, value: object, remedy: str, *, where: str = "") -> None:
        """Compose the one sentence a user reads; `where` is a file and line when there is one."""
        self.field = field
        self.value = value
        self.remedy = remedy
        self.where = where
        prefix = f"{where}: " if where else ""
        super().__init__(f"{prefix}{field} = {_shown(value)}: {remedy}")


def _shown(value: object) -> str:
    """The value as the user wrote it, as far as that fits into a sentence."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python refuses to print an integer of thousands of digits, or a deep nest
        return f"({type(value).__name__})"
    return text if len(text) <= _SHOWN_LIMIT else text[:_SHOWN_LIMIT] + "..."


class WorldError(CotenantError):
    """Wait, or mend the machine: what we need from it is not there now."""

    exit_code = 75


class PeerError(CotenantError):
    """The peer at the other end must act: it broke the protocol."""

    exit_code = 76


class InvariantError(CotenantError):
    """We are wrong: the story says how we got here."""

    exit_code = 70
