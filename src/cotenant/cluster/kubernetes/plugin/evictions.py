"""Evicts the pods of tenants that the node wants to end, so that the end costs their jobs no retry.

The node pauses such a tenant for `protect.pod_notice`. Within this time the plugin asks for the eviction of its pod,
which sets the condition DisruptionTarget and makes the kubelet send the signals. If the eviction is not allowed, the
plugin sets the condition itself and lets the node send the signals.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from cotenant.cluster.kubernetes.api import (
    CONFLICT,
    NOT_FOUND,
    STRATEGIC_PATCH,
    TOO_MANY_REQUESTS,
    ApiClient,
    ApiRequest,
    Response,
    detail_of,
    resource_path,
)
from cotenant.cluster.kubernetes.plugin.node_link import NodeLink
from cotenant.cluster.kubernetes.plugin.pods import NodePod, NodePods
from cotenant.node import wire
from cotenant.node.model.tenant import Tenant
from cotenant.units.instant import SECOND_NS, Duration

REASON: Final = "EvictionByCotenant"
"""The reason of the condition DisruptionTarget if the plugin sets it."""
LAST_NS: Final = 3 * SECOND_NS
"""An eviction that a PodDisruptionBudget forbids is tried again until this much of the time is left."""
_MARGIN_NS: Final = 5 * SECOND_NS
"""The time that a kubelet may take beyond the grace period, before the node kills the processes."""
_DEFAULT_GRACE_S: Final = 30


class PodEvictions:
    """Handles the tenants that await a notice."""

    def __init__(
        self,
        api: ApiClient,
        node: NodeLink,
        pods: NodePods,
        report: Callable[[str], None],
        unix_ns: Callable[[], int],
    ) -> None:
        """`unix_ns` reads the wall clock, for the time of the condition."""
        self._api = api
        self._node = node
        self._pods = pods
        self._report = report
        self._unix_ns = unix_ns

    def handle(self, tenants: wire.TenantList) -> None:
        """Evict the pods of all tenants that await it; raise `WorldError` if the API or the node does not answer."""
        for view in tenants.tenants:
            lifecycle = view.tenant.lifecycle
            if lifecycle.awaits_notice:
                self._evict(view.tenant, lifecycle.until_ns - tenants.now_ns)

    def _evict(self, tenant: Tenant, left_ns: Duration) -> None:
        key = (tenant.grant.slot, tenant.grant.generation)
        pod = self._pods.find(tenant.spec.pod_uid, is_fresh=True)
        if pod is None:
            self._node.announce(key, is_deleted=False)
            return
        if pod.metadata.deletion_timestamp is not None:
            grace_s = pod.metadata.deletion_grace_period_seconds or 0
            self._node.announce(key, is_deleted=True, grace_ns=grace_s * SECOND_NS + _MARGIN_NS)
            return
        grace_s = _grace_s(pod, tenant.lifecycle.grace_ns)
        response = self._request(pod, grace_s)
        meta, why = pod.metadata, tenant.lifecycle.why
        if response.is_success:
            self._report(f"the eviction of pod {meta.namespace}/{meta.name} began: {why}")
            self._node.announce(key, is_deleted=True, grace_ns=grace_s * SECOND_NS + _MARGIN_NS)
        elif response.status in {NOT_FOUND, CONFLICT}:  # it is gone, or another pod has its name
            self._node.announce(key, is_deleted=False)
        elif not response.is_temporary or (response.status == TOO_MANY_REQUESTS and left_ns <= LAST_NS):
            detail, _ = detail_of(response)
            self._report(f"pod {meta.namespace}/{meta.name} cannot be evicted ({detail}), so the node ends it: {why}")
            self._mark(pod, why)
            self._node.announce(key, is_deleted=False)

    def _request(self, pod: NodePod, grace_s: int) -> Response:
        meta = pod.metadata
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": meta.name, "namespace": meta.namespace},
            "deleteOptions": {"gracePeriodSeconds": grace_s, "preconditions": {"uid": meta.uid}},
        }
        path = resource_path("v1", "pods", meta.namespace, meta.name, "eviction")
        return self._api.send(ApiRequest("POST", path, msgspec.json.encode(body)))

    def _mark(self, pod: NodePod, why: str) -> None:
        """Set the condition with which the end of the pod is not a failure of its job."""
        meta = pod.metadata
        now = datetime.fromtimestamp(self._unix_ns() / SECOND_NS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        mark = {"type": "DisruptionTarget", "status": "True", "reason": REASON, "message": why}
        body = {"metadata": {"uid": meta.uid}, "status": {"conditions": [{**mark, "lastTransitionTime": now}]}}
        path = resource_path("v1", "pods", meta.namespace, meta.name, "status")
        self._api.patch(path, body, STRATEGIC_PATCH)


def _grace_s(pod: NodePod, node_grace_ns: Duration) -> int:
    """Return the grace period: the pod's own, or the node's if that is shorter, since an online tenant waits."""
    own_s = pod.spec.termination_grace_period_seconds
    return max(1, min(_DEFAULT_GRACE_S if own_s is None else own_s, -(-node_grace_ns // SECOND_NS)))
