"""Which services meet which trainings, objectives and loads? Every pair, and every load for every service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.domain.instant import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS
from cotenant.domain.load import BACK_TO_BACK, Load, listed
from cotenant.domain.rhythm import Diurnal, bursty, rescaled
from cotenant.experiment.fill.pairs import PLANS, Missing, Recipe, read_load
from cotenant.experiment.kernels import Setting, play_alone
from cotenant.experiment.together import Guest, Run
from cotenant.sim.arrivals import arrivals_of, driven, spread

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
"""Two services on one device, and a training."""
OBJECTIVES: Final = (3, 5)
"""An objective is so many times the p99 latency of a request that meets nobody, not even another request."""
LOADS: Final = ("diurnal", "bursty", "azure_llm", "mooncake")
LEVELS: Final = (0.10, 0.20, 0.35)
"""Mean rate of requests, over the rate at which the service answers them one after the other, alone. A Poisson load of
0.32 is the most at which 99 % are within three times the latency alone (M/D/1), 0.56 within five times."""
WARM_NS: Final = 4 * SECOND_NS
"""Before what counts: so long a controller is given to find its way."""
SHORT_WARM_NS: Final = SECOND_NS
"""The same for ways of sharing that do not adapt, or do so within this."""
RUN_NS: Final = 5 * SECOND_NS
LONGEST_NS: Final = 8 * SECOND_NS
REQUESTS_LEAST: Final = 100
"""A run is as long as it takes for so many, but not longer than `LONGEST_NS`."""
SOLO_REQUESTS: Final = 100
ONLINE_PRIORITY: Final = 1
OFFLINE_PRIORITY: Final = 7
_BERT: Final = Recipe(name="bert b2", path="orion/model_kernels/bert_2_fwd.csv", host_ns=10 * MICROSECOND_NS)
_BURST_RATIO: Final = 4.0
_BURST_NS: Final = (750 * MILLISECOND_NS, 250 * MILLISECOND_NS)
_STARTS: Final = 17
"""Places in a recording from which cases take it."""
_QUICK_SERVICES: Final = ("mobilenetv2 b4", "trt resnet18 fp16")
_QUICK_TRAININGS: Final = ("train resnet50 b32", "train bert b8")


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A program that answers requests, and how long one takes alone."""

    load: Load
    mean_ns: int
    p99_ns: int

    @property
    def most_per_s(self) -> float:
        """Requests one after the other."""
        return SECOND_NS / self.mean_ns

    def slo_ns(self, objective: int) -> int:
        """So many times its p99."""
        return objective * self.p99_ns


class ArkCase(msgspec.Struct, frozen=True, kw_only=True):
    """Who shares a device, and the load; all objectives are judged with it."""

    name: str
    services: tuple[Service, ...]
    training: Load
    load: str
    level: float
    """Of all services together."""
    seed: int
    traces: dict[str, tuple[int, ...]] = {}
    """What of the recordings this case needs."""
    warm_ns: int = WARM_NS

    @property
    def mix(self) -> str:
        """Without the load."""
        return self.name.partition(":")[0]


class Mixes(msgspec.Struct, frozen=True, kw_only=True):
    """The programs that there are."""

    services: dict[str, Service]
    trainings: dict[str, Load]
    missing: list[Missing]


def read_mixes(directory: Path, setting: Setting, *, quick: bool) -> Mixes:
    """All services and trainings whose measurements are there; each service once alone, for its latency."""
    recipes = {recipe.name: recipe for plan in PLANS for recipe in (plan.online, plan.offline)} | {_BERT.name: _BERT}
    loads: dict[str, Load] = {}
    missing = []
    for name in (*SERVICES, *TRAININGS):
        path = directory / recipes[name].path
        if path.is_file():
            loads[name] = read_load(directory, recipes[name])
        else:
            missing.append(Missing(name, f"{path} is not there"))
    services = [name for name in (_QUICK_SERVICES if quick else SERVICES) if name in loads]
    trainings = [name for name in (_QUICK_TRAININGS if quick else TRAININGS) if name in loads]
    return Mixes(
        services={name: solo(loads[name], setting) for name in services},
        trainings={name: loads[name] for name in trainings},
        missing=missing,
    )


