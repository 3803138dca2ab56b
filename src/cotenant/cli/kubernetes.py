"""`cotenant kubernetes`: run the kubelet plugin, the controller and the webhook, and check a cluster."""

from __future__ import annotations

import argparse
import os
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from cotenant.cli.command import (
    add_command,
    add_verbs,
    find,
    group,
    need_packages,
    output,
    print_json,
    print_line,
    whole_number,
)
from cotenant.cli.parser import Parser
from cotenant.errors import ConfigError
from cotenant.units.text import parse_duration

NAMESPACE: Final = "cotenant"
"""The namespace in which the chart is installed unless another is named."""
_REMEDY: Final = 'pip install "cotenant[kubernetes]"'
_ALLOCATIONS: Final = ("claim", "device-plugin")


def configure_kubernetes(parser: Parser) -> None:
    verbs = add_verbs(parser)
    _configure_plugin(verbs)
    _configure_controller(verbs)
    _configure_webhook(verbs)
    _configure_check(verbs)


def add_api(parser: Parser) -> None:
    """Add the flags that say which cluster is meant."""
    access = group(parser, "Kubernetes API")
    about = "Kubeconfig file (default: $KUBECONFIG, the service account of the pod, or ~/.kube/config)."
    access.add_argument("--kubeconfig", default="", metavar="FILE", help=about)
    about = "Context of the kubeconfig (default: its current one)."
    access.add_argument("--context", default="", metavar="NAME", help=about)


def api_client(options: argparse.Namespace) -> Any:
    """Return the client of the API server that the flags name."""
    need_packages("a command about a Kubernetes cluster", _REMEDY, "yaml")
    from cotenant.cluster.kubernetes.api import ApiClient
    from cotenant.cluster.kubernetes.api_config import load_api_config

    return ApiClient(load_api_config(options.kubeconfig, options.context))


def _configure_plugin(verbs: Any) -> None:
    about = "Run the kubelet plugin of a node: DRA driver or device plugin, container edits and reports."
    parser = add_command(verbs, "plugin", about, _plugin, "directories")
    add_api(parser)
    node = group(parser, "Node")
    about = "Name of the Kubernetes node (default: $NODE_NAME)."
    node.add_argument("--node-name", default="", metavar="NAME", help=about)
    about = "How GPUs are offered: dra, device-plugin, or auto (default), the first of both that the cluster supports."
    node.add_argument("--mode", default="auto", metavar="MODE", help=about)
    about = "Offline tenants that may share a GPU, with the DRA driver (default 1)."
    node.add_argument("--offline-places", default="1", metavar="N", help=about)
    about = "Containers that may share a GPU, with the device plugin (default 8)."
    node.add_argument("--places", default="8", metavar="N", help=about)
    files = group(parser, "Files")
    about = "Root directory of the kubelet (default /var/lib/kubelet)."
    files.add_argument("--kubelet-dir", default="/var/lib/kubelet", metavar="DIR", help=about)
    about = "Directory of the kubelet for device plugins (default /var/lib/kubelet/device-plugins)."
    files.add_argument("--device-plugin-dir", default="/var/lib/kubelet/device-plugins", metavar="DIR", help=about)
    about = "Directory for CDI specifications, as the container runtime reads it (default /var/run/cdi)."
    files.add_argument("--cdi-dir", default="/var/run/cdi", metavar="DIR", help=about)
    about = "Directory of the host for the versions of the hook (default /usr/local/cotenant)."
    files.add_argument("--home", default="/usr/local/cotenant", metavar="DIR", help=about)


def _configure_controller(verbs: Any) -> None:
    parser = add_command(verbs, "controller", "Run the placement controller of a cluster.", _controller)
    add_api(parser)
    placement = group(parser, "Placement")
    about = "Time between two placement rounds (default 10s)."
    placement.add_argument("--round", default="10s", metavar="DURATION", help=about)
    about = "Placement policy, as of `cotenant cluster plan` (default match)."
    placement.add_argument("--place", default="match", metavar="POLICY", help=about)
    about = "Namespaces that received less GPU time go first."
    placement.add_argument("--fair", action="store_true", help=about)
    own = group(parser, "Controller")
    about = "Namespace for the Lease and the learned predictions (default: that of the pod, else cotenant)."
    own.add_argument("-n", "--namespace", default="", metavar="NAME", help=about)
    about = "Name under which the Lease is held (default: the host name)."
    own.add_argument("--identity", default="", metavar="NAME", help=about)
    about = "Address for Prometheus metrics and probes; empty: none (default 0.0.0.0:9408)."
    own.add_argument("--metrics", default="0.0.0.0:9408", metavar="ADDRESS", help=about)


def _configure_webhook(verbs: Any) -> None:
    about = "Run the admission webhook, which turns annotations and resource names of pods into claims."
    parser = add_command(verbs, "webhook", about, _webhook)
    add_api(parser)
    listener = group(parser, "Listener")
    about = "Address to listen at (default 0.0.0.0)."
    listener.add_argument("--address", default="0.0.0.0", metavar="ADDRESS", help=about)  # noqa: S104
    listener.add_argument("--port", default="8443", metavar="N", help="Port to listen at (default 8443).")
    certificate = group(parser, "Certificate")
    about = "Namespace of the Service and the Secret (default: that of the pod, else cotenant)."
    certificate.add_argument("-n", "--namespace", default="", metavar="NAME", help=about)
    about = "Service through which the API server calls the webhook (default cotenant-webhook)."
    certificate.add_argument("--service", default="cotenant-webhook", metavar="NAME", help=about)
    about = "Secret in which the webhook keeps its certificate (default cotenant-webhook-certificate)."
    certificate.add_argument("--secret", default="cotenant-webhook-certificate", metavar="NAME", help=about)
    about = "Name of the mutating and the validating webhook configuration (default cotenant)."
    certificate.add_argument("--configuration", default="cotenant", metavar="NAME", help=about)
    about = "Directory with tls.crt and tls.key that cert-manager renews; the Secret is then not used."
    certificate.add_argument("--certificate-directory", default="", metavar="DIR", help=about)
    pods = group(parser, "Pods")
    about = "What a pod gets: a claim (default) for the DRA driver, or device-plugin for its resource."
    pods.add_argument("--allocation", default="claim", metavar="claim|device-plugin", help=about)
    about = "Translate nvidia.com/gpu also where no other name of HAMi and no annotation of cotenant is used."
    pods.add_argument("--translate-plain-gpu", action="store_true", help=about)


