"""Tests of study `placement-node`: the node's own accounting chooses, and all policies are compared."""

from __future__ import annotations

import random

import msgspec
import pytest

from cotenant.node.policy import place
from cotenant.simulate.kernels import RunSettings
from cotenant.softgpu.sim.device import preset
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.load import TRAINING, Launch, Workload, poisson
from cotenant_lab.data.gavel import TrainingPair, TrainingPairs
from cotenant_lab.study.placement.report import report_of
from cotenant_lab.study.placement.run import BEST, evaluate_mixes, evaluate_trainings, mixes_of, use_of_load
from cotenant_lab.study.placement.sm_caps import evaluate_caps

SETTING = RunSettings(device=preset("v100"))
# On the faster GPUs "host" is hardly faster, and leaves room; "gpu" takes all of it, and two of them halve each other.
STEP_S = {(gpu, job): step for gpu, jobs in {
    "k80": {"gpu": 1.0, "host": 0.11}, "p100": {"gpu": 0.25, "host": 0.1}, "v100": {"gpu": 0.17, "host": 0.1},
}.items() for job, step in jobs.items()}  # fmt: skip
SLOWER = {("gpu", "gpu"): (2.0, 2.0), ("gpu", "host"): (1.1, 1.2), ("host", "host"): (1.05, 1.05)}
PAIRS = TrainingPairs(STEP_S, [TrainingPair("p100", jobs, slower) for jobs, slower in SLOWER.items()])


def kernel(name: str, blocks: int, device_ns: int, interval_ns: int) -> Launch:
    return Launch(KernelIdentity(name, (blocks, 1, 1), (128, 1, 1)), device_ns, interval_ns, registers=32)


SERVICE = Workload(
    "service",
    (*(kernel(f"a{number}", 640, 400_000, 10_000) for number in range(4)), kernel("c", 80, 90_000, 9_000)),
    poisson(80.0, 1),
    100,
)
STEP = Workload("step", (kernel("b", 1280, 300_000, 10_000),) * 20, TRAINING)


def nothing(what: str, done: int, total: int) -> None:
    del what, done, total


def test_prediction_pairs_jobs_with_low_interference() -> None:
    found = evaluate_trainings(PAIRS, 0, 12, nothing)
    assert [(one.tenants, one.mixes) for one in found] == [(6, 12), (8, 12)]
    for one in found:
        metrics = {policy: metrics.goodput for policy, metrics in one.policies.items()}
        assert metrics[BEST] >= max(metrics[policy] for policy in place.POLICIES)
        if one.tenants == 6:  # where every GPU gets two, who comes last has no choice, and it is about even
            assert metrics["predict"] > metrics["spread"]
    assert found == evaluate_trainings(PAIRS, 0, 12, nothing)


def test_services_trainings_and_caps_are_evaluated() -> None:
    short = msgspec.structs.replace(SETTING, seed=1)
    use, tail_ns = use_of_load(SERVICE, short)
    assert 0 < use.active_ppm < 1_000_000
    assert use.round_device_ns == pytest.approx(SERVICE.device_ns, rel=0.02)
    assert tail_ns >= use.round_ns * 0.9
    results = evaluate_mixes(mixes_of([SERVICE], [STEP], short, random.Random(0), (2,)), short, 1, nothing)
    for metrics in results.policies.values():
        assert 0 < metrics.goodput <= 1
        assert len(metrics.by_mix) == results.mixes == 1
    caps = evaluate_caps([(SERVICE, STEP)], short, 1, nothing)
    assert caps.pairs == 1
    assert 10 <= caps.percent < 100
    assert caps.capped.offline < caps.free.offline
    report = report_of([results], caps, 1, quick=True)
    assert len(report.met) == 2
