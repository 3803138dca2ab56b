"""An HTTP server with a small part of the Kubernetes API: objects by path, versions, and conflicts."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cotenant.cluster.kubernetes.api import ApiClient
from cotenant.cluster.kubernetes.api_config import plain_api_config
from tests.support.admission_reviews import apply_patch


class FakeApi:
    """Objects by path. A test may change them, and may set `refuse` to a status for every request to a path."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.refuse: dict[str, int] = {}
        self.requests: list[tuple[str, str]] = []
        self.before_write: Any = None
        """Called once before the next write, as another client that is faster."""
        self.dry_run: Any = lambda _path, body: (201, body)
        """Returns status and body of the answer to a write that is not stored."""
        self._version = 0
        self._lock = threading.RLock()

    def put(self, path: str, value: dict[str, Any]) -> None:
        """Store an object with a new version."""
        with self._lock:
            self._version += 1
            metadata = {**value.get("metadata", {}), "resourceVersion": str(self._version)}
            self.objects[path] = {**value, "metadata": metadata}

    def answer(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        """Return status and body of the answer to a request."""
        path, _, query = path.partition("?")
        with self._lock:
            self.requests.append((method, path))
            if path in self.refuse:
                return self.refuse[path], {"message": "refused by the test"}
            if method in ("POST", "PUT", "PATCH") and self.before_write:
                before, self.before_write = self.before_write, None
                before()
            if "dryRun=All" in query:
                answer: tuple[int, dict[str, Any]] = self.dry_run(path, body)
                return answer
            if method == "GET":
                return self._read(path)
            return self._write(method, path, body)

    def _read(self, path: str) -> tuple[int, dict[str, Any]]:
        if path in self.objects:
            return 200, self.objects[path]
        items = [value for name, value in self.objects.items() if name.rpartition("/")[0] == path]
        is_collection = path.rpartition("/")[2].endswith("s") and path.rpartition("/")[0] not in self.objects
        if items or (is_collection and path.count("/") in (3, 4)):
            return 200, {"metadata": {"resourceVersion": str(self._version)}, "items": items}
        return 404, {"message": f"{path} not found", "reason": "NotFound"}

    def _write(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            if path in self.objects:
                return 409, {"message": "already exists"}
            self.put(path, body)
            return 201, self.objects[path]
        if path not in self.objects:
            return 404, {"message": f"{path} not found"}
        old = self.objects[path]
        if method == "PUT":
            if (
                body["metadata"].get("resourceVersion", old["metadata"]["resourceVersion"])
                != old["metadata"]["resourceVersion"]
            ):
                return 409, {"message": "the object has been modified"}
            self.put(path, body)
            return 200, self.objects[path]
        tests = [operation for operation in body if operation["op"] == "test"]
        if any(operation["value"] != old["metadata"]["resourceVersion"] for operation in tests):
            return 422, {"message": "the test of a patch failed"}
        self.put(path, apply_patch(old, [operation for operation in body if operation["op"] != "test"]))
        return 200, self.objects[path]


@contextmanager
def fake_api() -> Iterator[tuple[FakeApi, ApiClient]]:
    """Serve a FakeApi, and return it with a client."""
    api = FakeApi()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            status, value = api.answer(self.command, self.path, json.loads(content) if content else None)
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815  the names of the base class

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    client = ApiClient(plain_api_config(f"http://127.0.0.1:{server.server_address[1]}"))
    try:
        yield api, client
    finally:
        client.close()
        server.shutdown()
        server.server_close()
        thread.join()
