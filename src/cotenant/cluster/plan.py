"""One placement round on a snapshot, planned by the controller's state machine and not carried out."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cotenant.cluster.model.cluster import JobState
from cotenant.cluster.model.event import ClusterRestored
from cotenant.cluster.policy import ROUNDS
from cotenant.cluster.snapshot import decode_snapshot
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.cluster.state.fit import why_not
from cotenant.cluster.state.reasons import Reasons, why_closed
from cotenant.cluster.state.rounds import PreparedRound, plan_round, prepare_round
from cotenant.errors import ConfigError
from cotenant.units.instant import Instant


class PlacedJob(msgspec.Struct, frozen=True):
    """A job that the round would start or move."""

    job: str
    user: str
    node: str
    gpus: tuple[int, ...]
    share: float
    speed: float
    """Predicted speed relative to the speed alone on the whole GPU."""
    online_slowdown: float
    """Predicted slowdown of the online work there; 1: none."""
    moved_from: str = ""
    discarded: str = ""
    """Why the pairing would not be committed; empty: it would."""
    instead: str = ""
    """The GPU kind with the highest predicted speed for the job, if it gets another, and that speed."""


class WaitingJob(msgspec.Struct, frozen=True):
    """A job that stays in the queue."""

    job: str
    user: str
    why: str


class IdleGpu(msgspec.Struct, frozen=True):
    """A GPU that gets no job."""

    node: str
    gpu: int
    why: str


class PlanReport(msgspec.Struct, frozen=True):
    """Result of one planned round, with the reasons for waiting jobs and idle GPUs."""

    source: str
    """File of the snapshot, or address of the API server."""
    policy: str
    placed: tuple[PlacedJob, ...]
    waiting: tuple[WaitingJob, ...]
    idle: tuple[IdleGpu, ...]
    value: float
    """Total weight of the planned single-GPU jobs at the priority with the most of them; 0: unknown."""
    bound: float
    """Upper bound of that total over all plans; 0: unknown."""


def plan_on_snapshot(path: Path, policy: str = "") -> PlanReport:
    """Plan one round for the cluster in a snapshot file."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError("snapshot", str(path), f"cannot be read: {error.strerror}; check the path") from None
    return plan_on_state(*decode_snapshot(text, str(path)), str(path), policy)


def plan_on_state(state: ClusterRestored, now: Instant, source: str, policy: str = "") -> PlanReport:
    """Plan one round for a cluster in this state; `source` says from where it was read."""
    chosen = policy or state.settings.place
    if chosen not in ROUNDS:
        field = "--place" if policy else "settings.place"
        raise ConfigError(field, chosen, f"write one of: {', '.join(ROUNDS)}", where="" if policy else source)
    settings = msgspec.structs.replace(state.settings, place=chosen)
    machine = ClusterMachine()
    machine.handle(msgspec.structs.replace(state, settings=settings), now=now)
    prepared = prepare_round(machine, now)
    if prepared is None:
        return PlanReport(source, chosen, (), _waiting_jobs(machine, {}), _idle(machine, set()), 0.0, 0.0)
    planned = plan_round(machine, prepared)
    placed = [_placed(machine, prepared, pairing.job, pairing.gpus) for pairing in planned.pairings]
    committed = {job.job: job for job in placed if not job.discarded}
    used = {(job.node, gpu) for job in committed.values() for gpu in job.gpus}
    return PlanReport(
        source,
        chosen,
        tuple(placed),
        _waiting_jobs(machine, committed),
        _idle(machine, used),
        planned.value,
        planned.bound,
    )


def _placed(machine: ClusterMachine, prepared: PreparedRound, number: int, gpus: tuple[int, ...]) -> PlacedJob:
    job, inventory = prepared.jobs[number], machine.inventory
    positions = [int(prepared.gpus[gpu]) for gpu in gpus]
    node = inventory.ranked[inventory.rank[positions[0]]]
    node_gpus = tuple(sorted(position - node.base for position in positions))
    row = int(prepared.round.jobs.kind[number])
    columns = [int(prepared.round.gpus.kind[gpu]) for gpu in gpus]
    weight, slowdown = prepared.table.weight[row], prepared.table.slowdown[row]
    speed = float(weight[columns].min())
    best = int(weight.argmax())
    instead = ""
    if float(weight[best]) > speed:
        kind = inventory.kinds[prepared.gpu_kinds[best]]
        instead = f"{float(weight[best]):.3f} on a {kind.type} that offers {kind.offer_ppm / 10_000:g}%"
    return PlacedJob(
        job.spec.name,
        job.spec.user,
        node.name,
        node_gpus,
        min(node.gpus[gpu].offer_ppm for gpu in node_gpus) / 1_000_000,
        speed,
        float(slowdown[columns].max()),
        "" if job.node is None else f"{job.node.name}/{','.join(str(gpu) for gpu in job.gpus)}",
        why_not(inventory, machine.job_table, job, node, node_gpus),
        instead,
    )


def _waiting_jobs(machine: ClusterMachine, committed: dict[str, PlacedJob]) -> tuple[WaitingJob, ...]:
    """Return the jobs that stay in the queue; GPUs that the round gives to other jobs count as used."""
    reasons = Reasons(machine)
    jobs = []
    for job in machine.job_table.jobs.values():
        if job.state is JobState.WAITING and job.spec.name not in committed:
            is_next = reasons.is_only_its_turn(job)
            why = "every suitable GPU is better used for another job" if is_next else reasons.why_waiting(job)
            jobs.append(WaitingJob(job.spec.name, job.spec.user, why))
    return tuple(jobs)


def _idle(machine: ClusterMachine, used: set[tuple[str, int]]) -> tuple[IdleGpu, ...]:
    idle = []
    for node in machine.inventory.nodes.values():
        for gpu in range(len(node.gpus)):
            if (node.name, gpu) in used:
                continue
            reason = why_closed(node, gpu)
            if holders := ", ".join(job.spec.name for job in node.busy.get(gpu, ())):
                reason = f"held by {holders}" if node.is_full(gpu) else f"no waiting job can share it with {holders}"
            idle.append(IdleGpu(node.name, gpu, reason or "no waiting job can use it"))
    return tuple(idle)
