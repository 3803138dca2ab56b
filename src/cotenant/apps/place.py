"""Wires `cotenant place --dry-run`: one round on a snapshot, by the machine itself, told and not done."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cotenant.domain.cluster import JobState
from cotenant.errors import ConfigError
from cotenant.format.snapshot import decode_snapshot
from cotenant.machine.cluster import ClusterMachine
from cotenant.machine.cluster_fit import why_not
from cotenant.machine.cluster_rounds import Drawn, draw_round, plan_round
from cotenant.machine.cluster_why import Reasons, why_closed
from cotenant.policy.place.rounds import ROUNDS


class PlacedJob(msgspec.Struct, frozen=True):
    """A job that the round would start, or move."""

    job: str
    user: str
    node: str
    gpus: tuple[int, ...]
    share: float
    speed: float
    """Foretold, of its speed alone on the whole GPU."""
    online_slowdown: float
    """Foretold, of the online work there: 1 is none."""
    moved_from: str = ""
    discarded: str = ""
    """Why it is not done after all."""
    instead: str = ""
    """The best kind of GPU for it, where that is another than it gets, and its speed there."""


class LeftJob(msgspec.Struct, frozen=True):
    """A job that goes on waiting."""

    job: str
    user: str
    why: str


class LeftGpu(msgspec.Struct, frozen=True):
    """A GPU that gets no job."""

    node: str
    gpu: int
    why: str


class PlaceReport(msgspec.Struct, frozen=True):
    """What one round would do, and why not something else."""

    snapshot: str
    policy: str
    placed: tuple[PlacedJob, ...]
    waiting: tuple[LeftJob, ...]
    idle: tuple[LeftGpu, ...]
    value: float
    """What single jobs are worth together at the priority with the most of them; 0: not known."""
    bound: float
    """What any other choice for them would be worth at most; 0: not known."""


def place_on_snapshot(path: Path, policy: str = "") -> PlaceReport:
    """One round, on paper."""
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
    drawn = draw_round(machine, now)
    if drawn is None:
        return PlaceReport(str(path), chosen, (), _left(machine, {}), _idle(machine, set()), 0.0, 0.0)
    planned = plan_round(machine, drawn)
    placed = [_placed(machine, drawn, pairing.job, pairing.gpus) for pairing in planned.pairings]
    done = {one.job: one for one in placed if not one.discarded}
    taken = {(one.node, gpu) for one in done.values() for gpu in one.gpus}
    return PlaceReport(
        str(path), chosen, tuple(placed), _left(machine, done), _idle(machine, taken), planned.value, planned.bound
    )


def _placed(machine: ClusterMachine, drawn: Drawn, number: int, gpus: tuple[int, ...]) -> PlacedJob:
    job, floor = drawn.jobs[number], machine.floor
    places = [int(drawn.gpus[gpu]) for gpu in gpus]
    node = floor.ranked[floor.rank[places[0]]]
    there = tuple(sorted(place - node.base for place in places))
    row = int(drawn.round.jobs.kind[number])
    columns = [int(drawn.round.gpus.kind[gpu]) for gpu in gpus]
    worth, slowdown = drawn.table.worth[row], drawn.table.slowdown[row]
    speed = float(worth[columns].min())
    best = int(worth.argmax())
    instead = ""
    if float(worth[best]) > speed:
        kind = floor.kinds[drawn.gpu_kinds[best]]
        instead = f"{float(worth[best]):.3f} on a {kind.type} that offers {kind.offer_ppm / 10_000:g}%"
    return PlacedJob(
        job.spec.name,
        job.spec.user,
        node.name,
        there,
        min(node.gpus[gpu].offer_ppm for gpu in there) / 1_000_000,
        speed,
        float(slowdown[columns].max()),
        "" if job.node is None else f"{job.node.name}/{','.join(str(gpu) for gpu in job.gpus)}",
        why_not(floor, machine.roster, job, node, there),
        instead,
    )


def _left(machine: ClusterMachine, done: dict[str, PlacedJob]) -> tuple[LeftJob, ...]:
    """Those for whom the round has nothing. What it gives to others is gone for them."""
    reasons = Reasons(machine)
    waiting = [job for job in machine.roster.jobs.values() if job.state is JobState.WAITING]
    users = machine.roster.users
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
        found.append(LeftJob(job.spec.name, job.spec.user, why))
    return tuple(found)


def _idle(machine: ClusterMachine, taken: set[tuple[str, int]]) -> tuple[LeftGpu, ...]:
    left = []
    for node in machine.floor.nodes.values():
        for gpu in range(len(node.gpus)):
            if (node.name, gpu) in taken:
                continue
            why = why_closed(node, gpu)
            if gpu in node.busy:
                why = f"{node.busy[gpu].spec.name} has it"
            left.append(LeftGpu(node.name, gpu, why or "no job that waits is of use there"))
    return tuple(left)
