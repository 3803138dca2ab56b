"""Compare the device model with five published sets of measurements."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from rich.console import Console

from cotenant_lab.study.device import servers, shares, split_shares, sums, trainings
from cotenant_lab.study.device.instances import CHECK as INSTANCES
from cotenant_lab.study.device.instances import InstancePrediction, Instances
from cotenant_lab.study.device.measurements import DeviceMeasurements, read_measurements
from cotenant_lab.study.error import ErrorCheck, ErrorSplit, HalfErrors, SplitSpread, UnexplainedCase, spread_of
from cotenant_lab.study.progress import show_parts
from cotenant_lab.study.workers import mapping

SPLITS: Final = 5
ALONE: Final = ", from alone only"
TARGET: Final = 0.15
MIN_BIAS: Final = 0.9
MAX_BIAS: Final = 1.1

Progress: TypeAlias = Callable[[str, int, int], None]
"""Receives the name of a part, how much of it is done, and its total."""


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of study `device`; they depend on the measurements and the seed alone."""

    seed: int
    checks: list[ErrorCheck]
    sums: list[sums.KernelSum]
    shares: shares.ShareResults
    servers: dict[str, Any]
    splits: dict[str, list[ErrorSplit]]
    spreads: dict[str, list[SplitSpread]]
    left_out: dict[str, int]
    unexplained: list[UnexplainedCase]
    disb: HalfErrors
    parvagpu: HalfErrors
    igniter: HalfErrors
    miso: HalfErrors | None
    """Trainings on parts of an A100; None: without the data."""
    gavel: trainings.TimeSlicePairs | None
    """Trainings next to each other by time slices, which this model does not explain; None: without the data."""
    contention: dict[str, int]
    """The cache and DRAM contention fitted to half of iGniter's pairs, in millionths."""
    met: dict[str, bool]
    """Targets by the name of the check, or of the data set: its median error and bias on the held half."""


class DeviceEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Data for plots."""

    curves: list[shares.Curve]
    instances: InstancePrediction
    servers: list[servers.ServerPrediction]


def run_device(
    directory: Path, seed: int, console: Console, report: Callable[[str], None]
) -> tuple[DeviceReport, DeviceEvidence]:
    """Run the study with a progress bar on a terminal, or one line per part elsewhere."""
    measured = read_measurements(directory)
    with show_parts(console, report, "to do") as progress:
        return evaluate_device(measured, seed, os.cpu_count() or 1, progress)


def evaluate_device(
    measured: DeviceMeasurements, seed: int, workers: int, progress: Progress
) -> tuple[DeviceReport, DeviceEvidence]:
    """Run every check. Further splits use the seeds that follow the given one."""
    sum_check, sum_rows = sums.evaluate_sums(measured.streams)
    curves, too_short, lean = shares.predict(measured.surface, progress)
    share_part = shares.evaluate_shares(curves, too_short, lean)
    progress(INSTANCES, 0, 1)
    instances = Instances(measured.profiles)
    instance_outcome = instances.predict(instances.known_cells("cell", seed))
    seeds = range(seed, seed + SPLITS)
    instance_splits = [instances.split(by, split_seed) for by in ("cell", "point") for split_seed in seeds]
    progress(INSTANCES, 1, 1)
    kinds = [(by, split_seed) for by in ("cell", "run") for split_seed in seeds]
    outcomes = _answers(measured.servers, [*kinds, ("none", seed)], workers, progress)
    main = outcomes["cell", seed]
    pairs = split_shares.predict(measured.pairs, seed, progress)
    sets = {
        "disb": servers.errors_of_halves(main),
        "parvagpu": instances.half_errors(instance_outcome),
        "igniter": split_shares.errors_of_halves(pairs),
    }
    miso, gavel = _evaluate_trainings(measured, progress)
    if miso is not None:
        sets["miso"] = miso
    server_splits = [servers.split_of(by, split_seed, outcomes[by, split_seed]) for by, split_seed in kinds]
    checks = [
        sum_check,
        share_part.check,
        instances.evaluate(instance_outcome),
        *servers.evaluate_servers(measured.servers, main),
        split_shares.evaluate(pairs),
        _no_target(instances.evaluate(instances.predict_from_alone(), f"{INSTANCES}{ALONE}")),
        _no_target(servers.evaluate_servers(measured.servers, outcomes["none", seed], f"{servers.CHECK}{ALONE}")[0]),
    ]
    report = DeviceReport(
        seed=seed,
        checks=checks,
        sums=sum_rows,
        shares=share_part,
        servers={split_seed.server: split_seed.fitted for split_seed in main},
        splits={INSTANCES: instance_splits, servers.CHECK: server_splits},
        spreads={INSTANCES: spread_of(instance_splits), servers.CHECK: spread_of(server_splits)},
        left_out={
            "share curves too short": too_short,
            "instance rows not run": measured.profiles.not_run,
            "instance rows carried over": measured.profiles.carried_over,
            "pairs of programs that were not measured alone": pairs.left_out,
        },
        unexplained=[
            *share_part.unexplained,
            *instances.unexplained(instance_outcome),
            *servers.unexplained(measured.servers, main),
            *split_shares.unexplained(pairs),
        ],
        disb=sets["disb"],
        parvagpu=sets["parvagpu"],
        igniter=sets["igniter"],
        miso=miso,
        gavel=gavel,
        contention={
            "cache_contention_ppm": pairs.cache_contention_ppm,
            "dram_contention_ppm": pairs.dram_contention_ppm,
        },
        met={check.name: check.met for check in checks if check.met is not None}
        | {
            name: errors.error_median <= TARGET and MIN_BIAS <= errors.bias <= MAX_BIAS for name, errors in sets.items()
        },
    )
    return report, DeviceEvidence(curves=curves, instances=instance_outcome, servers=main)


def _evaluate_trainings(
    measured: DeviceMeasurements, progress: Progress
) -> tuple[HalfErrors | None, trainings.TimeSlicePairs | None]:
    """Return the errors for trainings on slices and in pairs; None for a data set that is absent."""
    progress(trainings.CHECK, 0, 1)
    slices = None if measured.steps is None else trainings.evaluate_slices(measured.steps)
    pairs = None if measured.together is None else trainings.evaluate_pairs(measured.together)
    progress(trainings.CHECK, 1, 1)
    return slices, pairs


def _no_target(check: ErrorCheck) -> ErrorCheck:
    """Remove the target: this check uses no measurement of concurrent work."""
    return msgspec.structs.replace(check, target=None, met=None)


def _answers(
    measured: Sequence[servers.ServerMeasurements], kinds: Sequence[tuple[str, int]], workers: int, progress: Progress
) -> dict[tuple[str, int], list[servers.ServerPrediction]]:
    """Return, by kind of split and seed, a result for each server; the number of workers does not change them."""
    tasks = [servers.FitTask(measured=server, by=by, seed=seed) for by, seed in kinds for server in measured]
    answers: list[servers.ServerPrediction] = []
    with mapping(workers) as mapped:
        for outcome in mapped(servers.answer, tasks):
            answers.append(outcome)
            progress(servers.CHECK, len(answers), len(tasks))
    width = len(measured)
    return {kind: answers[index * width : (index + 1) * width] for index, kind in enumerate(kinds)}
