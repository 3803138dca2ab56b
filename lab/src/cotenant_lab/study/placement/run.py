"""Compare policies that choose a GPU; the node's own capacity accounting chooses.

Trainings: pairs as Gavel measured them, so that the value of a choice does not depend on a model. Services and
trainings: simulated under the node's gate and controller on the device model, which no prediction was fitted to.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from cotenant.errors import InvariantError
from cotenant.gate.grant import Kind
from cotenant.gate.rules import GateRules
from cotenant.node.model.admission import Reject
from cotenant.node.model.event import NodeSettings
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.policy import place
from cotenant.node.state.capacity import Capacity
from cotenant.predict.profile_usage import use_of
from cotenant.predict.usage import TaskUse
from cotenant.profile.profile import KernelTiming, Profile
from cotenant.simulate.kernels import RunSettings, play_alone
from cotenant.simulate.sharing import Guest, RunSpec
from cotenant.units.histogram import Recorder
from cotenant.units.instant import SECOND_NS
from cotenant.units.share import WHOLE_PPM
from cotenant.workload.load import BACK_TO_BACK, Workload
from cotenant_lab.baselines.modes import share
from cotenant_lab.data.gavel import TrainingPairs
from cotenant_lab.study.predictor.training import kernels_of_step, training_groups
from cotenant_lab.study.workers import mapping

BEST: Final = "best"
TRAININGS: Final = "trainings"
SERVICES: Final = "services"
KEPT_LEAST: Final = 0.99
"""Fraction of a service's requests that must be within its objective for it to be kept."""
_JOBS: Final = (6, 8)
_GPUS: Final = 4
WARM_NS: Final = SECOND_NS
FOR_NS: Final = 4 * SECOND_NS
_ROUNDS: Final = 20
Progress = Callable[[str, int, int], None]


class PolicyMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one policy over all mixes of a kind."""

    goodput: float
    """Mean work done by a tenant, 1 being alone; for a service, the fraction of its requests within the objective."""
    worst: float
    """Work done by the worst tenant, in the median mix."""
    by_mix: list[float]
    """The first metric, mix by mix."""
    broken: int = 0
    """Services that kept their objective for less than 99 % of their requests."""
    offline: float = 0.0
    """Work done by a training, in mixes with services."""


class PlacementResult(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of mixes."""

    name: str
    source: str
    mixes: int
    tenants: int
    policies: dict[str, PolicyMetrics]


class Mix(msgspec.Struct, frozen=True):
    """Tenants in the order in which they arrive at a node, and its number of devices."""

    gpus: int
    guests: tuple[Guest, ...]
    uses: tuple[TaskUse, ...]


def assigned(tenants: Sequence[TenantSpec], gpus: int, policy: str, *, is_mps: bool) -> list[int]:
    """Return the device of each tenant, chosen one after the other."""
    settings = NodeSettings(64, 0, place=policy, gpus=(Gpu("v100", 2),) * gpus, is_mps=is_mps)
    capacity = Capacity(settings, (), GateRules())
    devices = []
    for tenant in tenants:
        choice = capacity.find(tenant, {})
        if isinstance(choice, Reject):
            raise InvariantError(f"a mix does not fit its node: {choice.detail}")
        capacity.occupy(choice.gpus, tenant, 1)
        devices.append(choice.gpu)
    return devices


# -- trainings, as measured ------------------------------------------------------------------------------------------


def evaluate_trainings(pairs: TrainingPairs, seed: int, mixes: int, progress: Progress) -> list[PlacementResult]:
    """Evaluate six and eight jobs on four devices, at most two on each, because only pairs were measured."""
    groups = training_groups(pairs)
    results = []
    kinds = sorted({group.gpu for group in groups})
    for done, kind in enumerate(kinds):
        slower: dict[tuple[str, str], tuple[float, float]] = {}
        uses: dict[str, TaskUse] = {}
        for group in (group for group in groups if group.gpu == kind):
            first, second = group.jobs
            slower[first, second] = (group.slowdowns[0], group.slowdowns[1])
            slower[second, first] = (group.slowdowns[1], group.slowdowns[0])
            for job, duty, step_ns in zip(group.jobs, group.duties, group.step_ns, strict=True):
                kernel_ns = round(duty * step_ns / kernels_of_step(job))
                uses[job] = TaskUse(
                    duty_ppm=round(duty * WHOLE_PPM),
                    kernel_ns=kernel_ns,
                    round_ns=round(step_ns),
                    round_device_ns=round(duty * step_ns),
                    active_ppm=WHOLE_PPM,
                )
        for count in _JOBS:
            results.append(_evaluate_jobs(kind, uses, slower, count, random.Random(seed), mixes))
        progress(TRAININGS, done + 1, len(kinds))
    return results


