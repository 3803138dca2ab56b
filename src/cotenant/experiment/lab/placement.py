"""Which way to choose a GPU gets more done? The node's own rooms choose; measurements and the device model judge.

Trainings: pairs as Gavel measured them, so that what a choice is worth is nobody's model. Services beside trainings:
played under the node's gate and controller on the device model, which no prediction has seen.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from cotenant.domain.event import NodeSettings
from cotenant.domain.gate import GateRules
from cotenant.domain.gpu import WHOLE_PPM, Gpu
from cotenant.domain.histogram import Recorder
from cotenant.domain.instant import SECOND_NS
from cotenant.domain.load import BACK_TO_BACK, Load
from cotenant.domain.plan import Reject
from cotenant.domain.profile import KernelTiming, Profile
from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.domain.use import TaskUse
from cotenant.errors import InvariantError
from cotenant.experiment.kernels import Setting, play_alone
from cotenant.experiment.lab.predict_together import training_groups
from cotenant.experiment.lab.workers import mapping
from cotenant.experiment.together import Guest, Run
from cotenant.experiment.ways import share
from cotenant.format.measured.gavel import Pairs
from cotenant.machine.rooms import Rooms
from cotenant.policy import place
from cotenant.policy.predict.use import use_of

BEST: Final = "best"
TRAININGS: Final = "trainings"
SERVICES: Final = "services"
KEPT_LEAST: Final = 0.99
"""Of a service's requests, those that must be within its objective for it to be kept."""
_JOBS: Final = (6, 8)
_GPUS: Final = 4
WARM_NS: Final = SECOND_NS
FOR_NS: Final = 4 * SECOND_NS
_ROUNDS: Final = 20
Progress = Callable[[str, int, int], None]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy made of all mixes of a kind."""

    goodput: float
    """What a tenant gets done, in the mean, 1 being alone; of a service, its requests within the objective."""
    worst: float
    """The tenant that got least of its own done, in the median mix."""
    by_mix: list[float]
    """The first figure, mix by mix."""
    broken: int = 0
    """Services that kept their objective for less than 99 % of their requests."""
    offline: float = 0.0
    """What a training gets done, where there are services as well."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of mixes."""

    name: str
    source: str
    mixes: int
    tenants: int
    policies: dict[str, Figures]


class Mix(msgspec.Struct, frozen=True):
    """Tenants in the order in which they come to a node of so many devices."""

    gpus: int
    guests: tuple[Guest, ...]
    uses: tuple[TaskUse, ...]


def assigned(tenants: Sequence[TenantSpec], gpus: int, policy: str, *, is_mps: bool) -> list[int]:
    """The device of each, chosen one after the other as they come."""
    settings = NodeSettings(64, 0, place=policy, gpus=(Gpu("v100", 2),) * gpus, is_mps=is_mps)
    rooms = Rooms(settings, (), GateRules())
    found = []
    for tenant in tenants:
        choice = rooms.find(tenant, {})
        if isinstance(choice, Reject):
            raise InvariantError(f"a mix does not fit its node: {choice.detail}")
        rooms.occupy(choice.gpu, tenant, 1)
        found.append(choice.gpu)
    return found


# -- trainings, as measured ------------------------------------------------------------------------------------------


def judge_trainings(pairs: Pairs, seed: int, mixes: int, progress: Progress) -> list[Judged]:
    """Six and eight jobs on four devices, at most two on each: others were not measured."""
    groups = training_groups(pairs)
    judged = []
    kinds = sorted({group.kind for group in groups})
    for done, kind in enumerate(kinds):
        slower: dict[tuple[str, str], tuple[float, float]] = {}
        uses: dict[str, TaskUse] = {}
        for group in (group for group in groups if group.kind == kind):
            first, second = group.tenants
            slower[first, second] = (group.slowdowns[0], group.slowdowns[1])
            slower[second, first] = (group.slowdowns[1], group.slowdowns[0])
            for job, use in zip(group.tenants, group.uses, strict=True):
                uses[job] = TaskUse(round(use.duty * WHOLE_PPM), (), 0, round(use.kernel_ns), 0, 0, 0, WHOLE_PPM)
        for count in _JOBS:
            judged.append(_judge_jobs(kind, uses, slower, count, random.Random(seed), mixes))
        progress(TRAININGS, done + 1, len(kinds))
    return judged


