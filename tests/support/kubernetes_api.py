"""A Kubernetes API server in memory: the parts of the API that the controller uses, with the rules that it relies on.

Objects are JSON trees with resource versions. Writes check names, uids, resource versions and, for pods, the rules for
scheduling gates. `FakeKubernetes` is called directly; `serve` puts it behind HTTP.
"""

from __future__ import annotations

import copy
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import ApiRequest, Response

Tree = dict[str, Any]

_PATH = re.compile(
    r"^/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[a-z]+))?$"
)
CREATED = "2026-11-18T09:00:00Z"


class ApiFaultError(Exception):
    """A refusal with its status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


class FakeKubernetes:
    """Stores objects and a log of their changes."""

    def __init__(self) -> None:
        self.version = 0
        self.compacted = 0
        """Watches and lists that continue from an older version get status 410."""
        self.objects: dict[str, dict[tuple[str, str], Tree]] = {}
        self.log: dict[str, list[tuple[int, str, Tree, Tree | None]]] = {}
        """Per plural: version, change, object, previous object."""
        self.changed = threading.Condition()
        self.uids = 0
        self.released: dict[str, int] = {}
        """How often the gate of a pod was removed, by uid."""
        self.requests: list[ApiRequest] = []
        self.on_release: Callable[[Tree], None] = lambda pod: None
        self.forbidden: dict[str, str] = {}
        """Per plural, why the creation of an object is refused, as by a quota."""

    # -- requests ---------------------------------------------------------------------------------------------------

    def send(self, request: ApiRequest) -> Response:
        """Answer a request that is not a watch."""
        with self.changed:
            self.requests.append(request)
            try:
                status, tree = self._handle(request)
            except ApiFaultError as fault:
                status = fault.status
                tree = {"kind": "Status", "message": fault.message, "reason": fault.reason, "code": fault.status}
            self.changed.notify_all()
            return Response(status, json.dumps(tree).encode())

    def _handle(self, request: ApiRequest) -> tuple[int, Tree]:
        match = _PATH.match(request.path)
        if match is None:
            raise ApiFaultError(404, "NotFound", f"no resource at {request.path}")
        plural, namespace = match["plural"], unquote(match["namespace"] or "")
        name, sub = unquote(match["name"] or ""), match["sub"] or ""
        body: Any = json.loads(request.body) if request.body else {}
        key = (namespace, name)
        if request.method == "GET":
            return 200, copy.deepcopy(self._get(plural, key)) if name else self._list(plural, namespace, request.query)
        if request.method == "POST":
            if sub == "eviction":
                return 201, self._evict(key, body)
            if plural in self.forbidden:
                raise ApiFaultError(403, "Forbidden", self.forbidden[plural])
            return 201, self.create(plural, namespace, body)
        if request.method == "PUT":
            return 200, self.update(plural, key, body)
        if request.method == "PATCH":
            return 200, self._patch(plural, key, body, request.content_type, sub)
        if request.method == "DELETE":
            uid = (body.get("preconditions") or {}).get("uid")
            return 200, self.delete(plural, key, uid)
        raise ApiFaultError(405, "MethodNotAllowed", request.method)

    def _get(self, plural: str, key: tuple[str, str]) -> Tree:
        found = self.objects.get(plural, {}).get(key)
        if found is None:
            raise ApiFaultError(404, "NotFound", f'{plural} "{key[1]}" not found')
        return found

    def _list(self, plural: str, namespace: str, query: Any) -> Tree:
        items = [
            tree
            for (space, _), tree in sorted(self.objects.get(plural, {}).items())
            if (not namespace or space == namespace) and is_selected(tree, query)
        ]
        first, version = 0, self.version
        if token := query.get("continue"):
            first, version = (int(part) for part in token.split(":"))
            if version < self.compacted:
                raise ApiFaultError(410, "Expired", "the provided continue parameter is too old")
        limit = int(query.get("limit") or len(items) or 1)
        more = f"{first + limit}:{version}" if first + limit < len(items) else ""
        return {
            "kind": "List",
            "metadata": {"resourceVersion": str(version), "continue": more},
            "items": copy.deepcopy(items[first : first + limit]),
        }

    # -- changes ----------------------------------------------------------------------------------------------------

    def create(self, plural: str, namespace: str, body: Tree) -> Tree:
        """Create an object."""
        tree = copy.deepcopy(body)
        meta = tree["metadata"]
        if namespace:
            meta["namespace"] = namespace
        if "name" not in meta:
            self.uids += 1
            meta["name"] = f"{meta['generateName']}{self.uids:05x}"
        key = (meta.get("namespace", ""), meta["name"])
        if key in self.objects.get(plural, {}):
            raise ApiFaultError(409, "AlreadyExists", f'{plural} "{key[1]}" already exists')
        self.uids += 1
        meta.setdefault("uid", f"uid-{self.uids:08d}")
        meta.setdefault("creationTimestamp", CREATED)
        self._store(plural, key, tree, "ADDED", None)
        return copy.deepcopy(tree)

    def update(self, plural: str, key: tuple[str, str], body: Tree) -> Tree:
        """Replace an object; a resource version in the body must be the present one."""
        old = self._get(plural, key)
        tree = copy.deepcopy(body)
        wanted = tree["metadata"].get("resourceVersion")
        if wanted and wanted != old["metadata"]["resourceVersion"]:
            raise ApiFaultError(409, "Conflict", "the object has been modified")
        if tree["metadata"].get("uid") not in {None, old["metadata"]["uid"]}:
            raise ApiFaultError(409, "Conflict", "the uid differs")
        tree["metadata"]["uid"] = old["metadata"]["uid"]
        if plural == "pods":
            self._check_pod(old, tree)
        if plural == "resourceclaims" and tree.get("spec") != old.get("spec"):
            raise ApiFaultError(422, "Invalid", "spec is immutable")
        if _without_version(tree) == _without_version(old):
            return copy.deepcopy(old)
        self._store(plural, key, tree, "MODIFIED", old)
        return copy.deepcopy(tree)

    def delete(self, plural: str, key: tuple[str, str], uid: str | None = None) -> Tree:
        """Delete an object at once."""
        old = self._get(plural, key)
        if uid is not None and uid != old["metadata"]["uid"]:
            raise ApiFaultError(409, "Conflict", "the uid in the precondition differs")
        del self.objects[plural][key]
        self.version += 1
        gone = copy.deepcopy(old)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self.log.setdefault(plural, []).append((self.version, "DELETED", gone, old))
        if plural == "pods":
            self._collect(old["metadata"]["uid"])
        return gone

    def _collect(self, pod_uid: str) -> None:
        """Delete what a deleted pod owns, as the garbage collector does."""
        for key, claim in list(self.objects.get("resourceclaims", {}).items()):
            if any(owner["uid"] == pod_uid for owner in claim["metadata"].get("ownerReferences", ())):
                self.delete("resourceclaims", key)

    def _evict(self, key: tuple[str, str], body: Tree) -> Tree:
        pod = copy.deepcopy(self._get("pods", key))
        uid = ((body.get("deleteOptions") or {}).get("preconditions") or {}).get("uid")
        if uid is not None and uid != pod["metadata"]["uid"]:
            raise ApiFaultError(409, "Conflict", "the uid in the precondition differs")
        set_pod_condition(pod, {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"})
        pod["metadata"]["deletionTimestamp"] = CREATED
        self.update("pods", key, pod)
        if not pod["spec"].get("nodeName"):
            self.delete("pods", key)
        return {"kind": "Status", "status": "Success"}

    def _patch(self, plural: str, key: tuple[str, str], body: Any, content_type: str, sub: str) -> Tree:
        tree = copy.deepcopy(self._get(plural, key))
        if content_type == "application/json-patch+json":
            for operation in body:
                apply_json_patch(tree, operation)
        elif content_type == "application/strategic-merge-patch+json":
            body = copy.deepcopy(body)
            for condition in (body.get("status") or {}).pop("conditions", ()):
                set_pod_condition(tree, condition)
            merge(tree, body)
        else:
            merge(tree, body)
        del sub
        return self.update(plural, key, tree)

    def _check_pod(self, old: Tree, new: Tree) -> None:
        old_spec, new_spec = old["spec"], new["spec"]
        old_gates = [gate["name"] for gate in old_spec.get("schedulingGates") or ()]
        new_gates = [gate["name"] for gate in new_spec.get("schedulingGates") or ()]
        if set(new_gates) - set(old_gates):
            raise ApiFaultError(422, "Invalid", "spec.schedulingGates: only deletion is allowed")
        old_selector, new_selector = old_spec.get("nodeSelector") or {}, new_spec.get("nodeSelector") or {}
        if new_selector != old_selector:
            if not old_gates:
                raise ApiFaultError(422, "Invalid", "spec.nodeSelector: a pod without gates is immutable")
            if any(new_selector.get(key) != value for key, value in old_selector.items()):
                raise ApiFaultError(422, "Invalid", "spec.nodeSelector: only additions are allowed")
        if new_spec.get("resourceClaims") != old_spec.get("resourceClaims"):
            raise ApiFaultError(422, "Invalid", "spec.resourceClaims is immutable")
        if names.GATE in old_gates and names.GATE not in new_gates:
            uid = old["metadata"]["uid"]
            self.released[uid] = self.released.get(uid, 0) + 1
            self.on_release(new)

    def _store(self, plural: str, key: tuple[str, str], tree: Tree, change: str, old: Tree | None) -> None:
        self.version += 1
        tree["metadata"]["resourceVersion"] = str(self.version)
        self.objects.setdefault(plural, {})[key] = tree
        self.log.setdefault(plural, []).append((self.version, change, copy.deepcopy(tree), old))

    # -- watches ----------------------------------------------------------------------------------------------------

    def events_after(self, plural: str, version: int, query: Any) -> list[tuple[int, str, Tree]]:
        """Return the changes after a version as a watch with these selectors reports them; raise 410 if too old."""
        if version < self.compacted:
            raise ApiFaultError(410, "Expired", f"too old resource version: {version}")
        found = []
        for at, change, tree, old in self.log.get(plural, ()):
            if at <= version:
                continue
            is_now = change != "DELETED" and is_selected(tree, query)
            was_before = old is not None and is_selected(old, query)
            if is_now:
                found.append((at, "MODIFIED" if was_before else "ADDED", tree))
            elif was_before:
                found.append((at, "DELETED", tree if change == "DELETED" else old or tree))
        return found


def is_selected(tree: Tree, query: Any) -> bool:
    """Return whether an object matches the selectors of a query."""
    labels = tree["metadata"].get("labels") or {}
    for part in filter(None, (query.get("labelSelector") or "").split(",")):
        key, _, value = part.partition("=")
        if key not in labels or (value and labels[key] != value):
            return False
    for part in filter(None, (query.get("fieldSelector") or "").split(",")):
        key, _, value = part.partition("!=")
        if key == "status.phase" and (tree.get("status") or {}).get("phase") == value:
            return False
    return True


def set_pod_condition(tree: Tree, condition: Tree) -> None:
    """Replace the condition of the same type, as a strategic merge patch does."""
    conditions = tree.setdefault("status", {}).setdefault("conditions", [])
    conditions[:] = [each for each in conditions if each["type"] != condition["type"]] + [condition]


def merge(tree: Tree, patch: Tree) -> None:
    """Apply a JSON merge patch (RFC 7386)."""
    for key, value in patch.items():
        if value is None:
            tree.pop(key, None)
        elif isinstance(value, dict):
            merge(tree.setdefault(key, {}), value)
        else:
            tree[key] = value


def apply_json_patch(tree: Tree, operation: Tree) -> None:
    """Apply one operation of a JSON patch (RFC 6902): test, add or remove."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    node: Any = tree
    try:
        for part in parts[:-1]:
            node = node[int(part)] if isinstance(node, list) else node[part]
        last: Any = int(parts[-1]) if isinstance(node, list) else parts[-1]
        if operation["op"] == "test":
            if node[last] != operation["value"]:
                raise ApiFaultError(422, "Invalid", f"testing path {operation['path']} failed")
        elif operation["op"] == "remove":
            del node[last]
        else:
            node[last] = operation["value"]
    except (KeyError, IndexError):
        raise ApiFaultError(422, "Invalid", f"the path {operation['path']} does not exist") from None


