"""Where the Kubernetes API is and with which credentials it is reached: a service account, or a kubeconfig file."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
import yaml

from cotenant.errors import ConfigError, SetupError, WorldError
from cotenant.runner.clock import unix_ns
from cotenant.units.instant import SECOND_NS

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_READ_AGAIN_NS: Final = 60 * SECOND_NS
"""The kubelet replaces the token of a service account before it expires."""
_EXEC_TIMEOUT_S: Final = 60
_EXEC_VERSION: Final = "client.authentication.k8s.io/v1"
_EARLY_NS: Final = 30 * SECOND_NS
"""A credential is renewed this long before it expires."""


class ApiConfig(NamedTuple):
    """How to reach the API."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    """None: plain HTTP."""
    authorization: Callable[[], str]
    """Return the Authorization header; empty: none is sent. May be called from any thread."""
    namespace: str = "default"
    path: str = ""
    """Prefix of every path, if the API is behind a proxy such as Rancher's."""
    server: str = ""
    """The URL, for messages."""


def load_api_config(kubeconfig: str = "", context: str = "", environment: Mapping[str, str] | None = None) -> ApiConfig:
    """Return the configuration from the named file, $KUBECONFIG, the pod's service account or ~/.kube/config.

    The first of these that is there is used.
    """
    environment = os.environ if environment is None else environment
    if kubeconfig:
        return _from_file(Path(kubeconfig), context)
    if environment.get("KUBECONFIG"):
        first = environment["KUBECONFIG"].split(os.pathsep)[0]
        return _from_file(Path(first), context)
    if environment.get("KUBERNETES_SERVICE_HOST") and (SERVICE_ACCOUNT / "token").exists():
        return _in_cluster(environment, SERVICE_ACCOUNT)
    default = Path(environment.get("HOME", "/")) / ".kube" / "config"
    if default.exists():
        return _from_file(default, context)
    raise SetupError(
        "no Kubernetes API is configured: this process does not run in a pod, neither --kubeconfig nor $KUBECONFIG "
        f"names a file, and there is no {default}"
    )


def plain_api_config(url: str, token: str = "", namespace: str = "default") -> ApiConfig:
    """Return the configuration of a server at a URL, with an optional bearer token and no own certificates."""
    parts = urlsplit(url)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    return _config(url, tls, (lambda: f"Bearer {token}") if token else (lambda: ""), namespace)


def _in_cluster(environment: Mapping[str, str], directory: Path) -> ApiConfig:
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    tls = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    namespace = _text_of(directory / "namespace").strip() or "default"
    token = _TokenFile(directory / "token")
    bracketed = f"[{host}]" if ":" in host else host
    return _config(f"https://{bracketed}:{port}", tls, token.header, namespace)


def _config(url: str, tls: ssl.SSLContext | None, header: Callable[[], str], namespace: str) -> ApiConfig:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError("server", url, "write a URL, as in https://10.0.0.1:6443")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return ApiConfig(parts.hostname, port, tls, header, namespace, parts.path.rstrip("/"), url)


class _TokenFile:
    """The token of a file that is replaced from time to time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = ""
        self._read_at_ns = 0

    def header(self) -> str:
        now_ns = unix_ns()
        if not self._text or now_ns - self._read_at_ns > _TOKEN_READ_AGAIN_NS:
            self._text, self._read_at_ns = _text_of(self._path).strip(), now_ns
        return f"Bearer {self._text}"


def _from_file(path: Path, context: str) -> ApiConfig:
    """Read a kubeconfig file (https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/)."""
    try:
        tree = yaml.safe_load(_text_of(path))
    except yaml.YAMLError as error:
        raise ConfigError("kubeconfig", str(path), f"is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise ConfigError("kubeconfig", str(path), "is not a kubeconfig file: it has no clusters and contexts")
    chosen = context or str(tree.get("current-context") or "")
    settings = _named(tree, "contexts", chosen, path).get("context") or {}
    cluster = _named(tree, "clusters", str(settings.get("cluster") or ""), path).get("cluster") or {}
    user_name = str(settings.get("user") or "")
    user = (_named(tree, "users", user_name, path).get("user") or {}) if user_name else {}
    files = _Files(path.parent)
    url = str(cluster.get("server") or "")
    tls = _tls_of(cluster, user, files) if url.startswith("https:") else None
    namespace = str(settings.get("namespace") or "default")
    return _config(url, tls, _authorization_of(user, files, tls), namespace)


def _named(tree: Mapping[str, Any], kind: str, name: str, path: Path) -> Mapping[str, Any]:
    for entry in tree.get(kind) or ():
        if isinstance(entry, dict) and entry.get("name") == name:
            return entry
    names = ", ".join(str(entry.get("name")) for entry in tree.get(kind) or () if isinstance(entry, dict)) or "none"
    raise ConfigError(f"kubeconfig.{kind}", name, f"{path} has no such entry; it has: {names}")


class _Files:
    """Files that a kubeconfig names, relative to it, or contains as base64 text."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, name: str) -> Path:
        return self._directory / name

    def bytes_of(self, tree: Mapping[str, Any], key: str) -> bytes | None:
        """Return the content of `key`-data, or of the file that `key` names; None: neither is there."""
        if data := tree.get(f"{key}-data"):
            try:
                return base64.b64decode(str(data), validate=True)
            except (binascii.Error, ValueError):
                raise ConfigError(f"kubeconfig.{key}-data", "(data)", "is not base64") from None
        if name := tree.get(key):
            return _text_of(self.path(str(name))).encode()
        return None


