"""Tests of simulation of a cluster."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotenant.cluster.model.cluster import GpuCondition, JobState
from cotenant.cluster.model.event import ClusterAction, ClusterEvent, StartJob
from cotenant.cluster.policy import ROUNDS
from cotenant.cluster.sim.fleet import USUAL_JOB
from cotenant.cluster.sim.jobs import GuaranteeViolationError, SimJobState
from cotenant.cluster.sim.online_load import DAY_NS, OnlineLoad
from cotenant.cluster.sim.physics.colocated import MODES, built_in
from cotenant.cluster.sim.scenario import ClusterScenario, OnlineConfig, decode_cluster
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.predict.queueing import queued_slowdown
from cotenant.predict.speed import SpeedPredictor
from cotenant.simulate.cluster import ClusterRun, audit, simulate_cluster
from cotenant.units.instant import SECOND_NS, Instant
from cotenant.units.share import WHOLE_PPM
from tests.support.effort import examples
from tests.support.tools import ROOT, run_or_fail

HERE = Path("test")
CALM = """
kind = "cluster"
seed = 3
duration = "3h"
drain = "2d"
[[nodes]]
count = 3
gpus = 2
[[jobs]]
name = "a"
count = 12
work = "20min"
"""
STORM = CALM.replace("count = 3", "count = 4") + (
    '[failures]\nnode_crash = "3h"\nnode_cut = "4h"\ncut_duration = "50min"\ngpu_fault = "5h"\n'
    'job_failure = "20%"\ncontroller_kills = 2\ncontroller_downtime = "25min"\n'
)


def scenario_of(text: str) -> ClusterScenario:
    return decode_cluster(text, "test.toml")


def played(text: str, new_machine: Callable[[], ClusterMachine] = ClusterMachine) -> ClusterRun:
    return simulate_cluster(scenario_of(text), HERE, new_machine=new_machine)


CALM_PLAYED = played(CALM)


def test_all_jobs_complete_and_sums_are_consistent() -> None:
    outcome, sim_jobs, measurements = CALM_PLAYED.outcome, CALM_PLAYED.world.sim_jobs, CALM_PLAYED.world.measurements
    assert outcome.problems == []
    assert outcome.jobs == {"done": 12}
    assert outcome.makespan_h > 0
    assert outcome.work_done_h * 3600 * SECOND_NS == pytest.approx(sim_jobs.work.sum())
    computed_ns = measurements.mean("offline_speed") * measurements.span_ns * measurements.gpus
    assert computed_ns == pytest.approx(
        sim_jobs.computed.sum(), rel=1e-5
    )  # single-GPU jobs: speed times time is the work
    assert (sim_jobs.end_ns - sim_jobs.submit_ns >= sim_jobs.work - 1).all()  # no job is faster than alone
    assert outcome.utilization > outcome.utilization_before > 0
    assert sum(outcome.gpu_time.values()) == pytest.approx(1)


SORTS = st.fixed_dictionaries(
    {
        "gpus": st.sampled_from([1, 1, 2, 3]),
        "count": st.integers(0, 14),
        "users": st.integers(1, 3),
        "known": st.sampled_from([0, 50, 100]),
        "cancelled": st.sampled_from([0, 30]),
        "work": st.sampled_from(["3min", "40min", "3h"]),
    }
)


def random_text(seed: int, nodes: int, sorts: list[dict[str, object]], faults: dict[str, str], place: str) -> str:
    text = f'kind = "cluster"\nseed = {seed}\nduration = "4h"\ndrain = "2h"\ncheckpoint = "10min"\n'
    text += f'[cluster]\nplace = "{place}"\n[online]\ngpus = "80%"\npeak = "70%"\nburst = "3%"\n'
    text += f"[[nodes]]\ncount = {nodes}\ngpus = 3\n"
    for number, sort in enumerate(sorts):
        text += f'[[jobs]]\nname = "s{number}"\n'
        text += f'count = {sort["count"]}\ngpus = {sort["gpus"]}\nusers = {sort["users"]}\nwork = "{sort["work"]}"\n'
        text += f'known = "{sort["known"]}%"\ncancelled = "{sort["cancelled"]}%"\n'
    text += "[failures]\n" + "".join(f"{name} = {value}\n" for name, value in faults.items())
    return text


FAULTS = st.fixed_dictionaries(
    {
        "node_crash": st.sampled_from(['"0s"', '"2h"', '"9h"']),
        "node_downtime": st.sampled_from(['"10s"', '"40min"']),
        "node_cut": st.sampled_from(['"0s"', '"2h"', '"9h"']),
        "cut_duration": st.sampled_from(['"1min"', '"17min"', '"2h"']),
        "gpu_fault": st.sampled_from(['"0s"', '"6h"']),
        "job_failure": st.sampled_from(['"0%"', '"25%"']),
        "controller_kills": st.sampled_from(["0", "2"]),
        "controller_downtime": st.sampled_from(['"10s"', '"35min"']),
    }
)


@given(
    st.integers(0, 2**32),
    st.integers(1, 4),
    st.lists(SORTS, max_size=2),
    FAULTS,
    st.sampled_from(["match", "first-fit", "no-sharing"]),
)
@settings(max_examples=examples(30, 1500), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_faults_neither_lose_nor_invent_work(
    seed: int, nodes: int, sorts: list[dict[str, object]], faults: dict[str, str], place: str
) -> None:
    run = played(random_text(seed, nodes, sorts, faults, place))
    sim_jobs, outcome = run.world.sim_jobs, run.outcome
    assert outcome.problems == []
    submitted = int((sim_jobs.state != SimJobState.PENDING).sum())
    assert sum(outcome.jobs.values()) == submitted  # each job is counted once, in one state
    names = [reported.spec.name for reported in run.machine.jobs()]
    assert len(set(names)) == len(names)
    reported = {job.spec.name: job for job in run.machine.jobs()}
    for job in np.flatnonzero(sim_jobs.state == SimJobState.RUNNING).tolist():
        assert reported[sim_jobs.specs[job].name].state not in {JobState.WAITING, JobState.DONE, JobState.FAILED}
    assert (sim_jobs.safe <= sim_jobs.work).all()
    assert (sim_jobs.lost >= 0).all()
    on_gpus = np.bincount(run.world.job[run.world.job >= 0], minlength=len(sim_jobs.work))
    assert (on_gpus == np.where(sim_jobs.state == SimJobState.RUNNING, sim_jobs.gpus, 0)).all()


def test_all_jobs_complete_after_many_faults() -> None:
    run = played(STORM)
    assert run.outcome.problems == []
    assert set(run.outcome.jobs) <= {"done", "failed"}
    assert run.outcome.evictions
    assert run.outcome.crashes["controller_kills"] == 2
    assert all(run.outcome.crashes.values())


def test_a_run_is_a_function_of_its_scenario_and_seed() -> None:
    assert played(CALM).outcome == CALM_PLAYED.outcome
    other = played(CALM.replace("seed = 3", "seed = 4")).outcome
    assert other.decisions != CALM_PLAYED.outcome.decisions


def test_run_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    world = tmp_path / "storm.toml"
    world.write_text(STORM)
    command: list[str | Path] = [sys.executable, "-m", "cotenant", "simulate", world, "--json"]
    reported = [run_or_fail(command, ROOT, env={**os.environ, "PYTHONHASHSEED": seed}) for seed in ("0", "4711")]
    assert reported[0] == reported[1]
    assert msgspec.json.decode(reported[0][reported[0].index("{") :])["decisions"]


class Twice(ClusterMachine):
    """Starts every job a second time on another node."""

    def handle(self, event: ClusterEvent, *, now: Instant) -> list[ClusterAction]:
        actions = super().handle(event, now=now)
        started = [action for action in actions if isinstance(action, StartJob)]
        for action in started:
            attempt = msgspec.structs.replace(action.attempt, number=action.attempt.number + 1000)
            other = "node-0" if action.node != "node-0" else "node-1"
            actions.append(msgspec.structs.replace(action, node=other, attempt=attempt))
        return actions


def test_controller_that_runs_a_job_twice_is_detected() -> None:
    with pytest.raises(GuaranteeViolationError, match=r"is started|another job has"):
        played(CALM, Twice)


def test_the_audit_finds_inconsistencies() -> None:
    run = played(CALM)
    assert audit(run.world, run.machine) == []
    run.world.sim_jobs.computed[3] *= 1.01
    run.world.sim_jobs.safe[5] -= 1.0
    run.world.sim_jobs.state[7] = SimJobState.IDLE
    run.world.measurements.free_gpu_ns *= 0.9
    problems = "\n".join(audit(run.world, run.machine))
    for words in ("a-3 computed", "a-5 is done with", "a-7 is reported to be done", "GPU time adds up"):
        assert words in problems


def test_load_has_a_daily_cycle_within_bounds() -> None:
    config = scenario_of(CALM).online
    service = np.array([0, 1, -1, 2] * 50)
    load = OnlineLoad(np.random.default_rng(5), config, service, np.full(200, np.nan))
    step_ns = 300 * SECOND_NS
    rows = np.array([load.next(step * step_ns, step_ns) for step in range(2 * DAY_NS // step_ns)])
    assert rows.min() >= 0
    assert rows.max() <= 1
    assert (rows[:, service < 0] == 0).all()
    mean = rows[:, service >= 0].mean(axis=1)
    day = len(mean) // 2
    busiest, calmest = int(mean[:day].argmax()), int(mean[:day].argmin())
    assert mean[busiest] > 2 * mean[calmest]
    assert abs(busiest - calmest) == pytest.approx(day / 2, abs=day / 6)
    assert np.corrcoef(mean[:day], mean[day:])[0, 1] > 0.95  # the second day is like the first
    repeated = OnlineLoad(np.random.default_rng(5), config, service, np.full(200, np.nan))
    assert (repeated.next(0, step_ns) == rows[0]).all()


def test_gpus_in_the_same_state_share_one_report() -> None:
    fleet = CALM_PLAYED.world.fleet
    codes, _ = fleet.changed()
    assert all(fleet.report(code) is fleet.report(code) for code in codes)
    fleet.changed()
    _, changed = fleet.changed()
    assert not len(changed)


@pytest.mark.parametrize("place", ROUNDS)
def test_every_policy_completes_all_jobs(place: str) -> None:
    text = CALM + f'[online]\ngpus = "50%"\n[cluster]\nplace = "{place}"\n'
    outcome = played(text).outcome
    assert outcome.problems == []
    assert outcome.jobs == {"done": 12}
    assert outcome.mode == ROUNDS[place].mode
    if outcome.mode == "none":
        assert outcome.online_slowdown_p99 == 1.0


@pytest.mark.parametrize("mode", MODES)
def test_offers_follow_the_sharing_mode(mode: str) -> None:
    run = played(CALM.replace("seed = 3", f'seed = 3\nmode = "{mode}"'))
    fleet = run.world.fleet
    offers = {fleet.report(code).offer_ppm for code in fleet.changed()[0]}
    if mode == "space":
        assert offers
        assert 0 not in offers or len(offers) > 1
    else:
        assert offers == ({0} if mode == "none" else {1_000_000})
    assert run.outcome.problems == []


def test_node_allows_smaller_parts_at_higher_load_and_keeps_its_limit() -> None:
    """Where a part is left, the latency that is predicted next to the expected job is within the limit."""
    fleet = CALM_PLAYED.world.fleet
    limit = 1 + OnlineConfig().slower / WHOLE_PPM
    parts = fleet.parts
    assert (parts[0] == 1).all()
    assert (np.diff(parts[1:], axis=1) <= 0).all()
    assert (parts[1:, -1] == 0).all()
    assert (parts[1:, 0] > 0).all()
    services = built_in().services
    levels = np.arange(parts.shape[1]) / (parts.shape[1] - 1)
    for service, row in zip(services, parts[1:], strict=True):
        contended = SpeedPredictor().interferences([service.use, USUAL_JOB])[0]
        assert (queued_slowdown(contended, levels)[row > 0] <= limit).all()
    reports = [fleet.report(code) for code in fleet.changed()[0]]
    assert all(report.offer_ppm > 0 for report in reports if report.condition is GpuCondition.HEALTHY)
