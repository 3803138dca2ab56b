"""A Kubernetes cluster in one thread: the API in memory, a scheduler, kubelets, and a controller that can be killed.

Nothing happens by itself: a test delivers watch events, executes requests and advances the clock one by one, so that
every order of them can be tried.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import NO_ANSWER, ApiRequest, Response
from cotenant.cluster.kubernetes.controller.controller import Controller, ControllerSettings
from cotenant.cluster.kubernetes.controller.dispatcher import Limits
from cotenant.cluster.kubernetes.controller.objects import CLAIM_SELECTOR, POD_SELECTOR, Claim, KubeNode, Pod
from cotenant.cluster.kubernetes.controller.placement import PlacementOptions
from cotenant.cluster.kubernetes.gpu_node import GpuNode
from cotenant.cluster.model.cluster import ClusterSettings
from cotenant.units.instant import SECOND_NS
from tests.support.kubernetes_api import FakeKubernetes, Tree, set_pod_condition

GIB = 1 << 30
GPU_MIB = 32 << 10
"""Memory of every GPU."""
START_NS = 1_795_000_000 * SECOND_NS
KINDS: dict[str, tuple[type, dict[str, str]]] = {
    "pods": (Pod, POD_SELECTOR),
    "resourceclaims": (Claim, CLAIM_SELECTOR),
    "gpunodes": (GpuNode, {}),
    "nodes": (KubeNode, {}),
}


class ControllerKilled(BaseException):
    """Raised in place of an answer when the test kills the controller."""


class ManualClock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.instant = START_NS

    def now(self) -> int:
        """Return the present instant."""
        return self.instant


class TestCluster:
    """API, scheduler and kubelets; `controller` is the process under test, or None while it is killed."""

    __test__ = False

    def __init__(self, nodes: int = 2, gpus: int = 2, per_second: float = 1e6, places: int = 1) -> None:
        self.places = places
        self.api = FakeKubernetes()
        self.clock = ManualClock()
        self.settings = ControllerSettings(
            "cotenant",
            ClusterSettings(round_ns=SECOND_NS),
            Limits(per_second, 10**6, 1e6, 4),
            PlacementOptions(),
        )
        self.outbox: list[tuple[int, ApiRequest]] = []
        self.cursors: dict[str, int] = {}
        self.controller: Controller | None = None
        self.pods_made = 0
        for number in range(nodes):
            self.add_node(f"node-{number}", gpus)

    # -- objects ----------------------------------------------------------------------------------------------------

    def add_node(self, name: str, gpus: int = 2, labels: dict[str, str] | None = None) -> None:
        """Register a node with GPUs."""
        labels = {"kubernetes.io/hostname": name, **(labels or {})}
        self.api.create("nodes", "", {"metadata": {"name": name, "labels": labels}, "spec": {}})
        statuses = [
            {
                "uuid": f"GPU-{name}-{index}",
                "index": index,
                "type": "V100",
                "memoryBytes": 32 * GIB,
                "freeBytes": 24 * GIB,
                "offerPpm": 500_000,
                "condition": "healthy",
                "online": [],
                "offlinePlaces": self.places,
            }
            for index in range(gpus)
        ]
        status = {"epoch": 1, "observedAt": "", "version": "test", "gpus": statuses, "tenants": []}
        self.api.create("gpunodes", "", {"metadata": {"name": name}, "status": status})

    def add_pod(
        self, name: str = "", *, is_gated: bool = True, other_gates: tuple[str, ...] = (), **annotations: str
    ) -> str:
        """Create a pod as the webhook leaves it, and return its uid."""
        self.pods_made += 1
        name = name or f"job-{self.pods_made}"
        kind = "offline" if is_gated else "online"
        claim = f"{name}-gpu-{self.pods_made:010x}"
        written = {f"cotenant.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        spec: Tree = {"resourceClaims": [{"name": "gpu", "resourceClaimName": claim}], "priority": 0}
        if is_gated:
            spec["schedulingGates"] = [{"name": gate} for gate in (*other_gates, names.GATE)]
        body = {
            "metadata": {
                "name": name,
                "labels": {names.LABEL_CLAIM: claim},
                "annotations": {names.ANNOTATION_KIND: kind, **written},
                "ownerReferences": [{"kind": "Job", "name": "training", "uid": "uid-job", "controller": True}],
            },
            "spec": spec,
            "status": {"phase": "Pending"},
        }
        return str(self.api.create("pods", "default", body)["metadata"]["uid"])

    def pods(self) -> dict[str, Tree]:
        """Return the pods by uid."""
        return {tree["metadata"]["uid"]: tree for tree in self.api.objects.get("pods", {}).values()}

    def pod(self, uid: str) -> Tree:
        return self.pods()[uid]

    def claims(self) -> dict[str, Tree]:
        """Return the claims by the uid of their pod."""
        claims = self.api.objects.get("resourceclaims", {}).values()
        return {tree["metadata"]["labels"][names.LABEL_POD_UID]: tree for tree in claims}

    def change(self, plural: str, key: tuple[str, str], change: Any) -> None:
        """Change an object in place and store it."""
        tree = json.loads(json.dumps(self.api.objects[plural][key]))
        change(tree)
        self.api.update(plural, key, tree)

    def end_pod(self, uid: str, phase: str = "Succeeded") -> None:
        """Let the program of a pod end."""
        meta = self.pod(uid)["metadata"]
        self.change("pods", (meta["namespace"], meta["name"]), lambda pod: pod["status"].update(phase=phase))

    def delete_pod(self, uid: str) -> None:
        """Delete a pod at once."""
        meta = self.pod(uid)["metadata"]
        self.api.delete("pods", (meta["namespace"], meta["name"]))

    def is_gated(self, uid: str) -> bool:
        return bool(self.pod(uid)["spec"].get("schedulingGates"))

    def condition(self, uid: str) -> Tree | None:
        """Return the condition that the controller wrote."""
        conditions = self.pod(uid)["status"].get("conditions", ())
        return next((each for each in conditions if each["type"] == names.CONDITION_PLACED), None)

    # -- scheduler and kubelets -------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Bind pods without gates whose claim can be allocated, and remove those that were evicted."""
        held = Counter(
            uuid
            for uid, claim in self.claims().items()
            if claim.get("status", {}).get("allocation") and self.pods()[uid]["status"]["phase"] == "Running"
            for uuid in _gpus_of(claim)
        )
        for uid, pod in list(self.pods().items()):
            key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
            if pod["metadata"].get("deletionTimestamp"):
                self.api.delete("pods", key)
            elif not pod["spec"].get("schedulingGates") and not pod["spec"].get("nodeName"):
                self._bind(uid, pod, key, held)

    def _bind(self, uid: str, pod: Tree, key: tuple[str, str], held: Counter[str]) -> None:
        claim = self.claims().get(uid)
        if claim is None:
            return
        capacity = claim["spec"]["devices"]["requests"][0]["exactly"].get("capacity", {}).get("requests", {})
        if pod["metadata"]["annotations"][names.ANNOTATION_KIND] == "online":
            capacity = {"memory": f"{GPU_MIB}Mi", "share": "100", "offlinePlaces": "0", **capacity}
            wanted = [uuid for uuid in self.uuids() if self.fits(uuid, capacity)][:1]
            node = wanted[0].removeprefix("GPU-").rpartition("-")[0] if wanted else ""
        else:
            wanted, node = _gpus_of(claim), (pod["spec"].get("nodeSelector") or {}).get("kubernetes.io/hostname", "")
            is_elsewhere = bool(wanted) and claim["metadata"]["annotations"]["cotenant.dev/node"] != node
            is_full = any(held[uuid] >= self.places for uuid in wanted)
            if is_elsewhere or is_full or not all(self.fits(uuid, capacity) for uuid in wanted):
                wanted = []
        if not wanted:
            unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            self.change("pods", key, lambda tree: set_pod_condition(tree, unschedulable))
            return
        held.update(wanted)
        results = [
            {
                "driver": names.DRIVER,
                "pool": node,
                "device": f"gpu-{uuid.rpartition('-')[2]}",
                "consumedCapacity": capacity,
            }
            for uuid in wanted
        ]
        claim_key = (claim["metadata"]["namespace"], claim["metadata"]["name"])
        allocation = {"allocation": {"devices": {"results": results}}}
        self.change("resourceclaims", claim_key, lambda tree: tree.update(status=allocation))

        def bind(tree: Tree) -> None:
            tree["spec"]["nodeName"] = node
            tree["status"]["phase"] = "Running"

        self.change("pods", key, bind)

    def uuids(self) -> list[str]:
        """Return the GPUs of nodes that are not cordoned."""
        cordoned = {key[1] for key, node in self.api.objects["nodes"].items() if node["spec"].get("unschedulable")}
        nodes = [tree for tree in self.api.objects["gpunodes"].values() if tree["metadata"]["name"] not in cordoned]
        return [gpu["uuid"] for tree in nodes for gpu in tree["status"]["gpus"]]

    def fits(self, uuid: str, capacity: dict[str, str], *, is_next_to_offline: bool = True) -> bool:
        """Return whether a GPU has this capacity left, also if nothing offline were there."""
        memory_mib, share = int(capacity["memory"].removesuffix("Mi")), int(capacity.get("share", "100"))
        for uid, claim in self.claims().items():
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ()):
                pod = self.pods()[uid]
                is_over = pod["status"]["phase"] in {"Succeeded", "Failed"}
                is_over |= not is_next_to_offline and pod["metadata"]["annotations"][names.ANNOTATION_KIND] == "offline"
                if f"GPU-{result['pool']}-{result['device'].removeprefix('gpu-')}" == uuid and not is_over:
                    memory_mib += int(result["consumedCapacity"]["memory"].removesuffix("Mi"))
                    share += int(result["consumedCapacity"]["share"])
        return memory_mib <= GPU_MIB and share <= 100

    def report(self) -> None:
        """Let every node report its tenants."""
        for (_, name), _tree in list(self.api.objects["gpunodes"].items()):
            tenants = [
                {"podUid": uid, "kind": "offline", "gpus": _gpus_of(self.claims()[uid]), "ratePpm": 400_000}
                for uid, pod in self.pods().items()
                if pod["spec"].get("nodeName") == name and pod["status"]["phase"] == "Running" and uid in self.claims()
            ]

            def write(tree: Tree, tenants: list[Tree] = tenants) -> None:
                tree["status"]["tenants"] = tenants
                tree["status"]["observedAt"] = str(self.clock.instant)

            self.change("gpunodes", ("", name), write)

    # -- the controller ---------------------------------------------------------------------------------------------

    def start_controller(self) -> None:
        """Start a controller: it lists everything, and restores its state."""
        outbox: list[tuple[int, ApiRequest]] = []
        self.outbox = outbox
        controller = Controller(lambda ticket, request: outbox.append((ticket, request)), self.settings, self.clock)
        for plural in KINDS:
            self._list(controller, plural)
        controller.start((), self.clock.instant)
        self.controller = controller
        controller.wake(self.clock.instant)

    def kill_controller(self) -> None:
        """Kill the controller: requests that were not executed are lost."""
        self.controller = None
        self.outbox = []

    def relist(self) -> None:
        """List everything anew, as after status 410."""
        assert self.controller is not None
        for plural in KINDS:
            self._list(self.controller, plural)
        self.wake()

    def _list(self, controller: Controller, plural: str) -> None:
        kind, query = KINDS[plural]
        page = self.api._list(plural, "", query)
        self.cursors[plural] = int(page["metadata"]["resourceVersion"])
        items: Any = msgspec.convert(page["items"], list[kind])  # type: ignore[valid-type]
        placement, now = controller.placement, self.clock.instant
        listed: dict[str, Any] = {
            "pods": placement.pods_listed,
            "resourceclaims": placement.claims_listed,
            "gpunodes": placement.gpu_nodes_listed,
            "nodes": placement.kube_nodes_listed,
        }
        listed[plural](items, now)

    def deliver(self, plural: str, limit: int = 1 << 30) -> int:
        """Deliver watch events of one kind to the controller, and return their number."""
        assert self.controller is not None
        kind, query = KINDS[plural]
        events = self.api.events_after(plural, self.cursors[plural], query)[:limit]
        for at, change, tree in events:
            self._deliver_one(plural, change, msgspec.convert(tree, kind))
            self.cursors[plural] = at
        self.wake()
        return len(events)

    def _deliver_one(self, plural: str, change: str, item: Any) -> None:
        assert self.controller is not None
        placement, now, is_gone = self.controller.placement, self.clock.instant, change == "DELETED"
        if plural == "pods":
            placement.pod_gone(item.uid, now, item) if is_gone else placement.pod_changed(item, now)
        elif plural == "resourceclaims":
            (placement.claim_gone if is_gone else placement.claim_changed)(item, now)
        elif plural == "gpunodes":
            placement.gpu_node_gone(item.metadata.name, now) if is_gone else placement.gpu_node_changed(item, now)
        elif is_gone:
            placement.kube_node_gone(item.metadata.name, now)
        else:
            placement.kube_node_changed(item, now)

    def execute(self, index: int = 0, *, is_lost: bool = False) -> ApiRequest:
        """Execute one request; with `is_lost`, the controller gets no answer although it took effect."""
        assert self.controller is not None
        ticket, request = self.outbox.pop(index)
        response = self.api.send(request)
        self.controller.answered(ticket, Response(NO_ANSWER, b"lost") if is_lost else response, self.clock.instant)
        self.wake()
        return request

    def wake(self) -> None:
        if self.controller is not None:
            self.controller.wake(self.clock.instant)

    def advance(self, seconds: float = 1.0) -> None:
        """Advance the clock."""
        self.clock.instant += int(seconds * SECOND_NS)
        self.wake()

    def settle(self, turns: int = 40) -> None:
        """Let everything happen in order until nothing is left to do."""
        for _ in range(turns):
            for _step in self._busy():
                pass
            self.schedule()
            self.report()
            self.advance(1.0)

    def _busy(self) -> Iterator[None]:
        while True:
            delivered = sum(self.deliver(plural) for plural in KINDS)
            if not delivered and not self.outbox:
                return
            while self.outbox:
                self.execute()
                yield


def _gpus_of(claim: Tree) -> list[str]:
    text = (claim["metadata"].get("annotations") or {}).get("cotenant.dev/gpu-uuids", "")
    return text.split(",") if text else []
