"""What the page shows of a Kubernetes cluster: nodes, GPUs, waiting Jobs with reasons, and pairs that share a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import ApiClient, resource_path
from cotenant.cluster.kubernetes.controller.mapping import gpu_report, profile_of
from cotenant.cluster.kubernetes.controller.objects import Pod
from cotenant.cluster.kubernetes.controller.predictions import Learned, decode_learned
from cotenant.cluster.kubernetes.gpu_node import GpuNode
from cotenant.cluster.kubernetes.views import ClusterSnapshot, PodPhase, read_cluster, read_jobs
from cotenant.errors import CotenantError
from cotenant.predict.speed import SpeedPredictor, co_runner_key
from cotenant.predict.speed_features import Spot
from cotenant.runner.clock import unix_ns
from cotenant.units.share import WHOLE_PPM

PAIRS_LIMIT: Final = 500
_JOBS_LIMIT: Final = 500


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] = {}


class ClusterView:
    """Reads the API with the rights of the user who started the console."""

    def __init__(self, connect: Callable[[], ApiClient]) -> None:
        """`connect` returns a client of the API; it raises `CotenantError` where there is no cluster."""
        self._connect = connect
        self._client: ApiClient | None = None

    def read(self) -> dict[str, Any]:
        """Return the cluster as JSON values; `problem` says why there is none."""
        try:
            self._client = self._client or self._connect()
            snapshot, jobs = read_cluster(self._client), read_jobs(self._client)
            learned = _learned(self._client)
        except CotenantError as error:
            return {"problem": str(error), "gpus": [], "pods": [], "jobs": [], "pairs": []}
        now = unix_ns()
        return {
            "problem": "",
            "gpus": [
                {**msgspec.to_builtins(gpu), "age_s": gpu.age_ns // 1_000_000_000} for gpu in snapshot.gpu_views(now)
            ],
            "jobs": [
                {
                    **msgspec.to_builtins(job, enc_hook=str),
                    "counts": {phase.value: count for phase, count in job.counts},
                    "age_s": max(0, now - job.created_ns) // 1_000_000_000,
                }
                for job in jobs[:_JOBS_LIMIT]
            ],
            "pods": [
                {**msgspec.to_builtins(pod), "age_s": max(0, now - pod.created_ns) // 1_000_000_000}
                for pod in snapshot.pod_views()[:_JOBS_LIMIT]
                if pod.phase is not PodPhase.RUNNING or pod.reason
            ],
            "pairs": pairs_of(snapshot, learned),
        }

    def close(self) -> None:
        """Close the connection to the API."""
        if self._client is not None:
            self._client.close()
            self._client = None


def _learned(client: ApiClient) -> Learned:
    """Return the corrections that the controller has stored; none if they cannot be read."""
    selector = f"metadata.name={names.PREDICTIONS_CONFIG_MAP}"
    try:
        for stored in client.list(resource_path("v1", "configmaps"), _ConfigMap, fieldSelector=selector).items:
            return decode_learned(stored.data.get(names.PREDICTIONS_KEY, "[]"))
    except (CotenantError, ValueError):
        pass
    return ()


def pairs_of(snapshot: ClusterSnapshot, learned: Learned) -> list[dict[str, Any]]:
    """Return the offline pods that share a GPU with online tenants, with predicted and measured slowdown.

    A slowdown is time together over time alone. The use of a pod alone is not known in a cluster, so the prediction
    is the worst case until the controller has learned about its profile.
    """
    pods = {pod.uid: pod for pod in snapshot.pods}
    predictor = SpeedPredictor(learned)
    pairs = []
    for node in snapshot.nodes:
        for gpu_index, gpu in enumerate(node.status.gpus):
            offline = [tenant for tenant in node.status.tenants if tenant.kind == "offline" and gpu.uuid in tenant.gpus]
            if not gpu.online or not offline:
                continue
            for tenant in offline:
                pod = pods.get(tenant.pod_uid)
                pairs.append(
                    {
                        "node": node.metadata.name,
                        "gpu": gpu.index,
                        "offline": tenant.name if pod is None else pod.key,
                        "online": [one.name for one in gpu.online],
                        "predicted": _predicted(predictor, node, gpu_index, pod),
                        "measured": WHOLE_PPM / tenant.rate_ppm if tenant.rate_ppm else None,
                    }
                )
    return pairs[:PAIRS_LIMIT]


def _predicted(predictor: SpeedPredictor, node: GpuNode, index: int, pod: Pod | None) -> dict[str, Any] | None:
    if pod is None:
        return None
    report = gpu_report(node.status.gpus[index])
    spot = Spot(report.online, report.offer_ppm)
    profiles, co_runners = [profile_of(pod)], [co_runner_key(report.online)]
    corrected = predictor.corrected(predictor.predict([None], [spot]), profiles, co_runners)
    is_learned = bool(predictor.has_measured(profiles, co_runners)[0, 0])
    speed = float((corrected.point if is_learned else corrected.low)[0, 0])
    return {"slowdown": 1 / speed if speed > 0 else None, "learned": is_learned}