def _without_version(tree: Tree) -> Tree:
    return {**tree, "metadata": {key: value for key, value in tree["metadata"].items() if key != "resourceVersion"}}


# -- HTTP ------------------------------------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    """Closes its connections when it ends, as a process does."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.is_over = False
        self.connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that a test kills close their connections at any moment."""


@contextmanager
def serve(api: FakeKubernetes, port: int = 0) -> Iterator[str]:
    """Serve over HTTP until the context ends; the value is the URL."""
    server = _Server(("127.0.0.1", port), _handler_of(api))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        with api.changed:
            server.is_over = True
            api.changed.notify_all()
        for connection in list(server.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _handler_of(api: FakeKubernetes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            """Write no log."""

        def _request(self, body: bytes | None) -> ApiRequest:
            parts = urlsplit(self.path)
            return ApiRequest(
                self.command, parts.path, body, self.headers.get("Content-Type") or "", dict(parse_qsl(parts.query))
            )

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            request = self._request(self.rfile.read(length) if length else None)
            if request.query.get("watch") == "true":
                self._watch(request)
                return
            response = api.send(request)
            self.send_response(response.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(response.body)))
            self.end_headers()
            self.wfile.write(response.body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815

        def _watch(self, request: ApiRequest) -> None:
            match = _PATH.match(request.path)
            assert match is not None
            version = int(request.query["resourceVersion"])
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while not self.server.is_over:  # type: ignore[attr-defined]
                with api.changed:
                    try:
                        events = api.events_after(match["plural"], version, request.query)
                    except ApiFaultError as fault:
                        status = {"code": fault.status, "message": fault.message, "reason": fault.reason}
                        self._chunk({"type": "ERROR", "object": status})
                        break
                    if not events:
                        api.changed.wait(0.2)
                for at, change, tree in events:
                    self._chunk({"type": change, "object": tree})
                    version = at
            self.wfile.write(b"0\r\n\r\n")

        def _chunk(self, event: Tree) -> None:
            line = json.dumps(event).encode() + b"\n"
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")

    return Handler
