"""Is the software GPU's physics that of real ones? The device model against four published sets of measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from cotenant.domain.timeline import Timeline
from cotenant.experiment.lab import servers, shares, sums
from cotenant.experiment.lab.instances import CHECK as INSTANCES
from cotenant.experiment.lab.instances import Instances, Outcome
from cotenant.experiment.lab.judge import Check, Split, Spread, Unexplained, spread_of
from cotenant.experiment.lab.workers import mapping
from cotenant.format.measured.parvagpu import Profiles
from cotenant.format.measured.rapp import Surface

SPLITS: Final = 5
ALONE: Final = ", from alone only"

Progress: TypeAlias = Callable[[str, int, int], None]
"""What is being done, how much of it is done, how much there is."""


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """What the data directory holds, read."""

    streams: dict[str, Timeline]
    surface: Surface
    profiles: Profiles
    servers: list[servers.Measured]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that the lab found: a function of the measurements and the seed."""

    seed: int
    checks: list[Check]
    sums: list[sums.Sum]
    shares: shares.Shares
    servers: dict[str, Any]
    splits: dict[str, list[Split]]
    spreads: dict[str, list[Spread]]
    left_out: dict[str, int]
    unexplained: list[Unexplained]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What plots are drawn from."""

    curves: list[shares.Curve]
    instances: Outcome
    servers: list[servers.Outcome]


def judge_device(measured: Measurements, seed: int, workers: int, progress: Progress) -> tuple[Report, Evidence]:
    """Every check. The splits beside the main one use the seeds that follow it."""
    sum_check, sum_rows = sums.judge_sums(measured.streams)
    curves, too_short, lean = shares.foretell(measured.surface, progress)
    share_part = shares.judge_shares(curves, too_short, lean)
    progress(INSTANCES, 0, 1)
    instances = Instances(measured.profiles)
    instance_outcome = instances.foretell(instances.known_cells("cell", seed))
    seeds = range(seed, seed + SPLITS)
    instance_splits = [instances.split(by, one) for by in ("cell", "point") for one in seeds]
    progress(INSTANCES, 1, 1)
    kinds = [(by, one) for by in ("cell", "run") for one in seeds]
    outcomes = _answers(measured.servers, [*kinds, ("none", seed)], workers, progress)
    main = outcomes["cell", seed]
    server_splits = [servers.split_of(by, one, outcomes[by, one]) for by, one in kinds]
    report = Report(
        seed=seed,
        checks=[
            sum_check,
            share_part.check,
            instances.judge(instance_outcome),
            *servers.judge_servers(measured.servers, main),
            _no_target(instances.judge(instances.foretell_by_alone(), f"{INSTANCES}{ALONE}")),
            _no_target(servers.judge_servers(measured.servers, outcomes["none", seed], f"{servers.CHECK}{ALONE}")[0]),
        ],
        sums=sum_rows,
        shares=share_part,
        servers={one.server: one.fitted for one in main},
        splits={INSTANCES: instance_splits, servers.CHECK: server_splits},
        spreads={
            INSTANCES: spread_of(instance_splits),
            servers.CHECK: spread_of(server_splits),
        },
        left_out={
            "share curves too short": too_short,
            "instance rows not run": measured.profiles.not_run,
            "instance rows carried over": measured.profiles.carried_over,
        },
        unexplained=[
            *share_part.unexplained,
            *instances.unexplained(instance_outcome),
            *servers.unexplained(measured.servers, main),
        ],
    )
    return report, Evidence(curves=curves, instances=instance_outcome, servers=main)


def _no_target(check: Check) -> Check:
    """What nobody asked for, and shows most: nothing that happened together was known."""
    return msgspec.structs.replace(check, target=None, met=None)


def _answers(
    measured: Sequence[servers.Measured], kinds: Sequence[tuple[str, int]], workers: int, progress: Progress
) -> dict[tuple[str, int], list[servers.Outcome]]:
    """By kind of split and seed, an outcome for each server; the number of workers changes nothing in them."""
    questions = [servers.Question(measured=one, by=by, seed=seed) for by, seed in kinds for one in measured]
    answers: list[servers.Outcome] = []
    with mapping(workers) as mapped:
        for outcome in mapped(servers.answer, questions):
            answers.append(outcome)
            progress(servers.CHECK, len(answers), len(questions))
    width = len(measured)
    return {kind: answers[index * width : (index + 1) * width] for index, kind in enumerate(kinds)}
