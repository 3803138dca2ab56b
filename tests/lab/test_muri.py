"""Tests of study `muri`: rules of the replay, and recovery of known parameters."""

import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from cotenant.errors import ConfigError
from cotenant_lab.data.muri import MuriEnd, MuriJob, read_result, read_trace
from cotenant_lab.study.muri.groups import Periods, kind_of, rates, take
from cotenant_lab.study.muri.report import FILES, run_muri
from cotenant_lab.study.muri.rules import GPUS, ORDERS, ActiveJob, fair_parts, themis
from cotenant_lab.study.muri.run import ROUND_S, Costs, fit_longer, fit_start, replay
from cotenant_lab.study.muri.tables import show_muri
from tests.support.effort import examples

STAGES = ((0.5, 0.01, 0.0), (0.001, 0.4, 0.05), (0.08, 0.08, 0.07))
COSTS = Costs(30.0, 1.25)


def job(number: int, submitted_s: float, alone_s: float, gpus: int = 8, stage: int = 0) -> MuriJob:
    phases = STAGES[stage]
    return MuriJob(number, gpus, submitted_s, f"model{stage}", alone_s, sum(phases), phases)


JOBS = [job(n, 700.0 * n, 4000.0 + 900 * (n % 5), (8, 8, 32, 4, 8, 16)[n % 6], n % 3) for n in range(14)]
SOME = st.lists(
    st.tuples(
        st.floats(0, 20_000), st.floats(10, 30_000), st.sampled_from((1, 2, 4, 8, 16, 32, 64)), st.integers(0, 2)
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(12, 300))
@given(jobs=SOME, policy=st.sampled_from(list(ORDERS)))
def test_every_job_ends_once_and_not_before_its_time_alone(
    jobs: list[tuple[float, float, int, int]], policy: str
) -> None:
    listed = [job(number, *rest) for number, rest in enumerate(jobs)]
    run = replay(listed, policy, COSTS)
    assert set(run.ends_s) == set(range(len(jobs)))
    for one in listed:
        assert run.ends_s[one.number] >= one.submitted_s + one.alone_s + COSTS.start_s - 1e-3
    assert run.held_s >= sum(one.alone_s * one.gpus for one in listed) - 1e-3
    if policy not in ("Muri-S", "Muri-L"):
        last_s = max(run.ends_s.values())
        assert run.held_s <= GPUS * last_s + 1e-3


def test_single_job_waits_for_the_next_decision_and_its_start() -> None:
    run = replay([job(0, 100.0, 1000.0)], "SRTF", Costs(25.0))
    assert run.ends_s[0] == pytest.approx(ROUND_S + 25 + 1000)
    assert run.starts == 1


def test_orders_by_remaining_time_or_received_service() -> None:
    long, short = job(0, 0.0, 50_000.0, 64), job(1, 10_000.0, 200.0, 64)
    ends = {policy: replay([long, short], policy, COSTS).ends_s for policy in ("SRTF", "SRSF", "Tiresias")}
    for end in ends.values():
        assert end[1] < end[0]
    later = job(2, 10_000.0, 60_000.0, 64)
    assert replay([long, later], "SRSF", COSTS).ends_s[0] < replay([long, later], "Tiresias", COSTS).ends_s[0]


def test_jobs_with_different_bottlenecks_interleave_and_end_earlier() -> None:
    loads = [job(0, 0.0, 9000.0, 64, 0), job(1, 0.0, 9000.0, 64, 1)]
    apart, together = replay(loads, "SRSF", COSTS), replay(loads, "Muri-S", COSTS)
    assert max(together.ends_s.values()) < max(apart.ends_s.values())
    group = [ActiveJob(load) for load in loads]
    periods = Periods()
    assert max(load.step_s for load in loads) * 0.9 <= periods.of(kind_of(group)) <= sum(load.step_s for load in loads)
    assert all(0 < rate <= 1 for rate in rates(group, periods, 1.0))
    assert rates(group[:1], periods, 9.0) == [1.0]


def test_pairing_has_maximum_weight() -> None:
    periods = Periods()
    kinds = [kind_of([ActiveJob(job(0, 0.0, 1.0, 8, stage))]) for stage in range(3)]
    found = periods.paired({kinds[0]: 2, kinds[1]: 2}, 4)
    assert sum(count for _, _, count in found) == 2
    value = sum(count * periods.weight(tuple(sorted(one + other))) for one, other, count in found)
    for mode in ([(0, 0), (1, 1)], [(0, 1), (0, 1)]):
        assert value >= sum(periods.weight(tuple(sorted(kinds[a] + kinds[b]))) for a, b in mode) - 1e-9


def test_gpus_are_taken_on_one_node_or_on_whole_nodes() -> None:
    free = [8, 3, 8]
    assert take(free, 2)
    assert free == [6, 3, 8]
    assert not take(free, 16)
    assert take(free, 8)
    assert free == [6, 3, 0]


def test_fractions_of_time_are_fair_and_fit() -> None:
    live = [ActiveJob(job(number, 0.0, 10_000.0 * (number + 1), 32)) for number in range(4)]
    parts = fair_parts(live, 5000.0)
    assert all(0 < part <= 1 for part in parts)
    assert sum(32 * part for part in parts) <= GPUS + 1e-6
    live[0].starts = 5
    assert themis(live, 5000.0)[-1] is live[0]


def test_cost_of_a_start_is_recovered() -> None:
    ends = {one.number: MuriEnd(one.number, 0.0, one.alone_s + 3 * 17.0, 0.0, 3) for one in JOBS}
    assert fit_start(JOBS, ends) == pytest.approx(17.0)


def test_interleaving_factor_is_recovered() -> None:
    held_s = replay(JOBS, "Muri-S", COSTS).held_s
    each_s = held_s / sum(one.gpus for one in JOBS)
    ends = {one.number: MuriEnd(one.number, 0.0, each_s, 0.0, 1) for one in JOBS}
    assert fit_longer(JOBS, ends, COSTS.start_s) == pytest.approx(COSTS.longer, abs=0.08)


def write_data(root: Path, jobs: list[MuriJob]) -> None:
    (root / "muri").mkdir()
    header = "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
    rows = [header + "resource_time_0,resource_time_1,resource_time_2,priority"]
    for one in jobs:
        phases = ",".join(f"{1000 * stage:g}" for stage in one.phases_s)
        steps = round(one.alone_s / one.step_s)
        rows.append(
            f"{one.number},{one.gpus},{1000 * one.submitted_s:.0f},{steps},{one.model},8,1,0,"
            f"{1000 * one.step_s:g},{phases},0"
        )
    (root / "muri" / "cluster_trace.csv").write_text("\n".join(rows) + "\n")
    listed = read_trace((root / "muri" / "cluster_trace.csv").read_bytes(), "trace")
    for policy, name in FILES.items():
        run = replay(listed, policy, COSTS)
        head = "time,job_id,num_gpu,submit_time,start_time,end_time,executed_time,real_executed_time,JCT,duration,"
        lines = [head + "pending_time,job_counter,promote"]
        for one in listed:
            end_s, ran_s = run.ends_s[one.number], one.alone_s + COSTS.start_s
            jct_s = end_s - one.submitted_s
            lines.append(f"0,{one.number},{one.gpus},0,0,{end_s},{ran_s},{ran_s},{jct_s},0,0,1,0")
        path = root / "muri" / f"physical_result_{name}.job.csv.gz"
        path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def test_study_reproduces_its_own_replay(tmp_path: Path) -> None:
    write_data(tmp_path, JOBS)
    report = run_muri(tmp_path, Console(quiet=True), lambda _: None, quick=True)
    assert [result.policy for result in report.results] == ["SRTF", "SRSF", "Tiresias", "Themis"]
    assert report.costs.start_s == pytest.approx(COSTS.start_s)
    assert all(abs(result.jct_error) < 1e-6 and abs(result.makespan_error) < 1e-6 for result in report.results)
    assert all(report.met.values())
    out = io.StringIO()
    show_muri(Console(file=out, width=200), report)
    assert "Tiresias" in out.getvalue()
    assert "neither our cluster controller nor our simulator" in out.getvalue()
    assert "missed" not in out.getvalue()


def test_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cluster_trace"):
        run_muri(tmp_path, Console(quiet=True), lambda _: None, quick=True)
    with pytest.raises(ConfigError, match="gzip"):
        read_result(b"no", "file")
    write_data(tmp_path, JOBS[:2])
    path = tmp_path / "muri" / "physical_result_SRSF.job.csv.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    path.write_bytes(gzip.compress("\n".join(lines[:2]).encode(), mtime=0))
    with pytest.raises(ConfigError, match="has no result"):
        run_muri(tmp_path, Console(quiet=True), lambda _: None, quick=True)
