"""`cotenant kubernetes webhook`: serve admission reviews, renew the certificate, and read the reports of nodes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
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
from cotenant.errors import ConfigError, CotenantError, SetupError
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
    allocation: AllocationMode | None = AllocationMode.CLAIM
    """None: as the nodes report it."""
    translate_plain_gpu: bool = False


class GpuSize(msgspec.Struct, rename="camel"):
    """The size of a GPU in a GpuNode."""

    memory_bytes: int = 0


class GpuNodeSummary(msgspec.Struct):
    """The part of the status of a GpuNode that the webhook reads."""

    gpus: list[GpuSize] = []
    allocation: str = ""


class SummarizedGpuNode(msgspec.Struct):
    """The part of a GpuNode that the webhook reads."""

    status: GpuNodeSummary = msgspec.field(default_factory=GpuNodeSummary)


class Webhook:
    """The settings and the certificate in force, refreshed once a minute."""

    def __init__(
        self, client: ApiClient, options: WebhookOptions, source: CertificateSource, report: Callable[[str], None]
    ) -> None:
        self._client = client
        self._source = source
        self._report = report
        self._problems: dict[str, str] = {}
        self._follows_nodes = options.allocation is None
        self._settings = WebhookSettings(options.allocation, translate_plain_gpu=options.translate_plain_gpu)
        routes = {
            MUTATE_PATH: lambda body: mutate(body, self._settings),
            VALIDATE_PATH: lambda body: validate(body, self._settings),
        }
        self.server = WebhookServer((options.address, options.port), routes, source.read(unix_ns()))

    def refresh(self) -> None:
        """Renew and publish the certificate, and read the reports of nodes; log what fails and keep the old state."""
        self._attempt("certificate", self._refresh_certificate)
        self._attempt("webhook configurations", self._source.publish)
        self._attempt("reports of the nodes", self._refresh_nodes)

    @property
    def needs_refresh(self) -> bool:
        """Return whether the last refresh failed in part, or found no node that reports."""
        return bool(self._problems) or self._settings.allocation is None

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

    def _refresh_nodes(self) -> None:
        group_version = f"{names.GROUP}/{names.GPU_NODE_VERSION}"
        nodes = self._client.list(resource_path(group_version, names.GPU_NODE_PLURAL), SummarizedGpuNode).items
        sizes = {gpu.memory_bytes for node in nodes for gpu in node.status.gpus if gpu.memory_bytes > 0}
        settings = msgspec.structs.replace(self._settings, memory_sizes=tuple(sorted(sizes)[:_SIZES_LIMIT]))
        if self._follows_nodes:
            allocation = reported_allocation(node.status.allocation for node in nodes)
            if allocation is not None and allocation is not settings.allocation:
                self._report(f"the nodes allocate GPUs by {allocation.value}, and so do new pods")
            is_fallback = allocation is AllocationMode.DEVICE_PLUGIN
            settings = msgspec.structs.replace(settings, allocation=allocation, is_fallback=is_fallback)
        self._settings = settings


def reported_allocation(reported: Iterable[str]) -> AllocationMode | None:
    """Return how new pods get a GPU: by claims if any node serves them; None if no node has reported."""
    found = set(reported)
    return next((mode for mode in AllocationMode if mode.value in found), None)


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
    while not stop.wait(_RETRY_S if webhook.needs_refresh else _REFRESH_S):
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
        raise SetupError("the webhook needs the name and the namespace of its Service: --service and --namespace")
    host = f"{options.service}.{options.namespace}.svc"
    return (host, f"{host}.cluster.local", f"{options.service}.{options.namespace}", options.service)
