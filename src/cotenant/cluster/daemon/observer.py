"""Log lines of the cluster controller: requests, and what happened to jobs; reports are not logged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from cotenant.cluster.model.cluster import Attempt
from cotenant.cluster.model.event import (
    AckEnd,
    Answer,
    ClusterAction,
    ClusterEvent,
    JobCancelled,
    JobSubmitted,
    NodeDrained,
    NodeGone,
    NodeReport,
    QuotaSet,
    StartJob,
    StopJob,
)
from cotenant.units.instant import Instant

_REMEMBERED: Final = 10_000


class ControllerObserver:
    """Observes each turn after it was carried out."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Say it there."""
        self._say = say
        self._orders: dict[str, None] = {}  # the latest: the machine repeats itself until a node has heard it

    def saw(self, now: Instant, event: ClusterEvent, actions: list[ClusterAction]) -> None:
        """One turn."""
        del now  # nothing that is said here depends on it
        for line in _happened(event, actions):
            self._say(line)
        for line in _ordered(actions):
            if line not in self._orders:
                self._say(line)
            self._orders.pop(line, None)
            self._orders[line] = None
            if len(self._orders) > _REMEMBERED:
                del self._orders[next(iter(self._orders))]


def _happened(event: ClusterEvent, actions: list[ClusterAction]) -> Iterator[str]:
    """What the controller was told, as far as people care."""
    refused = next((action.reject for action in actions if isinstance(action, Answer) and action.reject), None)
    match event:
        case JobSubmitted(spec=spec):
            outcome = f": refused, {refused.detail}" if refused else ""
            yield f"{spec.user} submitted {spec.name}{outcome}"
        case JobCancelled(job=job) if refused is None:
            yield f"{job} was cancelled"
        case NodeDrained(node=node, on=on) if refused is None:
            yield f"node {node} {'is drained' if on else 'takes jobs again'}"
        case QuotaSet(quota=quota):
            yield f"{quota.user} may hold {quota.gpus} GPUs at once, weight {quota.weight}"
        case NodeGone(node=node):
            yield f"node {node} left"
        case NodeReport(attempts=attempts):
            ended = {report.attempt: report for report in attempts if report.end is not None}
            for action in actions:
                if isinstance(action, AckEnd) and (report := ended.get(action.attempt)) and report.end is not None:
                    why = f" ({report.detail})" if report.detail else ""
                    yield f"{_describe_attempt(action.attempt)} on {action.node} is {report.end.value}{why}"


def _ordered(actions: list[ClusterAction]) -> Iterator[str]:
    """What it wants done."""
    for action in actions:
        match action:
            case StartJob(node=node, attempt=attempt, gpus=gpus):
                yield f"{_describe_attempt(attempt)} starts on {node}, GPU {', '.join(map(str, gpus))}"
            case StopJob(node=node, attempt=attempt, why=why):
                yield f"{_describe_attempt(attempt)} on {node} is to end: {why}"


def _describe_attempt(attempt: Attempt) -> str:
    return f"attempt {attempt.number} at {attempt.job}"
