"""What the controller knows of the cluster, from lists and watches, and which pods stand for which jobs."""

from __future__ import annotations

from collections.abc import Iterator

from cotenant.cluster.kubernetes.controller.fleet import GpuFleet
from cotenant.cluster.kubernetes.controller.objects import Claim, Pod
from cotenant.cluster.model.cluster import JobSpec


class ClusterView:
    """Pods that the webhook changed and that have not ended, their claims, and the nodes."""

    def __init__(self, fleet: GpuFleet) -> None:
        self.fleet = fleet
        self.pods: dict[str, Pod] = {}
        """By uid."""
        self._claims: dict[tuple[str, str], Claim] = {}
        """By namespace and name. A claim names the uid of its pod, but any user may write that into a claim."""
        self.specs: dict[str, JobSpec] = {}
        """Specifications of the jobs that the state machine knows, by the uid of the pod."""
        self.errors: dict[str, str] = {}
        """Why a pod cannot be placed, or gets no claim, by uid: an annotation cannot be read, for example."""
        self.gated_by_others: dict[str, str] = {}
        """Why a gated pod takes part in no round yet, by uid."""
        self._uids: dict[str, str] = {}

    def claim_of(self, pod: Pod) -> Claim | None:
        """Return the claim that the controller created for a pod, or None."""
        claim = self._claims.get((pod.metadata.namespace, pod.claim_name))
        return claim if claim is not None and claim.pod_uid == pod.uid else None

    def keep_claim(self, claim: Claim) -> None:
        """Record a new or changed claim."""
        self._claims[claim.key] = claim

    def drop_claim(self, claim: Claim) -> bool:
        """Record that a claim is gone; return whether it was known."""
        known = self._claims.get(claim.key)
        if known is None or known.metadata.uid != claim.metadata.uid:
            return False
        del self._claims[claim.key]
        return True

    def claims(self) -> list[Claim]:
        """Return all claims, including those that users wrote."""
        return list(self._claims.values())

    def pod_of(self, claim: Claim) -> Pod | None:
        """Return the pod that a claim belongs to, or None."""
        pod = self.pods.get(claim.pod_uid)
        is_named = pod is not None and (pod.metadata.namespace, pod.claim_name) == claim.key
        return pod if is_named else None

    def submit(self, uid: str, spec: JobSpec) -> None:
        """Record that a pod stands for a job of the state machine."""
        self.specs[uid] = spec
        self._uids[spec.name] = uid

    def withdraw(self, uid: str) -> JobSpec | None:
        """Record that a pod no longer stands for a job, and return that job."""
        spec = self.specs.pop(uid, None)
        if spec is not None:
            del self._uids[spec.name]
        return spec

    def uid_of(self, job: str) -> str:
        """Return the uid of the pod of a job; empty: the pod is gone."""
        return self._uids.get(job, "")

    def gated(self) -> Iterator[Pod]:
        """Return the pods that wait for a placement round."""
        return (pod for pod in self.pods.values() if pod.is_gated)
