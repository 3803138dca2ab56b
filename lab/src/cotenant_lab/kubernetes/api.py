"""A small client of the Kubernetes API for the test cluster itself: JSON requests with a user's certificate."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from cotenant_lab.errors import RunFailedError

_TIMEOUT_S: Final = 60.0
_PATCH: Final = "application/merge-patch+json"


class ApiError(RunFailedError):
    """The API server refused a request; `code` is its HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class ApiClient:
    """Sends requests to the server of a kubeconfig, each over a connection of its own."""

    def __init__(self, kubeconfig: Path) -> None:
        """Read server and certificates from a kubeconfig that the test cluster wrote."""
        document = json.loads(kubeconfig.read_text())
        cluster = document["clusters"][0]["cluster"]
        user = document["users"][0]["user"]
        address = urlsplit(cluster["server"])
        self._host, self._port = address.hostname or "", address.port or 443
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        with tempfile.TemporaryDirectory() as directory:  # the ssl module reads certificates from files only
            file = Path(directory) / "user.pem"
            file.touch(mode=0o600)
            file.write_bytes(
                base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"])
            )
            self._tls.load_cert_chain(file)

    def request_text(self, method: str, path: str, body: Any = None, *, query: Mapping[str, str] | None = None) -> str:
        """Send one request and return the body of the answer; raise ApiError for a status of 300 or more."""
        content_type = _PATCH if method == "PATCH" else "application/json"
        target = f"{path}?{urlencode(query)}" if query else path
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=_TIMEOUT_S, context=self._tls)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, target, text, {"Content-Type": content_type, "Accept": "*/*"})
            answer = connection.getresponse()
            content = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(0, f"{method} {target}: the API server does not answer ({error})") from None
        finally:
            connection.close()
        if answer.status >= 300:
            raise ApiError(answer.status, f"{method} {target}: {answer.status} {_reason(content)}")
        return content

    def request(self, method: str, path: str, body: Any = None, *, query: Mapping[str, str] | None = None) -> Any:
        """Send one request and return the decoded JSON of the answer."""
        return json.loads(self.request_text(method, path, body, query=query))

    def get(self, path: str, **query: str) -> Any:
        """Return one object or list."""
        return self.request("GET", path, query=query)

    def is_ready(self) -> bool:
        """Return whether the API server answers and all its start hooks are done."""
        try:
            return self.request_text("GET", "/readyz") == "ok"
        except ApiError:
            return False


def _reason(content: str) -> str:
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content[:300]
