"""How is a happening written down? As a line for people, and as a record for programs; the words are the same."""

from __future__ import annotations

from cotenant.domain.happening import NO_GPU, Happening, Level

_MARKS = {Level.INFO: "", Level.WARNING: "warning: ", Level.ERROR: "error: "}


def line_of(happening: Happening, when: str) -> str:
    """For people; `when` is the time as they know it."""
    return f"{when} {_MARKS[happening.level]}{happening.text} [turn {happening.turn}]"


def record_of(happening: Happening, ts: str) -> dict[str, object]:
    """For programs; every record has every field, so that a query needs no cases."""
    return {
        "ts": ts,
        "level": happening.level.value,
        "event": happening.what.value,
        "tenant": happening.tenant,
        "gpu": None if happening.gpu == NO_GPU else happening.gpu,
        "turn": happening.turn,
        "why": happening.why,
        "text": happening.text,
    }
