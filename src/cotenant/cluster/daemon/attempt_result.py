"""Result of an attempt, from the exit of its programs and whether they were stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cotenant.cluster.daemon.attempt_record import End
from cotenant.cluster.model.cluster import JobEnd
from cotenant.node.client.outcome import EndedBy, RunOutcome

_DETAIL_LIMIT: Final = 500
_VANISHED: Final = "`cotenant run` was killed, and its program with it"


def end_of(outcomes: Sequence[RunOutcome | None], asked: str | None, *, is_complete: bool) -> End:
    """The end, from the outcomes in the order in which they came (None: nobody was left to say it).

    A program that saves its state when it is asked to end may well end with 0: it is done only if it says that all is
    done, or if nobody asked.
    """
    is_well = all(outcome is not None and outcome.code == 0 for outcome in outcomes)
    if is_well and is_complete:
        return End(JobEnd.DONE, "exit 0")
    if asked is not None:
        return _clipped(JobEnd.EVICTED, asked)
    for outcome in outcomes:
        if outcome is None:
            return End(JobEnd.EVICTED, _VANISHED)
        if outcome.doing is EndedBy.REFUSED:
            return _clipped(JobEnd.REFUSED, outcome.why)
        if outcome.doing is not EndedBy.OWN:
            return _clipped(JobEnd.EVICTED, outcome.why)
        if outcome.code:
            return _clipped(JobEnd.FAILED, outcome.why)
    return End(JobEnd.DONE, "exit 0")


def _clipped(end: JobEnd, detail: str) -> End:
    return End(end, detail[:_DETAIL_LIMIT])
