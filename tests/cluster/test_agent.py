"""Tests of the agent of a node."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from cotenant.cluster.config_agent import AgentConfig
from cotenant.cluster.daemon import agent as agent_module
from cotenant.cluster.daemon import agent_main as cluster_agent
from cotenant.cluster.daemon import attempts as attempts_module
from cotenant.cluster.daemon.agent import Agent, Site, next_epoch
from cotenant.cluster.daemon.attempt_record import MARK, End, Record, SupervisorProcess, read_lease
from cotenant.cluster.daemon.attempts import Attempts
from cotenant.cluster.daemon.launch import Launch, tenant_name
from cotenant.cluster.daemon.offers import Offers, seen_use, type_of
from cotenant.cluster.model.cluster import Attempt, GpuCondition, JobEnd, JobSpec
from cotenant.cluster.model.event import AckEnd, NodeReport, StartJob, StopJob
from cotenant.errors import WorldError
from cotenant.gate.activity import GateCounts
from cotenant.gate.grant import Grant, Kind
from cotenant.gate.rules import GateRules
from cotenant.node import wire
from cotenant.node.directories import Directories
from cotenant.node.model.control import OnlineShareSetpoint
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import GpuWatch, Health
from cotenant.node.model.tenant import NAME_LIMIT, NAME_PATTERN, Tenant, TenantSpec, TenantView
from cotenant.predict.usage import TaskUse
from cotenant.units.histogram import Recorder
from cotenant.units.instant import SECOND_NS
from cotenant.units.share import WHOLE_PPM

pytestmark = pytest.mark.live

GIB = 1 << 30
GPUS = [
    Gpu("soft:0 Tesla V100-SXM2-16GB", 16 * GIB, ("soft:0", "GPU-1")),
    Gpu("soft:1 Tesla V100-SXM2-16GB", 16 * GIB, ("soft:1", "GPU-2")),
]


class FakeController:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.leased_until: int | None = None
        self.lease_ns = 60 * SECOND_NS
        self.grace_ns = 30 * SECOND_NS
        self.reported: list[NodeReport] = []

    def tell(self, report: NodeReport) -> None:
        self.reported.append(report)


class FakeClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at = 1000 * SECOND_NS

    def now(self) -> int:
        return self.at


class AgentSetup:
    """An agent over a directory, with a fake controller and node; supervisors are not started."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.clock = FakeClock()
        self.roll: wire.TenantList | None = roll_of()
        self.kept: list[Path] = []
        self.stopped: list[int] = []
        monkeypatch.setattr(agent_module, "list_tenants", self._tenants_of)
        monkeypatch.setattr(attempts_module, "is_alive", lambda supervisor: True)
        monkeypatch.setattr(subprocess, "Popen", self._popen)
        monkeypatch.setattr(os, "kill", lambda pid, number: self.stopped.append(pid))
        self.controller = FakeController()
        self.agent = self.start()

    def start(self) -> Agent:
        """An agent, the first or one after a kill."""
        self.epoch = next_epoch(self.home / "epoch", 1)
        self.attempts = Attempts(self.home / "attempts", self.home / "lease", lambda text: None)
        site = Site("n1", self.epoch, Directories(self.home, self.home), self.home / "lease", 5 * SECOND_NS)
        launch = Launch(["--runtime-dir", "/run/x"], 20 * SECOND_NS)
        self.agent = Agent(
            site, self.attempts, Offers(lambda: wire.Activity(wire.VERSION, [])), launch, self.clock, lambda text: None
        )
        self.agent.bind(self.controller)
        return self.agent

    def _tenants_of(self, directories: Directories, timeout_s: float) -> wire.TenantList:
        if self.roll is None:
            raise WorldError("no node answers")
        return self.roll

    def _popen(self, command: list[str], **given: object) -> object:
        record = Record(Path(command[-2]))
        self.kept.append(record.path)
        (record.path / "supervisor").write_bytes(msgspec.json.encode(SupervisorProcess("boot", 4242, 1)))

        class Running:
            def poll(self) -> None:
                return None

        return Running()

    def tick(self, seconds: float = 1.0) -> NodeReport:
        """Let time pass, and see the report that is due by then."""
        self.clock.at += int(seconds * SECOND_NS)
        due = self.agent.next_wakeup()
        assert due is not None
        if self.clock.at >= due:
            self.agent.wake(self.clock.at)
        return self.controller.reported[-1]

    def order(self, number: int, gpus: tuple[int, ...] = (0,), **given: object) -> StartJob:
        spec = JobSpec(**{"name": f"job/{number}", "user": "u", "command": ("train", "--x"), **given})  # type: ignore[arg-type]
        return StartJob("n1", Attempt(spec.name, number), gpus, WHOLE_PPM, spec, 250_000, self.epoch)


