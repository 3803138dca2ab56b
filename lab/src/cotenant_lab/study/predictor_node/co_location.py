"""Evaluate predicted slowdown by neighbours for programs that no law was fitted to."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from cotenant.predict.calibration import Calibration
from cotenant.predict.latency import fit_surface, nonnegative_least_squares
from cotenant.predict.slowdown import MPS, Law, Use, choose_law, points_of, slowdowns
from cotenant_lab.data.gavel import TrainingPairs
from cotenant_lab.data.parvagpu import Profiles
from cotenant_lab.physics.tenants import LAYER_KERNELS
from cotenant_lab.study.device.servers import ServerMeasurements
from cotenant_lab.study.predictor_node.comparison import (
    PredictionCase,
    PredictionComparison,
    compare_predictions,
    folds,
)
from cotenant_lab.study.predictor_node.latency import ADDITIVE, CONSTANT, PARVA_POINTS, parva_programs, usual_of

LEARNED: Final = ", once seen"
_GAINS: Final = (0.2, 0.3, 0.45, 0.6, 0.8, 1.0, 1.2)
TURNS: Final = (0.0, 0.2, 0.35, 0.5, 0.75, 1.0)
FLOORS: Final = (0.0, 0.5, 1.0)
_GPCS: Final = 7
_POWER: Final = {"k80": 1.0, "p100": 4.0, "v100": 6.0}
"""Approximate speed ratios of GPUs in training of convolutional networks, to separate host time from GPU time."""
_LEAST_DUTY: Final = 0.05


class TenantGroup(msgspec.Struct, frozen=True):
    """Tenants that ran together, and the slowdown of each."""

    name: str
    kind: str
    """Laws are for one kind of sharing: a server, a kind of GPU."""
    uses: tuple[Use, ...]
    tenants: tuple[str, ...]
    programs: tuple[str, ...]
    """Programs that are held out together: a network, a family of models."""
    slowdowns: tuple[float, ...]


class Laws(msgspec.Struct, frozen=True):
    """Laws that are tried for a kind of measurement."""

    gains: tuple[float, ...] = _GAINS
    turns: tuple[float, ...] = (0.0,)
    floors: tuple[float, ...] = (0.0,)

    def all(self) -> list[Law]:
        """Return every combination."""
        return [Law(gain, turn, floor) for gain in self.gains for turn in self.turns for floor in self.floors]


class SlowdownResults(msgspec.Struct, frozen=True, kw_only=True):
    """Results of all sets."""

    comparisons: list[PredictionComparison]
    laws: dict[str, dict[str, float]]
    """By kind of sharing, chosen from all data: the law that would be used next."""


def evaluate_together(
    sets: Mapping[str, tuple[str, Sequence[TenantGroup], Laws]], progress: Callable[[str, int, int], None]
) -> tuple[SlowdownResults, dict[str, list[PredictionCase]]]:
    """Evaluate each set by its name, with its source."""
    comparisons = []
    laws: dict[str, dict[str, float]] = {}
    shown: dict[str, list[PredictionCase]] = {}
    for done, (name, (source, groups, candidates)) in enumerate(sets.items()):
        cases, seen, chosen = _hold_out(groups, candidates)
        laws |= {f"{name}: {kind}": msgspec.structs.asdict(law) for kind, law in chosen.items()}
        shown[name] = cases
        split = "programs not fitted"
        comparisons.append(compare_predictions(name, source, split, cases, rivals=(CONSTANT, ADDITIVE)))
        comparisons.append(
            compare_predictions(name + LEARNED, source, f"{split}, outcomes so far", seen, rivals=(CONSTANT, ADDITIVE))
        )
        progress("together", done + 1, len(sets))
    return SlowdownResults(comparisons=comparisons, laws=laws), shown


def _hold_out(
    groups: Sequence[TenantGroup], candidates: Laws
) -> tuple[list[PredictionCase], list[PredictionCase], dict[str, Law]]:
    """Hold out every program once; then predict again with corrections by its earlier outcomes."""
    cases, seen, chosen = [], [], {}
    for kind in sorted({group.kind for group in groups}):
        own_groups = [group for group in groups if group.kind == kind]
        laws = candidates.all()
        table = np.array([[prediction for group in own_groups for prediction in _listed(group, law)] for law in laws])
        truth = [slowdown for group in own_groups for slowdown in group.slowdowns]
        programs = [(group.programs, position) for group in own_groups for position in range(len(group.tenants))]
        chosen[kind] = choose_law(laws, table, truth)
        calibrations: dict[str, Calibration] = {}
        held_laws: dict[str, tuple[Law, float]] = {}
        for program in sorted({program for group in own_groups for program in group.programs}):
            kept = [index for index, (names, _) in enumerate(programs) if program not in names]
            if 2 * len(kept) < len(programs):  # the program is in most groups: only its own cases are held out
                kept = [index for index, (names, position) in enumerate(programs) if names[position] != program]
            kept_truth = [truth[index] for index in kept]
            taught = (
                (choose_law(laws, table[:, kept], kept_truth), statistics.median(kept_truth)) if kept else (MPS, 1.0)
            )
            held_laws[program] = taught
        for group in own_groups:
            busy = sum(use.duty * use.active * sum(width * part for width, part in use.widths) for use in group.uses)
            for index, tenant in enumerate(group.tenants):
                name = f"{group.name}: {tenant} ({index + 1})"
                law, constant = held_laws[group.programs[index]]
                predicted = slowdowns(group.uses, law)[index]
                measured = group.slowdowns[index]
                guesses = {CONSTANT: constant, ADDITIVE: max(1.0, busy)}
                cases.append(PredictionCase(name, predicted, measured, guesses))
                calibration = calibrations.get(tenant, Calibration())
                seen.append(PredictionCase(name, calibration.corrected(predicted), measured, guesses))
                calibrations[tenant] = calibration.after(predicted, measured)
    return cases, seen, chosen


def _listed(group: TenantGroup, law: Law) -> list[float]:
    """Return the predictions; of identical tenants only the first is listed."""
    return points_of(group.uses, law)[: len(group.tenants)]


def server_groups(servers: Sequence[ServerMeasurements]) -> list[TenantGroup]:
    """Return DISB's clients: as many kernels as the published networks have layers, each on the whole GPU."""
    groups = []
    for server in servers:
        for run in server.runs:
            uses = []
            for client in run.clients:
                alone_ns = run.alone_ns[client.name]
                demand = client.load.rate_per_s * alone_ns / 1e9
                active = 1.0 if client.load.kind == "continuous" else min(0.999, demand)
                uses.append(Use(duty=1.0, kernel_ns=alone_ns / kernels_of(client.model), active=active))
            together = tuple(
                server.together_ns[run.name, client.name] / run.alone_ns[client.name] for client in run.clients
            )
            names = tuple(client.name for client in run.clients)
            models = tuple(client.model for client in run.clients)
            groups.append(
                TenantGroup(f"{server.server} {run.name}", server.server, tuple(uses), names, models, together)
            )
    return groups


