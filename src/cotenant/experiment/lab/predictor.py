"""Can the node's predictor be believed? Every answer it gives, against measurements that it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from cotenant.domain.timeline import Timeline
from cotenant.experiment.lab.foretold import Case, Judged, all_met, judged
from cotenant.experiment.lab.predict_latency import ADDITIVE, CONSTANT, Alone, Shown, judge_alone
from cotenant.experiment.lab.predict_load import LoadJudged, Window, judge_loads
from cotenant.experiment.lab.predict_pairs import pairs_on_the_model, split_cases
from cotenant.experiment.lab.predict_together import (
    FLOORS,
    TURNS,
    Group,
    Laws,
    Together,
    instance_groups,
    judge_together,
    server_groups,
    training_groups,
)
from cotenant.experiment.lab.servers import Measured
from cotenant.format.measured.gavel import Pairs
from cotenant.format.measured.parvagpu import Profiles
from cotenant.format.measured.rapp import Surface

_QUICK: Final = 4
"""A quick run looks at every so manieth group of tenants."""


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """What the data directory holds, read."""

    streams: dict[str, Timeline]
    surface: Surface
    profiles: Profiles
    servers: list[Measured]
    pairs: Pairs
    arrivals: dict[str, tuple[int, ...]]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found: a function of the measurements and the seed."""

    lab: str
    quick: bool
    seed: int
    alone: Alone
    together: Together
    split: list[Judged]
    """Both levels at once."""
    load: list[LoadJudged]
    met: dict[str, bool]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What plots are drawn from."""

    curves: list[Shown]
    together: dict[str, list[Case]]
    windows: dict[str, list[Window]]


def judge_predictor(
    measured: Measurements, seed: int, progress: Callable[[str, int, int], None], *, quick: bool
) -> tuple[Report, Evidence]:
    """Latency alone, slowdown together, next load."""
    alone, curves = judge_alone(measured.surface, measured.profiles, measured.streams, progress)
    together, cases = judge_together(_sets(measured, quick=quick), progress)
    split = _split(measured.streams)
    progress("split shares", 1, 1)
    loads, windows = judge_loads(measured.arrivals, seed, quick=quick)
    progress("load", 1, 1)
    met = {**all_met([*alone.judged, *together.judged, *split]), **_loads_met(loads)}
    report = Report(
        lab="predictor-node", quick=quick, seed=seed, alone=alone, together=together, split=split, load=loads, met=met
    )
    return report, Evidence(curves=curves, together=cases, windows=windows)


def every_judgement(report: Report) -> list[Judged]:
    """Of latencies, of slowdowns, and of both."""
    return [*report.alone.judged, *report.together.judged, *report.split]


def _split(streams: Mapping[str, Timeline]) -> list[Judged]:
    """Its intervals are for real GPUs, and wider than the device model deserves: they are shown, and are no target."""
    cases = split_cases(streams)
    if not cases:
        return []
    name, source = "split shares on the software GPU", "Orion on the device model"
    return [judged(name, source, "nothing fitted", cases, rivals=(CONSTANT, ADDITIVE), covers=False)]


def _sets(measured: Measurements, *, quick: bool) -> Mapping[str, tuple[str, Sequence[Group], Laws]]:
    each = _QUICK if quick else 1
    return {
        "clients of a server": ("DISB, RTX 3080", server_groups(measured.servers), Laws(turns=TURNS)),
        "processes in an instance": ("ParvaGPU, A100", instance_groups(measured.profiles)[::each], Laws()),
        "training pairs": (
            "Gavel, K80, P100, V100",
            training_groups(measured.pairs)[::each],
            Laws(turns=TURNS, floors=FLOORS),
        ),
        "pairs on the software GPU": (
            "Orion on the device model",
            pairs_on_the_model(measured.streams)[::each],
            Laws(turns=TURNS),
        ),
    }


def _loads_met(loads: Sequence[LoadJudged]) -> dict[str, bool]:
    return {f"load of {one.trace}, {one.window_s} s: {name}": met for one in loads for name, met in one.met.items()}
