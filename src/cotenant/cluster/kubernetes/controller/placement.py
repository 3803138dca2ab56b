"""Translate what the API reports into events of the cluster state machine, and rebuild the machine from lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from cotenant.cluster.kubernetes.controller.constraints import constraint_of
from cotenant.cluster.kubernetes.controller.dispatcher import Dispatcher
from cotenant.cluster.kubernetes.controller.fleet import GpuFleet, NodeRecord
from cotenant.cluster.kubernetes.controller.manifests import claim_parameters, device_positions
from cotenant.cluster.kubernetes.controller.mapping import job_spec
from cotenant.cluster.kubernetes.controller.objects import Claim, KubeNode, Pod
from cotenant.cluster.kubernetes.controller.online_room import OnlineRoom
from cotenant.cluster.kubernetes.controller.starts import Phase, Start, Starts
from cotenant.cluster.kubernetes.controller.view import ClusterView
from cotenant.cluster.kubernetes.gpu_node import GpuNode
from cotenant.cluster.model.cluster import Attempt, AttemptReport, JobEnd, JobSpec
from cotenant.cluster.model.event import (
    ClusterEvent,
    JobCancelled,
    JobSubmitted,
    NodeDrained,
    NodeGone,
    NodeReport,
    PoolSet,
)
from cotenant.errors import ConfigError
from cotenant.units.instant import SECOND_NS, Instant
from cotenant.units.share import WHOLE_PPM

EPOCH: Final = 1
"""Epoch of every node for the state machine: a pod survives a restart of the node daemon, so epochs do not matter."""
STRAY: Final = 0
"""Attempt number of a pod that the state machine did not start; issued numbers begin at 1."""
_EXCLUDED_NS: Final = 300 * SECOND_NS
"""Time for which a node gets no pod of a pool after the scheduler refused one there."""


class PlacementOptions(NamedTuple):
    """Settings of the adapter."""

    lease_ns: int = 120 * SECOND_NS
    """A node without a report for this long is silent and gets no pods."""
    unschedulable_ns: int = 60 * SECOND_NS
    """A released pod that the scheduler refuses for this long is evicted, if something creates another one."""
    online_wait_ns: int = 5 * SECOND_NS
    """For an online pod that the scheduler refuses for this long, offline pods are evicted."""


class Placement:
    """Handles the objects of lists and watches. `post` delivers an event to the state machine."""

    def __init__(
        self, post: Callable[[ClusterEvent], None], dispatcher: Dispatcher, options: PlacementOptions | None = None
    ) -> None:
        self.options = options or PlacementOptions()
        self.fleet = GpuFleet(self.options.lease_ns)
        self.view = ClusterView(self.fleet)
        self.starts = Starts(self.view, dispatcher, self._attempts_changed)
        self.online_room = OnlineRoom(self.view, self.starts, dispatcher, self.options.online_wait_ns)
        self._post = post
        self.explain: Callable[[str], None] = _nothing
        """Called with the uid of a pod whose state is to be written into its condition."""
        self.is_started = False
        """Whether the state machine was restored; before that, objects are only collected."""
        self._drained: set[str] = set()
        self._strays: dict[str, set[str]] = {}
        """Pods that hold GPUs of a node although the state machine did not start them, by node."""
        self._stray_node: dict[str, str] = {}
        self._refused: dict[str, Instant] = {}
        """Released pods that the scheduler refuses, with the instant of the first refusal."""
        self._now: Instant = 0

    # -- pods -------------------------------------------------------------------------------------------------------

    def pods_listed(self, pods: Iterable[Pod], now: Instant) -> None:
        """Take a complete list; a known pod that it does not contain has ended."""
        listed = {pod.uid: pod for pod in pods}
        for uid in [uid for uid in self.view.pods if uid not in listed]:
            self.pod_gone(uid, now)
        for pod in listed.values():
            self.pod_changed(pod, now)

    def pod_changed(self, pod: Pod, now: Instant) -> None:
        """Take a new or changed pod."""
        self._now = now
        view, uid = self.view, pod.uid
        if pod.is_over or pod.never_starts:
            self.pod_gone(uid, now, pod)
            return
        old = view.pods.get(uid)
        if old is not None and pod.is_gated and not old.is_gated:
            return  # older than the answer to the release: a gate is never added again
        view.pods[uid] = pod
        if not self.is_started:
            return
        if pod.is_gated:
            if old is None or old.metadata.annotations != pod.metadata.annotations or old.spec != pod.spec:
                self._submit(pod)
            return
        self.online_room.note(pod, now)
        if old is None:
            self._note_online(uid)
        start = self.starts.by_uid.get(uid)
        if start is not None:
            self.starts.pod_released(start)
            self._note_refusal(pod, now)
            if old is not None and old.spec.node_name != pod.spec.node_name:
                self._attempts_changed(start.node, None)
        elif spec := view.withdraw(uid):
            self._post(JobCancelled(spec.name))
        if old is None or old.is_gated or old.spec.node_name != pod.spec.node_name:
            self.starts.ensure_claim(pod)
            self._note_stray(uid)
            if uid in view.errors:
                self.explain(uid)

    def pod_gone(self, uid: str, now: Instant, last: Pod | None = None) -> None:
        """Take the end or the deletion of a pod; `last` is its last state if that is known."""
        self._now = now
        view = self.view
        pod = view.pods.pop(uid, None)
        view.errors.pop(uid, None)
        view.gated_by_others.pop(uid, None)
        if pod is not None and (claim := view.claim_of(pod)) is not None:
            view.drop_claim(claim)
            if self.is_started and not (last or pod).metadata.deletion_timestamp:
                self.starts.delete_claim_of_ended(claim)
        self._refused.pop(uid, None)
        self.online_room.forget(uid)
        self.online_room.claim_changed(uid, ())
        stray_on = self._stray_node.pop(uid, "")
        if stray_on:
            self._strays[stray_on].discard(uid)
        if pod is None or not self.is_started:
            return
        spec = view.withdraw(uid)
        end = _end_of(last or pod)
        if spec is not None and (end is JobEnd.EVICTED or uid not in self.starts.by_uid):
            self._post(JobCancelled(spec.name))
        self.starts.pod_ended(uid, end, "")
        if stray_on in self.fleet.nodes:
            self._report(self.fleet.nodes[stray_on])

    def _submit(self, pod: Pod) -> None:
        """Submit the job of a gated pod, or submit it anew after its annotations changed."""
        view, uid = self.view, pod.uid
        self.explain(uid)
        if uid in self.starts.by_uid:
            return
        spec = self.spec_of(pod)
        old = view.specs.get(uid)
        if spec == old:
            return
        if old is not None:
            view.withdraw(uid)
            self._post(JobCancelled(old.name))
        if spec is not None:
            view.submit(uid, spec)
            self._post(JobSubmitted(spec))

    def spec_of(self, pod: Pod) -> JobSpec | None:
        """Return the job that stands for a gated pod; None, with the reason in the view, if it cannot be placed yet.

        A pod that other gates keep from the scheduler would hold its GPU idle until they are removed.
        """
        view, uid = self.view, pod.uid
        view.errors.pop(uid, None)
        view.gated_by_others.pop(uid, None)
        if others := pod.other_gates:
            noun = "gate" if len(others) == 1 else "gates"
            view.gated_by_others[uid] = f"it waits for the controllers that remove its {noun} {', '.join(others)}"
            return None
        try:
            claim_parameters(pod)
            return job_spec(pod, self.fleet.pool(constraint_of(pod)))
        except ConfigError as error:
            view.errors[uid] = f"the annotation {error}"
            return None

    # -- claims -----------------------------------------------------------------------------------------------------

    def claims_listed(self, claims: Iterable[Claim], now: Instant) -> None:
        """Take a complete list of claims."""
        listed = {claim.key: claim for claim in claims}
        for claim in self.view.claims():
            if claim.key not in listed:
                self.claim_gone(claim, now)
        for claim in listed.values():
            self.claim_changed(claim, now)

    def claim_changed(self, claim: Claim, now: Instant) -> None:
        """Take a new or changed claim."""
        self._now = now
        self.view.keep_claim(claim)
        self._note_online(claim.pod_uid)
        if self.is_started:
            self._note_stray(claim.pod_uid)

    def claim_gone(self, claim: Claim, now: Instant) -> None:
        """Take the deletion of a claim."""
        self._now = now
        pod = self.view.pod_of(claim)
        if not self.view.drop_claim(claim) or pod is None:
            return
        self.online_room.claim_changed(pod.uid, ())
        if self.is_started and not pod.is_gated:
            self.starts.claim_deleted(pod)

    # -- nodes ------------------------------------------------------------------------------------------------------

    def gpu_nodes_listed(self, nodes: Iterable[GpuNode], now: Instant) -> None:
        """Take a complete list of GpuNodes."""
        listed = {node.metadata.name: node for node in nodes}
        for name in [name for name in self.fleet.nodes if name not in listed]:
            self.gpu_node_gone(name, now)
        for node in listed.values():
            self.gpu_node_changed(node, now)

    def gpu_node_changed(self, node: GpuNode, now: Instant) -> None:
        """Take the report of a node."""
        self._now = now
        record = self.fleet.update(node, now)
        if not self.is_started:
            return
        self._report(record)
        self._set_drained(record.name)

    def gpu_node_gone(self, name: str, now: Instant) -> None:
        """Take the deletion of a GpuNode: the node gets no pods; those that it has keep their places until they end."""
        self._now = now
        record = self.fleet.lose(name)
        if record is not None and self.is_started:
            self._report(record)
        self._forget_if_empty(name)

    def kube_nodes_listed(self, nodes: Iterable[KubeNode], now: Instant) -> None:
        """Take a complete list of Nodes."""
        listed = {node.metadata.name: node for node in nodes}
        for name in [name for name in self.fleet.kube_nodes if name not in listed]:
            self.kube_node_gone(name, now)
        for node in listed.values():
            self.kube_node_changed(node, now)

    def kube_node_changed(self, node: KubeNode, now: Instant) -> None:
        """Take a Node: its labels, taints, and whether it is cordoned."""
        self._now = now
        self.fleet.set_kube_node(node)
        self._set_drained(node.metadata.name)

    def kube_node_gone(self, name: str, now: Instant) -> None:
        """Take the deletion of a Node."""
        self._now = now
        self.fleet.lose_kube_node(name)
        self._set_drained(name)

    def _set_drained(self, name: str) -> None:
        """Tell the machine whether a node gets new pods. Its pods stay: evicting them is the part of a drain."""
        if not self.is_started or name not in self.fleet.nodes:
            return
        is_closed = self.fleet.is_closed(name)
        if is_closed != (name in self._drained):
            (self._drained.add if is_closed else self._drained.discard)(name)
            self._post(NodeDrained(name, is_closed, keeps_jobs=True))

    def _forget_if_empty(self, name: str) -> None:
        """Forget a node without GpuNode when the last of its pods has ended."""
        if self.fleet.is_lost(name) and name not in self.starts.by_node:
            self.fleet.forget(name)
            self._drained.discard(name)
            if self.is_started:
                self._post(NodeGone(name))

    # -- time -------------------------------------------------------------------------------------------------------

    def tick(self, now: Instant) -> None:
        """Do what depends on time; called about once a second, and before every round."""
        self._now = now
        for record in self.fleet.silenced(now):
            self._report(record)
        for record in self.online_room.tick(now):
            self._report(record)
        self._evict_refused(now)
        self.starts.retry_open_claims(now)
        self.fleet.end_exclusions(now)
        self.post_pools()

    def post_pools(self) -> None:
        """Tell the state machine about changed pools."""
        if self.fleet.has_many_pools:
            self.fleet.drop_unused_pools({spec.pool for spec in self.view.specs.values()})
        for pool, nodes in self.fleet.changed_pools():
            self._post(PoolSet(pool, nodes))

    def _note_refusal(self, pod: Pod, now: Instant) -> None:
        """Remember since when the scheduler refuses a released pod."""
        if not pod.is_refused:
            self._refused.pop(pod.uid, None)
        else:
            self._refused.setdefault(pod.uid, now)

    def _evict_refused(self, now: Instant) -> None:
        for uid, since in list(self._refused.items()):
            if now < since + self.options.unschedulable_ns:
                return  # in the order of the first refusal
            start, pod = self.starts.by_uid.get(uid), self.view.pods.get(uid)
            spec = self.view.specs.get(uid)
            del self._refused[uid]
            if start is None or pod is None or spec is None:
                continue
            if not pod.is_refused_by_gpu:  # what is free on its GPUs is known from claims and reports
                self.fleet.exclude(spec.pool, start.node, now + _EXCLUDED_NS)
            if any(owner.controller for owner in pod.metadata.owner_references):
                self.starts.evict(uid)
            else:
                self._refused[uid] = now  # nothing would create it again: it stays, and is looked at again

    # -- reports to the state machine -------------------------------------------------------------------------------

    def _attempts_changed(self, node: str, end: AttemptReport | None) -> None:
        record = self.fleet.nodes.get(node)
        if record is not None and self.is_started:
            self._report(record, end)
            self._forget_if_empty(node)

    def _report(self, record: NodeRecord, end: AttemptReport | None = None) -> None:
        attempts = [] if end is None else [end]
        starts = self.starts.by_node.get(record.name, {})
        for uid, start in starts.items():
            if start.phase is Phase.RELEASED and self.is_bound(start):
                tenant = record.tenants.get(uid)
                progress_ppm = 0 if tenant is None else max(0, min(tenant.progress_ppm, WHOLE_PPM))
                rate_ppm = 0 if tenant is None else max(0, tenant.rate_ppm)
                attempts.append(AttemptReport(start.attempt, start.gpus, progress_ppm, rate_ppm))
        for uid, gpus in self._strays_of(record, starts).items():
            attempts.append(AttemptReport(Attempt(uid, STRAY), gpus))
        self._post(NodeReport(record.name, EPOCH, record.gpus, tuple(attempts)))

    def is_bound(self, start: Start) -> bool:
        """Return whether kube-scheduler has bound the pod of a start, or no other pod may share its GPUs.

        kube-scheduler 1.35 has refused a pod although it fitted, while it allocated the claims of others on the same
        GPU, and then did not try it again for minutes.
        """
        record, pod = self.fleet.nodes.get(start.node), self.view.pods.get(start.uid)
        is_shared = record is not None and any(record.gpus[gpu].places > 1 for gpu in start.gpus)
        return not is_shared or pod is None or bool(pod.spec.node_name)

    def _strays_of(self, record: NodeRecord, starts: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Return the offline tenants and claims on a node that the state machine did not place, with their GPUs."""
        strays = {uid: record.positions(tenant.gpus) for uid, tenant in record.tenants.items() if uid not in starts}
        for uid in self._strays.get(record.name, ()):
            pod = self.view.pods.get(uid)
            claim = None if pod is None else self.view.claim_of(pod)
            if uid not in strays and uid not in starts and claim is not None:
                strays[uid] = tuple(self._positions(record, claim))
        return {uid: gpus for uid, gpus in strays.items() if gpus}

    def _positions(self, record: NodeRecord, claim: Claim) -> Iterable[int]:
        return record.positions(claim.gpu_uuids) or device_positions(claim, record.position_of_index)

    def _note_online(self, uid: str) -> None:
        """Keep the memory that the claim of an online pod holds."""
        pod = self.view.pods.get(uid)
        claim = None if pod is None else self.view.claim_of(pod)
        allocation = None if claim is None else claim.status.allocation
        self.online_room.claim_changed(uid, () if allocation is None else allocation.devices.results)

    def _note_stray(self, uid: str) -> None:
        """Record where an offline pod holds GPUs that the state machine did not place, and close those GPUs."""
        pod = self.view.pods.get(uid)
        claim = None if pod is None else self.view.claim_of(pod)
        if pod is None or claim is None or pod.is_gated or not pod.is_offline or uid in self.starts.by_uid:
            return
        node = pod.spec.node_name or claim.node
        if node and uid not in self._stray_node:
            self._stray_node[uid] = node
            self._strays.setdefault(node, set()).add(uid)
            if node in self.fleet.nodes:
                self._report(self.fleet.nodes[node])

    def started(self, drained: Iterable[str]) -> None:
        """Begin to deliver events, after the state machine was restored with these drained nodes."""
        self.is_started = True
        self._drained = set(drained)
        self.post_pools()
        self.starts.resume()
        for pod in list(self.view.pods.values()):
            if not pod.is_gated:
                self.online_room.note(pod, self._now)
                self._note_online(pod.uid)
                self.starts.ensure_claim(pod)
                self._note_stray(pod.uid)
            if pod.is_gated or pod.is_said_to_wait or pod.uid in self.starts.by_uid or pod.uid in self.view.errors:
                self.explain(pod.uid)
        for claim in self.view.claims():
            if claim.pod_uid not in self.view.pods:
                self.starts.check_owner(claim)
        for record in list(self.fleet.nodes.values()):
            if self._strays_of(record, self.starts.by_node.get(record.name, {})):
                self._report(record)


def _nothing(uid: str) -> None:
    del uid


def _end_of(pod: Pod) -> JobEnd:
    """Return how the pod ended, as far as its last state tells."""
    if pod.status.phase == "Failed":
        return JobEnd.FAILED
    is_disrupted = any(
        condition.type == "DisruptionTarget" and condition.status == "True" for condition in pod.status.conditions
    )
    return JobEnd.EVICTED if is_disrupted or pod.metadata.deletion_timestamp else JobEnd.DONE
