"""`cotenant kubernetes check`: diagnose the parts of a cluster that sharing needs, with a remedy for each failure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Generator, Iterator
from datetime import datetime
from typing import Any, Final

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import NOT_FOUND, ApiClient, ApiError, resource_path
from cotenant.cluster.kubernetes.check_node import NodePaths, check_node
from cotenant.cluster.kubernetes.check_result import CheckResult, bad, good, note
from cotenant.cluster.kubernetes.webhook.certificate_source import ADMISSION, CONFIGURATIONS, certificates_of
from cotenant.cluster.kubernetes.webhook.certificates import is_trusted_by, validity_of
from cotenant.cluster.kubernetes.webhook.objects import JsonObject, list_at, object_at
from cotenant.errors import ConfigError, CotenantError
from cotenant.units.text import counted, round_duration

DRA: Final = "resource.k8s.io/v1"
MINIMUM_VERSION: Final = (1, 34)
_FRESH_NS: Final = 180 * 10**9
"""A controller or node that reported within this time is alive."""
_SECOND_NS: Final = 10**9
_WEEK_NS: Final = 7 * 86_400 * _SECOND_NS
_NODES_SHOWN: Final = 5
_FORBIDDEN: Final = 403
_RUNTIMES: Final = {"containerd": (1, 7), "cri-o": (1, 23)}
"""The first versions that add devices by CDI."""
_PROBE_IMAGE: Final = "registry.k8s.io/pause"


class CheckOptions(msgspec.Struct, frozen=True):
    """What is examined, and where."""

    namespace: str = "cotenant"
    """The namespace of the release."""
    configuration: str = "cotenant"
    """The name of both webhook configurations, with which the names of all objects of the chart begin."""
    secret: str = ""
    """The Secret with the certificate of the webhook; empty: that of the chart."""
    probe_namespace: str = "default"
    """The namespace in which a pod is created in a dry run."""
    node_name: str = ""
    """The node on which the check runs, as the service account of the plugin; empty: it runs elsewhere."""
    paths: NodePaths = NodePaths()

    @property
    def certificate_secret(self) -> str:
        """The name of the Secret with the certificate of the webhook."""
        return self.secret or f"{self.configuration}-webhook-certificate"

    def kubectl(self, words: str) -> str:
        """Return a kubectl command about the namespace of the release."""
        return f"kubectl -n {self.namespace} {words}"

    def log_of(self, part: str) -> str:
        """Return the command that shows the log of a Deployment of the chart."""
        return self.kubectl(f"logs deployment/{self.configuration}-{part}")


class NodeObject(msgspec.Struct):
    """A Node, a GpuNode or a ResourceSlice."""

    metadata: dict[str, Any]
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


def check_cluster(client: ApiClient, options: CheckOptions, unix_ns: int) -> Iterator[CheckResult]:
    """Yield the results of all checks; without access to the API only those of this machine."""
    version = yield from _check_api(client)
    if version is not None:
        checks: list[tuple[str, Callable[[], Iterator[CheckResult]]]] = [
            ("features", lambda: _check_features(client, version, options.node_name)),
            ("CRD", lambda: _check_crd(client)),
            ("nodes", lambda: _check_gpu_nodes(client, options, unix_ns)),
            ("container runtime", lambda: _check_runtimes(client)),
            ("controller", lambda: _check_controller(client, options, unix_ns)),
            ("webhook", lambda: _check_webhook(client, options, unix_ns)),
            ("webhook", lambda: _check_translation(client, options)),
        ]
        for name, check in checks:
            try:
                yield from check()
            except ApiError as error:
                result = note if error.status == _FORBIDDEN else bad  # what may not be read may well be good
                yield result(name, str(error), _remedy_for(error, options))
            except ConfigError as error:  # an object that does not have the form of its kind
                yield bad(name, str(error), "repair the object, or install the chart again")
    yield from check_node(options.paths)


def _remedy_for(error: ApiError, options: CheckOptions) -> str:
    if error.status == _FORBIDDEN:
        return "use a kubeconfig with these rights, for example that of a cluster administrator"
    if error.status == NOT_FOUND:
        install = (
            f"helm install {options.configuration} deploy/chart --namespace {options.namespace} --create-namespace"
        )
        return f"install the chart: {install}; if its release has another name, state it with --configuration"
    return "check the log of the API server, and run the check again"


def _check_api(client: ApiClient) -> Generator[CheckResult, None, tuple[int, int] | None]:
    """Yield the result of a first request, and return the version of the API server; None: it does not answer."""
    try:
        found = client.get("/version", dict[str, Any])
    except CotenantError as error:
        yield bad("API access", str(error), "check --kubeconfig, --context and the network")
        return None
    text = str(found.get("gitVersion", ""))
    numbers = version_of(text)
    yield good("API access", f"{client.config.server} answers, Kubernetes {text or '(unknown)'}")
    return numbers


def version_of(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version such as v1.34.1 or 1.7.27~ds1; (0, 0) if there are none."""
    match = re.search(r"(\d{1,6})\.(\d{1,6})", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _check_features(client: ApiClient, version: tuple[int, int], node: str) -> Iterator[CheckResult]:
    name = "features"
    if version < MINIMUM_VERSION:
        what = f"Kubernetes {version[0]}.{version[1]} has no stable dynamic resource allocation"
        yield note(name, what, "upgrade to 1.34 for placement rounds; the device plugin is used until then")
        return
    try:
        client.get(f"/apis/{DRA}", dict[str, Any])
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        remedy = (
            f"start kube-apiserver with --runtime-config={DRA}=true, or set allocation to device-plugin in the chart"
        )
        yield bad(name, f"the API group {DRA} is not served", remedy)
        return
    probe = {
        "apiVersion": DRA,
        "kind": "ResourceSlice",
        "metadata": {"name": "cotenant-check"},
        "spec": {
            "driver": names.DRIVER,
            **({"nodeName": node} if node else {"allNodes": True}),  # a plugin may write the slices of its node only
            "pool": {"name": "cotenant-check", "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": "gpu-0",
                    "allowMultipleAllocations": True,
                    "capacity": {names.CAPACITY_MEMORY: {"value": "1Gi"}},
                    "taints": [{"key": f"{names.GROUP}/check", "effect": "NoSchedule"}],
                }
            ],
        },
    }
    answer = msgspec.json.decode(client.create(resource_path(DRA, "resourceslices"), probe, dryRun="All"))
    devices = list_at(object_at(answer, "spec"), "devices", "spec")
    device = devices[0] if devices else {}
    is_fallback = _is_device_plugin_in_use(client)
    # The API server removes fields of features that are off.
    for field, gate in (("allowMultipleAllocations", "DRAConsumableCapacity"), ("taints", "DRADeviceTaints")):
        if field in device:
            yield good(name, f"the feature gate {gate} is on")
        else:
            remedy = (
                f"add --feature-gates={gate}=true to kube-apiserver, kube-scheduler, kube-controller-manager and the "
                "kubelets, and restart the DaemonSet"
            )
            if is_fallback:
                yield note(name, f"the feature gate {gate} is off, so the device plugin is used", remedy)
            else:
                remedy += "; or set allocation to auto or device-plugin in the chart"
                yield bad(name, f"the feature gate {gate} is off", remedy)


