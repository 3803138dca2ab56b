"""Goodput of a load test: requests answered within their objective, and the outcomes of all others."""

from __future__ import annotations

import enum

import msgspec

from cotenant.units.histogram import Recorder
from cotenant.units.instant import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS, Duration

LATE_SEND_NS = MILLISECOND_NS
"""A request sent later than this counts as a late send: the load generator could not keep up."""


class RequestOutcome(enum.Enum):
    """How one request ended."""

    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"
    EXPIRED = "expired"
    UNSENT = "unsent"


class Goodput(msgspec.Struct, frozen=True):
    """Results for one model. Each scheduled request is in exactly one of the five counts after `offered`."""

    model: str
    offered: int
    answered: int
    refused: int
    failed: int
    """Failed in the server or because of its connection."""
    expired: int
    """The client's timeout passed."""
    unsent: int
    """No connection was free until the client's timeout passed."""
    in_time: int
    """Answered within the objective, counted from the scheduled send time."""
    refused_late: int
    """Rejected after the objective had already passed."""
    late_sends: int
    """Sent more than `LATE_SEND_NS` after the scheduled time."""
    send_lag_p99_us: float
    slo_ms: float
    """Zero: no objective; every answer is in time."""
    seconds: float
    offered_rps: float
    answered_rps: float
    goodput_rps: float
    p50_ms: float
    """This and the next four: latency of answered requests."""
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    refusal_p99_ms: float

    @property
    def admitted(self) -> int:
        """Requests that were not rejected within their objective."""
        return self.answered + self.failed + self.expired + self.refused_late

    @property
    def attainment(self) -> float:
        """Fraction of the admitted requests that were in time; 1 if none was admitted."""
        return self.in_time / self.admitted if self.admitted else 1.0


class GoodputRecorder:
    """Counts outcomes during a load test, in constant memory."""

    __slots__ = ("_answers", "_counts", "_in_time", "_lags", "_late", "_model", "_refusals", "_refused_late", "_slo_ns")

    def __init__(self, model: str, slo_ns: Duration) -> None:
        """Start at zero; an objective of zero means none."""
        self._model = model
        self._slo_ns = slo_ns
        self._counts = dict.fromkeys(RequestOutcome, 0)
        self._answers = Recorder()
        self._refusals = Recorder()
        self._lags = Recorder()
        self._in_time = 0
        self._refused_late = 0
        self._late = 0

    def record_send(self, lag_ns: Duration) -> None:
        """Count a send with its delay after the scheduled time."""
        self._lags.record(lag_ns)
        self._late += lag_ns > LATE_SEND_NS

    def record_end(self, outcome: RequestOutcome, latency_ns: Duration) -> None:
        """Count an outcome with its delay after the scheduled send time."""
        self._counts[outcome] += 1
        in_time = not self._slo_ns or latency_ns <= self._slo_ns
        if outcome is RequestOutcome.ANSWERED:
            self._answers.record(latency_ns)
            self._in_time += in_time
        elif outcome is RequestOutcome.REFUSED:
            self._refusals.record(latency_ns)
            self._refused_late += not in_time

    def goodput(self, for_ns: Duration) -> Goodput:
        """Return the results over a period."""
        seconds = for_ns / SECOND_NS
        counts = self._counts
        offered = sum(counts.values())
        answers = self._answers.histogram()
        quantiles = (answers.quantile(part) / MILLISECOND_NS for part in (0.5, 0.9, 0.99, 0.999))
        p50, p90, p99, p999 = (round(quantile, 3) for quantile in quantiles)

        def rate(count: int) -> float:
            return round(count / seconds, 3) if seconds else 0.0

        return Goodput(
            model=self._model,
            offered=offered,
            answered=counts[RequestOutcome.ANSWERED],
            refused=counts[RequestOutcome.REFUSED],
            failed=counts[RequestOutcome.FAILED],
            expired=counts[RequestOutcome.EXPIRED],
            unsent=counts[RequestOutcome.UNSENT],
            in_time=self._in_time,
            refused_late=self._refused_late,
            late_sends=self._late,
            send_lag_p99_us=round(self._lags.histogram().quantile(0.99) / MICROSECOND_NS, 1),
            slo_ms=round(self._slo_ns / MILLISECOND_NS, 3),
            seconds=round(seconds, 3),
            offered_rps=rate(offered),
            answered_rps=rate(counts[RequestOutcome.ANSWERED]),
            goodput_rps=rate(self._in_time),
            p50_ms=p50,
            p90_ms=p90,
            p99_ms=p99,
            p999_ms=p999,
            max_ms=round(answers.highest / MILLISECOND_NS, 3),
            refusal_p99_ms=round(self._refusals.histogram().quantile(0.99) / MILLISECOND_NS, 3),
        )