def _evaluate_jobs(
    kind: str,
    uses: Mapping[str, TaskUse],
    slower: Mapping[tuple[str, str], tuple[float, float]],
    count: int,
    rng: random.Random,
    mixes: int,
) -> PlacementResult:
    speeds: dict[str, list[list[float]]] = {policy: [] for policy in (*place.POLICIES, BEST)}
    names = sorted(uses)
    count_found = tries = 0
    while count_found < mixes and tries < 100 * mixes:
        tries += 1
        jobs = [rng.choice(names) for _ in range(count)]
        if not all(pair in slower for pair in itertools.permutations(jobs, 2)):
            continue
        count_found += 1
        specs = [TenantSpec(Kind.OFFLINE, 7, memory_bytes=1, use=uses[job]) for job in jobs]
        for policy in place.POLICIES:
            speeds[policy].append(_speeds(jobs, assigned(specs, _GPUS, policy, is_mps=False), slower))
        pairings = _pairings(count, 2 * (count - _GPUS))
        speeds[BEST].append(max((_speeds(jobs, pairing, slower) for pairing in pairings), key=sum))
    metrics = {
        policy: PolicyMetrics(
            goodput=statistics.fmean(statistics.fmean(mix) for mix in mix_speeds),
            worst=statistics.median(min(mix) for mix in mix_speeds),
            by_mix=[statistics.fmean(mix) for mix in mix_speeds],
        )
        for policy, mix_speeds in speeds.items()
        if mix_speeds
    }
    source = f"Gavel, {kind.upper()}"
    return PlacementResult(
        name=f"{count} trainings on {_GPUS} GPUs", source=source, mixes=count_found, tenants=count, policies=metrics
    )


def _speeds(
    jobs: Sequence[str], devices: Sequence[int], slower: Mapping[tuple[str, str], tuple[float, float]]
) -> list[float]:
    speeds = [1.0] * len(jobs)
    for first, second in itertools.combinations(range(len(jobs)), 2):
        if devices[first] == devices[second]:
            speeds[first], speeds[second] = (1 / times for times in slower[jobs[first], jobs[second]])
    return speeds


def _pairings(count: int, paired: int) -> list[list[int]]:
    """Return every assignment with `paired` of the jobs in pairs and the others alone."""
    assignments: list[list[int]] = []

    def extend(remaining: tuple[int, ...], chosen: list[int], device: int, to_pair: int) -> None:
        if not remaining:
            if not to_pair:
                assignments.append(chosen)
            return
        first, *others = remaining
        if len(remaining) > to_pair:
            alone = list(chosen)
            alone[first] = device
            extend(tuple(others), alone, device + 1, to_pair)
        for other in others if to_pair else ():
            paired_choice = list(chosen)
            paired_choice[first] = paired_choice[other] = device
            extend(tuple(job for job in others if job != other), paired_choice, device + 1, to_pair - 2)

    extend(tuple(range(count)), [0] * count, 0, paired)
    return assignments


# -- services and trainings, simulated -------------------------------------------------------------------------------


def use_of_load(load: Workload, setting: RunSettings) -> tuple[TaskUse, float]:
    """Return what a profile of the load would contain, and its p99 alone over the duration of a single request."""
    is_online = load.arrival.kind != "training"
    back_to_back = msgspec.structs.replace(load, arrival=BACK_TO_BACK, requests=_ROUNDS)
    played = play_alone(back_to_back, setting)
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


def lasting(load: Workload) -> Workload:
    """Return a service with requests until after the end of a run, so that it never runs out of work."""
    if load.arrival.kind == "training":
        return load
    return msgspec.structs.replace(load, requests=int(2 * load.arrival.rate_per_s * FOR_NS / SECOND_NS) + _ROUNDS)