def _is_device_plugin_in_use(client: ApiClient) -> bool:
    """Return whether nodes report that the device plugin allocates their GPUs, and none that claims do."""
    path = resource_path(f"{names.GROUP}/{names.GPU_NODE_VERSION}", names.GPU_NODE_PLURAL)
    try:
        reported = {node.status.get("allocation") for node in client.list(path, NodeObject).items}
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return False
    return names.ALLOCATION_DEVICE_PLUGIN in reported and names.ALLOCATION_CLAIM not in reported


def _check_crd(client: ApiClient) -> Iterator[CheckResult]:
    name, crd = "CRD", f"{names.GPU_NODE_PLURAL}.{names.GROUP}"
    path = resource_path("apiextensions.k8s.io/v1", "customresourcedefinitions", "", crd)
    found: JsonObject = client.get(path, dict[str, Any])
    versions = [each.get("name") for each in list_at(object_at(found, "spec"), "versions") if each.get("served")]
    conditions = list_at(object_at(found, "status"), "conditions")
    is_established = any(each.get("type") == "Established" and each.get("status") == "True" for each in conditions)
    if names.GPU_NODE_VERSION not in versions:
        remedy = "apply the CRD of this version: kubectl apply -f deploy/chart/crds"
        yield bad(name, f"{crd} does not serve version {names.GPU_NODE_VERSION}", remedy)
    elif not is_established:
        yield bad(name, f"{crd} is not established", f"see its conditions: kubectl describe crd {crd}")
    else:
        yield good(name, f"{crd} serves {names.GPU_NODE_VERSION}")
    if _has_device_class(client):
        yield good(name, f"DeviceClass {names.DEVICE_CLASS} exists")
    else:
        remedy = "install the chart with allocation auto or claim; the device plugin needs none"
        yield note(name, f"there is no DeviceClass {names.DEVICE_CLASS}", remedy)


def _has_device_class(client: ApiClient) -> bool:
    """Return whether the chart was installed with a controller."""
    try:
        client.get(resource_path(DRA, "deviceclasses", "", names.DEVICE_CLASS), dict[str, Any])
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return False
    return True


