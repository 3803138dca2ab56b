"""A small API server for tests of the kubelet plugin: stores objects, and can lack feature gates or refuse requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from cotenant.cluster.kubernetes.api import ApiClient
from cotenant.cluster.kubernetes.api_config import plain_api_config

NODE = "node-a"
POD_UID = "11111111-2222-3333-4444-555555555555"
CLAIM_UID = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
_GATED = {
    "DRAConsumableCapacity": ("allowMultipleAllocations",),
    "DRADeviceTaints": ("taints",),
}


class FakeApi:
    """Objects by path. Subresources are kept in the object, except for evictions, which are recorded."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {
            f"/api/v1/nodes/{NODE}": {
                "metadata": {"name": NODE, "uid": "node-uid"},
                "status": {"nodeInfo": {"kubeletVersion": "v1.35.4"}},
            }
        }
        self.missing_gates: set[str] = set()
        self.missing_groups: set[str] = set()
        """Prefixes of paths that the server does not serve."""
        self.refusals: dict[tuple[str, str], int] = {}
        """The status with which a method at a path is refused."""
        self.evictions: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._version = 0
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.client = ApiClient(plain_api_config(f"http://127.0.0.1:{self._server.server_address[1]}"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.client.close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def handle(self, method: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return the status and the object of an answer."""
        url = urlsplit(target)
        path, query = url.path, parse_qs(url.query)
        value = json.loads(body) if body else {}
        with self._lock:
            self.requests.append((method, path))
            if (method, path) in self.refusals:
                return _status(self.refusals[method, path], "refused by the test")
            if any(path.startswith(prefix) for prefix in self.missing_groups):
                return _status(404, "the server could not find the requested resource")
            actions: dict[str, Callable[[str, dict[str, Any], dict[str, list[str]]], tuple[int, dict[str, Any]]]] = {
                "GET": self._get,
                "POST": self._post,
                "PUT": self._put,
                "PATCH": self._patch,
                "DELETE": self._delete,
            }
            return actions[method](path, value, query)

    def _get(self, path: str, value: object, query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        if path in self.objects:
            return 200, self.objects[path]
        if path == "/api/v1/pods":
            items = [one for name, one in self.objects.items() if "/pods/" in name]
            return 200, {"metadata": {"resourceVersion": "1"}, "items": items}
        return _status(404, f"{path} not found")

    def _post(self, path: str, value: dict[str, Any], query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        if path.endswith("/eviction"):
            self.evictions.append(value)
            pod = self.objects.get(path.removesuffix("/eviction"))
            if pod is None:
                return _status(404, "not found")
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            pod["metadata"]["deletionGracePeriodSeconds"] = value["deleteOptions"]["gracePeriodSeconds"]
            return 201, {"kind": "Status", "status": "Success"}
        name = f"{path}/{value['metadata']['name']}"
        if name in self.objects:
            return _status(409, "already exists")
        stored = self._stored(value)
        if query.get("dryRun") != ["All"]:
            self.objects[name] = stored
        return 201, stored

    def _put(self, path: str, value: dict[str, Any], query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        if path not in self.objects:
            return _status(404, "not found")
        if value["metadata"].get("resourceVersion") != self.objects[path]["metadata"]["resourceVersion"]:
            return _status(409, "the object has been modified")
        self.objects[path] = self._stored(value)
        return 200, self.objects[path]

    def _patch(self, path: str, value: dict[str, Any], query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        path = path.removesuffix("/status")
        if path not in self.objects:
            return _status(404, "not found")
        self.objects[path]["status"] = {**self.objects[path].get("status", {}), **value["status"]}
        return 200, self.objects[path]

    def _delete(self, path: str, value: object, query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        return (200, {}) if self.objects.pop(path, None) is not None else _status(404, "not found")

    def _stored(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return an object as the server stores it: without fields of missing gates, and with defaults."""
        stored: dict[str, Any] = json.loads(json.dumps(value))
        self._version += 1
        stored["metadata"]["resourceVersion"] = str(self._version)
        for device in stored.get("spec", {}).get("devices", ()):
            for gate in self.missing_gates:
                for field in _GATED[gate]:
                    device.pop(field, None)
            if "DRAConsumableCapacity" in self.missing_gates:
                for capacity in device["capacity"].values():
                    capacity.pop("requestPolicy", None)
            for taint in device.get("taints", ()):
                taint["timeAdded"] = "2026-01-01T00:00:00Z"
        return stored

    # -- objects of tests --------------------------------------------------------------------------------------------

    def add_pod(self, name: str = "job-1", uid: str = POD_UID, **fields: Any) -> dict[str, Any]:
        """Add a pod of the node; `fields` replace parts of its spec or its annotations."""
        annotations = fields.pop("annotations", {})
        pod = {
            "metadata": {"name": name, "namespace": "team", "uid": uid, "annotations": annotations},
            "spec": {"nodeName": NODE, "containers": [{"name": "main"}], **fields},
        }
        self.objects[f"/api/v1/namespaces/team/pods/{name}"] = pod
        return pod

    def add_claim(self, name: str = "job-1-gpu-0", uid: str = CLAIM_UID, **fields: Any) -> dict[str, Any]:
        """Add an allocated claim: `parameters`, `capacity`, `devices`, `pods` and `adminAccess` replace what it has."""
        capacity = fields.get("capacity", {"memory": "4Gi", "share": "0", "offlinePlaces": "1"})
        parameters = fields.get("parameters", {"kind": "offline"})
        opaque = {"driver": "gpu.cotenant.dev", "parameters": parameters}
        devices = fields.get("devices", ["gpu-0"])
        result = {"request": "gpu", "driver": "gpu.cotenant.dev", "pool": NODE, "consumedCapacity": capacity}
        if "adminAccess" in fields:
            result["adminAccess"] = fields["adminAccess"]
        pods = fields.get("pods", [("job-1", POD_UID)])
        claim = {
            "metadata": {"name": name, "namespace": "team", "uid": uid},
            "status": {
                "allocation": {
                    "devices": {
                        "results": [{**result, "device": device, "shareID": "share-1"} for device in devices],
                        "config": [{"source": "FromClaim", "requests": ["gpu"], "opaque": opaque}],
                    }
                },
                "reservedFor": [{"resource": "pods", "name": pod, "uid": pod_uid} for pod, pod_uid in pods],
            },
        }
        self.objects[f"/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/{name}"] = claim
        return claim

    @property
    def slice(self) -> dict[str, Any] | None:
        """Return the ResourceSlice of the node."""
        return self.objects.get(f"/apis/resource.k8s.io/v1/resourceslices/{NODE}-gpu.cotenant.dev")


def _status(code: int, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "code": code, "message": message}


class _Handler(BaseHTTPRequestHandler):
    """Passes requests on to the `FakeApi` of a subclass."""

    api: FakeApi
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, value = self.api.handle(self.command, self.path, body)
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Log nothing."""
