"""What became of the requests of a load? How many were answered within their objective, and what of the others."""

from __future__ import annotations

import enum

import msgspec

from cotenant.domain.histogram import Recorder
from cotenant.domain.instant import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS, Duration

LATE_SEND_NS = MILLISECOND_NS
"""A request that leaves so much after it was meant to counts as sent late: the sender could not keep up."""


class Verdict(enum.Enum):
    """How one request ended."""

    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"
    EXPIRED = "expired"
    UNSENT = "unsent"


class Goodput(msgspec.Struct, frozen=True):
    """One model's requests. Each that was meant to be sent is in exactly one of the five counts after `offered`."""

    model: str
    offered: int
    answered: int
    refused: int
    failed: int
    """By the server or its connection."""
    expired: int
    """Given up by their sender."""
    unsent: int
    """For which no connection was free until their sender gave up."""
    in_time: int
    """Of the answered, those within the objective, counted from the instant at which each was meant to be sent."""
    refused_late: int
    """Of the refused, those that were told so after their objective had passed: they were left to time out."""
    late_sends: int
    """That left more than `LATE_SEND_NS` after they were meant to."""
    send_lag_p99_us: float
    slo_ms: float
    """Zero: no objective, every answer is in time."""
    seconds: float
    offered_rps: float
    answered_rps: float
    goodput_rps: float
    p50_ms: float
    """Of the answered, as are the next ones."""
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    refusal_p99_ms: float

    @property
    def admitted(self) -> int:
        """That were not refused while they could still have been sent elsewhere."""
        return self.answered + self.failed + self.expired + self.refused_late

    @property
    def attainment(self) -> float:
        """Of the admitted, the part that was in time; 1 where none was."""
        return self.in_time / self.admitted if self.admitted else 1.0


class Tally:
    """Counts while the load goes on; its memory does not grow with the number of requests."""

    __slots__ = ("_answers", "_counts", "_in_time", "_lags", "_late", "_model", "_refusals", "_refused_late", "_slo_ns")

    def __init__(self, model: str, slo_ns: Duration) -> None:
        """Nothing has happened; an objective of zero is none."""
        self._model = model
        self._slo_ns = slo_ns
        self._counts = dict.fromkeys(Verdict, 0)
        self._answers = Recorder()
        self._refusals = Recorder()
        self._lags = Recorder()
        self._in_time = 0
        self._refused_late = 0
        self._late = 0

    def sent(self, lag_ns: Duration) -> None:
        """One has left, so long after it was meant to."""
        self._lags.record(lag_ns)
        self._late += lag_ns > LATE_SEND_NS

    def ended(self, verdict: Verdict, latency_ns: Duration) -> None:
        """One is over, so long after it was meant to be sent."""
        self._counts[verdict] += 1
        in_time = not self._slo_ns or latency_ns <= self._slo_ns
        if verdict is Verdict.ANSWERED:
            self._answers.record(latency_ns)
            self._in_time += in_time
        elif verdict is Verdict.REFUSED:
            self._refusals.record(latency_ns)
            self._refused_late += not in_time

    def figures(self, for_ns: Duration) -> Goodput:
        """What was counted, in so long a time."""
        seconds = for_ns / SECOND_NS
        counts = self._counts
        offered = sum(counts.values())
        answers = self._answers.histogram()
        quantiles = (answers.quantile(part) / MILLISECOND_NS for part in (0.5, 0.9, 0.99, 0.999))
        p50, p90, p99, p999 = (round(one, 3) for one in quantiles)

        def rate(count: int) -> float:
            return round(count / seconds, 3) if seconds else 0.0

        return Goodput(
            model=self._model,
            offered=offered,
            answered=counts[Verdict.ANSWERED],
            refused=counts[Verdict.REFUSED],
            failed=counts[Verdict.FAILED],
            expired=counts[Verdict.EXPIRED],
            unsent=counts[Verdict.UNSENT],
            in_time=self._in_time,
            refused_late=self._refused_late,
            late_sends=self._late,
            send_lag_p99_us=round(self._lags.histogram().quantile(0.99) / MICROSECOND_NS, 1),
            slo_ms=round(self._slo_ns / MILLISECOND_NS, 3),
            seconds=round(seconds, 3),
            offered_rps=rate(offered),
            answered_rps=rate(counts[Verdict.ANSWERED]),
            goodput_rps=rate(self._in_time),
            p50_ms=p50,
            p90_ms=p90,
            p99_ms=p99,
            p999_ms=p999,
            max_ms=round(answers.highest / MILLISECOND_NS, 3),
            refusal_p99_ms=round(self._refusals.histogram().quantile(0.99) / MILLISECOND_NS, 3),
        )
