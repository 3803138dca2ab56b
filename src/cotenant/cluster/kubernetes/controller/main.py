"""Composition of the controller process: client, threads, leader election, metrics and the main loop."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from cotenant.cluster.kubernetes.api import ApiClient
from cotenant.cluster.kubernetes.api_config import ApiConfig, load_api_config
from cotenant.cluster.kubernetes.controller.controller import Controller, ControllerSettings
from cotenant.cluster.kubernetes.controller.dispatcher import Limits
from cotenant.cluster.kubernetes.controller.election import Election
from cotenant.cluster.kubernetes.controller.metrics import PlacementMetrics, metrics_page
from cotenant.cluster.kubernetes.controller.objects import (
    CLAIM_SELECTOR,
    CLAIMS,
    NODES,
    POD_SELECTOR,
    PODS,
    Claim,
    KubeNode,
    Pod,
)
from cotenant.cluster.kubernetes.controller.placement import PlacementOptions
from cotenant.cluster.kubernetes.controller.predictions import Learned
from cotenant.cluster.kubernetes.controller.sources import (
    AnswerMessage,
    ChangeMessage,
    ElectionWon,
    Elector,
    Inbox,
    LeaseLost,
    ListMessage,
    Message,
    RequestWorkers,
    Trouble,
    WatchSource,
)
from cotenant.cluster.kubernetes.gpu_node import GpuNode, gpu_node_path
from cotenant.cluster.model.cluster import ClusterSettings
from cotenant.cluster.model.event import ClusterAction, ClusterEvent, StartJob
from cotenant.cluster.policy import LIVE
from cotenant.errors import ConfigError, WorldError
from cotenant.node.daemon.log import NodeLog
from cotenant.node.daemon.metrics.http import CONNECTIONS, MetricsListener
from cotenant.runner.address import listen_at
from cotenant.runner.clock import LiveClock, monotonic_ns, unix_ns
from cotenant.runner.live_loop import IoLoop, stop_on_signals
from cotenant.runner.process import name_process
from cotenant.units.instant import SECOND_NS, Instant
from cotenant.units.text import format_duration

_SOURCES: Final = ("pods", "claims", "gpunodes", "nodes")


class ControllerOptions(NamedTuple):
    """Options of `cotenant kubernetes controller`; durations are in nanoseconds."""

    kubeconfig: str = ""
    """Empty: $KUBECONFIG, else the service account of the pod, else ~/.kube/config."""
    context: str = ""
    namespace: str = ""
    """Namespace of the Lease and the predictions; empty: that of the configuration."""
    round_ns: int = 10 * SECOND_NS
    place: str = "match"
    slowdown_limit_ppm: int = ClusterSettings().slowdown_limit_ppm
    fair: bool = False
    node_lease_ns: int = PlacementOptions().lease_ns
    unschedulable_ns: int = PlacementOptions().unschedulable_ns
    online_wait_ns: int = PlacementOptions().online_wait_ns
    requests_per_second: float = Limits().per_second
    request_burst: int = Limits().burst
    reports_per_second: float = Limits().reports_per_second
    workers: int = Limits().in_flight
    """Requests at a time."""
    identity: str = ""
    """Name under which the Lease is held; empty: that of the pod, or outside a pod a name that no other process has."""
    metrics: str = ""
    """HOST:PORT of /metrics and /healthz; empty: none."""
    log: str = "text"
    """"text" or "json"."""

    def settings(self, namespace: str) -> ControllerSettings:
        """Return the settings of the controller; raise `ConfigError` for values out of range."""
        if self.place not in LIVE:
            raise ConfigError("place", self.place, f"write one of: {', '.join(LIVE)}")
        for field, duration_ns, smallest_ns in (
            ("round", self.round_ns, SECOND_NS // 10),
            ("node-lease", self.node_lease_ns, SECOND_NS),
            ("unschedulable-after", self.unschedulable_ns, SECOND_NS),
            ("make-room-after", self.online_wait_ns, SECOND_NS),
        ):
            if duration_ns < smallest_ns:
                remedy = f"must be at least {format_duration(smallest_ns)}"
                raise ConfigError(field, format_duration(duration_ns), remedy)
        for field, value in (
            ("requests-per-second", self.requests_per_second),
            ("reports-per-second", self.reports_per_second),
            ("request-burst", self.request_burst),
            ("workers", self.workers),
        ):
            if value < 1:
                raise ConfigError(field, value, "must be at least 1")
        cluster = ClusterSettings(
            round_ns=self.round_ns, place=self.place, fair=self.fair, slowdown_limit_ppm=self.slowdown_limit_ppm
        )
        return ControllerSettings(
            namespace,
            cluster,
            Limits(self.requests_per_second, self.request_burst, self.reports_per_second, self.workers),
            PlacementOptions(self.node_lease_ns, self.unschedulable_ns, self.online_wait_ns),
        )


def serve_controller(options: ControllerOptions, config: ApiConfig | None = None) -> None:
    """Run a controller until SIGTERM, or until it loses the Lease, which raises `WorldError`."""
    name_process("cotenant-controller")
    log = NodeLog(options.log)
    config = config or load_api_config(options.kubeconfig, options.context)
    # Unix time that only grows: the creation of a pod is then an instant of the same clock.
    clock = LiveClock(unix_ns() - monotonic_ns())
    with contextlib.ExitStack() as opened:
        process = ControllerProcess(options, config, clock, log.report, opened)
        stop_on_signals(process.loop, process.loop.stop)
        log.report(f"the controller uses the Kubernetes API at {config.server} and waits for its Lease")
        reason = process.run()
    if process.lost:
        raise WorldError(f"the controller stops: {reason}")
    log.report(f"the controller stopped: {reason}")


def own_identity(environment: Mapping[str, str]) -> str:
    """Return the name under which this process holds the Lease.

    In a pod it is the pod's name: a restarted container continues the Lease of its predecessor, which has ended.
    """
    host = socket.gethostname()
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return host
    return f"{host}_{os.getpid()}_{secrets.token_hex(4)}"


class ControllerProcess:
    """The main loop and the threads around it."""

    def __init__(
        self,
        options: ControllerOptions,
        config: ApiConfig,
        clock: LiveClock,
        report: Callable[[str], None],
        opened: contextlib.ExitStack,
    ) -> None:
        self._clock, self._report = clock, report
        self._client = ApiClient(config)
        namespace = options.namespace or config.namespace
        settings = options.settings(namespace)
        self.loop = IoLoop(clock)
        opened.callback(self.loop.close)
        self._inbox = Inbox(self.loop, self._handle)
        self._sources: list[WatchSource] = []
        opened.callback(self._close_sources)
        workers = RequestWorkers(self._client, settings.limits.in_flight, self._inbox)
        opened.callback(workers.close)
        self.controller = Controller(workers.send, settings, clock, self._observe)
        self._unlisted = set(_SOURCES)
        self._learned: Learned = ()
        self._is_leader = False
        self.lost = False
        self._troubles: dict[str, str] = {}
        self.elected_at: Instant = 0
        identity = options.identity or own_identity(os.environ)
        self._elector = Elector(
            Election(self._client, namespace, identity, unix_ns), self._client, namespace, clock, self._inbox
        )
        opened.callback(self._elector.close)
        self.loop.add_timer(self)
        if options.metrics:
            listener = opened.enter_context(listen_at(options.metrics, "metrics", CONNECTIONS))
            shown = MetricsListener(
                self.loop, clock, listener, lambda: metrics_page(self.metrics), {"/healthz": self._health}
            )
            opened.callback(shown.close)
            report(f"metrics for Prometheus: {shown.address}")

    def _close_sources(self) -> None:
        self._inbox.close()
        for source in self._sources:
            source.close()

    def run(self) -> str:
        """Run until the loop is stopped, and return why."""
        self._elector.start()
        return self.loop.run()

    # -- timer of the loop ------------------------------------------------------------------------------------------

    def next_wakeup(self) -> Instant | None:
        """Return when the controller has something to do."""
        return self.controller.next_wakeup()

    def wake(self, now: Instant) -> None:
        """Let the controller do what is due."""
        self.controller.wake(now)

    # -- messages of the threads ------------------------------------------------------------------------------------

    def _handle(self, message: Message) -> None:
        now = self._clock.now()
        match message:
            case ChangeMessage(source, is_gone, item):
                del source
                self._changed(item, now, is_gone=is_gone)
            case AnswerMessage(ticket, response):
                self.controller.answered(ticket, response, now)
            case ListMessage(source, items):
                self._listed(source, items, now)
            case ElectionWon(learned):
                self._elected(learned)
            case LeaseLost(why):
                self.lost = True
                self.loop.stop(why)
            case Trouble(source, text):
                self._trouble(source, text)
        self.controller.dispatcher.dispatch(now)

    def _elected(self, learned: Learned) -> None:
        self._is_leader, self._learned = True, learned
        self.elected_at = self._clock.now()
        self._report("the controller holds the Lease and lists the objects of the cluster")
        for name, path, kind, selectors in (
            ("pods", PODS, Pod, POD_SELECTOR),
            ("claims", CLAIMS, Claim, CLAIM_SELECTOR),
            ("gpunodes", gpu_node_path(), GpuNode, {}),
            ("nodes", NODES, KubeNode, {}),
        ):
            source = WatchSource(name, ApiClient(self._client.config), path, kind, selectors, self._inbox)
            self._sources.append(source)
            source.start()

    def _listed(self, source: str, items: list[object], now: Instant) -> None:
        placement = self.controller.placement
        handlers: dict[str, Callable[..., None]] = {
            "pods": placement.pods_listed,
            "claims": placement.claims_listed,
            "gpunodes": placement.gpu_nodes_listed,
            "nodes": placement.kube_nodes_listed,
        }
        handlers[source](items, now)
        if source in self._unlisted:
            self._unlisted.discard(source)
            if not self._unlisted:
                self._start(now)

    def _start(self, now: Instant) -> None:
        self.controller.start(self._learned, now)
        gc.collect()
        gc.freeze()  # what was listed lives for long: later collections need not look at it
        view, fleet = self.controller.placement.view, self.controller.placement.fleet
        waiting = sum(1 for _ in view.gated())
        self._report(f"the controller places pods: {len(fleet.nodes)} nodes, {len(view.pods)} pods, {waiting} wait")

    def _changed(self, item: object, now: Instant, *, is_gone: bool) -> None:
        placement = self.controller.placement
        match item:
            case Pod():
                placement.pod_gone(item.uid, now, item) if is_gone else placement.pod_changed(item, now)
            case Claim():
                (placement.claim_gone if is_gone else placement.claim_changed)(item, now)
            case GpuNode():
                placement.gpu_node_gone(item.metadata.name, now) if is_gone else placement.gpu_node_changed(item, now)
            case KubeNode():
                placement.kube_node_gone(item.metadata.name, now) if is_gone else placement.kube_node_changed(item, now)

    def _trouble(self, source: str, text: str) -> None:
        """Report a problem once, and when it is over."""
        if text and text != self._troubles.get(source):
            self._report(text)
            self._troubles[source] = text
        elif not text and self._troubles.pop(source, ""):
            self._report(f"{source}: the Kubernetes API answers again")

    # -- for people -------------------------------------------------------------------------------------------------

    def _observe(self, now: Instant, event: ClusterEvent, actions: list[ClusterAction]) -> None:
        del now, event
        for action in actions:
            if isinstance(action, StartJob):
                gpus = ", ".join(str(gpu) for gpu in action.gpus)
                self._report(f"{action.attempt.job.partition('@')[0]} is placed on {action.node}, GPU {gpus}")
            elif action.attempt.number:
                self._report(f"{action.attempt.job.partition('@')[0]} on {action.node} is to end: {action.why}")

    def _health(self) -> tuple[str, str]:
        if not self._is_leader:
            return "200 OK", "standby\n"
        if self._unlisted:
            return "200 OK", f"lists {', '.join(sorted(self._unlisted))}\n"
        if self._troubles:
            return "200 OK", "\n".join(self._troubles.values()) + "\n"
        return "200 OK", "ok\n"

    def metrics(self) -> PlacementMetrics:
        """Return the metrics of this instant."""
        controller = self.controller
        starts, dispatcher = controller.placement.starts, controller.dispatcher
        silent = sum(record.is_silent for record in controller.placement.fleet.nodes.values())
        return PlacementMetrics(
            self._is_leader,
            controller.machine.counts(),
            silent,
            controller.round_ns.histogram(),
            starts.released,
            starts.refused,
            starts.evicted,
            dispatcher.sent,
            dispatcher.failed,
            dispatcher.waiting,
        )
