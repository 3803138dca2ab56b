"""Report of study `placement-node` with its targets."""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from cotenant.errors import ConfigError
from cotenant.simulate.kernels import RunSettings
from cotenant.softgpu.costs import hardware, hardware_hosts
from cotenant.workload.load import TRAINING
from cotenant_lab.data.gavel import read_pairs
from cotenant_lab.study.data_files import DATA_PAGE, measurement_bytes
from cotenant_lab.study.fikit.report import PRESET
from cotenant_lab.study.muxflow_node.cases import node_cases
from cotenant_lab.study.placement.run import PlacementResult, evaluate_mixes, evaluate_trainings, mixes_of
from cotenant_lab.study.placement.sm_caps import Caps, evaluate_caps
from cotenant_lab.study.progress import show_parts

_PAIRS: Final = "gavel/pairs_simulation_throughputs.csv.gz"
_MIXES: Final = 200
_SIZES: Final = (2,) * 6 + (3,) * 4
_CAPPED: Final = 12
_QUICK_SIZES: Final = (2, 2)


class PlacementReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of study `placement-node`, and which targets (ours) are met."""

    seed: int
    quick: bool
    results: list[PlacementResult]
    caps: Caps
    met: dict[str, bool]


def report_of(results: Sequence[PlacementResult], caps: Caps, seed: int, *, quick: bool) -> PlacementReport:
    """Build the report; targets: prediction gets no less done than the other policies and misses no more objectives."""
    met = {}
    for result in results:
        predicted = result.policies["predict"]
        for rival in ("spread", "pack"):
            rival_metrics = result.policies[rival]
            name = f"{result.name} ({result.source}): no worse than {rival}"
            met[name] = (
                _is_no_worse(predicted.by_mix, rival_metrics.by_mix) and predicted.broken <= rival_metrics.broken
            )
    return PlacementReport(seed=seed, quick=quick, results=list(results), caps=caps, met=met)


def _is_no_worse(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether it is lower by at most two standard errors of the paired difference."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return statistics.fmean(differences) >= -2 * error


def run_placement(
    directory: Path, seed: int, console: Console, report: Callable[[str], None], *, quick: bool
) -> PlacementReport:
    """Run the study with a progress bar on a terminal, or one line per part elsewhere."""
    path = directory / _PAIRS
    pairs = read_pairs(measurement_bytes(path), str(path))
    cases, left_out = node_cases(directory, quick=quick)
    for missing in left_out:
        report(f"omitted: {missing.name}: {missing.why}")
    services = list({(case.pair.online.name, case.level): case.pair.online for case in cases}.values())
    offline = {case.pair.offline.name: case.pair.offline for case in cases}
    trainings = [msgspec.structs.replace(load, arrival=TRAINING) for load in offline.values()]
    if not services or not pairs.pairs:
        raise ConfigError("data", str(directory), f"has no pair or no service; {DATA_PAGE}")
    setting = RunSettings(device=hardware(PRESET), costs=hardware_hosts(), seed=seed)
    mixes = mixes_of(services, trainings, setting, random.Random(seed), _QUICK_SIZES if quick else _SIZES)
    with show_parts(console, report, "to judge") as progress:
        results = evaluate_trainings(pairs, seed, _MIXES // (10 if quick else 1), progress)
        results.append(evaluate_mixes(mixes, setting, os.cpu_count() or 1, progress))
        pairings = [(load, trainings[index % len(trainings)]) for index, load in enumerate(services)]
        chosen = pairings[:: max(len(pairings) // (2 if quick else _CAPPED), 1)]
        caps = evaluate_caps(chosen, setting, os.cpu_count() or 1, progress)
    return report_of(results, caps, seed, quick=quick)