def solo(load: Load, setting: Setting) -> Service:
    """One request after the other, alone on the device."""
    own = msgspec.structs.replace(load, arrival=BACK_TO_BACK, requests=SOLO_REQUESTS)
    latencies = sorted(play_alone(own, setting).clients[0].latencies_ns)
    return Service(
        load=load, mean_ns=sum(latencies) // len(latencies), p99_ns=latencies[round(0.99 * len(latencies)) - 1]
    )


def ark_cases(
    mixes: Mixes, traces: Mapping[str, Sequence[int]], seed: int, *, quick: bool, full: bool = False
) -> list[ArkCase]:
    """Every service beside every training, under loads and levels in turns; then those of two services.

    `full`: every one of them under every load, levels in turns.
    """
    kept = {name: tuple(instants) for name, instants in traces.items()}
    loads = len(LOADS) if full else 1
    cases = []
    for row, service in enumerate(mixes.services.values()):
        for column, training in enumerate(mixes.trainings.values()):
            cases += [_case((service,), training, row + column + more, seed, kept) for more in range(loads)]
    for turn, (first, second, below) in enumerate(TOGETHER[: 1 if quick else None]):
        if first in mixes.services and second in mixes.services and below in mixes.trainings:
            both = (mixes.services[first], mixes.services[second])
            cases += [_case(both, mixes.trainings[below], turn + more, seed, kept) for more in range(loads)]
    return cases


def _case(
    services: tuple[Service, ...], training: Load, turn: int, seed: int, traces: Mapping[str, tuple[int, ...]]
) -> ArkCase:
    load, level = LOADS[turn % len(LOADS)], LEVELS[turn % len(LEVELS)]
    who = " + ".join([*(service.load.name for service in services), training.name])
    return ArkCase(
        name=f"{who}: {load} {level:.0%}",
        services=services,
        training=training,
        load=load,
        level=level,
        seed=seed * 1000 + turn,
        traces={load: traces[load]} if load in traces else {},
    )


def window_ns(case: ArkCase, run_ns: int = RUN_NS) -> int:
    """How long the part of a run is that counts."""
    rates = [case.level / len(case.services) * service.most_per_s for service in case.services]
    return max(run_ns, min(round(REQUESTS_LEAST / min(rates) * SECOND_NS), LONGEST_NS))


def run_of(case: ArkCase, setting: Setting, objective: int, run_ns: int = RUN_NS) -> Run:
    """The same arrivals under every objective and in every way to share."""
    for_ns = case.warm_ns + window_ns(case, run_ns)
    guests = []
    for place, service in enumerate(case.services):
        rate_per_s = case.level / len(case.services) * service.most_per_s
        instants = instants_of(case, rate_per_s, for_ns, place)
        guests.append(
            Guest(
                load=driven(service.load, listed(instants)),
                online=True,
                priority=ONLINE_PRIORITY,
                slo_ns=service.slo_ns(objective),
            )
        )
    guests.append(Guest(load=case.training, online=False, priority=OFFLINE_PRIORITY))
    return Run(guests=tuple(guests), setting=setting, for_ns=for_ns, warm_ns=case.warm_ns)


def later(run: Run) -> Run:
    """The same requests in the window, with less of what comes before it."""
    skipped_ns = run.warm_ns - SHORT_WARM_NS
    guests = []
    for guest in run.guests:
        if guest.load.arrival.kind == "instants":
            moved = tuple(at - skipped_ns for at in guest.load.arrival.instants_ns if at >= skipped_ns)
            guests.append(msgspec.structs.replace(guest, load=driven(guest.load, listed(moved))))
        else:
            guests.append(guest)
    return msgspec.structs.replace(
        run, guests=tuple(guests), for_ns=run.for_ns - skipped_ns, warm_ns=run.warm_ns - skipped_ns
    )


def instants_of(case: ArkCase, rate_per_s: float, for_ns: int, place: int) -> tuple[int, ...]:
    """When requests come to one service of a case; the second one's day or trace is half a turn ahead."""
    seed = case.seed * 7 + place
    if case.load == "diurnal":
        whole = Diurnal(rate_per_s, for_ns - case.warm_ns)
        return arrivals_of(whole, for_ns, seed).instants_ns
    if case.load == "bursty":
        return arrivals_of(bursty(rate_per_s, _BURST_RATIO, *_BURST_NS), for_ns, seed).instants_ns
    recorded = spread(case.traces[case.load], seed)
    return rescaled(recorded, rate_per_s, for_ns, (case.seed % _STARTS / _STARTS + place / 2) % 1)
