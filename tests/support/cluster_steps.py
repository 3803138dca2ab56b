"""A cluster state machine for tests that receives events one after the other."""

from typing import TypeVar

import msgspec

from cotenant.cluster.model.cluster import (
    AttemptReport,
    ClusterSettings,
    GpuReport,
    JobEnd,
    JobReport,
    JobSpec,
    JobState,
    OnlineUse,
)
from cotenant.cluster.model.event import (
    ClusterAction,
    ClusterEvent,
    ClusterStarted,
    ClusterWoke,
    JobSubmitted,
    NodeReport,
    StartJob,
)
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.predict.usage import TaskUse
from cotenant.units.instant import SECOND_NS
from tests.support.cluster_log import describe_cluster_action, describe_cluster_turn

T = TypeVar("T", bound=msgspec.Struct)
GIB = 1 << 30
GPU = GpuReport("V100", 16 * GIB, 16 * GIB, 1_000_000)
BUSY = OnlineUse("web", TaskUse(900_000, ((900_000, 1_000_000),), 800_000, 200_000, active_ppm=900_000))
ROUND, LEASE, GRACE = 10, 20, 5


def settings(**changed: object) -> ClusterSettings:
    fields = {"round_ns": ROUND * SECOND_NS, "lease_ns": LEASE * SECOND_NS, "grace_ns": GRACE * SECOND_NS, **changed}
    return ClusterSettings(**fields)  # type: ignore[arg-type]


class ClusterScript:
    """A cluster state machine, and a description of each of its turns."""

    def __init__(self, **changed: object) -> None:
        self.machine = ClusterMachine()
        self.now_s = 0
        self.lines: list[str] = []
        self.reported: dict[str, NodeReport] = {}
        self.tell(ClusterStarted(settings(**changed)))

    def tell(self, event: ClusterEvent) -> list[ClusterAction]:
        actions = self.machine.handle(event, now=self.now_s * SECOND_NS)
        self.machine.check()
        self.lines.append(describe_cluster_turn(self.now_s * SECOND_NS, event, actions))
        return actions

    def said(self, event: ClusterEvent) -> list[str]:
        return [describe_cluster_action(action) for action in self.tell(event)]

    def until(self, second: int) -> list[ClusterAction]:
        """Advance to this second and wake the machine when it requests it."""
        actions: list[ClusterAction] = []
        while (due := self.machine.next_wakeup()) is not None and due <= second * SECOND_NS:
            self.now_s = max(self.now_s, -(-due // SECOND_NS))
            actions += self.tell(ClusterWoke())
        self.now_s = second
        return actions

    def join(self, name: str, *gpus: GpuReport, epoch: int = 1) -> list[ClusterAction]:
        self.reported[name] = NodeReport(name, epoch, gpus or (GPU,))
        return self.tell(self.reported[name])

    def report(self, name: str, *attempts: AttemptReport, seen: int = 0) -> list[ClusterAction]:
        last = self.reported[name]
        return self.tell(NodeReport(name, last.epoch, last.gpus, attempts, seen))

    def submit(self, name: str, user: str = "ann", /, **fields: object) -> JobSpec:
        spec = JobSpec(name, user, **fields)  # type: ignore[arg-type]
        self.tell(JobSubmitted(spec))
        return spec

    def job(self, name: str) -> JobReport:
        reported = self.machine.job(name)
        assert reported is not None
        return reported

    def state(self, name: str) -> JobState:
        return self.job(name).state


def runs(order: ClusterAction, progress_ppm: int = 0, end: JobEnd | None = None, rate_ppm: int = 0) -> AttemptReport:
    """Return a node's report of an attempt that it was ordered to start."""
    assert isinstance(order, StartJob)
    return AttemptReport(order.attempt, order.gpus, progress_ppm, rate_ppm, end)


def starts(actions: list[ClusterAction]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the node and the GPUs of each started job."""
    return {action.attempt.job: (action.node, action.gpus) for action in actions if isinstance(action, StartJob)}


def replaced(value: T, **changed: object) -> T:
    """Return the value with others in these fields."""
    return msgspec.structs.replace(value, **changed)
