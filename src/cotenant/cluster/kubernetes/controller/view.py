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
        self.claims: dict[str, Claim] = {}
        """By the uid of the pod."""
        self.specs: dict[str, JobSpec] = {}
        """Specifications of the jobs that the state machine knows, by the uid of the pod."""
        self.errors: dict[str, str] = {}
        """Why a gated pod cannot be placed at all, by uid: an annotation cannot be read."""
        self._uids: dict[str, str] = {}

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
