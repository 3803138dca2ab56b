"""The controller is killed before or after any request: no pod is lost or released twice, and gangs stay whole."""

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cotenant.cluster.kubernetes.controller.starts import Phase
from tests.support.kubernetes_cluster import KINDS, TestCluster

EXAMPLES = int(os.environ.get("COTENANT_EXAMPLES", "15"))


def gang_watcher(cluster: TestCluster) -> list[str]:
    """Return a list that gets an entry for each member of a gang that is released before all have claims."""
    violations: list[str] = []

    def check(pod: dict) -> None:
        gang = pod["metadata"]["annotations"].get("cotenant.dev/gang")
        if gang:
            members = [
                uid
                for uid, each in cluster.pods().items()
                if each["metadata"]["annotations"].get("cotenant.dev/gang") == gang
                and each["status"]["phase"] not in {"Succeeded", "Failed"}
            ]
            if set(members) - set(cluster.claims()):
                violations.append(pod["metadata"]["name"])

    cluster.api.on_release = check
    return violations


def scenario() -> tuple[TestCluster, list[str]]:
    """Return a cluster with single pods, a gang over two nodes, and a pod with two GPUs, which fit at once."""
    cluster = TestCluster(nodes=4, gpus=2)
    for _ in range(2):
        cluster.add_pod()
    for _ in range(3):
        cluster.add_pod(gang="train", gang_size="3")
    cluster.add_pod(gpus="2")
    cluster.add_pod(is_gated=False)
    return cluster, gang_watcher(cluster)


def requests_of_a_run_without_crash() -> int:
    cluster, _ = scenario()
    cluster.start_controller()
    cluster.settle(6)
    return len([request for request in cluster.api.requests if request.method != "GET"])


@pytest.mark.parametrize("is_applied", [False, True], ids=["before", "after"])
def test_a_crash_at_every_request_loses_nothing_and_starts_nothing_twice(is_applied: bool) -> None:
    total = requests_of_a_run_without_crash()
    assert total > 12
    for number in range(total):
        cluster, violations = scenario()
        cluster.start_controller()
        sent = 0
        while sent < number and (cluster.outbox or cluster.clock.instant):
            for plural in KINDS:
                cluster.deliver(plural)
            if cluster.outbox:
                cluster.execute()
                sent += 1
            else:
                cluster.advance(1.0)
        if is_applied and cluster.outbox:
            cluster.api.send(cluster.outbox[0][1])
        cluster.kill_controller()
        cluster.start_controller()
        cluster.settle(8)
        gated = [uid for uid in cluster.pods() if cluster.is_gated(uid)]
        assert not gated, f"killed at request {number}"
        assert set(cluster.api.released.values()) == {1}
        assert not violations
        offline = [
            pod for pod in cluster.pods().values() if pod["metadata"]["annotations"]["cotenant.dev/kind"] != "online"
        ]
        assert [pod["status"]["phase"] for pod in offline] == ["Running"] * 6
        assert len(cluster.claims()) == 7
        assert cluster.controller is not None
        cluster.controller.machine.check()


def test_lost_answers_are_no_harm() -> None:
    cluster, violations = scenario()
    cluster.start_controller()
    turn = 0
    for _ in range(60):
        for plural in KINDS:
            cluster.deliver(plural)
        while cluster.outbox:
            turn += 1
            cluster.execute(is_lost=turn % 2 == 0)
        cluster.schedule()
        cluster.report()
        cluster.advance(1.0)
    assert not [uid for uid in cluster.pods() if cluster.is_gated(uid)]
    assert set(cluster.api.released.values()) == {1}
    assert not violations


def test_two_controllers_at_once_release_no_pod_twice() -> None:
    cluster, violations = scenario()
    cluster.start_controller()
    old, old_outbox = cluster.controller, cluster.outbox
    cluster.start_controller()
    while cluster.outbox or old_outbox:
        for box, controller in ((old_outbox, old), (cluster.outbox, cluster.controller)):
            assert controller is not None
            if box:
                ticket, request = box.pop(0)
                controller.answered(ticket, cluster.api.send(request), cluster.clock.instant)
                controller.wake(cluster.clock.instant)
    cluster.settle(15)
    assert not [uid for uid in cluster.pods() if cluster.is_gated(uid)]
    assert set(cluster.api.released.values()) == {1}
    assert not violations


