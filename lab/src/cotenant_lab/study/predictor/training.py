"""Gavel's training pairs, with the part of a step on the GPU, which follows from speeds alone on three GPUs."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from cotenant.predict.latency import nonnegative_least_squares
from cotenant_lab.data.gavel import TrainingPairs

_POWER: Final = {"k80": 1.0, "p100": 4.0, "v100": 6.0}
"""Approximate speed ratios of GPUs in training of convolutional networks, to separate host time from GPU time."""
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
_USUAL_KERNELS: Final = 500
_LEAST_DUTY: Final = 0.05


class TrainingGroup(msgspec.Struct, frozen=True):
    """Two jobs that ran together, and the slowdown of each."""

    name: str
    gpu: str
    duties: tuple[float, ...]
    """Part of a step on the GPU."""
    step_ns: tuple[float, ...]
    jobs: tuple[str, ...]
    programs: tuple[str, ...]
    """Families of jobs, which are held out together."""
    slowdowns: tuple[float, ...]


def training_groups(pairs: TrainingPairs) -> list[TrainingGroup]:
    """Return the pairs: how a job's speed grows from GPU to GPU gives the GPU's part of a step."""
    duties: dict[tuple[str, str], float] = {}
    for job in sorted({job for _, job in pairs.step_s}):
        steps = [(gpu, pairs.step_s[gpu, job]) for gpu in _POWER if (gpu, job) in pairs.step_s]
        system = np.array([[1 / step_s, 1 / (_POWER[gpu] * step_s)] for gpu, step_s in steps])
        host, work = nonnegative_least_squares(system, np.ones(len(steps)))
        for gpu, _ in steps:
            on_gpu = float(work) / _POWER[gpu]
            duties[gpu, job] = max(_LEAST_DUTY, on_gpu / (float(host) + on_gpu))
    return [
        TrainingGroup(
            f"{pair.gpu} {pair.jobs[0]} + {pair.jobs[1]}",
            pair.gpu,
            tuple(duties[pair.gpu, job] for job in pair.jobs),
            tuple(1e9 * pairs.step_s[pair.gpu, job] for job in pair.jobs),
            pair.jobs,
            tuple(job.split(" (")[0] for job in pair.jobs),
            pair.slowdowns,
        )
        for pair in pairs.pairs
    ]


def kernels_of_step(job: str) -> int:
    """Return the number of kernels of a job's training step."""
    return STEP_KERNELS.get(job.split(" (", maxsplit=1)[0], _USUAL_KERNELS)
