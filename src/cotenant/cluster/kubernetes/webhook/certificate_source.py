"""Where the webhook gets its certificate: a Secret that it maintains itself, or files of cert-manager."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from cotenant.cluster.kubernetes.api import CONFLICT, JSON_PATCH, NOT_FOUND, ApiClient, ApiError, resource_path
from cotenant.cluster.kubernetes.webhook.certificates import (
    WebhookCertificates,
    make_certificates,
    needs_renewal,
)
from cotenant.cluster.kubernetes.webhook.objects import JsonObject, list_at, object_at
from cotenant.errors import WorldError

CONFIGURATIONS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
ADMISSION: Final = "admissionregistration.k8s.io/v1"
AUTHORITIES: Final = "ca.crt"
AUTHORITY_KEY: Final = "ca.key"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
_ATTEMPTS: Final = 5


class ServerPair(NamedTuple):
    """Certificate and key with which the server answers, as PEM."""

    certificate: bytes
    key: bytes


class CertificateSource(Protocol):
    """Provides the certificate in force."""

    def read(self, unix_ns: int) -> ServerPair:
        """Return the certificate to serve with now; WorldError if there is none."""

    def publish(self) -> None:
        """Make the API server trust the certificate that was read last."""


class CertificateFiles:
    """Files that cert-manager or an operator renews, as in a mounted Secret."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, unix_ns: int) -> ServerPair:
        """Return the content of the files."""
        del unix_ns
        try:
            return ServerPair((self._directory / CERTIFICATE).read_bytes(), (self._directory / KEY).read_bytes())
        except OSError as error:
            remedy = "mount the Secret of the certificate there, or omit --certificate-directory"
            raise WorldError(f"cannot read {error.filename}: {error.strerror}; {remedy}") from None

    def publish(self) -> None:
        """Do nothing: cert-manager, which renews the files, also tells the API server what to trust."""


class CertificateSecret:
    """A Secret that the replicas of the webhook share; the first one that finds it missing or due makes it again."""

    def __init__(
        self, client: ApiClient, namespace: str, secret: str, hosts: Sequence[str], configuration: str
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._secret = secret
        self._hosts = tuple(hosts)
        self._configuration = configuration
        """The name of both webhook configurations."""
        self._authorities = b""

    def read(self, unix_ns: int) -> ServerPair:
        """Return the certificate; renew it where needed."""
        certificates = self._current(unix_ns)
        self._authorities = certificates.authorities
        return ServerPair(certificates.certificate, certificates.key)

    def publish(self) -> None:
        """Write the authorities into both webhook configurations."""
        for plural in CONFIGURATIONS:
            self._trust(plural, self._authorities)

    def _current(self, unix_ns: int) -> WebhookCertificates:
        for _ in range(_ATTEMPTS):
            stored = self._get()
            old = None if stored is None else certificates_of(stored)
            if old is not None and not needs_renewal(old, self._hosts, unix_ns):
                return old
            made = make_certificates(self._hosts, unix_ns, old)
            try:
                self._put(made, stored)
            except ApiError as error:
                if error.status in (CONFLICT, NOT_FOUND):  # another replica was faster: take what it wrote
                    continue
                raise
            return made
        raise WorldError(f"the Secret {self._namespace}/{self._secret} changed {_ATTEMPTS} times while it was renewed")

    def _get(self) -> JsonObject | None:
        try:
            return self._client.get(self._path(self._secret), dict[str, Any])
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def _put(self, certificates: WebhookCertificates, stored: JsonObject | None) -> None:
        metadata: JsonObject = {"name": self._secret, "namespace": self._namespace}
        if stored is not None:
            metadata = object_at(stored, "metadata")  # with its resourceVersion, which makes the update conditional
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "type": "kubernetes.io/tls",
            "data": {
                AUTHORITIES: _encode(certificates.authorities),
                AUTHORITY_KEY: _encode(certificates.authority_key),
                CERTIFICATE: _encode(certificates.certificate),
                KEY: _encode(certificates.key),
            },
        }
        if stored is None:
            self._client.create(self._path(), body)
        else:
            self._client.replace(self._path(self._secret), body)

    def _path(self, name: str = "") -> str:
        return resource_path("v1", "secrets", self._namespace, name)

    def _trust(self, plural: str, authorities: bytes) -> None:
        """Write the authorities into a webhook configuration that does not have them."""
        path = resource_path(ADMISSION, plural, "", self._configuration)
        configuration: JsonObject = self._client.get(path, dict[str, Any])
        operations = []
        for index, webhook in enumerate(list_at(configuration, "webhooks")):
            if object_at(webhook, "clientConfig").get("caBundle") != _encode(authorities):
                pointer = f"/webhooks/{index}/clientConfig/caBundle"
                operations.append({"op": "add", "path": pointer, "value": _encode(authorities)})
        if operations:
            # The order of the webhooks may have changed since: the patch must not reach another one.
            version = object_at(configuration, "metadata").get("resourceVersion")
            test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
            self._client.patch(path, [test, *operations], JSON_PATCH)


def certificates_of(secret: JsonObject) -> WebhookCertificates:
    """Return the certificates of a Secret; what is missing or not base64 is empty."""
    data = object_at(secret, "data")
    return WebhookCertificates(*(_decode(data.get(name)) for name in (AUTHORITIES, AUTHORITY_KEY, CERTIFICATE, KEY)))


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _decode(text: object) -> bytes:
    try:
        return base64.b64decode(text) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return b""
