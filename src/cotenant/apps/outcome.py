"""Wires `cotenant run --outcome`: how it ended is in the file before the command ends, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cotenant.errors import ConfigError, CotenantError
from cotenant.format.outcome import Doing, Outcome, encode_outcome
from cotenant.live.whole import write_whole


@contextmanager
def told_in(file: str) -> Iterator[list[Outcome | None]]:
    """Write down what is put into the list; where it stays empty because of an error, that error."""
    ended: list[Outcome | None] = []
    try:
        yield ended
    except CotenantError as error:
        _keep(file, Outcome(error.exit_code, Doing.REFUSED, str(error)))
        raise
    for outcome in ended:
        _keep(file, outcome)


def _keep(file: str, outcome: Outcome | None) -> None:
    if not file or outcome is None:
        return
    try:
        write_whole(Path(file), encode_outcome(outcome))
    except OSError as error:
        raise ConfigError("run.outcome", file, f"cannot be written: {error.strerror}; name another") from None
