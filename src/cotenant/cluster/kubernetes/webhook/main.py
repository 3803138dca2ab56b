"""`cotenant kubernetes webhook`: serve admission reviews, renew the certificate, and follow the sizes of GPUs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import ApiClient, resource_path
from cotenant.cluster.kubernetes.webhook.certificate_source import (
    CertificateFiles,
    CertificateSecret,
    CertificateSource,
)
from cotenant.cluster.kubernetes.webhook.certificates import validity_of
from cotenant.cluster.kubernetes.webhook.pod_request import AllocationMode, WebhookSettings
from cotenant.cluster.kubernetes.webhook.review import mutate, validate
from cotenant.cluster.kubernetes.webhook.server import WebhookServer
from cotenant.errors import ConfigError, CotenantError, WorldError
from cotenant.runner.clock import unix_ns
from cotenant.runner.process import name_process

MUTATE_PATH: Final = "/mutate"
VALIDATE_PATH: Final = "/validate"
_REFRESH_S: Final = 60.0
_RETRY_S: Final = 5.0
_SIZES_LIMIT: Final = 64


class WebhookOptions(msgspec.Struct, frozen=True):
    """The command line of the webhook."""

    address: str = "0.0.0.0"  # noqa: S104  the API server connects from outside the pod
    port: int = 8443
    namespace: str = "cotenant"
    service: str = "cotenant-webhook"
    configuration: str = "cotenant"
    """The name of the mutating and the validating webhook configuration."""
    secret: str = "cotenant-webhook-certificate"  # noqa: S105  the name of a Secret
    certificate_directory: str = ""
    """Directory with tls.crt and tls.key that others renew; empty: the webhook maintains the Secret."""
    allocation: AllocationMode = AllocationMode.CLAIM
    translate_plain_gpu: bool = False


class GpuSize(msgspec.Struct, rename="camel"):
    """The size of a GPU in a GpuNode."""

    memory_bytes: int = 0


class GpuNodeSizes(msgspec.Struct):
    """The sizes in the status of a GpuNode."""

    gpus: list[GpuSize] = []


class SizedGpuNode(msgspec.Struct):
    """The part of a GpuNode that the webhook reads."""

    status: GpuNodeSizes = msgspec.field(default_factory=GpuNodeSizes)


class Webhook:
    """The settings and the certificate in force, refreshed once a minute."""

    def __init__(
        self, client: ApiClient, options: WebhookOptions, source: CertificateSource, report: Callable[[str], None]
    ) -> None:
        self._client = client
        self._source = source
        self._report = report
        self._problems: dict[str, str] = {}
        self._settings = WebhookSettings(options.allocation, options.translate_plain_gpu)
        routes = {
            MUTATE_PATH: lambda body: mutate(body, self._settings),
            VALIDATE_PATH: lambda body: validate(body, self._settings),
        }
        self.server = WebhookServer((options.address, options.port), routes, source.read(unix_ns()))

    def refresh(self) -> None:
        """Renew and publish the certificate, and read the sizes of GPUs; report what fails and keep the old state."""
        self._attempt("certificate", self._refresh_certificate)
        self._attempt("webhook configurations", self._source.publish)
        self._attempt("sizes of GPUs", self._refresh_sizes)

    @property
    def has_problems(self) -> bool:
        """Return whether the last refresh failed in part."""
        return bool(self._problems)

    def _attempt(self, what: str, refresh: Callable[[], None]) -> None:
        try:
            refresh()
        except CotenantError as error:
            if self._problems.get(what) != str(error):
                self._report(f"cannot refresh the {what}: {error}; the webhook continues and tries again")
            self._problems[what] = str(error)
        else:
            if self._problems.pop(what, ""):
                self._report(f"the {what} could be refreshed again")

    def _refresh_certificate(self) -> None:
        now_ns = unix_ns()
        pair = self._source.read(now_ns)
        self.server.use(pair)
        self.server.is_ready = validity_of(pair.certificate).until_ns > now_ns

    def _refresh_sizes(self) -> None:
        group_version = f"{names.GROUP}/{names.GPU_NODE_VERSION}"
        nodes = self._client.list(resource_path(group_version, names.GPU_NODE_PLURAL), SizedGpuNode).items
        sizes = {gpu.memory_bytes for node in nodes for gpu in node.status.gpus if gpu.memory_bytes > 0}
        self._settings = msgspec.structs.replace(self._settings, memory_sizes=tuple(sorted(sizes)[:_SIZES_LIMIT]))


def serve_webhook(client: ApiClient, options: WebhookOptions, report: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT."""
    name_process("cotenant-webhook")
    try:
        webhook = Webhook(client, options, certificate_source(client, options), report)
    except OSError as error:
        raise ConfigError("--port", options.port, f"cannot listen there: {error.strerror}; choose another") from None
    except OverflowError:
        raise ConfigError("--port", options.port, "write a port from 0 to 65535") from None
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    webhook.refresh()
    thread = threading.Thread(target=webhook.server.serve_forever, name="webhook", daemon=True)
    thread.start()
    report(f"the webhook listens at port {webhook.server.server_address[1]}")
    while not stop.wait(_RETRY_S if webhook.has_problems else _REFRESH_S):
        webhook.refresh()
    webhook.server.shutdown()
    webhook.server.server_close()


def certificate_source(client: ApiClient, options: WebhookOptions) -> CertificateSource:
    """Return where the certificate comes from."""
    if options.certificate_directory:
        return CertificateFiles(Path(options.certificate_directory))
    return CertificateSecret(client, options.namespace, options.secret, service_names(options), options.configuration)


def service_names(options: WebhookOptions) -> tuple[str, ...]:
    """Return the names by which the API server may call the Service of the webhook; it uses the first."""
    if not options.service or not options.namespace:
        raise WorldError("the webhook needs the name and the namespace of its Service: --service and --namespace")
    host = f"{options.service}.{options.namespace}.svc"
    return (host, f"{host}.cluster.local", f"{options.service}.{options.namespace}", options.service)
