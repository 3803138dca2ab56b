"""`cotenant kubernetes`, and the commands that also show a Kubernetes cluster: ps, top, jobs and explain."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, Final

from cotenant.cli.command import (
    OUTPUT,
    add_command,
    add_verbs,
    configure,
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
from cotenant.units.text import parse_duration, parse_share

NAMESPACE: Final = "cotenant"
"""The namespace in which the chart is installed unless another is named."""
_REMEDY: Final = 'pip install "cotenant[kubernetes]"'
_ALLOCATIONS: Final = ("auto", "claim", "device-plugin")


def configure_kubernetes(parser: Parser) -> None:
    verbs = add_verbs(parser)
    _configure_plugin(verbs)
    _configure_controller(verbs)
    _configure_webhook(verbs)
    _configure_check(verbs)


def configure_jobs(parser: Parser) -> None:
    configure(parser, _jobs, json=True)
    parser.add_argument("names", nargs="*", metavar="JOB", help="Only Jobs of these names (default: all).")
    selection = group(parser, "Selection")
    selection.add_argument("-A", "--all-namespaces", action="store_true", help="List the Jobs of all namespaces.")
    about = "Namespace of the Jobs (default: that of the kubeconfig)."
    selection.add_argument("-n", "--namespace", default="", metavar="NAME", help=about)
    selection.add_argument("--active", action="store_true", help="Only Jobs that have not completed.")
    about = "Refresh every second, until interrupted."
    group(parser, OUTPUT).add_argument("-w", "--watch", action="store_true", help=about)
    add_api(parser)


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


def add_cluster(parser: Parser, about: str) -> None:
    """Add -A, with which a command is about a Kubernetes cluster, and the flags that say which one."""
    add_api(parser)
    access = group(parser, "Kubernetes API")
    access.add_argument("-A", "--all-nodes", action="store_true", help=about)
    access.add_argument("-n", "--namespace", default="", metavar="NAME", help="With -A: only this namespace.")


def add_namespace(parser: Parser) -> None:
    """Add the flags that name a pod's namespace and cluster."""
    add_api(parser)
    about = "Namespace of the pod (default: that of the kubeconfig)."
    group(parser, "Kubernetes API").add_argument("-n", "--namespace", default="", metavar="NAME", help=about)


def show_pods(options: argparse.Namespace) -> int:
    """Carry out `cotenant ps -A`."""
    from cotenant.cli.render.kubernetes_views import pods_table
    from cotenant.cluster.kubernetes.views import read_cluster
    from cotenant.runner.clock import unix_ns

    with closing(api_client(options)) as client:
        views = read_cluster(client, options.namespace).pod_views(with_ended=options.all)
    if options.json:
        print_json({"pods": views})
    else:
        output().print(pods_table(views, unix_ns()))
    return 0


def show_gpus(options: argparse.Namespace, periods: int | None) -> int:
    """Carry out `cotenant top -A`, this many times; None: until interrupted."""
    from cotenant.cli.render.kubernetes_views import gpus_table
    from cotenant.cluster.kubernetes.views import read_cluster
    from cotenant.runner.clock import unix_ns

    with closing(api_client(options)) as client:
        return _refresh(
            lambda: read_cluster(client, options.namespace).gpu_views(unix_ns()),
            lambda views: print_json({"gpus": views}) if options.json else None,
            gpus_table,
            periods,
            is_live=not options.json,
        )


def _jobs(options: argparse.Namespace) -> int:
    from cotenant.cli.render.kubernetes_views import jobs_table
    from cotenant.cluster.kubernetes.views import JobView, read_jobs
    from cotenant.runner.clock import unix_ns

    if options.all_namespaces and options.namespace:
        raise ConfigError("--namespace", options.namespace, "has no effect with --all-namespaces; omit one of them")

    def read(client: Any) -> list[JobView]:
        views = read_jobs(client, "" if options.all_namespaces else options.namespace or client.config.namespace)
        chosen = [view for view in views if not options.names or view.name in options.names]
        return [view for view in chosen if not options.active or view.succeeded < view.completions]

    with closing(api_client(options)) as client:
        return _refresh(
            lambda: read(client),
            lambda views: print_json({"jobs": views}) if options.json else None,
            lambda views: jobs_table(views, unix_ns()),
            None if options.watch else 1,
            is_live=not options.json,
        )


def show_pod_explanation(options: argparse.Namespace, name: str) -> int:
    """Carry out `cotenant explain pod`."""
    from cotenant.cli.render.kubernetes_views import print_explanation
    from cotenant.cluster.kubernetes.views import explain_pod

    with closing(api_client(options)) as client:
        explanation = explain_pod(client, options.namespace or client.config.namespace, name)
    if options.json:
        print_json(explanation)
    else:
        print_explanation(output(), explanation)
    return 0


def _refresh(
    read: Callable[[], Any],
    print_record: Callable[[Any], None],
    render: Callable[[Any], Any],
    periods: int | None,
    *,
    is_live: bool,
) -> int:
    """Read and show something once per second, in place on a terminal."""
    from rich.live import Live

    from cotenant.runner.clock import pause

    console = output()
    live_view = is_live and console.is_terminal and periods != 1
    with Live(console=console, auto_refresh=False) if live_view else nullcontext() as live:
        for period in itertools.count(1):
            value = read()
            if live is not None:
                live.update(render(value), refresh=True)
            elif is_live:
                console.print(render(value))
            else:
                print_record(value)
            if period == periods:
                break
            pause(1.0)
    return 0


