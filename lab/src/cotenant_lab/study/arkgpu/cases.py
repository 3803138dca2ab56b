"""Cases of study `arkgpu`: services, trainings, objectives and loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.simulate.kernels import RunSettings, play_alone
from cotenant.simulate.sharing import Guest, RunSpec
from cotenant.units.instant import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS
from cotenant.workload.arrivals import draw_arrivals, spread_instants, with_arrivals
from cotenant.workload.load import BACK_TO_BACK, Workload, at_instants
from cotenant.workload.rates import DiurnalRate, bursty_rate, rescale_trace
from cotenant_lab.bench.fill.pairs import PLANS, LoadRecipe, MissingPair, read_load

SERVICES: Final = (
    "resnet50 b4",
    "resnet101 b4",
    "mobilenetv2 b4",
    "bert b2",
    "transformer-xl b4",
    "efficientnet b4",
    "bert-small /4",
    "vit-base /4",
    "vllm prefill /4",
    "trt resnet18 fp16",
    "trt resnet50 int8",
    "trt mobilenetv2 int8",
)
"""Inference lists of Orion (V100), eager timelines with a quarter of their host times, and TensorRT engines."""
TRAININGS: Final = (
    "train resnet50 b32",
    "train resnet101 b32",
    "train mobilenetv2 b64",
    "train bert b8",
    "train transformer-xl b8",
)
TOGETHER: Final = (
    ("mobilenetv2 b4", "trt resnet18 fp16", "train resnet50 b32"),
    ("resnet50 b4", "bert-small /4", "train bert b8"),
    ("vit-base /4", "trt resnet50 int8", "train mobilenetv2 b64"),
    ("transformer-xl b4", "trt mobilenetv2 int8", "train resnet101 b32"),
    ("resnet101 b4", "mobilenetv2 b4", "train transformer-xl b8"),
    ("bert-small /4", "vit-base /4", "train resnet50 b32"),
)
"""Two services and a training on one device."""
OBJECTIVES: Final = (3, 5)
"""Objectives as multiples of the p99 latency of a request that runs alone, without even another request."""
LOADS: Final = ("diurnal", "bursty", "azure_llm", "mooncake")
LEVELS: Final = (0.10, 0.20, 0.35)
"""Mean request rate over the rate at which the service answers one request after the other, alone. With Poisson
arrivals 0.32 is the highest load at which 99 % are within three times the latency alone (M/D/1), 0.56 within five
times."""
WARM_NS: Final = 4 * SECOND_NS
"""Time before the measured window, in which a controller settles."""
SHORT_WARM_NS: Final = SECOND_NS
"""The same for modes that do not adapt, or that adapt within this time."""
RUN_NS: Final = 5 * SECOND_NS
LONGEST_NS: Final = 8 * SECOND_NS
REQUESTS_LEAST: Final = 100
"""A run lasts until this many requests have arrived, but no longer than `LONGEST_NS`."""
SOLO_REQUESTS: Final = 100
ONLINE_PRIORITY: Final = 1
OFFLINE_PRIORITY: Final = 7
_BERT: Final = LoadRecipe(name="bert b2", path="orion/model_kernels/bert_2_fwd.csv", host_ns=10 * MICROSECOND_NS)
_BURST_RATIO: Final = 4.0
_BURST_NS: Final = (750 * MILLISECOND_NS, 250 * MILLISECOND_NS)
_STARTS: Final = 17
"""Number of different offsets at which cases start in a recorded trace."""
_QUICK_SERVICES: Final = ("mobilenetv2 b4", "trt resnet18 fp16")
_QUICK_TRAININGS: Final = ("train resnet50 b32", "train bert b8")


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A program that answers requests, and the latency of one alone."""

    load: Workload
    mean_ns: int
    p99_ns: int

    @property
    def most_per_s(self) -> float:
        """Return the rate of requests one after the other."""
        return SECOND_NS / self.mean_ns

    def slo_ns(self, objective: int) -> int:
        """Return the objective as a multiple of the p99 alone."""
        return objective * self.p99_ns


class ArkCase(msgspec.Struct, frozen=True, kw_only=True):
    """The tenants of a device and their load; it is evaluated with all objectives."""

    name: str
    services: tuple[Service, ...]
    training: Workload
    load: str
    level: float
    """Sum over all services."""
    seed: int
    traces: dict[str, tuple[int, ...]] = {}
    """The recorded arrivals that this case needs."""
    warm_ns: int = WARM_NS

    @property
    def mix(self) -> str:
        """Return the name without the load."""
        return self.name.partition(":")[0]


class Mixes(msgspec.Struct, frozen=True, kw_only=True):
    """The available services and trainings."""

    services: dict[str, Service]
    trainings: dict[str, Workload]
    missing: list[MissingPair]


def read_mixes(directory: Path, setting: RunSettings, *, quick: bool) -> Mixes:
    """Read all services and trainings whose files exist; run each service alone once to get its latency."""
    recipes = {recipe.name: recipe for plan in PLANS for recipe in (plan.online, plan.offline)} | {_BERT.name: _BERT}
    loads: dict[str, Workload] = {}
    missing = []
    for name in (*SERVICES, *TRAININGS):
        path = directory / recipes[name].path
        if path.is_file():
            loads[name] = read_load(directory, recipes[name])
        else:
            missing.append(MissingPair(name, f"{path} does not exist"))
    services = [name for name in (_QUICK_SERVICES if quick else SERVICES) if name in loads]
    trainings = [name for name in (_QUICK_TRAININGS if quick else TRAININGS) if name in loads]
    return Mixes(
        services={name: solo(loads[name], setting) for name in services},
        trainings={name: loads[name] for name in trainings},
        missing=missing,
    )


