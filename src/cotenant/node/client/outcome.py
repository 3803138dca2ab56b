"""The outcome file of `cotenant run --outcome`: how the program ended, as one JSON object."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from cotenant.errors import ConfigError, CotenantError
from cotenant.runner.atomic_file import write_atomically

_WHY_LIMIT_CHARS = 500


class EndedBy(enum.Enum):
    """Who ended the program; the exit code does not show it."""

    OWN = "own"
    """The program itself: it finished or failed."""
    ASKED = "asked"
    """`cotenant run` was asked to end it."""
    NODE = "node"
    """The node, to free memory or to protect online tenants."""
    REFUSED = "refused"
    """The program never started: there was no node, no memory, or no such GPU."""


class RunOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of a run."""

    code: int
    """The exit code of `cotenant run`."""
    doing: EndedBy
    why: str = ""
    """The reason in one sentence."""


def encode_outcome(outcome: RunOutcome) -> bytes:
    """Return the file's content, one line of JSON."""
    return msgspec.json.encode(msgspec.structs.replace(outcome, why=outcome.why[:_WHY_LIMIT_CHARS])) + b"\n"


@contextmanager
def outcome_file(file: str) -> Iterator[list[RunOutcome | None]]:
    """Yield a list and write the outcome that the caller appends to it; write an error that is raised instead."""
    outcomes: list[RunOutcome | None] = []
    try:
        yield outcomes
    except CotenantError as error:
        _write_outcome(file, RunOutcome(error.exit_code, EndedBy.REFUSED, str(error)))
        raise
    for outcome in outcomes:
        _write_outcome(file, outcome)


def _write_outcome(file: str, outcome: RunOutcome | None) -> None:
    if not file or outcome is None:
        return
    try:
        write_atomically(Path(file), encode_outcome(outcome))
    except OSError as error:
        raise ConfigError("run.outcome", file, f"cannot be written: {error.strerror}; name another") from None