def _judge_jobs(
    kind: str,
    uses: Mapping[str, TaskUse],
    slower: Mapping[tuple[str, str], tuple[float, float]],
    count: int,
    dice: random.Random,
    mixes: int,
) -> Judged:
    speeds: dict[str, list[list[float]]] = {policy: [] for policy in (*place.POLICIES, BEST)}
    names = sorted(uses)
    found = tries = 0
    while found < mixes and tries < 100 * mixes:
        tries += 1
        jobs = [dice.choice(names) for _ in range(count)]
        if not all(pair in slower for pair in itertools.permutations(jobs, 2)):
            continue
        found += 1
        specs = [TenantSpec(Kind.OFFLINE, 7, memory_bytes=1, use=uses[job]) for job in jobs]
        for policy in place.POLICIES:
            speeds[policy].append(_speeds(jobs, assigned(specs, _GPUS, policy, is_mps=False), slower))
        ways = _pairings(count, 2 * (count - _GPUS))
        speeds[BEST].append(max((_speeds(jobs, way, slower) for way in ways), key=sum))
    figures = {
        policy: Figures(
            goodput=statistics.fmean(statistics.fmean(mix) for mix in found_speeds),
            worst=statistics.median(min(mix) for mix in found_speeds),
            by_mix=[statistics.fmean(mix) for mix in found_speeds],
        )
        for policy, found_speeds in speeds.items()
        if found_speeds
    }
    source = f"Gavel, {kind.upper()}"
    return Judged(
        name=f"{count} trainings on {_GPUS} GPUs", source=source, mixes=found, tenants=count, policies=figures
    )


def _speeds(
    jobs: Sequence[str], devices: Sequence[int], slower: Mapping[tuple[str, str], tuple[float, float]]
) -> list[float]:
    found = [1.0] * len(jobs)
    for one, other in itertools.combinations(range(len(jobs)), 2):
        if devices[one] == devices[other]:
            found[one], found[other] = (1 / times for times in slower[jobs[one], jobs[other]])
    return found


def _pairings(count: int, paired: int) -> list[list[int]]:
    """Every way to put `paired` of so many jobs two by two, and the others alone."""
    found: list[list[int]] = []

    def go_on(left: tuple[int, ...], chosen: list[int], device: int, to_pair: int) -> None:
        if not left:
            if not to_pair:
                found.append(chosen)
            return
        first, *others = left
        if len(left) > to_pair:
            alone = list(chosen)
            alone[first] = device
            go_on(tuple(others), alone, device + 1, to_pair)
        for other in others if to_pair else ():
            both = list(chosen)
            both[first] = both[other] = device
            go_on(tuple(one for one in others if one != other), both, device + 1, to_pair - 2)

    go_on(tuple(range(count)), [0] * count, 0, paired)
    return found


# -- services beside trainings, played -------------------------------------------------------------------------------


def use_of_load(load: Load, setting: Setting) -> tuple[TaskUse, float]:
    """What a profile of the load would say, and its p99 alone over what a request takes without others."""
    is_online = load.arrival.kind != "training"
    once = msgspec.structs.replace(load, arrival=BACK_TO_BACK, requests=_ROUNDS)
    played = play_alone(once, setting)
    round_ns = max(round(statistics.fmean(played.clients[0].latencies_ns)), 1)
    busy_ns = min(round(played.busy_ns / max(len(played.clients[0].latencies_ns), 1)), round_ns)
    pause_ns = round(SECOND_NS / load.arrival.rate_per_s) - round_ns if is_online else 0
    device: dict[object, Recorder] = {}
    for launch in load.launches:
        device.setdefault(launch.kernel, Recorder()).record(launch.device_ns)
    gaps = Recorder()
    gaps.record(round_ns - busy_ns)
    if pause_ns > 0:
        gaps.record(pause_ns)
    timings: list[KernelTiming] = []
    for launch in {launch.kernel: launch for launch in load.launches}.values():
        histogram = device[launch.kernel].histogram()
        gap = gaps.histogram() if not timings else Recorder().histogram()
        timings.append(
            KernelTiming(launch.kernel, histogram.count, histogram, gap, launch.blocks_per_sm, launch.memory_bound)
        )
    span_ns = round_ns + max(pause_ns, 0)
    profile = Profile(load.name, "", 1, tuple(timings), (), span_ns, busy_ns)
    use = use_of(profile, setting.device.sm_count, is_online=is_online)
    if use is None:
        raise InvariantError(f"{load.name} has no kernel")
    alone = play_alone(msgspec.structs.replace(load, requests=300), setting) if is_online else played
    tail_ns = sorted(alone.clients[0].latencies_ns)[int(0.99 * len(alone.clients[0].latencies_ns)) - 1]
    return use, float(tail_ns)