def _check_gpu_nodes(client: ApiClient, options: CheckOptions, unix_ns: int) -> Iterator[CheckResult]:
    name = "nodes"
    path = resource_path(f"{names.GROUP}/{names.GPU_NODE_VERSION}", names.GPU_NODE_PLURAL)
    nodes = client.list(path, NodeObject).items
    if not nodes:
        remedy = f"check that pods of the DaemonSet run: {options.kubectl('get daemonset,pods -o wide')}"
        yield bad(name, "no node has reported a GPU", remedy)
        return
    silent = [_name_of(node) for node in nodes if unix_ns - time_ns(node.status.get("observedAt")) > _FRESH_NS]
    yield good(name, f"{counted(len(nodes), 'node')} with {counted(sum(map(_gpu_count, nodes)), 'GPU')} reported")
    if silent:
        remedy = f"see the log of its pod: {options.kubectl('logs -l app.kubernetes.io/component=node -c plugin')}"
        yield bad(name, f"no report for {round_duration(_FRESH_NS)} of: {_shortened(silent)}", remedy)
    yield from _check_registration(client, [_name_of(node) for node in nodes])


def _check_registration(client: ApiClient, gpu_nodes: list[str]) -> Iterator[CheckResult]:
    """Report nodes whose kubelet knows neither the DRA driver nor the device plugin."""
    name = "kubelet plugin"
    published: set[str] = set()
    try:
        for each in client.list(resource_path(DRA, "resourceslices"), NodeObject).items:
            if each.spec.get("driver") == names.DRIVER:
                published.add(str(each.spec.get("nodeName")))
    except ApiError as error:
        if error.status != NOT_FOUND:  # without the API group there is only the device plugin
            raise
    by_plugin: set[str] = set()
    for node in client.list(resource_path("v1", "nodes"), NodeObject).items:
        if object_at(node.status, "allocatable").get(names.EXTENDED_RESOURCE, "0") != "0":
            by_plugin.add(_name_of(node))
    missing = [node for node in gpu_nodes if node not in published | by_plugin]
    if missing:
        remedy = (
            "run `cotenant kubernetes check` in the container plugin of that node, which examines the sockets of the "
            "kubelet, and see its log"
        )
        yield bad(name, f"not registered with the kubelet of: {_shortened(missing)}", remedy)
    else:
        what = f"{counted(len(published & set(gpu_nodes)), 'node')} by DRA"
        yield good(name, f"registered: {what}, {len(by_plugin & set(gpu_nodes))} by the device plugin")


def _check_runtimes(client: ApiClient) -> Iterator[CheckResult]:
    name = "container runtime"
    problems: dict[str, list[str]] = {}
    versions: set[str] = set()
    for node in client.list(resource_path("v1", "nodes"), NodeObject).items:
        text = str(object_at(node.status, "nodeInfo").get("containerRuntimeVersion", ""))
        runtime, _, version = text.partition("://")
        versions.add(text)
        least = _RUNTIMES.get(runtime)
        if least is None or version_of(version) < least:
            problems.setdefault(text or "(unknown)", []).append(_name_of(node))
    for text, nodes in sorted(problems.items()):
        remedy = "use containerd 1.7 or newer, or CRI-O 1.23 or newer, which add devices by CDI"
        yield bad(name, f"{text} on {_shortened(nodes)} does not support CDI", remedy)
    for text in sorted(versions - set(problems)):
        if text.startswith("containerd://") and version_of(text.partition("://")[2]) < (2, 0):
            remedy = "nothing, if its config has enable_cdi = true; `cotenant kubernetes check` on the node reads it"
            yield note(name, f"{text} supports CDI, which is off by default before 2.0", remedy)
        elif text and text not in problems:
            yield good(name, f"{text} supports CDI")


def _check_controller(client: ApiClient, options: CheckOptions, unix_ns: int) -> Iterator[CheckResult]:
    if not _has_device_class(client):
        yield note("controller", "pods are not placed by a controller", "nothing, with the device plugin")
        return
    path = resource_path("coordination.k8s.io/v1", "leases", options.namespace, names.LEASE)
    lease: JsonObject = client.get(path, dict[str, Any])
    spec = object_at(lease, "spec")
    age_ns = unix_ns - time_ns(spec.get("renewTime"))
    holder = spec.get("holderIdentity") or "(none)"
    if age_ns > _FRESH_NS:
        remedy = f"see its log: {options.log_of('controller')}"
        yield bad(
            "controller", f"{holder} has not renewed the Lease {names.LEASE} for {round_duration(age_ns)}", remedy
        )
    else:
        yield good("controller", f"{holder} leads")