def training_groups(pairs: TrainingPairs) -> list[TenantGroup]:
    """Return Gavel's pairs: how a job's speed grows from GPU to GPU gives the GPU's part of a step."""
    duties: dict[tuple[str, str], float] = {}
    for job in sorted({job for _, job in pairs.step_s}):
        steps = [(gpu, pairs.step_s[gpu, job]) for gpu in _POWER if (gpu, job) in pairs.step_s]
        system = np.array([[1 / step_s, 1 / (_POWER[gpu] * step_s)] for gpu, step_s in steps])
        host, work = nonnegative_least_squares(system, np.ones(len(steps)))
        for gpu, _ in steps:
            on_gpu = float(work) / _POWER[gpu]
            duties[gpu, job] = max(_LEAST_DUTY, on_gpu / (float(host) + on_gpu))
    groups = []
    for pair in pairs.pairs:
        uses = tuple(Use(duties[pair.gpu, job], kernel_ns=1e9 * pairs.step_s[pair.gpu, job]) for job in pair.jobs)
        families = tuple(job.split(" (")[0] for job in pair.jobs)
        name = f"{pair.gpu} {pair.jobs[0]} + {pair.jobs[1]}"
        groups.append(TenantGroup(name, pair.gpu, uses, pair.jobs, families, pair.slowdowns))
    return groups


def instance_groups(profiles: Profiles) -> list[TenantGroup]:
    """Return ParvaGPU's processes of one model, whose use follows from latency alone over sizes and batches."""
    programs = parva_programs(profiles)
    surfaces = {}
    for held_out in folds(list(programs), len(programs)):
        usual = usual_of({name: points for name, points in programs.items() if name not in held_out}, PARVA_POINTS)
        for name in held_out:
            surfaces[name] = fit_surface(programs[name], usual)
    groups = []
    for (model, gpcs, batch), by_count in profiles.latency_s.items():
        if 1 not in by_count:
            continue
        use = Use(1.0, surfaces[model].widths(gpcs / _GPCS, batch))
        for count, latency in sorted(by_count.items()):
            if count > 1:
                name = f"{count} on {gpcs} GPCs batch {batch} of"
                slower = (max(latency / by_count[1], 1e-3),)
                groups.append(TenantGroup(name, "mps in an instance", (use,) * count, (model,), (model,), slower))
    return groups


def kernels_of(model: str) -> float:
    """Return the kernels of a request: as many as the published network has layers."""
    return float(next((count for name, count in LAYER_KERNELS.items() if model.startswith(name)), 100))