class ControllerHistory(RuleBasedStateMachine):
    """Random orders of pods, ends, reports, watch events, requests, lost answers, and crashes."""

    @initialize(nodes=st.integers(1, 3), gpus=st.integers(1, 3), places=st.integers(1, 3))
    def begin(self, nodes: int, gpus: int, places: int) -> None:
        self.cluster = TestCluster(nodes, gpus, places=places)
        self.violations = gang_watcher(self.cluster)
        self.gangs = 0
        self.uids: list[str] = []
        self.cluster.start_controller()

    @rule(count=st.integers(1, 3), memory=st.sampled_from(["", "4GiB", "14GiB"]))
    def add_pods(self, count: int, memory: str) -> None:
        for _ in range(count):
            self.uids.append(self.cluster.add_pod(memory=memory) if memory else self.cluster.add_pod())

    @rule(size=st.integers(2, 3))
    def add_gang(self, size: int) -> None:
        self.gangs += 1
        for _ in range(size):
            self.uids.append(self.cluster.add_pod(gang=f"gang-{self.gangs}", gang_size=str(size)))

    @rule(data=st.data())
    def delete_pod(self, data: st.DataObject) -> None:
        if self.cluster.pods():
            self.cluster.delete_pod(data.draw(st.sampled_from(sorted(self.cluster.pods()))))

    @rule(data=st.data(), phase=st.sampled_from(["Succeeded", "Failed"]))
    def end_pod(self, data: st.DataObject, phase: str) -> None:
        running = sorted(uid for uid, pod in self.cluster.pods().items() if pod["status"]["phase"] == "Running")
        if running:
            self.cluster.end_pod(data.draw(st.sampled_from(running)), phase)

    @rule(is_on=st.booleans())
    def cordon(self, is_on: bool) -> None:
        self.cluster.change("nodes", ("", "node-0"), lambda node: node["spec"].update(unschedulable=is_on))

    @rule()
    def schedule(self) -> None:
        self.cluster.schedule()

    @rule()
    def report(self) -> None:
        self.cluster.report()

    @rule(seconds=st.floats(0.1, 20.0))
    def advance(self, seconds: float) -> None:
        self.cluster.advance(seconds)

    @rule(plural=st.sampled_from(sorted(KINDS)), limit=st.integers(1, 5))
    def deliver(self, plural: str, limit: int) -> None:
        self.cluster.deliver(plural, limit)

    @rule()
    def relist(self) -> None:
        self.cluster.relist()

    @precondition(lambda self: self.cluster.outbox)
    @rule(is_lost=st.booleans(), index=st.integers(0, 10))
    def execute(self, is_lost: bool, index: int) -> None:
        self.cluster.execute(index % len(self.cluster.outbox), is_lost=is_lost)

    @rule(is_applied=st.booleans())
    def crash(self, is_applied: bool) -> None:
        if is_applied and self.cluster.outbox:
            self.cluster.api.send(self.cluster.outbox[0][1])
        self.cluster.kill_controller()
        self.cluster.start_controller()

    @invariant()
    def nothing_is_released_twice(self) -> None:
        assert set(self.cluster.api.released.values()) <= {1}
        assert not self.violations

    @invariant()
    def the_state_machine_is_consistent(self) -> None:
        controller = self.cluster.controller
        assert controller is not None
        controller.machine.check()
        starts = controller.placement.starts
        assert all(start.claim is not None for start in starts.by_uid.values() if start.phase is Phase.CLAIMED)

    def teardown(self) -> None:
        """Everything that can run runs in the end."""
        if not hasattr(self, "cluster"):
            return
        cluster = self.cluster
        cluster.change("nodes", ("", "node-0"), lambda node: node["spec"].update(unschedulable=False))
        cluster.advance(600.0)  # every delay after a refusal ends
        for _ in range(len(self.uids) + 1):
            cluster.settle(3)
            running = [uid for uid, pod in cluster.pods().items() if pod["status"]["phase"] == "Running"]
            for uid in running:
                cluster.end_pod(uid)
            if not running:
                break
        cluster.settle(12)
        capacity = sum(len(tree["status"]["gpus"]) for tree in cluster.api.objects["gpunodes"].values())
        sizes: dict[str, int] = {}
        for pod in cluster.pods().values():
            if pod["spec"].get("schedulingGates"):
                gang = pod["metadata"]["annotations"].get("cotenant.dev/gang", "")
                sizes[gang] = int(pod["metadata"]["annotations"].get("cotenant.dev/gang-size", "1"))
                present = sum(
                    each["metadata"]["annotations"].get("cotenant.dev/gang") == gang
                    and each["status"]["phase"] not in {"Succeeded", "Failed"}
                    for each in cluster.pods().values()
                )
                assert gang, "a single pod is left waiting"
                assert present < sizes[gang] or sizes[gang] > capacity, "a complete gang is left waiting"


TestControllerHistory = ControllerHistory.TestCase
TestControllerHistory.settings = settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None)