def tenant(name: str, kind: Kind, gpu: int, *, share_ppm: int = 0, memory: int = 0, slo_ns: int = 0) -> TenantView:
    lease_times = Grant(1, 1, kind, 2, share_ppm, memory, slo_ns, gpu)
    spec = TenantSpec(kind, 2, name, slo_ns, memory, share_ppm, use=TaskUse(duty_ppm=300_000))
    return TenantView(Tenant(name, lease_times, spec, 10, 10, 0), connected=True)


def roll_of(
    *tenants: TenantView, health: Health = Health.HEALTHY, setpoints: list[OnlineShareSetpoint] | None = None
) -> wire.TenantList:
    watches = [GpuWatch(health), GpuWatch(Health.INIT)]
    latencies = Recorder().histogram()
    return wire.TenantList(
        wire.VERSION, "1", 1, list(tenants), [], 0, 0, 8, GPUS, latencies, GateRules(), watches, setpoints or []
    )


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentSetup:
    return AgentSetup(tmp_path, monkeypatch)


def test_report_contains_offers_of_the_node(harness: AgentSetup) -> None:
    one, two = harness.tick().gpus
    assert (one.type, one.memory_bytes, one.free_bytes, one.offer_ppm) == ("V100", 16 * GIB, 16 * GIB, WHOLE_PPM)
    served = tenant("web", Kind.ONLINE, 0, share_ppm=300_000, memory=4 * GIB, slo_ns=50)
    harness.roll = roll_of(served, health=Health.UNHEALTHY, setpoints=[OnlineShareSetpoint(0, 980_000)])
    reported = harness.tick(6).gpus
    assert (reported[0].free_bytes, reported[0].offer_ppm, reported[0].condition) == (
        12 * GIB,
        700_000,
        GpuCondition.UNHEALTHY,
    )
    [use] = reported[0].online
    assert (use.name, use.slo_ns, use.use.duty_ppm) == ("web", 50, 300_000)
    assert reported[1] is two, "what did not change is the same object"


def test_gpu_used_outside_the_cluster_offers_nothing(harness: AgentSetup) -> None:
    harness.agent.take(harness.order(3))
    ours = tenant_name(Attempt("job/3", 3), 0, 1)
    harness.roll = roll_of(tenant(ours, Kind.OFFLINE, 0, memory=GIB), tenant("mine", Kind.OFFLINE, 1, memory=GIB))
    one, two = harness.tick(6).gpus
    assert (one.offer_ppm, one.free_bytes) == (WHOLE_PPM, 16 * GIB)
    assert (two.offer_ppm, two.free_bytes) == (0, 15 * GIB)


def test_gpus_are_reported_without_offers_while_the_node_is_down(harness: AgentSetup) -> None:
    harness.tick()
    harness.agent.take(harness.order(3))
    harness.roll = None
    reported = harness.tick(6)
    assert [(gpu.offer_ppm, gpu.condition) for gpu in reported.gpus] == [(0, GpuCondition.DISABLED)] * 2
    assert [report.attempt.number for report in reported.attempts] == [3]


def test_order_runs_once_and_is_reported_immediately(harness: AgentSetup) -> None:
    harness.tick()
    ours = (("COTENANT_JOB", "another"), (MARK, "hides from the process that clears away"))
    order = harness.order(3, environment=(("PYTHONPATH", "/mine"), *ours), profile="--help")
    harness.agent.take(order)
    harness.agent.take(order)
    reported = harness.tick(0.001)
    assert [(report.attempt, report.gpus, report.progress_ppm, report.end) for report in reported.attempts] == [
        (order.attempt, (0,), 250_000, None)
    ]
    assert reported.highest_attempt == 3
    assert len(harness.kept) == 1
    made = Record(harness.kept[0]).order()
    assert made is not None
    [command] = made.commands
    assert command[-3:] == ("--", "train", "--x")
    assert "--task=--help" in command
    assert command[command.index("--gpu") + 1] == "soft:0"
    assert command[command.index("--runtime-dir") + 1] == "/run/x"
    assert made.environment[0]["COTENANT_JOB"] == "job/3"
    assert made.variables == {"PYTHONPATH": "/mine"}, "for the program alone; what we say of it stands"
    assert Record(harness.kept[0]).variables_file.read_text() == '{"PYTHONPATH":"/mine"}'
    assert made.environment[0]["COTENANT_PROGRESS"] == str(harness.kept[0] / "progress")