def _check_webhook(client: ApiClient, options: CheckOptions, unix_ns: int) -> Iterator[CheckResult]:
    name = "webhook"
    certificate = b""
    try:
        path = resource_path("v1", "secrets", options.namespace, options.certificate_secret)
        certificate = certificates_of(client.get(path, dict[str, Any])).certificate
    except ApiError as error:
        if error.status not in (NOT_FOUND, _FORBIDDEN):
            raise
        remedy = "nothing, if cert-manager makes it; name its Secret with --secret to examine it"
        what = f"the Secret {options.namespace}/{options.certificate_secret} cannot be read: {error}"
        yield note(name, what, remedy)
    if certificate:
        yield _expiry(certificate, options, unix_ns)
    for plural in CONFIGURATIONS:
        configuration: JsonObject = client.get(
            resource_path(ADMISSION, plural, "", options.configuration), dict[str, Any]
        )
        yield from _check_bundles(plural, configuration, certificate, options)


def _expiry(certificate: bytes, options: CheckOptions, unix_ns: int) -> CheckResult:
    name = "webhook certificate"
    remedy = f"delete it, so that a new one is made: {options.kubectl(f'delete secret {options.certificate_secret}')}"
    try:
        left_ns = validity_of(certificate).until_ns - unix_ns
    except ValueError as error:
        return bad(name, f"the certificate cannot be read: {error}", remedy)
    if left_ns <= 0:
        return bad(name, f"the certificate expired {-left_ns // (86_400 * _SECOND_NS)} days ago", remedy)
    what = f"the certificate is valid for {left_ns // (86_400 * _SECOND_NS)} days"
    return good(name, what) if left_ns > _WEEK_NS else note(name, what, remedy)


def _check_bundles(
    plural: str, configuration: JsonObject, certificate: bytes, options: CheckOptions
) -> Iterator[CheckResult]:
    """Report webhooks whose API server does not trust the certificate."""
    name = "webhook certificate"
    is_trusted = True
    for webhook in list_at(configuration, "webhooks"):
        text = object_at(webhook, "clientConfig").get("caBundle") or ""
        try:
            bundle = base64.b64decode(text)
        except (binascii.Error, ValueError, TypeError):
            bundle = b""
        where = f"{plural}: {webhook.get('name')}"
        if not bundle:
            is_trusted = False
            remedy = f"see the log of the webhook, which writes it: {options.log_of('webhook')}"
            yield bad(name, f"{where} has no caBundle, so that the API server cannot call it", remedy)
        elif certificate and not is_trusted_by(certificate, bundle):
            is_trusted = False
            restart = options.kubectl(f"rollout restart deployment/{options.configuration}-webhook")
            remedy = f"restart the webhook, which writes it: {restart}"
            yield bad(name, f"{where} has a caBundle that does not match the certificate", remedy)
    if is_trusted:
        yield good(name, f"{plural} trusts the certificate" if certificate else f"{plural} has a caBundle")


def _check_translation(client: ApiClient, options: CheckOptions) -> Iterator[CheckResult]:
    """Create a pod in a dry run, and see whether it was translated."""
    name = "webhook"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "cotenant-check",
            "namespace": options.probe_namespace,
            "annotations": {names.ANNOTATION_KIND: "offline"},
        },
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": _PROBE_IMAGE,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "runAsNonRoot": True,
                        "runAsUser": 65534,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                }
            ],
        },
    }
    path = resource_path("v1", "pods", options.probe_namespace)
    try:
        created = msgspec.json.decode(client.create(path, pod, dryRun="All"))
    except ApiError as error:
        if error.status == _FORBIDDEN and "admission webhook" not in str(error):
            raise
        remedy = f"see the log of the webhook: {options.log_of('webhook')}"
        yield bad(name, f"a pod that asks for a GPU cannot be created: {error}", remedy)
        return
    if names.ANNOTATION_GPUS in object_at(object_at(created, "metadata"), "annotations"):
        yield good(name, f"pods of namespace {options.probe_namespace} are translated")
    else:
        remedy = "check webhook.namespaceSelector in the values of the chart and the labels of the namespace"
        yield bad(name, f"pods of namespace {options.probe_namespace} are not translated", remedy)


def time_ns(text: object) -> int:
    """Return a time of the API in nanoseconds since 1970; 0 if it is missing or not a time."""
    try:
        return int(datetime.fromisoformat(str(text)).timestamp() * 1e9)
    except (ValueError, OverflowError):
        return 0


def _name_of(node: NodeObject) -> str:
    return str(node.metadata.get("name", ""))


def _gpu_count(node: NodeObject) -> int:
    return len(list_at(node.status, "gpus"))


def _shortened(nodes: list[str]) -> str:
    more = len(nodes) - _NODES_SHOWN
    return ", ".join(nodes[:_NODES_SHOWN]) + (f" and {more} more" if more > 0 else "")