def _configure_check(verbs: Any) -> None:
    about = "Check API access, feature gates, kubelet plugin, webhook, CDI and container runtime; exit code 1 if bad."
    parser = add_command(verbs, "check", about, _check, json=True)
    add_api(parser)
    what = group(parser, "Installation")
    about = "Namespace of the installation (default cotenant)."
    what.add_argument("-n", "--namespace", default=NAMESPACE, metavar="NAME", help=about)
    about = "Name of the mutating and the validating webhook configuration (default cotenant)."
    what.add_argument("--configuration", default="cotenant", metavar="NAME", help=about)
    about = "Secret with the certificate of the webhook (default cotenant-webhook-certificate)."
    what.add_argument("--secret", default="cotenant-webhook-certificate", metavar="NAME", help=about)
    about = "Namespace in which a pod is created in a dry run (default: default)."
    what.add_argument("--probe-namespace", default="default", metavar="NAME", help=about)
    about = "Root directory of the kubelet, if this machine is a node (default /var/lib/kubelet)."
    what.add_argument("--kubelet-dir", default="/var/lib/kubelet", metavar="DIR", help=about)
    about = "Directory for CDI specifications (default /var/run/cdi)."
    what.add_argument("--cdi-dir", default="/var/run/cdi", metavar="DIR", help=about)


def _plugin(options: argparse.Namespace) -> int:
    need_packages("cotenant kubernetes plugin", _REMEDY, "grpc", "google.protobuf", "yaml")
    from cotenant.cluster.kubernetes.plugin.main import PluginOptions, serve_plugin

    plugin = PluginOptions(
        node_name=options.node_name or os.environ.get("NODE_NAME", ""),
        mode=options.mode,
        kubeconfig=options.kubeconfig,
        context=options.context,
        kubelet_dir=Path(options.kubelet_dir),
        device_plugin_dir=Path(options.device_plugin_dir),
        cdi_dir=Path(options.cdi_dir),
        home=Path(options.home),
        directories=find(options)[1],
        offline_places=whole_number("--offline-places", options.offline_places),
        places=whole_number("--places", options.places),
    )
    return serve_plugin(plugin)


def _controller(options: argparse.Namespace) -> int:
    need_packages("cotenant kubernetes controller", _REMEDY, "yaml")
    from cotenant.cluster.kubernetes.controller.main import ControllerOptions, serve_controller

    controller = ControllerOptions(
        kubeconfig=options.kubeconfig,
        context=options.context,
        namespace=options.namespace,
        identity=options.identity,
        metrics=options.metrics,
        round_ns=parse_duration(options.round, field="--round"),
        place=options.place,
        fair=options.fair,
    )
    return serve_controller(controller)


def _webhook(options: argparse.Namespace) -> int:
    need_packages("cotenant kubernetes webhook", _REMEDY, "cryptography", "yaml")
    from cotenant.cluster.kubernetes.webhook.main import WebhookOptions, serve_webhook
    from cotenant.cluster.kubernetes.webhook.pod_request import Allocation

    if options.allocation not in _ALLOCATIONS:
        raise ConfigError("--allocation", options.allocation, f"choose {' or '.join(_ALLOCATIONS)}")
    port = whole_number("--port", options.port)
    if port > 65535:
        raise ConfigError("--port", options.port, "write a port from 0 to 65535")
    with closing(api_client(options)) as client:
        webhook = WebhookOptions(
            address=options.address,
            port=port,
            namespace=options.namespace or _own_namespace(client),
            service=options.service,
            configuration=options.configuration,
            secret=options.secret,
            certificate_directory=options.certificate_directory,
            allocation=Allocation(options.allocation),
            translate_plain_gpu=options.translate_plain_gpu,
        )
        serve_webhook(client, webhook, print_line)
    return 0


def _own_namespace(client: Any) -> str:
    """Return the namespace of the pod; outside a pod, that of the chart."""
    namespace: str = client.config.namespace
    return namespace if namespace != "default" else NAMESPACE


def _check(options: argparse.Namespace) -> int:
    need_packages("cotenant kubernetes check", _REMEDY, "cryptography", "yaml")
    from cotenant.cli.render.kubernetes import show_results
    from cotenant.cluster.kubernetes.check import CheckOptions, check_cluster
    from cotenant.cluster.kubernetes.check_node import NodePaths
    from cotenant.node.client.doctor import Level
    from cotenant.runner.clock import unix_ns

    checked = CheckOptions(
        namespace=options.namespace,
        configuration=options.configuration,
        secret=options.secret,
        probe_namespace=options.probe_namespace,
        paths=NodePaths(kubelet=options.kubelet_dir, cdi=options.cdi_dir),
    )
    with closing(api_client(options)) as client:
        results = list(check_cluster(client, checked, unix_ns()))
    if options.json:
        print_json({"results": results})
    else:
        show_results(output(), results)
    return 1 if any(result.level is Level.BAD for result in results) else 0
