"""Measured co-location outcomes of four publications, with what is known of each program alone.

None of them publishes profiles. The inputs that a predictor needs of each program alone are derived here from
measurements of programs alone and, where there is none, assumed; each assumption is stated with its reason. None of
them uses a measurement of a program together with another one.

The programs of each publication are divided into two halves. Outcomes among programs of the fit half may be used to
fit; outcomes of programs of the held half judge, and nothing is fitted to them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from cotenant.cluster.model.cluster import OnlineUse
from cotenant.predict.kernel_scaling import widths
from cotenant.predict.latency import DEFAULT_PRIOR, Point, fit_surface
from cotenant.predict.profile_usage import few_widths
from cotenant.predict.speed_features import Spot
from cotenant.predict.usage import TaskUse
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from cotenant.units.share import WHOLE_PPM
from cotenant.workload.timeline import Timeline, profile_of
from cotenant_lab.data.gavel import TrainingPairs
from cotenant_lab.data.igniter import Alone, Program, SplitPair
from cotenant_lab.data.parvagpu import Profiles
from cotenant_lab.physics.tenants import LAYER_KERNELS
from cotenant_lab.study.device.servers import ServerMeasurements
from cotenant_lab.study.predictor.latency import PARVA_POINTS, parva_programs, usual_of
from cotenant_lab.study.predictor.pairs import ServingMode
from cotenant_lab.study.predictor.training import kernels_of_step, training_groups

GAVEL: Final = "Gavel: training pairs, time slices"
AGAIN: Final = "Gavel: the same pairs, second file"
DISB: Final = "DISB: clients of a server"
PARVA: Final = "ParvaGPU: processes of one model"
SPLIT: Final = "iGniter: two models on split shares"
SPLIT_JOBS: Final = "iGniter: a job on a share, a service on the rest"
REPEATABLE: Final = 0.10
"""Gavel's pairs whose two published measurements differ by no more than this are judged on their own as well."""
_ENGINES: Final = "trt"
_SAME_ENGINES: Final = "triton"
NEAREST: Final = {
    "resnet152": "resnet101_4_fwd",
    "densenet201": "resnet101_4_fwd",
    "inceptionv3": "resnet50_4_fwd",
    "distilbert": "bert_2_fwd",
}
"""Orion's lists of kernels by DISB's networks; VGG-19 has few, large layers and is assumed to need all SMs."""
_V100_SMS: Final = 80
_RTX3080_SMS: Final = 68
_GPCS: Final = 7
_USUAL_KERNELS: Final = 100
_SPLIT_KERNELS: Final = {"alexnet": 20, "resnet50": 54, "vgg19": 24, "ssd": 60}
"""Layers of the published networks that are kernels of a TensorRT engine."""


class MeasuredOutcome(msgspec.Struct, frozen=True):
    """Measured speed of one program together with others."""

    name: str
    source: str
    program: str
    """Program whose outcomes are held out together."""
    others: tuple[str, ...]
    profile: str
    """Identity of the program there, by which its outcomes are learned."""
    co_runners: str
    mode: ServingMode
    job: TaskUse
    spot: Spot
    speed: float
    adds_up: float
    """The speed if each got its part of the total demand."""
    is_fit: bool
    """Whether it may be used to fit: every program is in the fit half."""
    is_held: bool
    """Whether it judges: the program is in the held half."""


class _Together(NamedTuple):
    name: str
    source: str
    where: str
    mode: ServingMode
    programs: Sequence[str]
    slower: Sequence[float]


def fit_half(programs: Sequence[str]) -> set[str]:
    """Return every second program in the order of their names; the others are the held half."""
    return set(sorted(set(programs))[::2])


def gavel_outcomes(pairs: TrainingPairs, source: str = GAVEL) -> list[MeasuredOutcome]:
    """Return both sides of every pair, by time slices; a pair that the file has in both orders counts once.

    Duty: how a job's speed grows from GPU to GPU gives the GPU's part of a step (`training_groups`). Kernels: the table
    of kernel counts. Widths and bandwidth are unknown and assumed as all SMs and none; time slices do not depend on
    them.
    """
    outcomes = []
    seen_pairs: set[str] = set()
    groups = training_groups(pairs)
    fit = fit_half([program for group in groups for program in group.programs])
    for group in groups:
        order = sorted((0, 1), key=lambda side: group.jobs[side])
        name = f"{group.gpu} {' + '.join(group.jobs[side] for side in order)}"
        if name in seen_pairs:
            continue
        seen_pairs.add(name)
        uses = [
            use_of(group.duties[side], group.step_ns[side], kernels_of_step(group.jobs[side]), 1.0) for side in order
        ]
        programs, slower = [group.programs[side] for side in order], [group.slowdowns[side] for side in order]
        together = _Together(name, source, group.gpu, "time", programs, slower)
        outcomes += [_outcome(together, uses, mine, [1 - mine], fit, tenant=group.jobs[order[mine]]) for mine in (0, 1)]
    return outcomes


