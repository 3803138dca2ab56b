"""Does the lab of placement let the node's own rooms choose, and judge every choice by the same figures?"""

from __future__ import annotations

import random

import msgspec
import pytest

from cotenant.domain.kernel import KernelIdentity
from cotenant.domain.load import TRAINING, Launch, Load, poisson
from cotenant.experiment.kernels import Setting
from cotenant.experiment.lab.caps import judge_caps
from cotenant.experiment.lab.placement import BEST, judge_mixes, judge_trainings, mixes_of, use_of_load
from cotenant.experiment.lab.placement_report import report_of
from cotenant.format.measured.gavel import Pair, Pairs
from cotenant.policy import place
from cotenant.sim.device import preset

SETTING = Setting(device=preset("v100"))
# On the faster GPUs "host" is hardly faster, and leaves room; "gpu" takes all of it, and two of them halve each other.
STEP_S = {(gpu, job): step for gpu, jobs in {
    "k80": {"gpu": 1.0, "host": 0.11}, "p100": {"gpu": 0.25, "host": 0.1}, "v100": {"gpu": 0.17, "host": 0.1},
}.items() for job, step in jobs.items()}  # fmt: skip
SLOWER = {("gpu", "gpu"): (2.0, 2.0), ("gpu", "host"): (1.1, 1.2), ("host", "host"): (1.05, 1.05)}
PAIRS = Pairs(STEP_S, [Pair("p100", jobs, slower) for jobs, slower in SLOWER.items()])


def kernel(name: str, blocks: int, device_ns: int, interval_ns: int) -> Launch:
    return Launch(KernelIdentity(name, (blocks, 1, 1), (128, 1, 1)), device_ns, interval_ns, registers=32)


SERVICE = Load(
    "service", (*(kernel("a", 640, 400_000, 10_000),) * 4, kernel("c", 80, 90_000, 9_000)), poisson(80.0, 1), 100
)
STEP = Load("step", (kernel("b", 1280, 300_000, 10_000),) * 20, TRAINING)


def nothing(what: str, done: int, total: int) -> None:
    del what, done, total


def test_prediction_pairs_jobs_that_leave_each_other_room() -> None:
    found = judge_trainings(PAIRS, 0, 12, nothing)
    assert [(one.tenants, one.mixes) for one in found] == [(6, 12), (8, 12)]
    for one in found:
        figures = {policy: figures.goodput for policy, figures in one.policies.items()}
        assert figures[BEST] >= max(figures[policy] for policy in place.POLICIES)
        assert figures["predict"] > figures["spread"]
    assert found == judge_trainings(PAIRS, 0, 12, nothing)


def test_services_and_trainings_are_played_and_caps_judged() -> None:
    short = msgspec.structs.replace(SETTING, seed=1)
    use, tail_ns = use_of_load(SERVICE, short)
    assert 0 < use.active_ppm < 1_000_000
    assert use.round_device_ns == pytest.approx(SERVICE.device_ns, rel=0.02)
    assert tail_ns >= use.round_ns * 0.9
    judged = judge_mixes(mixes_of([SERVICE], [STEP], short, random.Random(0), (2,)), short, 1, nothing)
    for figures in judged.policies.values():
        assert 0 < figures.goodput <= 1
        assert len(figures.by_mix) == judged.mixes == 1
    caps = judge_caps([(SERVICE, STEP)], short, 1, nothing)
    assert caps.pairs == 1
    assert 10 <= caps.percent < 100
    assert caps.capped.offline < caps.free.offline
    report = report_of([judged], caps, 1, quick=True)
    assert len(report.met) == 2