def test_gang_starts_one_program_per_gpu(harness: AgentSetup) -> None:
    harness.tick()
    harness.agent.take(harness.order(3, (0, 1), memory_bytes=GIB))
    made = Record(harness.kept[0]).order()
    assert made is not None
    assert [command[command.index("--gpu") + 1] for command in made.commands] == ["soft:0", "soft:1"]
    assert [ours["RANK"] for ours in made.environment] == ["0", "1"]
    assert {ours["WORLD_SIZE"] for ours in made.environment} == {"2"}
    assert [("COTENANT_PROGRESS" in ours) for ours in made.environment] == [True, False]
    assert all(command[command.index("--memory") + 1] == "1GiB" for command in made.commands)
    assert len(set(made.tenants)) == 2


def test_stale_order_is_not_run_and_raises_the_highest_attempt(harness: AgentSetup) -> None:
    harness.tick()
    harness.agent.take(msgspec.structs.replace(harness.order(9), epoch=harness.epoch - 1))
    assert harness.tick(6).highest_attempt == 0, "of another epoch it says nothing"
    harness.agent.take(StopJob("n1", Attempt("job/5", 5), "moved"))
    harness.agent.take(harness.order(5))
    harness.agent.take(harness.order(4))
    reported = harness.tick(0.001)
    assert (reported.highest_attempt, reported.attempts) == (5, ())
    assert not harness.kept


def test_end_is_reported_until_acknowledged(harness: AgentSetup) -> None:
    harness.tick()
    order = harness.order(3)
    harness.agent.take(order)
    Record(harness.kept[0]).finish(End(JobEnd.EVICTED, "memory for online work"))
    for _ in range(2):
        [report] = harness.tick().attempts
        assert (report.end, report.detail) == (JobEnd.EVICTED, "memory for online work")
    harness.agent.take(AckEnd("n1", order.attempt))
    assert harness.tick(0.001).attempts == ()
    assert not harness.kept[0].exists()


def test_acknowledgement_of_running_attempt_is_ignored(harness: AgentSetup) -> None:
    harness.tick()
    order = harness.order(3)
    harness.agent.take(order)
    harness.agent.take(AckEnd("n1", order.attempt))
    assert len(harness.tick(0.001).attempts) == 1


def test_stop_is_written_before_supervisor_is_signalled(harness: AgentSetup) -> None:
    harness.tick()
    order = harness.order(3)
    harness.agent.take(order)
    for _ in range(3):
        harness.agent.take(StopJob("n1", order.attempt, "drained"))
    assert Record(harness.kept[0]).stop() == "drained"
    assert harness.stopped == [4242], "once: a second signal would mean a hurry"


def test_restarted_agent_reports_its_attempts_in_a_higher_epoch(harness: AgentSetup) -> None:
    harness.tick()
    before = harness.epoch
    order = harness.order(3)
    harness.agent.take(order)
    harness.start()
    assert harness.epoch > before
    reported = harness.tick(0.001)
    assert (reported.epoch, reported.highest_attempt) == (harness.epoch, 0)
    assert [report.attempt for report in reported.attempts] == [order.attempt]
    harness.agent.take(order)
    assert len(harness.tick(6).attempts) == 1
    assert len(harness.kept) == 1


@pytest.mark.parametrize("given, end", [({"command": ()}, JobEnd.FAILED), ({"name": "no-such-gpu"}, JobEnd.REFUSED)])
def test_job_that_cannot_run_is_reported_as_ended(harness: AgentSetup, given: dict[str, object], end: JobEnd) -> None:
    harness.tick()
    harness.agent.take(harness.order(3, (0,) if end is JobEnd.FAILED else (7,), **given))
    [report] = harness.tick(0.001).attempts
    assert report.end is end
    assert not harness.kept