def disb_outcomes(servers: Sequence[ServerMeasurements], streams: Mapping[str, Timeline]) -> list[MeasuredOutcome]:
    """Return every client with all others of its server, whose requests share the GPU concurrently.

    Duty: Triton runs the same engines that TensorRT runs by itself (according to DISB), so a request's time there is
    its time on the GPU; TensorRT and TensorFlow Serving are assumed to use the GPU all of the time. Kernels: as many as
    the network has layers. Widths: those of Orion's kernels of the nearest network, on 68 rather than 80 SMs.
    """
    engines = {
        client.model: float(run.alone_ns[client.name])
        for server in servers
        if server.server == _ENGINES
        for run in server.runs
        for client in run.clients
    }
    fit = fit_half([client.model for server in servers for run in server.runs for client in run.clients])
    outcomes = []
    for server, run in [(one, run) for one in servers for run in one.runs]:
        uses = []
        for client in run.clients:
            alone_ns = float(run.alone_ns[client.name])
            active = 1.0 if client.load.kind == "continuous" else client.load.rate_per_s * alone_ns / SECOND_NS
            on_gpu_ns = engines.get(client.model, alone_ns) if server.server == _SAME_ENGINES else alone_ns
            use = use_of(min(1.0, on_gpu_ns / alone_ns), alone_ns, kernels_of(client.model), min(active, 1.0))
            uses.append(msgspec.structs.replace(use, widths=_widths(client.model, streams)))
        slower = [server.together_ns[run.name, client.name] / run.alone_ns[client.name] for client in run.clients]
        models = [client.model for client in run.clients]
        group = _Together(f"{server.server} {run.name}", DISB, server.server, "mps", models, slower)
        for mine, client in enumerate(run.clients):
            others = [index for index in range(len(uses)) if index != mine]
            if others:
                outcomes.append(_outcome(group, uses, mine, others, fit, tenant=client.name))
    return outcomes


def parva_outcomes(profiles: Profiles) -> list[MeasuredOutcome]:
    """Return processes of one model in an instance; widths follow from latency alone over sizes and batches.

    The surface of a model is fitted to its own latencies alone, with a prior of the other models.
    """
    programs = parva_programs(profiles)
    fit = fit_half(list(programs))
    surfaces = {}
    for model, points in programs.items():
        others = {name: other for name, other in programs.items() if name != model}
        surfaces[model] = fit_surface(points, usual_of(others, PARVA_POINTS))
    outcomes = []
    for (model, gpcs, batch), by_count in profiles.latency_s.items():
        if 1 not in by_count:
            continue
        use = use_of(1.0, by_count[1] * SECOND_NS, _USUAL_KERNELS, 1.0)
        use = msgspec.structs.replace(use, widths=few_widths(surfaces[model].widths(gpcs / _GPCS, batch)))
        for count, latency_s in sorted(by_count.items()):
            if count > 1:
                slower = (max(latency_s / by_count[1], 1e-3),) * count
                name = f"{count} on {gpcs} GPCs batch {batch}"
                together = _Together(name, PARVA, f"{gpcs} GPCs", "mps", (model,) * count, slower)
                outcomes.append(_outcome(together, [use] * count, 0, range(1, count), fit, tenant=model))
    return outcomes


class _SplitTenant(NamedTuple):
    model: str
    batch: int
    share_pct: int
    latency_ms: float

    def __str__(self) -> str:
        """Return its name in a case."""
        return f"{self.model} batch {self.batch} at {self.share_pct} %"


def split_outcomes(
    alone: Mapping[Program, Mapping[int, Alone]], pairs: Sequence[SplitPair], mode: ServingMode = "mps"
) -> list[MeasuredOutcome]:
    """Return both models of every pair on split shares, relative to each alone within its share.

    In the mode `space` the pair is a job and a service, as a cluster places them. Widths: from latency alone over
    shares and batches. Bandwidth: the measured part of the DRAM bandwidth alone. With four models, the halves are of
    pairs of models: the first, third and fifth pair in the order of their names fit.
    """
    models = sorted({model for model, _ in alone})
    fit = set(list(itertools.combinations(models, 2))[::2])
    surfaces = {
        model: fit_surface(
            [
                Point(share_pct / 100, batch, point.latency_ms)
                for (name, batch), curve in alone.items()
                if name == model
                for share_pct, point in curve.items()
            ],
            DEFAULT_PRIOR,
        )
        for model in models
    }
    outcomes = []
    for pair in pairs:
        if pair.first not in alone or pair.second not in alone:
            continue  # nothing is known of it alone
        tenants = (
            _SplitTenant(*pair.first, pair.first_share_pct, pair.first_ms),
            _SplitTenant(*pair.second, 100 - pair.first_share_pct, pair.second_ms),
        )
        uses, slower = [], []
        for tenant in tenants:
            curve = alone[tenant.model, tenant.batch]
            alone_ms = _alone_ms(curve, tenant.share_pct)
            use = use_of(1.0, alone_ms * MILLISECOND_NS, _SPLIT_KERNELS.get(tenant.model, _USUAL_KERNELS), 1.0)
            share = tenant.share_pct / 100
            held = surfaces[tenant.model].widths(share, tenant.batch)
            uses.append(
                msgspec.structs.replace(
                    use,
                    widths=few_widths(tuple((width * share, part) for width, part in held)),
                    memory_ppm=round(_dram(curve, tenant.share_pct) * WHOLE_PPM),
                )
            )
            slower.append(tenant.latency_ms / alone_ms)
        is_fit = tuple(sorted(tenant.model for tenant in tenants)) in fit
        source, programs = (SPLIT_JOBS if mode == "space" else SPLIT), [tenant.model for tenant in tenants]
        together = _Together(" + ".join(map(str, tenants)), source, "v100", mode, programs, slower)
        for mine in (0, 1):
            outcome = _outcome(together, uses, mine, [1 - mine], set(), tenant=programs[mine])
            outcomes.append(msgspec.structs.replace(outcome, is_fit=is_fit, is_held=not is_fit))
    return outcomes