def _configure_plugin(verbs: Any) -> None:
    about = "Run the kubelet plugin of a node: DRA driver or device plugin, container edits and reports."
    parser = add_command(verbs, "plugin", about, _plugin, "directories")
    add_api(parser)
    node = group(parser, "Node")
    about = "Name of the Kubernetes node (default: $NODE_NAME)."
    node.add_argument("--node-name", default="", metavar="NODE_NAME", help=about)
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
    about = "Whether namespaces that received less GPU time go first: yes or no (default no)."
    placement.add_argument("--fair", default="no", metavar="FAIR", help=about)
    about = "Slowdown of online work beyond which a pair is not placed together (default 20%%)."
    placement.add_argument("--slowdown-limit", default="20%", metavar="PERCENT", help=about)
    about = "A node without a report for this time gets no more pods (default 2min)."
    placement.add_argument("--node-lease", default="2min", metavar="DURATION", help=about)
    about = "A placed pod of a Job that kube-scheduler cannot bind for this time is evicted (default 1min)."
    placement.add_argument("--unschedulable-after", default="1min", metavar="DURATION", help=about)
    about = "Offline pods are evicted for an online pod that finds no GPU for this time (default 5s)."
    placement.add_argument("--make-room-after", default="5s", metavar="DURATION", help=about)
    requests = group(parser, "Requests to the API")
    for flag, default, about in (
        ("--requests-per-second", "100", "Requests per second on average"),
        ("--request-burst", "200", "Requests that may be sent at once after a pause"),
        ("--reports-per-second", "20", "Conditions and events per second on average"),
        ("--workers", "8", "Requests at a time"),
    ):
        requests.add_argument(flag, default=default, metavar="N", help=f"{about} (default {default}).")
    own = group(parser, "Controller")
    about = "Namespace for the Lease and the learned predictions (default: that of the pod or the kubeconfig)."
    own.add_argument("-n", "--namespace", default="", metavar="NAME", help=about)
    about = "HOST:PORT of /metrics and /healthz; empty: none (default)."
    own.add_argument("--metrics", default="", metavar="METRICS", help=about)
    own.add_argument("--log", default="text", metavar="LOG", help="Lines of the log: text or json (default text).")


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
    about = "What a pod gets: claim (DRA), device-plugin (its resource), or auto: what the nodes report (default)."
    pods.add_argument("--allocation", default="auto", metavar="auto|claim|device-plugin", help=about)
    about = "Translate nvidia.com/gpu also where no other name of HAMi and no annotation of cotenant is used."
    pods.add_argument("--translate-plain-gpu", action="store_true", help=about)


def _configure_check(verbs: Any) -> None:
    about = "Check API access, feature gates, kubelet plugin, webhook, CDI and container runtime; exit code 1 if bad."
    parser = add_command(verbs, "check", about, _check, json=True)
    add_api(parser)
    what = group(parser, "Installation")
    about = "Namespace of the installation (default cotenant)."
    what.add_argument("-n", "--namespace", default=NAMESPACE, metavar="NAME", help=about)
    about = "Name of both webhook configurations, with which all names of the chart begin (default cotenant)."
    what.add_argument("--configuration", default="cotenant", metavar="NAME", help=about)
    about = "Secret with the certificate of the webhook (default: the configuration's name + -webhook-certificate)."
    what.add_argument("--secret", default="", metavar="NAME", help=about)
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
        round_ns=parse_duration(options.round, field="--round"),
        place=options.place,
        slowdown_limit_ppm=parse_share(options.slowdown_limit, field="--slowdown-limit"),
        fair=_choice("--fair", options.fair, ("yes", "no")) == "yes",
        node_lease_ns=parse_duration(options.node_lease, field="--node-lease"),
        unschedulable_ns=parse_duration(options.unschedulable_after, field="--unschedulable-after"),
        online_wait_ns=parse_duration(options.make_room_after, field="--make-room-after"),
        requests_per_second=whole_number("--requests-per-second", options.requests_per_second),
        request_burst=whole_number("--request-burst", options.request_burst),
        reports_per_second=whole_number("--reports-per-second", options.reports_per_second),
        workers=whole_number("--workers", options.workers),
        metrics=options.metrics,
        log=_choice("--log", options.log, ("text", "json")),
    )
    serve_controller(controller)
    return 0


def _webhook(options: argparse.Namespace) -> int:
    need_packages("cotenant kubernetes webhook", _REMEDY, "cryptography", "yaml")
    from cotenant.cluster.kubernetes.webhook.main import WebhookOptions, serve_webhook
    from cotenant.cluster.kubernetes.webhook.pod_request import AllocationMode

    chosen = _choice("--allocation", options.allocation, _ALLOCATIONS)
    allocation = None if chosen == "auto" else AllocationMode(chosen)
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
            allocation=allocation,
            translate_plain_gpu=options.translate_plain_gpu,
        )
        serve_webhook(client, webhook, print_line)
    return 0


def _choice(flag: str, text: str, choices: Sequence[str]) -> str:
    if text not in choices:
        raise ConfigError(flag, text, f"choose {' or '.join(choices)}")
    return text


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
        node_name=os.environ.get("NODE_NAME", ""),
        paths=NodePaths(kubelet=options.kubelet_dir, cdi=options.cdi_dir),
    )
    with closing(api_client(options)) as client:
        results = list(check_cluster(client, checked, unix_ns()))
    if options.json:
        print_json({"results": results})
    else:
        show_results(output(), results)
    return 1 if any(result.level is Level.BAD for result in results) else 0
