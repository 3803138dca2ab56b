"""One placement round on a snapshot, planned by the controller's state machine and not carried out."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cotenant.cluster.model.cluster import JobState
from cotenant.cluster.policy import ROUNDS
from cotenant.cluster.snapshot import decode_snapshot
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.cluster.state.fit import why_not
from cotenant.cluster.state.reasons import Reasons, why_closed
from cotenant.cluster.state.rounds import PreparedRound, plan_round, prepare_round
from cotenant.errors import ConfigError


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

    snapshot: str
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
    state, now = decode_snapshot(text, str(path))
    chosen = policy or state.settings.place
    if chosen not in ROUNDS:
        field = "--place" if policy else "settings.place"
        raise ConfigError(field, chosen, f"write one of: {', '.join(ROUNDS)}", where="" if policy else str(path))
    settings = msgspec.structs.replace(state.settings, place=chosen)
    machine = ClusterMachine()
    machine.handle(msgspec.structs.replace(state, settings=settings), now=now)
    prepared = prepare_round(machine, now)
    if prepared is None:
        return PlanReport(str(path), chosen, (), _waiting_jobs(machine, {}), _idle(machine, set()), 0.0, 0.0)
    planned = plan_round(machine, prepared)
    placed = [_placed(machine, prepared, pairing.job, pairing.gpus) for pairing in planned.pairings]
    done = {one.job: one for one in placed if not one.discarded}
    taken = {(one.node, gpu) for one in done.values() for gpu in one.gpus}
    return PlanReport(
        str(path),
        chosen,
        tuple(placed),
        _waiting_jobs(machine, done),
        _idle(machine, taken),
        planned.value,
        planned.bound,
    )


def _placed(machine: ClusterMachine, prepared: PreparedRound, number: int, gpus: tuple[int, ...]) -> PlacedJob:
    job, inventory = prepared.jobs[number], machine.inventory
    places = [int(prepared.gpus[gpu]) for gpu in gpus]
    node = inventory.ranked[inventory.rank[places[0]]]
    there = tuple(sorted(place - node.base for place in places))
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
        there,
        min(node.gpus[gpu].offer_ppm for gpu in there) / 1_000_000,
        speed,
        float(slowdown[columns].max()),
        "" if job.node is None else f"{job.node.name}/{','.join(str(gpu) for gpu in job.gpus)}",
        why_not(inventory, machine.job_table, job, node, there),
        instead,
    )


def _waiting_jobs(machine: ClusterMachine, done: dict[str, PlacedJob]) -> tuple[WaitingJob, ...]:
    """Return the jobs that stay in the queue; GPUs and quota that the round gives to other jobs count as used."""
    reasons = Reasons(machine)
    waiting = [job for job in machine.job_table.jobs.values() if job.state is JobState.WAITING]
    users = machine.job_table.users
    given = {job.spec.user: 0 for job in waiting}
    for job in waiting:
        if job.spec.name in done:
            given[job.spec.user] += job.spec.gpus
    found = []
    for job in waiting:
        if job.spec.name in done:
            continue
        why = reasons.waits(job)
        if reasons.is_only_its_turn(job):
            short = users.left(job.spec.user) - given[job.spec.user] < job.spec.gpus
            why = (
                f"the quota of {job.spec.user} is used up by the jobs before it"
                if short
                else "every GPU that will do is better used for another job"
            )
        found.append(WaitingJob(job.spec.name, job.spec.user, why))
    return tuple(found)


def _idle(machine: ClusterMachine, taken: set[tuple[str, int]]) -> tuple[IdleGpu, ...]:
    left = []
    for node in machine.inventory.nodes.values():
        for gpu in range(len(node.gpus)):
            if (node.name, gpu) in taken:
                continue
            why = why_closed(node, gpu)
            if gpu in node.busy:
                why = f"{node.busy[gpu].spec.name} has it"
            left.append(IdleGpu(node.name, gpu, why or "no job that waits is of use there"))
    return tuple(left)