def mixes_of(
    services: Sequence[Workload],
    trainings: Sequence[Workload],
    setting: RunSettings,
    rng: random.Random,
    sizes: Sequence[int],
) -> list[Mix]:
    """Return mixes of one service and one training per device; objectives are 3 or 5 times the p99 alone."""
    uses_by_load: dict[Workload, tuple[TaskUse, float]] = {}
    mixes = []
    for gpus in sizes:
        loads = [*rng.choices(services, k=gpus), *rng.choices(trainings, k=gpus)]
        rng.shuffle(loads)
        guests, uses = [], []
        for load in loads:
            if load not in uses_by_load:
                uses_by_load[load] = use_of_load(load, setting)
            use, tail_ns = uses_by_load[load]
            is_online = load.arrival.kind != "training"
            slo_ns = round(rng.choice((3, 5)) * tail_ns) if is_online else 0
            uses.append(use)
            guests.append(Guest(load=lasting(load), online=is_online, priority=2 if is_online else 7, slo_ns=slo_ns))
        mixes.append(Mix(gpus, tuple(guests), tuple(uses)))
    return mixes


def evaluate_mixes(mixes: Sequence[Mix], setting: RunSettings, workers: int, progress: Progress) -> PlacementResult:
    """Evaluate all mixes; equal sets of tenants on a device are simulated once."""
    choices: dict[tuple[int, str], list[int]] = {}
    runs_by_tenants: dict[tuple[int, tuple[int, ...]], RunSpec] = {}
    for number, mix in enumerate(mixes):
        specs = [
            TenantSpec(Kind.ONLINE if guest.online else Kind.OFFLINE, guest.priority, slo_ns=guest.slo_ns, use=use)
            for guest, use in zip(mix.guests, mix.uses, strict=True)
        ]
        for policy in place.POLICIES:
            devices = choices[number, policy] = assigned(specs, mix.gpus, policy, is_mps=True)
            for group in _tenants_by_device(devices):
                guests = tuple(mix.guests[index] for index in group)
                runs_by_tenants[number, group] = RunSpec(guests=guests, setting=setting, for_ns=FOR_NS, warm_ns=WARM_NS)
        for index, guest in enumerate(mix.guests):
            runs_by_tenants[number, (index,)] = RunSpec(
                guests=(guest,), setting=setting, for_ns=FOR_NS, warm_ns=WARM_NS
            )
    played: dict[tuple[int, tuple[int, ...]], list[float]] = {}
    with mapping(workers) as mapped:
        for key, done in zip(runs_by_tenants, mapped(_work_done, list(runs_by_tenants.values())), strict=True):
            played[key] = done
            progress(SERVICES, len(played), len(runs_by_tenants))
    policies = {}
    for policy in place.POLICIES:
        parts: list[list[tuple[bool, float]]] = []
        for number, mix in enumerate(mixes):
            parts.append([])
            for group in _tenants_by_device(choices[number, policy]):
                for index, done in zip(group, played[number, group], strict=True):
                    guest = mix.guests[index]
                    alone = 1.0 if guest.online else max(played[number, (index,)][0], 1e-9)
                    parts[-1].append((guest.online, done / alone))
        policies[policy] = _metrics(parts)
    source = "device model"
    tenants = sum(len(mix.guests) for mix in mixes)
    return PlacementResult(
        name="services and trainings", source=source, mixes=len(mixes), tenants=tenants, policies=policies
    )


def _tenants_by_device(devices: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(index for index, gpu in enumerate(devices) if gpu == device) for device in sorted(set(devices))]


def _work_done(run: RunSpec) -> list[float]:
    """Return a service's fraction of requests within the objective, and a training's completed kernel time."""
    outcome = share("cotenant", run)
    return [
        result.attainment(guest.slo_ns) if guest.online else result.done_ns / (run.for_ns - run.warm_ns)
        for guest, result in zip(run.guests, outcome.guests, strict=True)
    ]


def _metrics(work_by_mix: Sequence[Sequence[tuple[bool, float]]]) -> PolicyMetrics:
    online = [done for mix in work_by_mix for is_online, done in mix if is_online]
    offline = [done for mix in work_by_mix for is_online, done in mix if not is_online]
    return PolicyMetrics(
        goodput=statistics.fmean(min(done, 1.0) for done in (*online, *offline)),
        worst=statistics.median(min(done for _, done in mix) for mix in work_by_mix),
        by_mix=[statistics.fmean(min(done, 1.0) for _, done in mix) for mix in work_by_mix],
        broken=sum(done < KEPT_LEAST for done in online),
        offline=statistics.fmean(offline),
    )
