"""Rebuild the state machine from the lists of the API.

A gated pod waits. A gated pod with a pinned claim was about to be released when the previous controller ended: its
start is continued if its GPU is still free and healthy, and if every waiting member of its gang has a claim. A pod
without gate and with a pinned claim is where the claim says. Nothing else is needed, so there is no journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from cotenant.cluster.kubernetes.controller.manifests import PinnedGpus
from cotenant.cluster.kubernetes.controller.mapping import instant_of, job_spec
from cotenant.cluster.kubernetes.controller.objects import Claim, Pod
from cotenant.cluster.kubernetes.controller.placement import EPOCH, Placement
from cotenant.cluster.kubernetes.controller.starts import Phase, Start
from cotenant.cluster.model.cluster import Attempt, ClusterSettings, GpuCondition, JobReport, JobSpec, JobState
from cotenant.cluster.model.event import ClusterRestored, JobSnapshot, NodeSnapshot
from cotenant.errors import ConfigError
from cotenant.units.instant import Instant


class RestoredState(NamedTuple):
    """State for the machine, and what has to be done before it runs."""

    event: ClusterRestored
    drained: tuple[str, ...]
    unused_claims: tuple[Claim, ...]
    """Claims of gated pods whose start is not continued."""


def restore(
    placement: Placement, settings: ClusterSettings, learned: tuple[tuple[str, str, int, int], ...], now: Instant
) -> RestoredState:
    """Return the state that the collected objects imply, and register the starts in `placement`.

    `now` is in Unix nanoseconds, so that the creation of a pod is an instant of the same clock.
    """
    view, fleet = placement.view, placement.fleet
    pods = sorted(view.pods.values(), key=lambda pod: (pod.metadata.creation_timestamp, pod.key))
    specs = {pod.uid: spec for pod in pods if (spec := _spec(placement, pod)) is not None}
    taken: Counter[tuple[str, int]] = Counter()
    starts = _released(placement, pods, specs, taken)
    begun = _begun(placement, pods, specs, taken)
    snapshots: list[JobSnapshot] = []
    for pod in pods:
        spec = specs.get(pod.uid)
        start = starts.get(pod.uid) or begun.get(pod.uid)
        if spec is None or (start is None and not pod.is_gated):
            continue
        view.submit(pod.uid, spec)
        is_running = start is not None and start.phase is Phase.RELEASED and placement.is_bound(start)
        snapshots.append(_snapshot(pod, spec, start, len(snapshots) + 1, now, is_running=is_running))
        if start is not None:
            start.attempt = Attempt(spec.name, len(snapshots))
            placement.starts.adopt(start)
    drained = tuple(name for name in fleet.nodes if fleet.is_closed(name))
    nodes = tuple(
        NodeSnapshot(record.name, EPOCH, now, record.gpus, is_drained=record.name in set(drained))
        for record in sorted(fleet.nodes.values(), key=lambda record: record.name)
    )
    unused = [
        claim
        for pod in pods
        if pod.is_gated and pod.uid not in begun and pod.uid not in starts and (claim := view.claim_of(pod)) is not None
    ]
    event = ClusterRestored(
        settings,
        nodes,
        tuple(snapshots),
        next_round=now,
        learned=learned,
        next_attempt=len(snapshots) + 1,
        accounted=now,
        pools=tuple(fleet.changed_pools()),
    )
    return RestoredState(event, drained, tuple(unused))


def _spec(placement: Placement, pod: Pod) -> JobSpec | None:
    if not pod.is_gated and not pod.is_offline:
        return None
    if pod.is_gated:
        return placement.spec_of(pod)
    try:
        return job_spec(pod, "")
    except ConfigError as error:
        placement.view.errors[pod.uid] = f"the annotation {error}"
        return None


def _released(
    placement: Placement, pods: Iterable[Pod], specs: dict[str, JobSpec], taken: Counter[tuple[str, int]]
) -> dict[str, Start]:
    """Return the starts of pods without gate; those beyond the places of a GPU are left to its reports."""
    starts = {}
    for pod in pods:
        claim = placement.view.claim_of(pod)
        if pod.is_gated or claim is None or pod.uid not in specs:
            continue
        start = _start_of(placement, pod, claim, specs[pod.uid], taken)
        if start is not None:
            start.phase = Phase.RELEASED
            starts[pod.uid] = start
    return starts


def _begun(
    placement: Placement, pods: Iterable[Pod], specs: dict[str, JobSpec], taken: Counter[tuple[str, int]]
) -> dict[str, Start]:
    """Return the starts of gated pods that have a claim and are to be continued."""
    starts: dict[str, Start] = {}
    gated: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.is_gated and pod.uid in specs:
            gated.setdefault(specs[pod.uid].gang or pod.uid, []).append(pod)
    for members in gated.values():
        tentative = Counter(taken)
        found = [
            _start_of(placement, pod, claim, specs[pod.uid], tentative, must_be_open=True)
            for pod in members
            if (claim := placement.view.claim_of(pod)) is not None
        ]
        complete = [start for start in found if start is not None]
        if len(complete) < len(members):
            continue
        taken |= tentative  # the maximum of each count
        for start in complete:
            start.phase = Phase.CLAIMED
            starts[start.uid] = start
    return starts


def _start_of(
    placement: Placement,
    pod: Pod,
    claim: Claim,
    spec: JobSpec,
    taken: Counter[tuple[str, int]],
    *,
    must_be_open: bool = False,
) -> Start | None:
    """Return the start that a claim records; None if its GPUs are unknown, held by other pods, or not open."""
    record = placement.fleet.nodes.get(claim.node)
    if record is None:
        return None
    gpus = tuple(record.position_of_uuid[uuid] for uuid in claim.gpu_uuids if uuid in record.position_of_uuid)
    if len(set(gpus)) != spec.gpus or any(taken[record.name, gpu] >= record.gpus[gpu].places for gpu in gpus):
        return None
    if must_be_open:
        is_healthy = all(record.gpus[gpu].condition is GpuCondition.HEALTHY for gpu in gpus)
        holders = Counter(uuid for uid, tenant in record.tenants.items() if uid != pod.uid for uuid in tenant.gpus)
        is_full = any(holders[record.uuids[gpu]] >= record.gpus[gpu].places for gpu in gpus)
        if not is_healthy or is_full or placement.fleet.is_closed(claim.node):
            return None
    taken.update((record.name, gpu) for gpu in gpus)
    pinned = PinnedGpus(claim.node, claim.gpu_uuids, min(record.gpus[gpu].free_bytes for gpu in gpus))
    start = Start(pod.uid, Attempt(spec.name, 0), claim.node, tuple(sorted(gpus)), pinned)
    start.gang, start.claim = spec.gang, claim
    return start


def _snapshot(
    pod: Pod, spec: JobSpec, start: Start | None, number: int, now: Instant, *, is_running: bool
) -> JobSnapshot:
    created = min(instant_of(pod.metadata.creation_timestamp) or now, now)
    if start is None:
        return JobSnapshot(JobReport(spec, JobState.WAITING, created), since=created)
    state = JobState.RUNNING if is_running else JobState.STARTING
    report = JobReport(spec, state, created, number, start.node, start.gpus, started=now)
    return JobSnapshot(report, since=now, is_known=is_running)
