"""Ranks of a job on simulated devices: the runs of `bench collective`."""

from __future__ import annotations

import msgspec
import pytest

from cotenant.softgpu.costs import hardware
from cotenant.units.instant import MICROSECOND_NS, SECOND_NS
from cotenant_lab.bench.collective.bench import (
    DEFAULT,
    DISTURBED_NS,
    PRESET,
    RESTORED_NS,
    TARGETS,
    CollectiveRun,
    GangSetting,
    ModeResult,
    best_setting,
    disturbed_result,
    mode_result,
    run,
    targets_met,
)
from cotenant_lab.bench.collective.loads import COLLECTIVE_NS, KERNELS_PER_COLLECTIVE, PATTERNS, service, training

DEVICE = hardware(PRESET)
RUN_NS = 3 * SECOND_NS // 2
NO_SPACE = GangSetting(20_000, 10_000)


@pytest.fixture(scope="module")
def job_alone() -> CollectiveRun:
    return run("MPS", DEVICE, None, RUN_NS)


@pytest.fixture(scope="module")
def services_alone() -> CollectiveRun:
    return run("MPS", DEVICE, PATTERNS[0], RUN_NS, has_job=False)


def test_loads_are_as_stated() -> None:
    load, collectives = training()
    assert len(collectives) == 60 // KERNELS_PER_COLLECTIVE
    assert all("nccl" in load.launches[step].kernel.function for step in collectives)
    first, second = (service(PATTERNS[0], rank, SECOND_NS).arrival.instants_ns for rank in (0, 1))
    assert all(early < late for early, late in zip(first, second, strict=False))  # in turn
    bursts = [set(service(PATTERNS[1], rank, SECOND_NS).arrival.instants_ns) for rank in (0, 1)]
    assert not {at_ns // (250 * 10**6) for at_ns in bursts[0]} & {at_ns // (250 * 10**6) for at_ns in bursts[1]}


def test_ranks_without_neighbours_never_wait_for_a_gate(job_alone: CollectiveRun) -> None:
    assert job_alone.collectives > 50
    assert all(held_ns == 0 for _, held_ns in job_alone.spins)
    step_ns = training()[0].device_ns + 4 * COLLECTIVE_NS
    assert job_alone.collectives <= 4 * RUN_NS / step_ns * 1.5
    counts = [seen[-1][1] for seen in job_alone.progress]
    assert abs(counts[0] - counts[1]) <= 1


def test_gang_bounds_the_time_for_which_a_rank_spins_because_of_a_gate(
    job_alone: CollectiveRun, services_alone: CollectiveRun
) -> None:
    results = {
        mode: mode_result(
            mode,
            PATTERNS[0],
            NO_SPACE,
            run(mode, DEVICE, PATTERNS[0], RUN_NS, setting=NO_SPACE),
            services_alone,
            job_alone,
        )
        for mode in ("cotenant", "cotenant, no gang")
    }
    gang, alone = results["cotenant"], results["cotenant, no gang"]
    assert gang.spin_ms_max < 1 < alone.spin_ms_max
    assert gang.spin_part < alone.spin_part / 4
    assert gang.online_p99_ratio <= TARGETS["online_p99_ratio"]
    assert gang.collectives_vs_alone > alone.collectives_vs_alone


@pytest.mark.parametrize("disturbance", ["pause", "kill"])
def test_a_disturbed_rank_does_not_let_the_other_one_spin_or_hang(disturbance: str) -> None:
    for_ns = RESTORED_NS + 5 * SECOND_NS // 2
    played = run("cotenant", DEVICE, None, for_ns, disturbance=disturbance)  # type: ignore[arg-type]
    result = disturbed_result(
        disturbance,  # type: ignore[arg-type]
        msgspec.structs.replace(played, latencies_ns=[[1], [1]]),
        msgspec.structs.replace(played, latencies_ns=[[1], [1]]),
    )
    assert result.hangs == 0
    assert result.collectives_after > 20
    assert result.spin_ms_max < 10
    if disturbance == "pause":
        first, second = played.progress
        during = [(at_ns, count) for at_ns, count in first if DISTURBED_NS < at_ns <= RESTORED_NS]
        assert during[-1][1] - during[0][1] <= 1  # it waits at its gate
        assert abs(first[-1][1] - second[-1][1]) <= 1


def test_a_rank_without_progress_is_reported_as_hung() -> None:
    moving = [(at * SECOND_NS // 10, at) for at in range(80)]
    stuck = [(at_ns, min(count, 20)) for at_ns, count in moving]
    for second, hangs in ((moving, 0), (stuck, 1)):
        played = CollectiveRun(
            latencies_ns=[[1], [1]], collectives=1, spins=[], progress=[moving, second], for_ns=SECOND_NS
        )
        assert disturbed_result("pause", played, played).hangs == hangs


def test_setting_with_the_most_collectives_within_the_limit_counts() -> None:
    def result(p99: float, collectives: float) -> ModeResult:
        return ModeResult(
            mode="cotenant",
            pattern=PATTERNS[0],
            setting="",
            online_p50_ratio=1.0,
            online_p99_ratio=p99,
            collectives_vs_alone=collectives,
            spin_ms_max=0.0,
            spin_ms_p99=0.0,
            spin_part=0.0,
        )

    other, third = GangSetting(1), GangSetting(2)
    assert best_setting({DEFAULT: result(1.2, 0.9), other: result(1.0, 0.5), third: result(1.1, 0.6)}) == third
    assert best_setting({DEFAULT: result(1.3, 0.9), other: result(1.2, 0.1)}) == other
    assert DEFAULT.flags == "--delay 5%"
    assert NO_SPACE.flags == "--delay 2% --sms 1%"


def test_targets() -> None:
    figures = {"online_p99_ratio": 1.1, "collectives_vs_alone": 0.5, "spin_ms_max": 10.0, "hangs": 0.0}
    assert all(targets_met(figures).values())
    for name, missed in (("online_p99_ratio", 1.2), ("collectives_vs_alone", 0.4), ("hangs", 1.0)):
        met = targets_met({**figures, name: missed})
        assert [key for key, is_met in met.items() if not is_met] == [name]
    assert COLLECTIVE_NS >= 100 * MICROSECOND_NS
