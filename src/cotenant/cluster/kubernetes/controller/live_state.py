"""The state of the cluster machine that the objects in the API imply, for commands that only look."""

from __future__ import annotations

from collections.abc import Callable

from cotenant.cluster.kubernetes.api import ApiClient, ApiRequest
from cotenant.cluster.kubernetes.controller.controller import Controller, ControllerSettings
from cotenant.cluster.kubernetes.controller.mapping import instant_of
from cotenant.cluster.kubernetes.controller.objects import (
    CLAIM_SELECTOR,
    CLAIMS,
    NODES,
    POD_SELECTOR,
    PODS,
    Claim,
    KubeNode,
    Pod,
)
from cotenant.cluster.kubernetes.controller.predictions import load_learned
from cotenant.cluster.kubernetes.gpu_node import GpuNode, gpu_node_path
from cotenant.cluster.model.event import ClusterRestored
from cotenant.runner.clock import LiveClock
from cotenant.units.instant import Instant


def read_state(client: ApiClient, namespace: str, now: Instant, report: Callable[[str], None]) -> ClusterRestored:
    """Return the state with which a controller would start now; nothing in the API is changed.

    `namespace` is that of the controller, and `now` is in Unix nanoseconds. A node that was observed longer ago than a
    lease is silent. The settings are the default ones: those of the running controller are not in the API.
    """
    controller = Controller(_discard, ControllerSettings(namespace), LiveClock())
    placement = controller.placement
    observed = [(instant_of(node.status.observed_at), node) for node in client.list(gpu_node_path(), GpuNode).items]
    for instant, node in sorted(observed, key=lambda pair: (pair[0], pair[1].metadata.name)):
        placement.gpu_node_changed(node, min(instant, now))
    placement.kube_nodes_listed(client.list(NODES, KubeNode).items, now)
    placement.claims_listed(client.list(CLAIMS, Claim, **CLAIM_SELECTOR).items, now)
    placement.pods_listed(client.list(PODS, Pod, **POD_SELECTOR).items, now)
    controller.start(load_learned(client, namespace, report), now)
    placement.tick(now)
    return controller.machine.snapshot()


def _discard(ticket: int, request: ApiRequest) -> None:
    """Send nothing: the requests of this controller stay in its queue."""
    del ticket, request