def mixes_of(
    services: Sequence[Load], trainings: Sequence[Load], setting: Setting, dice: random.Random, sizes: Sequence[int]
) -> list[Mix]:
    """As many services and as many trainings as devices, in any order; objectives of 3 or 5 times p99 alone."""
    known: dict[Load, tuple[TaskUse, float]] = {}
    found = []
    for gpus in sizes:
        loads = [*dice.choices(services, k=gpus), *dice.choices(trainings, k=gpus)]
        dice.shuffle(loads)
        guests, uses = [], []
        for load in loads:
            if load not in known:
                known[load] = use_of_load(load, setting)
            use, tail_ns = known[load]
            is_online = load.arrival.kind != "training"
            slo_ns = round(dice.choice((3, 5)) * tail_ns) if is_online else 0
            uses.append(use)
            guests.append(Guest(load=load, online=is_online, priority=2 if is_online else 7, slo_ns=slo_ns))
        found.append(Mix(gpus, tuple(guests), tuple(uses)))
    return found


def judge_mixes(mixes: Sequence[Mix], setting: Setting, workers: int, progress: Progress) -> Judged:
    """Each device of each choice is played once; the same tenants together are played no second time."""
    choices: dict[tuple[int, str], list[int]] = {}
    crowds: dict[tuple[int, tuple[int, ...]], Run] = {}
    for number, mix in enumerate(mixes):
        specs = [
            TenantSpec(Kind.ONLINE if guest.online else Kind.OFFLINE, guest.priority, slo_ns=guest.slo_ns, use=use)
            for guest, use in zip(mix.guests, mix.uses, strict=True)
        ]
        for policy in place.POLICIES:
            devices = choices[number, policy] = assigned(specs, mix.gpus, policy, is_mps=True)
            for crowd in _crowds(devices):
                guests = tuple(mix.guests[one] for one in crowd)
                crowds[number, crowd] = Run(guests=guests, setting=setting, for_ns=FOR_NS, warm_ns=WARM_NS)
        for one, guest in enumerate(mix.guests):
            crowds[number, (one,)] = Run(guests=(guest,), setting=setting, for_ns=FOR_NS, warm_ns=WARM_NS)
    played: dict[tuple[int, tuple[int, ...]], list[float]] = {}
    with mapping(workers) as mapped:
        for key, done in zip(crowds, mapped(_done, list(crowds.values())), strict=True):
            played[key] = done
            progress(SERVICES, len(played), len(crowds))
    policies = {}
    for policy in place.POLICIES:
        parts: list[list[tuple[bool, float]]] = []
        for number, mix in enumerate(mixes):
            parts.append([])
            for crowd in _crowds(choices[number, policy]):
                for one, done in zip(crowd, played[number, crowd], strict=True):
                    guest = mix.guests[one]
                    alone = 1.0 if guest.online else max(played[number, (one,)][0], 1e-9)
                    parts[-1].append((guest.online, done / alone))
        policies[policy] = _figures(parts)
    source = "device model"
    tenants = sum(len(mix.guests) for mix in mixes)
    return Judged(name="services and trainings", source=source, mixes=len(mixes), tenants=tenants, policies=policies)


def _crowds(devices: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(one for one, gpu in enumerate(devices) if gpu == device) for device in sorted(set(devices))]


def _done(run: Run) -> list[float]:
    """Of a service the part of its requests within the objective, of a training the kernel time it got done."""
    outcome = share("cotenant", run)
    return [
        lived.attainment(guest.slo_ns) if guest.online else lived.done_ns / (run.for_ns - run.warm_ns)
        for guest, lived in zip(run.guests, outcome.guests, strict=True)
    ]


def _figures(parts: Sequence[Sequence[tuple[bool, float]]]) -> Figures:
    online = [done for mix in parts for is_online, done in mix if is_online]
    offline = [done for mix in parts for is_online, done in mix if not is_online]
    return Figures(
        goodput=statistics.fmean(min(done, 1.0) for done in (*online, *offline)),
        worst=statistics.median(min(done for _, done in mix) for mix in parts),
        by_mix=[statistics.fmean(min(done, 1.0) for _, done in mix) for mix in parts],
        broken=sum(done < KEPT_LEAST for done in online),
        offline=statistics.fmean(offline),
    )