def solo(load: Workload, setting: RunSettings) -> Service:
    """Measure one request after the other, alone on the device."""
    back_to_back = msgspec.structs.replace(load, arrival=BACK_TO_BACK, requests=SOLO_REQUESTS)
    latencies = sorted(play_alone(back_to_back, setting).clients[0].latencies_ns)
    return Service(
        load=load, mean_ns=sum(latencies) // len(latencies), p99_ns=latencies[round(0.99 * len(latencies)) - 1]
    )


def ark_cases(
    mixes: Mixes, traces: Mapping[str, Sequence[int]], seed: int, *, quick: bool, full: bool = False
) -> list[ArkCase]:
    """Return every service with every training, loads and levels in turn, then the cases with two services.

    `full`: each of them under every load, levels in turn.
    """
    arrivals = {name: tuple(instants) for name, instants in traces.items()}
    loads = len(LOADS) if full else 1
    cases = []
    for row, service in enumerate(mixes.services.values()):
        for column, training in enumerate(mixes.trainings.values()):
            cases += [_case((service,), training, row + column + shift, seed, arrivals) for shift in range(loads)]
    for turn, (first, second, offline) in enumerate(TOGETHER[: 1 if quick else None]):
        if first in mixes.services and second in mixes.services and offline in mixes.trainings:
            services = (mixes.services[first], mixes.services[second])
            cases += [_case(services, mixes.trainings[offline], turn + shift, seed, arrivals) for shift in range(loads)]
    return cases


def _case(
    services: tuple[Service, ...], training: Workload, turn: int, seed: int, traces: Mapping[str, tuple[int, ...]]
) -> ArkCase:
    load, level = LOADS[turn % len(LOADS)], LEVELS[turn % len(LEVELS)]
    tenants = " + ".join([*(service.load.name for service in services), training.name])
    return ArkCase(
        name=f"{tenants}: {load} {level:.0%}",
        services=services,
        training=training,
        load=load,
        level=level,
        seed=seed * 1000 + turn,
        traces={load: traces[load]} if load in traces else {},
    )


def window_ns(case: ArkCase, run_ns: int = RUN_NS) -> int:
    """Return the duration of the measured window of a run."""
    rates = [case.level / len(case.services) * service.most_per_s for service in case.services]
    return max(run_ns, min(round(REQUESTS_LEAST / min(rates) * SECOND_NS), LONGEST_NS))


def run_of(case: ArkCase, setting: RunSettings, objective: int, run_ns: int = RUN_NS) -> RunSpec:
    """Return the run of a case; arrivals are the same under every objective and mode."""
    for_ns = case.warm_ns + window_ns(case, run_ns)
    guests = []
    for index, service in enumerate(case.services):
        rate_per_s = case.level / len(case.services) * service.most_per_s
        instants = instants_of(case, rate_per_s, for_ns, index)
        guests.append(
            Guest(
                load=with_arrivals(service.load, at_instants(instants)),
                online=True,
                priority=ONLINE_PRIORITY,
                slo_ns=service.slo_ns(objective),
            )
        )
    guests.append(Guest(load=case.training, online=False, priority=OFFLINE_PRIORITY))
    return RunSpec(guests=tuple(guests), setting=setting, for_ns=for_ns, warm_ns=case.warm_ns)


def shorten_warmup(run: RunSpec) -> RunSpec:
    """Return the same requests in the window with a shorter time before it."""
    skipped_ns = run.warm_ns - SHORT_WARM_NS
    guests = []
    for guest in run.guests:
        if guest.load.arrival.kind == "instants":
            shifted = tuple(instant - skipped_ns for instant in guest.load.arrival.instants_ns if instant >= skipped_ns)
            guests.append(msgspec.structs.replace(guest, load=with_arrivals(guest.load, at_instants(shifted))))
        else:
            guests.append(guest)
    return msgspec.structs.replace(
        run, guests=tuple(guests), for_ns=run.for_ns - skipped_ns, warm_ns=run.warm_ns - skipped_ns
    )


def instants_of(case: ArkCase, rate_per_s: float, for_ns: int, index: int) -> tuple[int, ...]:
    """Return the arrival instants of one service; the second service's day or trace is shifted by half a period."""
    seed = case.seed * 7 + index
    if case.load == "diurnal":
        diurnal = DiurnalRate(rate_per_s, for_ns - case.warm_ns)
        return draw_arrivals(diurnal, for_ns, seed).instants_ns
    if case.load == "bursty":
        return draw_arrivals(bursty_rate(rate_per_s, _BURST_RATIO, *_BURST_NS), for_ns, seed).instants_ns
    recorded = spread_instants(case.traces[case.load], seed)
    return rescale_trace(recorded, rate_per_s, for_ns, (case.seed % _STARTS / _STARTS + index / 2) % 1)