def test_only_the_controller_extends_the_lease_of_supervisors(harness: AgentSetup) -> None:
    harness.tick()
    assert read_lease(harness.home / "lease") is None, "never heard of the controller: no job may run"
    harness.controller.leased_until = harness.clock.at + 7 * SECOND_NS
    harness.tick(0.2)
    lease = read_lease(harness.home / "lease")
    assert lease is not None
    assert (lease.until_ns, lease.grace_ns) == (harness.controller.leased_until, harness.controller.grace_ns)
    for _ in range(3):
        harness.tick(6)
    assert read_lease(harness.home / "lease") == lease, "not heard of again: not extended"
    harness.agent.take(harness.order(3))
    made = Record(harness.kept[0]).order()
    assert made is not None
    assert made.grace_ns == harness.controller.grace_ns // 3, "a program's grace ends well before the cluster's"


def test_agent_reports_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cluster_agent, "_identity", full)
    directories = Directories(tmp_path / "run", tmp_path / "state")
    with pytest.raises(WorldError, match=r"cannot keep its records in .*: No space left on device; make room there"):
        cluster_agent.serve_agent(AgentConfig(), directories, "", print, until_eof=False)


def test_reports_are_sent_several_times_within_a_short_lease(harness: AgentSetup) -> None:
    harness.controller.lease_ns = 2 * SECOND_NS
    before = len(harness.controller.reported)
    for _ in range(40):
        harness.tick(0.1)
    assert len(harness.controller.reported) - before >= 7


def test_progress_and_speed_come_from_the_progress_file(harness: AgentSetup) -> None:
    harness.tick()
    harness.agent.take(harness.order(3, work_ns=100 * SECOND_NS))
    file = Record(harness.kept[0]).progress_file
    file.write_text("300/1000\n")
    first = harness.tick(6).attempts[0]
    assert (first.progress_ppm, first.rate_ppm) == (300_000, 0)
    file.write_text("320/1000\n")
    second = harness.tick(8).attempts[0]
    assert (second.progress_ppm, second.rate_ppm) == (320_000, 250_000)
    file.write_text("nonsense")
    assert harness.tick(6).attempts[0].progress_ppm == 320_000
    file.write_text("1/1000\n")
    assert harness.tick(6).attempts[0].progress_ppm == 320_000, "what was safe stays so"


def test_use_of_unprofiled_service_is_reported_once_measured() -> None:
    assert seen_use(GateCounts(requests_ended=19, requests_sum_ns=19_000_000)) == TaskUse(), "too little to tell"
    idle = seen_use(GateCounts(requests_ended=50, requests_sum_ns=50_000_000))
    assert (idle.duty_ppm, idle.round_ns) == (1, 1 << 19), "known to do nothing is not unknown"
    busy = GateCounts(requests_ended=50, requests_sum_ns=50_000_000, device_ns=20_000_000, launches=1000)
    assert seen_use(busy) == TaskUse(400_000, kernel_ns=1 << 14, round_ns=1 << 19, round_device_ns=1 << 18)


@pytest.mark.parametrize(
    "name, kind",
    [
        ("soft:3 Tesla V100-SXM2-16GB", "V100"),
        ("0 NVIDIA A100-SXM4-80GB", "A100"),
        ("1 NVIDIA H100 80GB HBM3", "H100"),
        ("v100", "V100"),
        ("0 NVIDIA GeForce RTX 4090", "NVIDIA-GeForce-RTX-4090"),
        ("2 NVIDIA L40S", "L40S"),
        ("???", "gpu"),
    ],
)
def test_gpu_type_is_its_model_name(name: str, kind: str) -> None:
    assert type_of(name) == kind


def test_distinct_job_names_stay_distinct_at_the_node() -> None:
    jobs = ["a/b", "a-b", "a:b", "x" * 128, "x" * 127, "x" * 60]
    names = [tenant_name(Attempt(job, 1), rank, 2) for job in jobs for rank in (0, 1)]
    assert len(set(names)) == len(names)
    assert all(len(name) <= NAME_LIMIT and re.match(NAME_PATTERN, name) for name in names)
