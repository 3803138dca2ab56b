"""Tests of the cluster state machine against simulated nodes, with random events."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from cotenant.cluster.model.cluster import (
    ClusterSettings,
    GpuCondition,
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
    JobCancelled,
    JobSubmitted,
    NodeDrained,
    NodeGone,
    NodeReport,
    StartJob,
)
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.predict.usage import TaskUse
from cotenant.units.instant import SECOND_NS
from tests.support.cluster_setup import FakeNode, Report
from tests.support.cluster_steps import replaced
from tests.support.effort import examples

GIB = 1 << 30
ROUND, LEASE, GRACE = 10 * SECOND_NS, 20 * SECOND_NS, 7 * SECOND_NS
USES = (None, TaskUse(900_000, ((500_000, 1_000_000),), 200_000), TaskUse(300_000, ((1_000_000, 1_000_000),)))
SERVED = TaskUse(500_000, ((400_000, 1_000_000),), 100_000, active_ppm=300_000)

gpus = st.builds(
    GpuReport,
    st.sampled_from(("V100", "T4")),
    st.just(16 * GIB),
    st.sampled_from((4 * GIB, 12 * GIB, 16 * GIB)),
    st.sampled_from((0, 300_000, 700_000, 1_000_000)),
    st.sampled_from((GpuCondition.HEALTHY, GpuCondition.HEALTHY, GpuCondition.OVERLIMIT, GpuCondition.UNHEALTHY)),
    st.sampled_from(((), (OnlineUse("web", SERVED),), (OnlineUse("web", SERVED), OnlineUse("ads", SERVED)))),
    st.sampled_from((1, 1, 2, 3)),
)
GOOD = GpuReport("V100", 16 * GIB, 16 * GIB, 1_000_000)
specs = st.builds(
    JobSpec,
    st.sampled_from([f"job{number}" for number in range(24)]),
    st.sampled_from(("ann", "bob")),
    st.sampled_from(USES),
    st.sampled_from(("", "bert")),
    st.sampled_from((0, 4 * GIB, 10 * GIB)),
    st.sampled_from((1, 1, 1, 2)),
    st.sampled_from(((), ("V100",), ("T4", "V100"))),
    st.sampled_from((0, 0, 500_000)),
    st.sampled_from((0, 0, 5)),
    st.sampled_from(((), (), ("ads",), ("solo",))),
    st.sampled_from(("", "", "solo")),
    retries=st.sampled_from((0, 2)),
)


class ClusterLife(RuleBasedStateMachine):
    """Drives the state machine, copies restored from its snapshots, and the true state of the nodes."""

    @initialize(
        remember=st.sampled_from((6, 100)),
        fair=st.booleans(),
        place=st.sampled_from(("match", "match", "first-fit")),
        count=st.integers(1, 3),
    )
    def begin(self, remember: int, fair: bool, place: str, count: int) -> None:
        self.now = 0
        self.machines = [ClusterMachine()]
        self.settings = ClusterSettings(
            ROUND, LEASE, GRACE, place, 50_000, fair=fair, remember=remember, slowdown_limit_ppm=10_000_000
        )
        self.world: dict[str, FakeNode] = {}
        self.mail: list[Report] = []
        self.reported: dict[str, NodeReport] = {}
        self.drained: set[str] = set()
        self.submitted: dict[str, JobSpec] = {}
        self.last_reports: dict[str, JobReport] = {}
        self.started: set[int] = set()
        self.tell(ClusterStarted(self.settings))
        for number in range(count):
            self._join(f"node{number}", (replaced(GOOD, places=number + 1),) * (number % 2 + 1))

    # -- events, and checks of the resulting actions ----------------------------------------------------------------

    def tell(self, event: ClusterEvent) -> list[ClusterAction]:
        actions, *others = [machine.handle(event, now=self.now) for machine in self.machines]
        assert all(other == actions for other in others)
        for machine in self.machines:
            machine.check()
        for action in actions:
            if isinstance(action, StartJob):
                self._check_start(action)
            if action.node in self.world:
                self.world[action.node].orders.append(action)
        self._check_jobs()
        return actions

    def _check_start(self, order: StartJob) -> None:
        """Check that a new order satisfies every constraint, by the last reports of the nodes."""
        if order.attempt.number in self.started:
            return
        assert order.attempt.number > max(self.started, default=0)
        self.started.add(order.attempt.number)
        spec, reported = order.spec, self.reported[order.node]
        assert self.submitted[spec.name] == spec
        assert order.node not in self.drained
        assert len(set(order.gpus)) == len(order.gpus) == spec.gpus
        for gpu in order.gpus:
            report = reported.gpus[gpu]
            assert report.condition is GpuCondition.HEALTHY
            assert 0 < order.share_ppm <= report.offer_ppm
            assert spec.min_share_ppm <= report.offer_ppm
            assert spec.memory_bytes <= report.free_bytes
            assert not spec.types or report.type in spec.types
            assert not any(tenant.name in spec.avoid for tenant in report.online)
        jobs = list(self.machines[0].jobs())
        for gpu in order.gpus:
            report = reported.gpus[gpu]
            others = [job.spec for job in jobs if job.node == order.node and gpu in job.gpus]
            others = [other for other in others if other.name != spec.name]
            assert len(others) < report.places
            assert not others or all(one.memory_bytes for one in (spec, *others))
            assert spec.memory_bytes + sum(other.memory_bytes for other in others) <= report.free_bytes
        co_runners = [job.spec for job in jobs if job.node == order.node and job.spec.name != spec.name]
        assert not any(
            (co_runner.group or "-") in spec.avoid or (spec.group or "-") in co_runner.avoid for co_runner in co_runners
        )

    def _check_jobs(self) -> None:
        """Check that each submitted job exists once until it is forgotten after its end; progress never decreases."""
        machine = self.machines[0]
        current = {reported.spec.name: reported for reported in machine.jobs()}
        for name, reported in current.items():
            previous = self.last_reports.get(name)
            assert reported.spec == self.submitted[name]
            if previous is not None:
                assert reported.progress_ppm >= previous.progress_ppm
                assert reported.attempt >= previous.attempt
                assert not previous.state.is_over or reported.state is previous.state
        for name, reported in self.last_reports.items():
            assert name in current or reported.state.is_over
        for name in set(self.submitted) - set(current):
            del self.submitted[name]
        self.last_reports = current

    # -- time, and messages ----------------------------------------------------------------------------------------

    @rule(step=st.sampled_from((1, 3, 10, 25, 60)))
    def pass_time(self, step: int) -> None:
        end = self.now + step * SECOND_NS
        while True:
            due = self.machines[0].next_wakeup()
            nodes = [node.acknowledged + LEASE + GRACE for node in self.world.values()]
            upcoming = [
                max(self.now, instant) for instant in [*([] if due is None else [due]), *nodes] if instant > self.now
            ]
            if due is not None and due <= self.now:
                self.tell(ClusterWoke())
                continue
            if not upcoming or min(upcoming) > end:
                break
            self._advance_to(min(upcoming))
        self._advance_to(end)

    def _advance_to(self, instant: int) -> None:
        self.now = instant
        for node in self.world.values():
            node.lapse(self.now, LEASE, GRACE)

    def _join(self, name: str, devices: tuple[GpuReport, ...]) -> None:
        self.world[name] = FakeNode(name, devices, self.now)
        self.send(name)
        self._deliver(self.mail.pop(), heard=True)

    def nodes(self) -> list[str]:
        return list(self.world)

    def send(self, name: str) -> None:
        self.mail.append(self.world[name].report(self.now))

    def _deliver(self, report: Report, *, heard: bool) -> None:
        name = report.reported.node
        if name not in self.world:
            return  # a node that left for good sends no more reports
        last = self.reported.get(name)
        if last is None or report.reported.epoch >= last.epoch or self._is_silent(name):
            self.reported[name] = report.reported
        self.tell(report.reported)
        if heard:
            node = self.world[name]
            node.acknowledged = max(node.acknowledged, report.sent)
            node.received(report.reported)

    def _is_silent(self, name: str) -> bool:
        node = self.machines[0].inventory.nodes[name]
        return node.is_silent and not node.busy

    @rule(data=st.data())
    def report(self, data: Any) -> None:
        self.send(data.draw(st.sampled_from(self.nodes())))

    @precondition(lambda self: self.mail)
    @rule(data=st.data(), again=st.booleans(), heard=st.booleans())
    def deliver(self, data: Any, again: bool, heard: bool) -> None:
        """Any that is on its way, late or not; perhaps once more later; the controller's answer may be lost."""
        place = data.draw(st.integers(0, len(self.mail) - 1))
        self._deliver(self.mail[place] if again else self.mail.pop(place), heard=heard)

    @rule(data=st.data())
    def report_now(self, data: Any) -> None:
        self.report(data)
        self._deliver(self.mail.pop(), heard=True)

    @rule(data=st.data(), lost=st.booleans(), refuse=st.booleans())
    def order(self, data: Any, lost: bool, refuse: bool) -> None:
        """The next order arrives, or all that is on its way is lost with the connection."""
        name = data.draw(st.sampled_from(self.nodes()))
        if lost and not refuse:
            self.world[name].orders.clear()
        self._take_orders(name, 1, refuse=refuse)

    @rule(data=st.data())
    def orders(self, data: Any) -> None:
        self._take_orders(data.draw(st.sampled_from(self.nodes())), 100, refuse=False)

    def _take_orders(self, name: str, limit: int, *, refuse: bool) -> None:
        node = self.world[name]
        for order in node.orders[:limit]:
            attempt = node.take(order, refuse=refuse)
            if attempt is not None:
                self._check_runs_once(name, attempt.job)
        del node.orders[:limit]

    def _check_runs_once(self, name: str, job: str) -> None:
        """Check that the job runs on one node only, and that no GPU there has two jobs."""
        everywhere = [(node.name, run) for node in self.world.values() for run in node.runs.values()]
        assert [node_name for node_name, run in everywhere if run.attempt.job == job] == [name]
        held = [gpu for node_name, run in everywhere if node_name == name for gpu in run.gpus]
        assert len(set(held)) == len(held)

    # -- nodes -----------------------------------------------------------------------------------------------------

    @rule(data=st.data(), survives=st.booleans())
    def restart_node(self, data: Any, survives: bool) -> None:
        self.world[data.draw(st.sampled_from(self.nodes()))].restart(survives=survives)

    @rule(data=st.data())
    def change_gpus(self, data: Any) -> None:
        node = self.world[data.draw(st.sampled_from(self.nodes()))]
        node.gpus = tuple(data.draw(gpus) for _ in node.gpus)

    @precondition(lambda self: len(self.world) < 4)
    @rule(devices=st.lists(gpus, min_size=1, max_size=3))
    def join(self, devices: list[GpuReport]) -> None:
        number = next(number for number in range(99) if f"node{number}" not in self.reported)
        self._join(f"node{number}", tuple(devices))

    @precondition(lambda self: len(self.world) > 1)
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        """Let a node leave gracefully: its attempts have ended and their ends were reported."""
        name = data.draw(st.sampled_from(self.nodes()))
        node = self.world[name]
        for number in list(node.runs):
            node.end(number, JobEnd.EVICTED)
        node.orders.clear()
        self.send(name)
        self._deliver(self.mail.pop(), heard=True)
        self.tell(NodeGone(name))
        del self.world[name]
        self.drained.discard(name)

    @rule(data=st.data(), on=st.booleans())
    def drain(self, data: Any, on: bool) -> None:
        name = data.draw(st.sampled_from([*self.nodes(), "nobody"]))
        actions = self.tell(NodeDrained(name, on))
        assert name in self.world or not actions
        if name in self.world:
            (self.drained.add if on else self.drained.discard)(name)

    @rule(data=st.data(), end=st.sampled_from(list(JobEnd)), progress=st.integers(0, 400_000))
    def progress_or_end(self, data: Any, end: JobEnd, progress: int) -> None:
        """Let a running attempt progress or end."""
        running = [(node, number) for node in self.world.values() for number in node.runs]
        if running:
            node, number = data.draw(st.sampled_from(running))
            run = node.runs[number]
            run.progress_ppm = min(1_000_000, run.progress_ppm + progress)
            run.rate_ppm = progress * 2
            if progress < 200_000:
                node.end(number, end)

    # -- users and the controller ------------------------------------------------------------------------------------

    @rule(spec=specs)
    def submit(self, spec: JobSpec) -> None:
        self.submitted.setdefault(spec.name, spec)  # a taken name is ignored
        assert self.tell(JobSubmitted(spec)) == []

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def submit_again(self, data: Any) -> None:
        spec = data.draw(st.sampled_from([self.submitted[name] for name in sorted(self.submitted)]))
        assert self.tell(JobSubmitted(spec)) == []

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.submitted)))
        was_over = self.last_reports[name].state.is_over
        self.tell(JobCancelled(name))
        reported = self.machines[0].job(name)
        assert reported == self.last_reports.get(name)
        if reported is not None and not was_over:
            assert reported.state in {JobState.CANCELLED, JobState.STOPPING, JobState.LOST}

    @rule()
    def restart_controller(self) -> None:
        """Restart the controller from what is stored of its state; orders in transit are lost."""
        stored = self.machines[0].snapshot()
        self.machines = [ClusterMachine()]
        self.machines[0].handle(stored, now=self.now)
        assert self.machines[0].snapshot() == stored
        for node in self.world.values():
            node.orders.clear()
        self.tell(ClusterStarted(self.settings))

    @precondition(lambda self: len(self.machines) < 3)
    @rule()
    def twin(self) -> None:
        """Add a machine restored from the snapshot, which must decide the same from then on."""
        head = self.machines[0].snapshot()
        copy = ClusterMachine()
        copy.handle(head, now=self.now)
        assert copy.snapshot() == head
        self.machines.append(copy)

    def teardown(self) -> None:
        """Check that every job ends when no more faults occur."""
        if not hasattr(self, "world"):
            return
        self._join("last", (GOOD, GOOD))
        for node in self.world.values():
            self.drained.discard(node.name)
            self.tell(NodeDrained(node.name, on=False))
            node.restart(survives=True)
            node.gpus = (GOOD,) * len(node.gpus)
        for _ in range(60):
            if all(reported.state.is_over for reported in self.machines[0].jobs()):
                return
            for name in self.nodes():
                self._take_orders(name, 100, refuse=False)
                for number in list(self.world[name].runs):
                    self.world[name].end(number, JobEnd.DONE)
                self.send(name)
                self._deliver(self.mail.pop(), heard=True)
            self.pass_time(3)
        stuck = [reported for reported in self.machines[0].jobs() if not reported.state.is_over]
        raise AssertionError([*stuck, *self.machines[0].snapshot().nodes])


TestClusterLife = ClusterLife.TestCase
TestClusterLife.settings = settings(max_examples=examples(25, 400), stateful_step_count=60, deadline=None)