def _tls_of(cluster: Mapping[str, Any], user: Mapping[str, Any], files: _Files) -> ssl.SSLContext:
    authority = files.bytes_of(cluster, "certificate-authority")
    tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    certificate, key = files.bytes_of(user, "client-certificate"), files.bytes_of(user, "client-key")
    if certificate and key:
        _load_pair(tls, certificate, key)
    return tls


def _load_pair(tls: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a client certificate; the ssl module reads it from a file only, which only this user can read."""
    with tempfile.NamedTemporaryFile(prefix="cotenant-client-") as file:
        file.write(certificate.rstrip() + b"\n" + key.rstrip() + b"\n")
        file.flush()
        try:
            tls.load_cert_chain(file.name)
        except ssl.SSLError as error:
            remedy = f"the client certificate and its key cannot be loaded: {error.reason}"
            raise ConfigError("kubeconfig.client-certificate", "(data)", remedy) from None


def _authorization_of(user: Mapping[str, Any], files: _Files, tls: ssl.SSLContext | None) -> Callable[[], str]:
    if token := user.get("token"):
        return lambda: f"Bearer {token}"
    if name := user.get("tokenFile"):
        return _TokenFile(files.path(str(name))).header
    if user.get("username"):
        pair = f"{user['username']}:{user.get('password', '')}"
        basic = base64.b64encode(pair.encode()).decode()
        return lambda: f"Basic {basic}"
    if command := user.get("exec"):
        return _ExecCredential(command, tls).header
    return lambda: ""


class _Credential(msgspec.Struct):
    token: str = ""
    expires: str = msgspec.field(default="", name="expirationTimestamp")
    certificate: str = msgspec.field(default="", name="clientCertificateData")
    key: str = msgspec.field(default="", name="clientKeyData")


class _ExecAnswer(msgspec.Struct):
    status: _Credential


class _ExecCredential:
    """Runs the credential plugin of a kubeconfig, as kubectl does, and keeps its token until that expires."""

    def __init__(self, command: Mapping[str, Any], tls: ssl.SSLContext | None) -> None:
        self._command = command
        self._tls = tls
        self._lock = threading.Lock()
        self._header: str | None = None
        self._until_ns = 0

    def header(self) -> str:
        with self._lock:
            if self._header is None or unix_ns() >= self._until_ns:
                credential = self._run()
                if credential.certificate and credential.key and self._tls is not None:
                    _load_pair(self._tls, credential.certificate.encode(), credential.key.encode())
                self._header = f"Bearer {credential.token}" if credential.token else ""
                self._until_ns = _expiry_ns(credential.expires)
            return self._header

    def _run(self) -> _Credential:
        command = self._command
        variables = {str(pair["name"]): str(pair["value"]) for pair in command.get("env") or ()}
        request = {
            "apiVersion": str(command.get("apiVersion") or _EXEC_VERSION),
            "kind": "ExecCredential",
            "spec": {"interactive": False},
        }
        environment = {**os.environ, **variables, "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode()}
        arguments = [str(command.get("command")), *(str(argument) for argument in command.get("args") or ())]
        try:
            result = subprocess.run(
                arguments, env=environment, capture_output=True, timeout=_EXEC_TIMEOUT_S, check=True
            )
            return msgspec.json.decode(result.stdout, type=_ExecAnswer).status
        except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
            raise WorldError(f"the credential plugin {arguments[0]!r} of the kubeconfig failed: {error}") from None


def _expiry_ns(text: str) -> int:
    """Return until when a credential is used; one without an expiry is used for the life of the process."""
    if not text:
        return 1 << 62
    try:
        return int(datetime.fromisoformat(text).timestamp()) * SECOND_NS - _EARLY_NS
    except ValueError:
        return 0


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise SetupError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SetupError(f"cannot read {path}: it is not text") from None
