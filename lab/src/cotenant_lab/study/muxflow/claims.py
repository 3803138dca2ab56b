"""Claims of MuxFlow: results of the cluster, also with the physics and the profiles wrong by a factor of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from cotenant.cluster.sim.physics.colocated import ColocationModel, Contention, built_in
from cotenant.predict.usage import TaskUse
from cotenant.units.share import WHOLE_PPM
from cotenant_lab.study.claim import CONTENTION, Perturbation, PerturbedCell, StudyClaim, claim_of

if TYPE_CHECKING:
    from cotenant_lab.study.muxflow.run import ClusterResult, PolicyOutcome

PAPER: Final = "MuxFlow, arXiv 2303.13803"
UTILIZATION_LEAST: Final = 0.76
SM_ACTIVITY_LEAST: Final = 0.33
MEMORY_LEAST: Final = 0.48
SLOWDOWN_MOST: Final = 1.2
"""Published limit of the mean online slowdown."""


def perturbed_physics(cell: Perturbation | None) -> ColocationModel:
    """Return the physics with contention wrong, or with true physics and durations in the profiles wrong."""
    if cell is None:
        return built_in()
    if cell.what == CONTENTION:
        usual = Contention()
        return built_in(
            Contention(
                cache=usual.cache * cell.factor,
                dram=usual.dram * cell.factor,
                clock_drop=usual.clock_drop * cell.factor,
                switch_ns=usual.switch_ns,
            )
        )
    physics = built_in()
    # The controller learns these from reports; the physics itself keeps the true durations.
    physics.services = tuple(
        msgspec.structs.replace(service, use=_scaled(service.use, cell.factor)) for service in physics.services
    )
    physics.trainings = tuple(
        msgspec.structs.replace(training, use=_scaled(training.use, cell.factor)) for training in physics.trainings
    )
    return physics


def metrics_of(outcome: PolicyOutcome) -> dict[str, float]:
    """Return the metrics that the claims are about."""
    return {
        "utilization": round(outcome.utilization[1], 4),
        "sm_activity": round(outcome.sm_activity[1], 4),
        "memory": round(outcome.memory[1], 4),
        "online_slowdown": round(outcome.online_slowdown, 4),
        "online_service": round(outcome.online_service, 4),
    }


def claims_of(cluster: ClusterResult, ours: PolicyOutcome, cells: Sequence[PerturbedCell]) -> list[StudyClaim]:
    """Return the paper's claims for one cluster under our policy."""
    trainings = built_in().trainings
    busy = sum(training.use.duty_ppm for training in trainings) / WHOLE_PPM / len(trainings)
    bound = 1 - (1 - ours.utilization[0]) * (1 - busy)
    where = f"{cluster.name}, {cluster.jobs} jobs on {cluster.gpus} GPUs"
    waiting = f"; {ours.full['utilization']:.0%} while jobs wait" if "utilization" in ours.full else ""
    sm_waiting = f"; {ours.full['sm_activity']:.0%} while jobs wait" if "sm_activity" in ours.full else ""
    no_job = "in a part of the time no job waits, and nodes evict jobs at high load"

    def text(use: tuple[float, float], more: str = "") -> str:
        return f"{use[0]:.0%} to {use[1]:.0%}{more} ({where})"

    return [
        claim_of(
            PAPER,
            "GPU utilization 26 to 76 %",
            ("utilization", ours.utilization[1], UTILIZATION_LEAST),
            cells,
            result=text(ours.utilization, waiting),
            reason=f"a training is on the GPU for {busy:.0%} of its time alone, so a job on every GPU all of the time "
            f"would give {bound:.0%}; {no_job}",
        ),
        claim_of(
            PAPER,
            "SM activity 16 to 33 %",
            ("sm_activity", ours.sm_activity[1], SM_ACTIVITY_LEAST),
            cells,
            result=text(ours.sm_activity, sm_waiting),
            reason=f"it begins at {ours.sm_activity[0]:.0%} instead of 16 %; {no_job}",
        ),
        claim_of(
            PAPER,
            "GPU memory 42 to 48 %",
            ("memory", ours.memory[1], MEMORY_LEAST),
            cells,
            result=text(ours.memory),
            reason="the memory of services is not measured: it is spread so that its mean is the paper's",
        ),
        claim_of(
            PAPER,
            "online work slowed by less than 20 %",
            ("online_slowdown", ours.online_slowdown, SLOWDOWN_MOST),
            cells,
            result=f"mean {ours.online_slowdown - 1:+.1%} with queueing, {ours.online_service - 1:+.1%} without, "
            f"p99 {ours.online_slowdown_p99 - 1:+.0%} ({where})",
            reason="a mean over requests; single services are slowed more",
            is_least=False,
        ),
    ]


def _scaled(use: TaskUse, factor: float) -> TaskUse:
    """Return a profile in which all kernels take `factor` times as long, and the host as long as it does."""
    device_ns = round(use.round_device_ns * factor)
    round_ns = max(use.round_ns - use.round_device_ns, 0) + device_ns
    return msgspec.structs.replace(
        use,
        duty_ppm=min(round(device_ns / max(round_ns, 1) * WHOLE_PPM), WHOLE_PPM),
        kernel_ns=round(use.kernel_ns * factor),
        longest_ns=round(use.longest_ns * factor),
        round_ns=round_ns,
        round_device_ns=device_ns,
    )
