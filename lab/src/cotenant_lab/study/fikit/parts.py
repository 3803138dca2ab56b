"""A service next to trainings with long kernels: kernels that can be launched in parts, and kernels that cannot.

Contention is on, and the priorities of MPS clients have no effect, so that a kernel of the service waits for the blocks
of the training that were ready before it. Two ends: the programs contain PTX of all kernels, or of none of the matrix
products and convolutions, which come from libraries that ship machine code. Next to each, the best fixed part of the
SMs that an operator could give the training, chosen in hindsight.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from cotenant.gate.rules import GateRules
from cotenant.simulate.kernels import Policy, RunSettings, Tenant, play, play_alone
from cotenant.units.instant import SECOND_NS
from cotenant.units.share import WHOLE_PPM
from cotenant.workload.load import BACK_TO_BACK, Workload, poisson
from cotenant_lab.bench.fill.pairs import PLANS, LoadRecipe, MissingPair, read_load
from cotenant_lab.study.claim import CONTENTION, DURATIONS, FACTORS, NOMINAL, Perturbation, perturbed_setting
from cotenant_lab.study.fikit.run import OFFLINE_PRIORITY, ONLINE_PRIORITY, Progress, offline_alone
from cotenant_lab.study.workers import mapping

PART: Final = "parts of kernels"
SERVICE: Final = LoadRecipe(name="bert-small", path="kernel_timelines/h100_bert_small_inference_eager.csv.gz")
"""3.9 ms a request, most of it between its 61 launches: the pair of `bench fill` whose latency is nearest to 4 ms."""
BUSY_SERVICE: Final = LoadRecipe(
    name="trt resnet50 fp16",
    path="trt_engine_explorer/examples_tensorflow_resnet_RTX-3090_fp16_resnet.onnx.engine.profile.json",
    graph=True,
)
"""4.3 ms a request, in which it fills every SM: at half load, half of the time is left."""
LEVEL: Final = 0.5
"""Fraction of the time in which the service has a request."""
REQUESTS: Final = 2000
FEWER_REQUESTS: Final = 500
"""In perturbed cells and in the search of the best part of the SMs."""
QUICK_REQUESTS: Final = 120
QUICK_TRAININGS: Final = 2
WARM: Final = 100
"""Requests before the measurement, in which the gate learns."""
SM_PERCENTAGES: Final = (10, 20, 30, 40, 60, 80)
P99_MOST: Final = 1.05
UNSLICEABLE_P99_MOST: Final = 1.25
DELAY_PART: Final = 0.3
"""The gate's `delay` over what the p99 may grow by. Requests that take longer wait for each other: at half load, the
p99 of Poisson arrivals grows by about twice the part by which requests take longer. The rest is a margin."""
OFFLINE_LEAST: Final = 0.50
_Group: TypeAlias = tuple[bool, str]
CELLS: Final = (None, *(Perturbation(what, factor) for what in (DURATIONS, CONTENTION) for factor in FACTORS))


class PartsCase(msgspec.Struct, frozen=True, kw_only=True):
    """A service and a training on one device."""

    service: Workload
    training: Workload
    requests: int
    p99_most: float
    """Bound of the ratio of p99s, from which the gate's `delay` follows."""
    policy: Policy = "fill"
    sm_percent: int = 0
    """A fixed part of the SMs for the training, without the gate; 0: all."""
    cell: Perturbation | None = None


class PartsResult(msgspec.Struct, frozen=True, kw_only=True):
    """What sharing cost the service, and what it left to the training."""

    service: str
    training: str
    p99_ratio: float
    """p99 of the latencies, from arrival on, over that alone with the same arrivals."""
    mean_ratio: float
    offline: float
    """Speed of the training over that alone."""
    sm_percent: int = 0


class SpatialBound(msgspec.Struct, frozen=True, kw_only=True):
    """For each training the part of the SMs with its highest speed among those that keep the p99 bound."""

    p99_ratio_max: float
    offline_median: float
    sm_percent: dict[str, int]
    """By training; trainings for which no part keeps the bound have the one with the lowest p99."""


class PartsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Results over all trainings."""

    service: str
    p99_ratio_max: float
    offline_median: float
    cases: list[PartsResult]
    slices_p99_ratio_max: float
    """The same between time slices, without MPS."""
    slices_offline_median: float
    busy_service_p99_ratio_max: float
    """The same next to a service that fills every SM while it has a request."""
    busy_service_offline_median: float
    perturbed: dict[str, dict[str, float]]
    """By cell: both values, with fewer requests, and with one quantity that the gate or the study assumes wrong."""
    best_spatial_bound: SpatialBound
    """What a fixed part of the SMs gives the training within the same bound of the p99."""


def parts_setting(setting: RunSettings) -> RunSettings:
    """Return the setting with no effect of MPS priorities."""
    device = msgspec.structs.replace(setting.device, priority_effect_ppm=0)
    return msgspec.structs.replace(setting, device=device, warm=WARM)


def with_ptx(load: Workload) -> Workload:
    """Return the program with PTX of all its kernels, those of libraries included."""
    launches = tuple(msgspec.structs.replace(launch, has_ptx=True) for launch in load.launches)
    return msgspec.structs.replace(load, launches=launches)


def at_half_load(load: Workload, setting: RunSettings, seed: int) -> Workload:
    """Return Poisson arrivals for which the service alone has a request half of the time."""
    alone = play_alone(msgspec.structs.replace(load, arrival=BACK_TO_BACK, requests=20), setting)
    mean_ns = statistics.fmean(alone.clients[0].latencies_ns)
    return msgspec.structs.replace(load, arrival=poisson(LEVEL * SECOND_NS / mean_ns, seed))


def trainings(directory: Path) -> tuple[list[Workload], list[MissingPair]]:
    """Return every training of the pairs of `bench fill`, once."""
    recipes = dict.fromkeys(plan.offline for plan in PLANS)
    missing = [recipe for recipe in recipes if not (directory / recipe.path).is_file()]
    return [read_load(directory, recipe) for recipe in recipes if recipe not in missing], [
        MissingPair(f"{PART}: {recipe.name}", f"{directory / recipe.path} does not exist") for recipe in missing
    ]


def services(directory: Path, setting: RunSettings) -> tuple[list[Workload], list[MissingPair]]:
    """Return both services at half load; the arrivals depend on the seed."""
    recipes = (SERVICE, BUSY_SERVICE)
    missing = [recipe for recipe in recipes if not (directory / recipe.path).is_file()]
    return [
        at_half_load(read_load(directory, recipe), setting, setting.seed + 1)
        for recipe in recipes
        if recipe not in missing
    ], [MissingPair(f"{PART}: {recipe.name}", f"{directory / recipe.path} does not exist") for recipe in missing]


def evaluate_parts(case: PartsCase, setting: RunSettings) -> PartsResult:
    """Run one case; the result depends on the case and the setting alone."""
    rules = GateRules(delay_ppm=round(DELAY_PART * (case.p99_most - 1) * WHOLE_PPM))
    setting = msgspec.structs.replace(setting, rules=rules)
    setting = setting if case.cell is None else perturbed_setting(setting, case.cell)
    service = msgspec.structs.replace(case.service, requests=case.requests)
    alone, training_alone = play_alone(service, setting), offline_alone(case.training, setting)
    sm_cap = max(case.sm_percent * setting.device.sm_count // 100, 1) if case.sm_percent else 0
    tenants = [
        Tenant(load=service, priority=ONLINE_PRIORITY),
        Tenant(load=case.training, priority=OFFLINE_PRIORITY, sm_cap=sm_cap),
    ]
    shared = play("open-mps" if sm_cap else case.policy, tenants, setting).played
    latencies, latencies_alone = shared.clients[0].latencies_ns, alone.clients[0].latencies_ns
    offline_alone_rate = training_alone.offline_done_ns / training_alone.wall_ns
    return PartsResult(
        service=service.name,
        training=case.training.name,
        p99_ratio=p99_of(latencies) / p99_of(latencies_alone),
        mean_ratio=statistics.fmean(latencies) / statistics.fmean(latencies_alone),
        offline=shared.clients[1].done_ns / shared.wall_ns / offline_alone_rate,
        sm_percent=case.sm_percent,
    )


def p99_of(values: Sequence[int]) -> int:
    """Return the smallest value that 99 % do not exceed."""
    ordered = sorted(values)
    return ordered[min(math.ceil(0.99 * len(ordered)), len(ordered)) - 1]


def evaluate_ends(
    online: Sequence[Workload],
    offline: Sequence[Workload],
    setting: RunSettings,
    workers: int,
    progress: Progress,
    *,
    quick: bool,
) -> tuple[PartsSummary, PartsSummary]:
    """Evaluate both ends: all kernels sliceable, and library kernels not."""
    tasks = list(_cases(online, offline, quick=quick))
    results: list[PartsResult] = []
    progress(PART, 0, len(tasks))
    with mapping(workers) as mapped:
        for result in mapped(evaluate_parts, [case for _, case in tasks], [setting] * len(tasks)):
            results.append(result)
            progress(PART, len(results), len(tasks))
    groups: dict[tuple[bool, str], list[PartsResult]] = {}
    for (group, _), result in zip(tasks, results, strict=True):
        groups.setdefault(group, []).append(result)
    sliceable = {name: group for (is_all, name), group in groups.items() if is_all}
    unsliceable = {name: group for (is_all, name), group in groups.items() if not is_all}
    space = unsliceable[_SPACE]
    return _summary_of(sliceable, bound_of(space, P99_MOST)), _summary_of(
        unsliceable, bound_of(space, UNSLICEABLE_P99_MOST)
    )


_MAIN: Final = "main"
_SLICES: Final = "slices"
_BUSY: Final = "busy"
_SPACE: Final = "space"


def _cases(
    online: Sequence[Workload], offline: Sequence[Workload], *, quick: bool
) -> Iterator[tuple[_Group, PartsCase]]:
    """Yield every case with its end (are all kernels sliceable?) and its group."""
    service, busy = online
    requests = QUICK_REQUESTS if quick else REQUESTS
    fewer = QUICK_REQUESTS if quick else FEWER_REQUESTS
    for is_all, training in itertools.product((True, False), offline[: QUICK_TRAININGS if quick else None]):
        case = PartsCase(
            service=service,
            training=with_ptx(training) if is_all else training,
            requests=requests,
            p99_most=P99_MOST if is_all else UNSLICEABLE_P99_MOST,
        )
        yield (is_all, _MAIN), case
        yield (is_all, _SLICES), msgspec.structs.replace(case, policy="fill-slice")
        yield (is_all, _BUSY), msgspec.structs.replace(case, service=busy)
        for cell in CELLS:
            name = NOMINAL if cell is None else str(cell)
            yield (is_all, name), msgspec.structs.replace(case, requests=fewer, cell=cell)
        for percent in () if is_all else SM_PERCENTAGES:  # without the gate, so the same at both ends
            yield (is_all, _SPACE), msgspec.structs.replace(case, requests=fewer, sm_percent=percent)


def _summary_of(groups: dict[str, list[PartsResult]], bound: SpatialBound) -> PartsSummary:
    main, between_slices, busy = groups[_MAIN], groups[_SLICES], groups[_BUSY]
    cells = [NOMINAL if cell is None else str(cell) for cell in CELLS]
    return PartsSummary(
        service=main[0].service,
        p99_ratio_max=_worst(main),
        offline_median=_median(main),
        cases=main,
        slices_p99_ratio_max=_worst(between_slices),
        slices_offline_median=_median(between_slices),
        busy_service_p99_ratio_max=_worst(busy),
        busy_service_offline_median=_median(busy),
        perturbed={
            cell: {"p99_ratio_max": _worst(groups[cell]), "offline_median": _median(groups[cell])} for cell in cells
        },
        best_spatial_bound=bound,
    )


def bound_of(results: Sequence[PartsResult], p99_most: float) -> SpatialBound:
    """Return the best fixed part of the SMs for each training within a bound of the p99."""
    chosen = []
    for name in dict.fromkeys(result.training for result in results):
        of_training = [result for result in results if result.training == name]
        kept = [result for result in of_training if result.p99_ratio <= p99_most]
        if kept:
            chosen.append(max(kept, key=lambda result: result.offline))
        else:
            chosen.append(min(of_training, key=lambda result: result.p99_ratio))
    return SpatialBound(
        p99_ratio_max=_worst(chosen),
        offline_median=_median(chosen),
        sm_percent={result.training: result.sm_percent for result in chosen},
    )


def _worst(results: Sequence[PartsResult]) -> float:
    return round(max(result.p99_ratio for result in results), 4)


def _median(results: Sequence[PartsResult]) -> float:
    return round(statistics.median(result.offline for result in results), 4)
