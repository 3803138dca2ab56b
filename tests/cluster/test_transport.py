"""The port of the Kubernetes controller and that of the simulator: orders may be repeated, and may be late."""

from pathlib import Path
from typing import Protocol

import msgspec
import pytest

from cotenant.cluster.model.cluster import Attempt, JobEnd
from cotenant.cluster.model.event import ClusterEvent, NodeReport, StartJob, StopJob
from cotenant.cluster.ports import ClusterTransport
from cotenant.cluster.sim.cluster import ClusterPlan, SimCluster
from cotenant.cluster.sim.physics.colocated import built_in
from cotenant.cluster.sim.scenario import decode_cluster
from cotenant.runner.sim_loop import SimLoop
from cotenant.simulate.cluster_world import build_cluster
from cotenant.units.instant import SECOND_NS
from tests.support.kubernetes_cluster import TestCluster

SCENARIO = """
kind = "cluster"
seed = 1
duration = "1h"
[online]
gpus = "0%"
[[nodes]]
count = 2
gpus = 2
[[jobs]]
name = "job"
count = 1
work = "50min"
"""
STEP_NS = 60 * SECOND_NS


class Side(Protocol):
    """One implementation with a job that can be started."""

    transport: ClusterTransport

    def order(self) -> StartJob:
        """Return the order to start the job."""
        ...

    def run(self) -> None:
        """Let everything happen that was ordered."""
        ...

    def starts(self) -> int:
        """Return how often the job was started."""
        ...

    def is_running(self) -> bool: ...


class SimSide:
    """Nodes of the simulator."""

    def __init__(self) -> None:
        scenario = decode_cluster(SCENARIO, "test.toml")
        physics, self._loop = built_in(), SimLoop()
        setup = build_cluster(scenario, Path("test"), physics, "")
        plan = ClusterPlan(
            nodes=setup.nodes,
            jobs=setup.jobs,
            online=scenario.online,
            seed=1,
            report_ns=STEP_NS,
            span_ns=3600 * SECOND_NS,
            mode="space",
            checkpoint_ns=STEP_NS,
            lease_ns=1 << 60,
            saves=True,
        )
        self._reports: dict[str, NodeReport] = {}
        self._sim = SimCluster(plan, physics, self._loop, self._receive, lambda: 0)
        self.transport: ClusterTransport = self._sim
        self._spec = setup.jobs[0].spec
        self._sim.submit(0, 0)
        self._loop.at(0, self._sim.step, None)
        self.run()

    def _receive(self, event: ClusterEvent, now: int) -> bool:
        del now
        if isinstance(event, NodeReport):
            self._reports[event.node] = event
        return True

    def order(self) -> StartJob:
        node = next(iter(self._reports.values()))
        return StartJob(node.node, Attempt(self._spec.name, 1), (1,), 1_000_000, self._spec, 0, node.epoch)

    def run(self) -> None:
        self._loop.run(self._loop.now() + STEP_NS)

    def starts(self) -> int:
        return int(self._sim.sim_jobs.attempts.sum())

    def is_running(self) -> bool:
        attempts = [attempt for node in self._reports.values() for attempt in node.attempts]
        assert all(attempt.end in (None, JobEnd.EVICTED) for attempt in attempts)
        return any(attempt.end is None for attempt in attempts)


class KubernetesSide:
    """The controller of Kubernetes with an API, a scheduler and kubelets in memory."""

    def __init__(self) -> None:
        self._cluster = TestCluster(nodes=1)
        self._cluster.start_controller()
        self._uid = self._cluster.add_pod()
        self._cluster.deliver("pods")
        assert self._cluster.controller is not None
        self._machine = self._cluster.controller.machine
        self.transport: ClusterTransport = self._cluster.controller.placement.starts
        self._cluster.advance(1.0)  # a round, which orders the start; nothing was sent yet

    def order(self) -> StartJob:
        (job,) = self._machine.job_table.jobs.values()
        assert job.node is not None
        return self._machine.order(job, job.node)

    def run(self) -> None:
        self._cluster.settle(10)

    def starts(self) -> int:
        assert self._cluster.controller is not None
        claims = self._cluster.claims()
        assert set(claims) <= {self._uid}
        return self._cluster.controller.placement.starts.released

    def is_running(self) -> bool:
        pod = self._cluster.pods().get(self._uid)
        return pod is not None and pod["status"]["phase"] == "Running"


@pytest.fixture(params=[SimSide, KubernetesSide], ids=["sim", "live"])
def side(request: pytest.FixtureRequest) -> Side:
    made: Side = request.param()
    return made


def stop_of(order: StartJob) -> StopJob:
    return StopJob(order.node, order.attempt, "a test stops it")


def test_a_repeated_order_starts_the_job_once(side: Side) -> None:
    order = side.order()
    side.transport.start(order)
    side.transport.start(order)
    side.run()
    side.transport.start(order)
    side.run()
    assert side.is_running()
    assert side.starts() == 1


def test_a_stop_ends_the_attempt_and_a_late_start_does_not_revive_it(side: Side) -> None:
    order = side.order()
    side.transport.start(order)
    side.run()
    side.transport.stop(stop_of(order))
    side.transport.stop(stop_of(order))
    side.run()
    assert not side.is_running()
    side.transport.start(order)
    side.run()
    assert not side.is_running()
    assert side.starts() == 1


def test_a_stop_of_another_attempt_has_no_effect(side: Side) -> None:
    order = side.order()
    side.transport.stop(StopJob(order.node, Attempt("unknown", 0), "nothing is called so"))
    side.transport.start(order)
    side.run()
    earlier = msgspec.structs.replace(order.attempt, number=order.attempt.number - 1)
    side.transport.stop(StopJob(order.node, earlier, "it is an earlier attempt"))
    side.run()
    assert side.is_running()
    assert side.starts() == 1
