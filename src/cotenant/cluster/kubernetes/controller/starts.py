"""How decisions are carried out: a start creates a pinned claim and then releases the pod, a stop evicts it.

The claim is the record of a decision. While a pod is gated, its claim is in use by nothing, so a controller that was
killed after it created the claim finds both again and continues with the release; the release itself is one atomic
request. A pod is therefore released at most once, and a claim that was created is never forgotten.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from cotenant.cluster.kubernetes.api import CONFLICT, NOT_FOUND, ApiRequest, Response, detail_of
from cotenant.cluster.kubernetes.controller.dispatcher import Dispatcher, Operation, Urgency
from cotenant.cluster.kubernetes.controller.manifests import (
    PinnedGpus,
    create_claim,
    delete_claim,
    evict_pod,
    read_claim,
    read_owner,
    read_pod,
    release_pod,
)
from cotenant.cluster.kubernetes.controller.objects import HOSTNAME_LABEL, Claim, Pod
from cotenant.cluster.kubernetes.controller.view import ClusterView
from cotenant.cluster.model.cluster import Attempt, AttemptReport, JobEnd
from cotenant.cluster.model.event import StartJob, StopJob
from cotenant.errors import ConfigError
from cotenant.units.instant import SECOND_NS, Instant

_RETRY_NS: Final = 15 * SECOND_NS
"""Time between attempts to create the claims that the API refused."""
_RETRIED: Final = 50
"""Claims of one attempt: a quota may refuse thousands, and other requests must not wait for them."""
_claim_decoder = msgspec.json.Decoder(Claim)
_pod_decoder = msgspec.json.Decoder(Pod)


class Phase(enum.Enum):
    """Progress of a start."""

    CLAIMING = "claiming"
    """The claim is being created."""
    CLAIMED = "claimed"
    """The claim exists; the pod is released next, if all members of its gang are this far."""
    RELEASING = "releasing"
    RELEASED = "released"
    """The pod has no gate any more."""
    ABANDONING = "abandoning"
    """The start was given up before the release; the claim is being deleted."""


class Start:
    """The placement of one pod."""

    __slots__ = ("attempt", "claim", "gang", "gpus", "is_evicting", "node", "phase", "pinned", "uid", "why")

    def __init__(self, uid: str, attempt: Attempt, node: str, gpus: tuple[int, ...], pinned: PinnedGpus) -> None:
        self.uid = uid
        self.attempt = attempt
        self.node = node
        self.gpus = gpus
        self.pinned = pinned
        self.gang = ""
        self.phase = Phase.CLAIMING
        self.claim: Claim | None = None
        self.is_evicting = False
        self.why = ""
        """Why it is abandoned."""


class Starts:
    """Implements the port `ClusterTransport`."""

    def __init__(
        self, view: ClusterView, dispatcher: Dispatcher, changed: Callable[[str, AttemptReport | None], None]
    ) -> None:
        """`changed(node, end)` is called when the attempts of a node changed; `end` is one that ended."""
        self._view = view
        self._dispatcher = dispatcher
        self._changed = changed
        self.by_uid: dict[str, Start] = {}
        self.by_node: dict[str, dict[str, Start]] = {}
        self._by_gang: dict[str, dict[str, Start]] = {}
        self.explain: Callable[[str], None] = _nothing
        """Called with the uid of a pod about which there is something to write."""
        self._without_claim: dict[str, None] = {}
        """Pods whose claim without a pinned GPU could not be created, in the order of the last attempts."""
        self._retry_due: Instant = 0
        self.open_claims: set[str] = set()
        """Pods whose claim without a pinned GPU is being created or deleted."""
        self.released = 0
        self.refused = 0
        self.evicted = 0

    # -- the port ---------------------------------------------------------------------------------------------------

    def start(self, order: StartJob) -> None:
        """Begin a start; an order that is repeated while the start is under way changes nothing."""
        uid = self._view.uid_of(order.attempt.job)
        record = self._view.fleet.nodes.get(order.node)
        if uid in self.by_uid or uid not in self._view.pods or record is None:
            return
        memory_bytes = min(record.gpus[gpu].free_bytes for gpu in order.gpus)
        pinned = PinnedGpus(order.node, tuple(record.uuids[gpu] for gpu in order.gpus), memory_bytes)
        start = Start(uid, order.attempt, order.node, order.gpus, pinned)
        start.gang = order.spec.gang
        self._add(start)
        self._create_claim(start)

    def stop(self, order: StopJob) -> None:
        """Evict a released pod; give up a start before the release. Pods of which nothing is known are left alone."""
        start = self.by_uid.get(self._view.uid_of(order.attempt.job))
        if start is None or start.attempt != order.attempt:
            return
        if start.phase is Phase.RELEASED:
            self._evict(start)
        else:
            self.abandon(start, order.why)

    # -- registry ---------------------------------------------------------------------------------------------------

    def adopt(self, start: Start) -> None:
        """Continue a start that an earlier controller began; its claim exists."""
        self._add(start)

    def resume(self) -> None:
        """Release the pods of all adopted starts that are not released yet."""
        for start in list(self.by_uid.values()):
            if start.phase is Phase.CLAIMED:
                self._release_if_complete(start)

    def _add(self, start: Start) -> None:
        self.by_uid[start.uid] = start
        self.by_node.setdefault(start.node, {})[start.uid] = start
        if start.gang:
            self._by_gang.setdefault(start.gang, {})[start.uid] = start

    def _remove(self, start: Start) -> None:
        del self.by_uid[start.uid]
        for starts, key in ((self.by_node, start.node), (self._by_gang, start.gang)):
            if key:
                del starts[key][start.uid]
                if not starts[key]:
                    del starts[key]

    def _end(self, start: Start, end: JobEnd, detail: str) -> None:
        self._remove(start)
        self._changed(start.node, AttemptReport(start.attempt, start.gpus, end=end, detail=detail[:500]))

    # -- claims -----------------------------------------------------------------------------------------------------

    def _create_claim(self, start: Start) -> None:
        pod = self._view.pods[start.uid]
        try:
            request = create_claim(pod, start.pinned)
        except ConfigError as error:
            self._fail(start, str(error))
            return
        self._submit(Urgency.BEGIN, request, start, self._claim_created, Phase.CLAIMING)

    def _claim_created(self, start: Start, response: Response) -> None:
        if response.is_success:
            self._has_claim(start, _claim_decoder.decode(response.body))
        elif response.status == CONFLICT and start.uid in self._view.pods:
            self._submit_for(Urgency.FINISH, read_claim(self._view.pods[start.uid]), start, self._claim_read)
        else:
            self._fail(start, f"its claim could not be created: {detail_of(response)[0]}")

    def _claim_read(self, start: Start, response: Response) -> None:
        """Handle a claim that existed: of this decision, of an earlier one, or of a stranger."""
        if response.status == NOT_FOUND:
            self._again(start)
            return
        if not response.is_success:
            self._fail(start, f"its claim could not be read: {detail_of(response)[0]}")
            return
        claim = _claim_decoder.decode(response.body)
        if claim.pod_uid != start.uid:
            self._fail(start, _foreign(claim))
        elif (claim.node, claim.gpu_uuids) == (start.pinned.node, start.pinned.uuids):
            self._has_claim(start, claim)
        else:
            self._submit_for(Urgency.FINISH, delete_claim(claim), start, self._old_claim_deleted)

    def _old_claim_deleted(self, start: Start, response: Response) -> None:
        del response  # whatever it is, the next creation finds out
        self._again(start)

    def _again(self, start: Start) -> None:
        if start.phase is Phase.ABANDONING:
            self._end(start, JobEnd.REFUSED, start.why)
        elif start.uid in self._view.pods:
            self._create_claim(start)

    def _has_claim(self, start: Start, claim: Claim) -> None:
        start.claim = claim
        self._view.keep_claim(claim)
        if start.phase is Phase.ABANDONING:
            self._delete_claim(start)
            return
        start.phase = Phase.CLAIMED
        self._release_if_complete(start)

    def _delete_claim(self, start: Start) -> None:
        assert start.claim is not None
        self._submit_for(Urgency.FINISH, delete_claim(start.claim), start, self._claim_deleted)

    def _claim_deleted(self, start: Start, response: Response) -> None:
        if response.is_success or response.status in {NOT_FOUND, CONFLICT}:
            self._end(start, JobEnd.REFUSED, start.why)
        else:  # the claim stays; the next start replaces it
            self._end(start, JobEnd.REFUSED, f"{start.why}; its claim could not be deleted: {detail_of(response)[0]}")

    # -- release ----------------------------------------------------------------------------------------------------

    def _release_if_complete(self, start: Start) -> None:
        """Release the pod, or all pods of its gang if each of them has its claim."""
        members = [start] if not start.gang else [one for one in self._of_gang(start.gang) if not _is_released(one)]
        if all(member.phase is Phase.CLAIMED for member in members):
            for member in members:
                self._release(member)

    def _of_gang(self, gang: str) -> list[Start]:
        return list(self._by_gang.get(gang, {}).values())

    def _release(self, start: Start) -> None:
        pod = self._view.pods.get(start.uid)
        if pod is None:
            return
        if not pod.is_gated:
            self.pod_released(start)
            return
        start.phase = Phase.RELEASING
        request = release_pod(pod, self._view.fleet.hostname(start.node))
        self._submit(Urgency.FINISH, request, start, self._release_answered, Phase.RELEASING)

    def _release_answered(self, start: Start, response: Response) -> None:
        if response.is_success:
            self._view.pods[start.uid] = _pod_decoder.decode(response.body)
            self.pod_released(start)
        elif response.status == NOT_FOUND:
            return  # the watch reports the deletion
        else:
            detail = f"its pod could not be released: {detail_of(response)[0]}"

            def compare(start: Start, response: Response) -> None:
                self._release_failed(start, response, detail)

            self._submit_for(Urgency.FINISH, read_pod(self._view.pods[start.uid]), start, compare)

    def _release_failed(self, start: Start, response: Response, detail: str) -> None:
        """Compare the pod that could not be released with the one that the request was made for."""
        if response.status == NOT_FOUND:
            return  # the watch reports the deletion
        if not response.is_success:
            self._fail(start, detail)
            return
        old, new = self._view.pods[start.uid], _pod_decoder.decode(response.body)
        if new.uid != start.uid:
            return
        self._view.pods[start.uid] = new
        has_changed = new.spec.scheduling_gates != old.spec.scheduling_gates
        if not new.is_gated:
            self.pod_released(start)
        elif start.phase is Phase.RELEASING and (has_changed or new.spec.node_selector != old.spec.node_selector):
            self._release(start)
        else:
            self._fail(start, start.why or detail)

    def pod_released(self, start: Start) -> None:
        """Record that the gate of a pod is gone."""
        if _is_released(start):
            return
        was_abandoned = start.phase is Phase.ABANDONING
        start.phase = Phase.RELEASED
        self.released += 1
        self._changed(start.node, None)
        if was_abandoned:  # the release was under way when the stop came
            self._evict(start)

    # -- ends -------------------------------------------------------------------------------------------------------

    def pod_ended(self, uid: str, end: JobEnd, detail: str) -> bool:
        """Record that a pod ended or was deleted; return whether it was placed."""
        start = self.by_uid.get(uid)
        if start is None:
            return False
        self._end(start, end, detail)
        if start.gang and not _is_released(start):
            for member in self._of_gang(start.gang):
                if member.phase in {Phase.CLAIMING, Phase.CLAIMED}:
                    self.abandon(member, "a member of its gang was deleted before all were placed")
        return True

    def abandon(self, start: Start, why: str) -> None:
        """Give up a start before the release. One whose release is under way is evicted when it was released."""
        if start.phase in {Phase.RELEASED, Phase.ABANDONING}:
            return
        phase, start.phase, start.why = start.phase, Phase.ABANDONING, why
        if phase is Phase.CLAIMED:
            self._delete_claim(start)

    def _fail(self, start: Start, why: str) -> None:
        """Give up a start, and with it those of its gang, because the API refused a step."""
        self.refused += 1
        members = [start] if not start.gang else self._of_gang(start.gang)
        for member in members:
            if member is start:
                member.why = why
                if member.claim is not None:
                    member.phase = Phase.ABANDONING
                    self._delete_claim(member)
                else:
                    self._end(member, JobEnd.REFUSED, why)
            elif member.phase in {Phase.CLAIMING, Phase.CLAIMED}:
                self.abandon(member, f"another member of its gang could not be placed: {why}")

    def evict(self, uid: str) -> None:
        """Evict a released pod."""
        start = self.by_uid.get(uid)
        if start is not None and _is_released(start):
            self._evict(start)

    def _evict(self, start: Start) -> None:
        pod = self._view.pods.get(start.uid)
        if start.is_evicting or pod is None or pod.metadata.deletion_timestamp:
            return
        start.is_evicting = True
        self._submit_for(Urgency.FINISH, evict_pod(pod), start, self._evict_answered)

    def _evict_answered(self, start: Start, response: Response) -> None:
        start.is_evicting = False
        self.evicted += response.is_success

    # -- claims that are not pinned ---------------------------------------------------------------------------------

    def ensure_claim(self, pod: Pod) -> None:
        """Create the claim of a pod that is not gated, if it has none; kube-scheduler chooses its GPUs.

        That is the rule for online pods. It also repairs an offline pod whose gate was removed by hand, or whose
        claim was deleted or is pinned to another node than the pod is.
        """
        claim, uid = self._view.claim_of(pod), pod.uid
        if pod.spec.node_name or uid in self.open_claims or uid in self.by_uid or not pod.claim_name:
            return
        if claim is not None and not self._is_misplaced(pod, claim):
            return
        try:
            request = create_claim(pod, None) if claim is None else delete_claim(claim)
        except ConfigError as error:
            self._view.errors[uid] = f"the annotation {error}"
            return

        def answered(response: Response) -> None:
            self.open_claims.discard(uid)
            if response.is_success and claim is None:
                self._open_claim_created(uid, _claim_decoder.decode(response.body))
            elif response.is_success and claim is not None:
                self._view.drop_claim(claim)
                if current := self._view.pods.get(uid):
                    self.ensure_claim(current)
            elif response.status == CONFLICT and claim is None:
                self._submit_open(uid, read_claim(pod), found)
            else:
                self._open_claim_failed(uid, f"its claim could not be created: {detail_of(response)[0]}")

        def found(response: Response) -> None:
            self.open_claims.discard(uid)
            existing = _claim_decoder.decode(response.body) if response.is_success else None
            if existing is not None and existing.pod_uid == uid:
                self._open_claim_created(uid, existing)
            elif existing is not None:
                self._open_claim_failed(uid, _foreign(existing))
            else:
                self._open_claim_failed(uid, f"its claim could not be read: {detail_of(response)[0]}")

        self._submit_open(uid, request, answered)

    def _submit_open(self, uid: str, request: ApiRequest, answered: Callable[[Response], None]) -> None:
        self.open_claims.add(uid)
        self._dispatcher.submit(Operation(Urgency.FINISH, request, answered, lambda: uid in self._view.pods))

    def _open_claim_created(self, uid: str, claim: Claim) -> None:
        self._view.keep_claim(claim)
        self._view.errors.pop(uid, None)

    def _open_claim_failed(self, uid: str, why: str) -> None:
        """Keep why a pod has no claim yet; `retry_open_claims` tries again, since quotas and other claims change."""
        if pod := self._view.pods.get(uid):
            self._view.errors[uid] = why
            self._without_claim[uid] = None
            self.explain(pod.uid)

    def retry_open_claims(self, now: Instant) -> None:
        """Create the claims that could not be created, for pods that still need them."""
        if now < self._retry_due:
            return
        self._retry_due = now + _RETRY_NS
        for uid in list(self._without_claim)[:_RETRIED]:
            del self._without_claim[uid]
            if (pod := self._view.pods.get(uid)) is not None:
                self.ensure_claim(pod)

    def claim_deleted(self, pod: Pod) -> None:
        """Create the claim of a placed pod again if it was deleted before the pod was scheduled."""
        start = self.by_uid.get(pod.uid)
        if start is None:
            self.ensure_claim(pod)
        elif _is_released(start) and not pod.spec.node_name:
            try:
                request = create_claim(pod, start.pinned)
            except ConfigError:
                return  # an annotation was changed; the scheduler refuses the pod, which is evicted
            self._submit_for(Urgency.FINISH, request, start, self._claim_repaired)

    def _claim_repaired(self, start: Start, response: Response) -> None:
        del start
        if response.is_success:
            self._view.keep_claim(_claim_decoder.decode(response.body))

    def _is_misplaced(self, pod: Pod, claim: Claim) -> bool:
        hostname = pod.spec.node_selector.get(HOSTNAME_LABEL)
        is_other = bool(hostname and claim.node and self._view.fleet.hostname(claim.node) != hostname)
        return is_other and claim.status.allocation is None

    def delete_claims(self, claims: Iterable[Claim]) -> None:
        """Delete claims of an earlier controller for which nothing was started."""
        for claim in claims:
            self._view.drop_claim(claim)
            self._dispatcher.submit(Operation(Urgency.FINISH, delete_claim(claim), lambda _: None))

    def delete_claim_of_ended(self, claim: Claim) -> None:
        """Delete the claim of a pod that ended: the pod may stay for long, and its claim would count against quotas."""
        if claim.owner:
            self._dispatcher.submit(Operation(Urgency.FINISH, delete_claim(claim), lambda _: None))

    def check_owner(self, claim: Claim) -> None:
        """Delete a claim whose pod ended while no controller ran. If the pod is gone, the garbage collector does it."""

        def answered(response: Response) -> None:
            pod = _pod_decoder.decode(response.body) if response.is_success else None
            if pod is not None and pod.uid == claim.pod_uid and pod.is_over:
                self._view.drop_claim(claim)
                self.delete_claim_of_ended(claim)

        if claim.owner:
            self._dispatcher.submit(Operation(Urgency.REPORT, read_owner(claim), answered))

    # -- requests ---------------------------------------------------------------------------------------------------

    def _submit(
        self,
        urgency: Urgency,
        request: ApiRequest,
        start: Start,
        answered: Callable[[Start, Response], None],
        phase: Phase,
    ) -> None:
        """Send a request that is wanted as long as the start is in this phase, or else ends the start."""
        self._submit_for(urgency, request, start, answered, lambda: self._is_wanted(start, phase))

    def _is_wanted(self, start: Start, phase: Phase) -> bool:
        if self.by_uid.get(start.uid) is not start:
            return False
        if start.phase is phase:
            return True
        if start.phase is Phase.ABANDONING:  # it was given up while its request waited in the queue
            if start.claim is None:
                self._end(start, JobEnd.REFUSED, start.why)
            else:
                self._delete_claim(start)
        return False

    def _submit_for(
        self,
        urgency: Urgency,
        request: ApiRequest,
        start: Start,
        answered: Callable[[Start, Response], None],
        is_wanted: Callable[[], bool] | None = None,
    ) -> None:
        """Send a request whose answer is ignored if the start ended meanwhile."""

        def receive(response: Response) -> None:
            if self.by_uid.get(start.uid) is start:
                answered(start, response)

        self._dispatcher.submit(Operation(urgency, request, receive, is_wanted))


def _nothing(uid: str) -> None:
    del uid


def _foreign(claim: Claim) -> str:
    return f"a claim {claim.metadata.name} exists that does not belong to it; delete that claim"


def _is_released(start: Start) -> bool:
    return start.phase is Phase.RELEASED
