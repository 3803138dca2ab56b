"""Exceptions, grouped by who must act.

CotenantError
├── ConfigError      the user: a field has an invalid value; the message names a remedy (exit code 2)
├── WorldError       the operator: something that the machine must provide is missing now; try again (exit code 75)
│   └── SetupError   the operator: it stays missing until somebody installs or permits something (exit code 69)
├── PeerError        the peer: a process at the other end broke the protocol (exit code 76)
└── InvariantError   the developer: an impossible state was reached (exit code 70)

A refusal is not an exception but a value, `cotenant.node.model.admission.Reject`.
"""

from __future__ import annotations

from typing import Final

_SHOWN_LIMIT: Final = 200


class CotenantError(Exception):
    """The base class; `exit_code` is the exit code of the command line."""

    exit_code = 70


class ConfigError(CotenantError):
    """The user must act: a field has an invalid value."""

    exit_code = 2

    def __init__(self, field: str, value: object, remedy: str, *, where: str = "") -> None:
        """Compose the message from field, value and remedy; `where` is a file and line, if known."""
        self.field = field
        self.value = value
        self.remedy = remedy
        self.where = where
        prefix = f"{where}: " if where else ""
        super().__init__(f"{prefix}{field} = {_shown(value)}: {remedy}")


def _shown(value: object) -> str:
    """Return the value as text, shortened to fit into a sentence."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or a deeply nested value
        return f"({type(value).__name__})"
    return text if len(text) <= _SHOWN_LIMIT else text[:_SHOWN_LIMIT] + "..."


class WorldError(CotenantError):
    """The operator must act, or wait: something that the machine must provide is missing now."""

    exit_code = 75


class SetupError(WorldError):
    """The operator must act: something has to be installed, repaired or permitted, before which no try succeeds."""

    exit_code = 69


class PeerError(CotenantError):
    """The peer at the other end must act: it broke the protocol."""

    exit_code = 76


class InvariantError(CotenantError):
    """The developer must act: an impossible state was reached."""

    exit_code = 70