def _alone_ms(curve: Mapping[int, Alone], share_pct: int) -> float:
    """Return the latency alone at a share, interpolated in logarithms where it was not measured."""
    if share_pct in curve:
        return curve[share_pct].latency_ms
    lower = max((share for share in curve if share < share_pct), default=min(curve))
    higher = min((share for share in curve if share > share_pct), default=max(curve))
    if lower == higher:
        return curve[lower].latency_ms
    part = math.log(share_pct / lower) / math.log(higher / lower)
    low, high = math.log(curve[lower].latency_ms), math.log(curve[higher].latency_ms)
    return math.exp(low + part * (high - low))


def _dram(curve: Mapping[int, Alone], share_pct: int) -> float:
    """Return the part of the bandwidth that a model uses alone, at the nearest measured share; 0: unknown."""
    points = [(abs(share - share_pct), point.dram_pct) for share, point in curve.items() if point.dram_pct is not None]
    return min(points)[1] / 100 if points else 0.0


def repeatable(first: Sequence[MeasuredOutcome], again: Sequence[MeasuredOutcome]) -> list[MeasuredOutcome]:
    """Return the outcomes whose second measurement agrees, with the mean of both speeds."""
    speeds = {outcome.name: outcome.speed for outcome in again}
    return [
        msgspec.structs.replace(outcome, speed=(outcome.speed + speeds[outcome.name]) / 2)
        for outcome in first
        if abs(speeds.get(outcome.name, 0.0) / outcome.speed - 1) <= REPEATABLE
    ]


def use_of(duty: float, round_ns: float, kernels: float, active: float) -> TaskUse:
    """Return what is known of a program in the form of a profile."""
    return TaskUse(
        duty_ppm=max(1, round(duty * WHOLE_PPM)),
        kernel_ns=max(1, round(duty * round_ns / kernels)),
        round_ns=round(round_ns),
        round_device_ns=round(duty * round_ns),
        active_ppm=max(1, round(active * WHOLE_PPM)),
    )


def kernels_of(model: str) -> float:
    """Return the kernels of a request: as many as the published network has layers."""
    return float(next((count for name, count in LAYER_KERNELS.items() if model.startswith(name)), _USUAL_KERNELS))


def _widths(model: str, streams: Mapping[str, Timeline]) -> tuple[tuple[int, int], ...]:
    name = next((stream for network, stream in NEAREST.items() if model.startswith(network)), "")
    if name not in streams:
        return ()
    predicted = widths(profile_of(streams[name]), _V100_SMS)
    wider = _V100_SMS / _RTX3080_SMS
    return few_widths(tuple((min(1.0, width * wider), part) for width, part in predicted))


def _outcome(
    group: _Together, uses: Sequence[TaskUse], mine: int, others: Sequence[int], fit: set[str], *, tenant: str
) -> MeasuredOutcome:
    online = tuple(OnlineUse(f"s{index}", uses[index]) for index in others)
    demand = _demand(uses[mine]) + sum(_demand(uses[index]) * uses[index].active_ppm / WHOLE_PPM for index in others)
    return MeasuredOutcome(
        name=f"{group.name}: {tenant} ({mine + 1})",
        source=group.source,
        program=group.programs[mine],
        others=tuple(group.programs[index] for index in others),
        profile=f"{group.where} {tenant}",
        co_runners="+".join(sorted(group.programs[index] for index in others)),
        mode=group.mode,
        job=uses[mine],
        spot=Spot(online, WHOLE_PPM),
        speed=min(1 / group.slower[mine], 1.0),
        adds_up=1 / max(1.0, demand),
        is_fit=all(group.programs[index] in fit for index in (mine, *others)),
        is_held=group.programs[mine] not in fit,
    )


def _demand(use: TaskUse) -> float:
    """Return the part of the GPU that a program uses alone; unknown widths count as the whole GPU."""
    held = sum(width * part for width, part in use.widths) / WHOLE_PPM**2 if use.widths else 1.0
    return use.duty_ppm / WHOLE_PPM * held
