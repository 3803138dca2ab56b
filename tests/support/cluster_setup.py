"""Simulated nodes for tests of the cluster state machine, which follow the rules of real nodes.

A node starts only new attempts of its epoch, repeats reports of ended attempts until one has reached the controller,
and ends all attempts when its lease has ended: at the last allowed instant, which is the worst case for the controller.
"""

from typing import NamedTuple

from cotenant.cluster.model.cluster import Attempt, AttemptReport, GpuReport, JobEnd
from cotenant.cluster.model.event import NodeReport, StartJob, StopJob

WHOLE = 1_000_000


class Report(NamedTuple):
    """A report on its way to the controller."""

    reported: NodeReport
    sent: int


class Run:
    """A running attempt."""

    def __init__(self, order: StartJob) -> None:
        self.attempt = order.attempt
        self.gpus = order.gpus
        self.progress_ppm = order.progress_ppm
        self.rate_ppm = 0

    def report(self, end: JobEnd | None = None) -> AttemptReport:
        return AttemptReport(self.attempt, self.gpus, self.progress_ppm, self.rate_ppm, end)


class FakeNode:
    """A simulated node."""

    def __init__(self, name: str, gpus: tuple[GpuReport, ...], now: int) -> None:
        self.name = name
        self.gpus = gpus
        self.epoch = 1
        self.seen = 0
        self.runs: dict[int, Run] = {}
        self.ended: dict[int, AttemptReport] = {}
        self.orders: list[StartJob | StopJob] = []
        """Orders on their way from the controller, in order."""
        self.acknowledged = now
        """The instant at which the last report that the controller has was sent."""

    def report(self, now: int) -> Report:
        reports = (*(run.report() for run in self.runs.values()), *self.ended.values())
        return Report(NodeReport(self.name, self.epoch, self.gpus, reports, self.seen), now)

    def received(self, report: NodeReport) -> None:
        """Forget the ends that the controller has received."""
        for attempt in report.attempts:
            if attempt.end is not None:
                self.ended.pop(attempt.attempt.number, None)

    def end(self, number: int, end: JobEnd) -> None:
        run = self.runs.pop(number)
        if end is JobEnd.DONE:
            run.progress_ppm = WHOLE
        self.ended[number] = run.report(end)

    def lapse(self, now: int, lease_ns: int, grace_ns: int) -> None:
        """End all attempts when the lease has ended, as late as allowed."""
        if now >= self.acknowledged + lease_ns + grace_ns:
            for number in list(self.runs):
                self.end(number, JobEnd.EVICTED)

    def restart(self, *, survives: bool) -> None:
        """Restart as another process; its attempts survive or not. Orders sent to the old process may still arrive."""
        self.epoch += 1
        self.seen = 0
        if not survives:
            for number in list(self.runs):
                self.end(number, JobEnd.EVICTED)

    def take(self, order: StartJob | StopJob, *, refuse: bool) -> Attempt | None:
        """Carry out an order; return the attempt if one was started."""
        number = order.attempt.number
        is_new = number > self.seen
        self.seen = max(self.seen, number)
        is_known = number in self.runs or number in self.ended
        if isinstance(order, StopJob):
            if number in self.runs:
                self.end(number, JobEnd.EVICTED)
        elif order.epoch == self.epoch and is_new and not is_known:
            if refuse:
                self.ended[number] = Run(order).report(JobEnd.REFUSED)
            else:
                self.runs[number] = Run(order)
                return order.attempt
        return None
