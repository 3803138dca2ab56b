"""Measured co-location outcomes of Gavel and DISB, with what is known of each program alone.

Gavel and DISB publish speeds and latencies, not profiles. The inputs that a predictor needs of each program alone are
derived here from other public measurements and, where there is none, assumed; each assumption is stated with its
reason. None of them uses a measurement of a program together with another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from cotenant.cluster.model.cluster import OnlineUse
from cotenant.predict.kernel_scaling import widths
from cotenant.predict.profile_usage import few_widths
from cotenant.predict.speed_features import Spot
from cotenant.predict.usage import TaskUse
from cotenant.units.instant import SECOND_NS
from cotenant.units.share import WHOLE_PPM
from cotenant.workload.timeline import Timeline, profile_of
from cotenant_lab.data.gavel import TrainingPairs
from cotenant_lab.study.device.servers import ServerMeasurements
from cotenant_lab.study.predictor.pairs import ServingMode
from cotenant_lab.study.predictor_node.co_location import kernels_of, training_groups

GAVEL: Final = "Gavel"
AGAIN: Final = "Gavel, measured again"
DISB: Final = "DISB"

STEP_KERNELS: Final = {
    "ResNet-18": 380,
    "ResNet-50": 946,
    "Transformer": 2200,
    "LM": 1000,
    "CycleGAN": 2800,
    "A3C": 300,
    "Recommendation": 60,
}
"""Kernels of a training step. ResNet-50: as in Orion's list (resnet50_32_fb1). Assumed from that: ResNet-18 by its
layers, a CycleGAN as three such networks. Transformer: half of Orion's Transformer-XL (transformer_xl_8_fb1), which has
twice the layers. LM: two LSTM layers over 35 words, forward and backward; A3C and Recommendation: a few layers."""


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


class _Together(NamedTuple):
    name: str
    where: str
    tenants: Sequence[str]
    programs: Sequence[str]
    slower: Sequence[float]


class MeasuredOutcome(msgspec.Struct, frozen=True):
    """Measured speed of one program together with others."""

    name: str
    where: str
    """The GPU, or the server."""
    profile: str
    """Identity of the program there, by which its outcomes are learned."""
    co_runners: str
    mode: ServingMode
    job: TaskUse
    spot: Spot
    speed: float
    slowdown: float
    """Slowdown of the others; 0: several others, each of which was measured as the job."""
    adds_up: float
    """The speed if each got its part of the total demand."""


def gavel_outcomes(pairs: TrainingPairs) -> list[MeasuredOutcome]:
    """Return both sides of every pair, by time slices; a pair that the file has in both orders counts once.

    Duty: how a job's speed grows from GPU to GPU gives the GPU's part of a step (`training_groups`). Kernels: the table
    of kernel counts. Widths and bandwidth are unknown and assumed as all SMs and none; time slices do not depend on
    them.
    """
    outcomes = []
    seen_pairs: set[str] = set()
    for group in training_groups(pairs):
        order = sorted((0, 1), key=lambda side: group.tenants[side])
        name = " + ".join(group.tenants[side] for side in order)
        if f"{group.kind} {name}" in seen_pairs:
            continue
        seen_pairs.add(f"{group.kind} {name}")
        uses = [
            use_of(group.uses[side].duty, group.uses[side].kernel_ns, STEP_KERNELS.get(group.programs[side], 500), 1.0)
            for side in order
        ]
        together = _Together(
            f"{group.kind} {name}",
            group.kind,
            [group.tenants[side] for side in order],
            [group.programs[side] for side in order],
            [group.slowdowns[side] for side in order],
        )
        outcomes += [_outcome(together, uses, mine, [1 - mine], "time") for mine in (0, 1)]
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
    outcomes = []
    for server in servers:
        for run in server.runs:
            uses = []
            for client in run.clients:
                alone_ns = float(run.alone_ns[client.name])
                active = 1.0 if client.load.kind == "continuous" else client.load.rate_per_s * alone_ns / SECOND_NS
                on_gpu_ns = engines.get(client.model, alone_ns) if server.server == _SAME_ENGINES else alone_ns
                use = use_of(min(1.0, on_gpu_ns / alone_ns), alone_ns, kernels_of(client.model), min(active, 1.0))
                uses.append(msgspec.structs.replace(use, widths=_widths(client.model, streams)))
            together = [server.together_ns[run.name, client.name] / run.alone_ns[client.name] for client in run.clients]
            group = _Together(
                f"{server.server} {run.name}",
                server.server,
                tuple(client.name for client in run.clients),
                tuple(client.model for client in run.clients),
                tuple(together),
            )
            for mine in range(len(uses)):
                others = [index for index in range(len(uses)) if index != mine]
                if others:
                    outcomes.append(_outcome(group, uses, mine, others, "mps"))
    return outcomes


def differences(
    first: Sequence[MeasuredOutcome], repeated: Sequence[MeasuredOutcome]
) -> Mapping[str, tuple[float, float]]:
    """Return both speeds of cases that were measured twice, by name."""
    speeds = {outcome.name: outcome.speed for outcome in repeated}
    return {outcome.name: (speeds[outcome.name], outcome.speed) for outcome in first if outcome.name in speeds}


def use_of(duty: float, round_ns: float, kernels: float, active: float) -> TaskUse:
    """Return what is known of a program in the form of a profile."""
    return TaskUse(
        duty_ppm=max(1, round(duty * WHOLE_PPM)),
        kernel_ns=max(1, round(duty * round_ns / kernels)),
        round_ns=round(round_ns),
        round_device_ns=round(duty * round_ns),
        active_ppm=max(1, round(active * WHOLE_PPM)),
    )


def _widths(model: str, streams: Mapping[str, Timeline]) -> tuple[tuple[int, int], ...]:
    name = next((stream for network, stream in NEAREST.items() if model.startswith(network)), "")
    if name not in streams:
        return ()
    predicted = widths(profile_of(streams[name]), _V100_SMS)
    wider = _V100_SMS / _RTX3080_SMS
    return few_widths(tuple((min(1.0, width * wider), part) for width, part in predicted))


def _outcome(
    group: _Together, uses: Sequence[TaskUse], mine: int, others: Sequence[int], mode: ServingMode
) -> MeasuredOutcome:
    online = tuple(OnlineUse(f"s{index}", uses[index]) for index in others)
    demand = uses[mine].duty_ppm / WHOLE_PPM
    demand += sum(uses[index].duty_ppm * uses[index].active_ppm for index in others) / WHOLE_PPM**2
    return MeasuredOutcome(
        name=f"{group.name}: {group.tenants[mine]} ({mine + 1})",
        where=group.where,
        profile=f"{group.where} {group.tenants[mine]}",
        co_runners="+".join(sorted(group.programs[index] for index in others)),
        mode=mode,
        job=uses[mine],
        spot=Spot(online, WHOLE_PPM),
        speed=min(1 / group.slower[mine], 1.0),
        slowdown=max(group.slower[others[0]], 1.0) if len(others) == 1 else 0.0,
        adds_up=1 / max(1.0, demand),
    )
