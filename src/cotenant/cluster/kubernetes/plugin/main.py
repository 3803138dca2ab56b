"""Runs the kubelet plugin of a node until it is stopped: `cotenant kubernetes plugin`."""

from __future__ import annotations

import functools
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant import __version__
from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import ApiClient, ApiError, resource_path
from cotenant.cluster.kubernetes.api_config import load_api_config
from cotenant.cluster.kubernetes.plugin import device_plugin, protocol
from cotenant.cluster.kubernetes.plugin.device_plugin import DevicePlugin
from cotenant.cluster.kubernetes.plugin.driver import ClaimPreparer, DraService, container_edits
from cotenant.cluster.kubernetes.plugin.edits import CdiDirectory
from cotenant.cluster.kubernetes.plugin.evictions import PodEvictions
from cotenant.cluster.kubernetes.plugin.grants import GrantDirectory
from cotenant.cluster.kubernetes.plugin.host_files import DEFAULT_HOME, HostFiles
from cotenant.cluster.kubernetes.plugin.node_link import GpuDevice, NodeLink, devices_of
from cotenant.cluster.kubernetes.plugin.pods import NodePods, PodAnswers
from cotenant.cluster.kubernetes.plugin.report import StatusMaker
from cotenant.cluster.kubernetes.plugin.reporter import NodeReporter
from cotenant.cluster.kubernetes.plugin.server import Registration, SocketServer
from cotenant.cluster.kubernetes.plugin.slices import SlicePublisher, missing_support
from cotenant.cluster.model.cluster import GpuCondition
from cotenant.errors import ConfigError, CotenantError, WorldError
from cotenant.node import wire
from cotenant.node.directories import SYSTEM, Directories
from cotenant.runner.clock import monotonic_ns, unix_ns
from cotenant.runner.process import name_process
from cotenant.units.instant import SECOND_NS, Instant

MODES: Final = ("auto", "dra", "device-plugin")
KUBELET: Final = Path("/var/lib/kubelet")
OBSERVE_S: Final = 1.0
ATTEND_S: Final = 0.5
DOWN_NS: Final = 15 * SECOND_NS
"""A node daemon that does not answer for this long is reported; a restart takes less."""
PUBLISH_NS: Final = 60 * SECOND_NS
"""The longest time until a ResourceSlice that another program changed or deleted is restored."""
_PLACES_LIMIT: Final = 64
_CDI_KUBELET: Final = (1, 29)
"""From this version on the kubelet passes CDI names of device plugins on."""
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)")


class PluginOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the plugin."""

    node_name: str
    """The name of the Kubernetes node."""
    mode: str = "auto"
    """The DRA driver, the device plugin, or the first of both that the cluster supports."""
    kubeconfig: str = ""
    """Empty: the service account of the pod."""
    context: str = ""
    kubelet_dir: Path = KUBELET
    device_plugin_dir: Path = KUBELET / "device-plugins"
    """The kubelet's directory of device plugins, which is the same whatever its root directory is."""
    cdi_dir: Path = Path("/var/run/cdi")
    home: Path = DEFAULT_HOME
    """The directory of the host for the versions of the hook."""
    directories: Directories = SYSTEM
    """The directories of the node daemon."""
    offline_places: int = 1
    """Offline tenants that may share a GPU (DRA)."""
    places: int = 8
    """Containers that may share a GPU (device plugin)."""

    def check(self) -> None:
        """Raise `ConfigError` for an option that is wrong."""
        if not self.node_name:
            raise ConfigError("--node-name", "", "name the Kubernetes node, or set NODE_NAME from spec.nodeName")
        if self.mode not in MODES:
            raise ConfigError("--mode", self.mode, f"choose {', '.join(MODES[:-1])} or {MODES[-1]}")
        for flag, number in (("--offline-places", self.offline_places), ("--places", self.places)):
            if not 1 <= number <= _PLACES_LIMIT:
                raise ConfigError(flag, number, f"write a number from 1 to {_PLACES_LIMIT}")


class Plugin:
    """The plugin of one node."""

    def __init__(self, options: PluginOptions, api: ApiClient, report: Callable[[str], None]) -> None:
        """`report` logs a line."""
        options.check()
        self._options = options
        self._api = api
        self._report = report
        self._problems: dict[str, str] = {}
        self._lock = threading.Lock()
        self._owner: dict[str, Any] | None = None
        self._kubelet_version = ""
        self._devices: list[GpuDevice] = []
        self._published: list[GpuDevice] | None = None
        self._published_ns: Instant = 0
        self._answered_ns: Instant | None = None
        self._must_publish = threading.Event()
        self._kubelet_inode = 0
        self.mode = options.mode
        self.node = NodeLink(options.directories)
        self.cdi = CdiDirectory(options.cdi_dir)
        self.grants = GrantDirectory(options.directories.runtime / "claims")
        self._files = HostFiles(options.home)
        pods = NodePods(api, options.node_name)
        self._answers = PodAnswers(self.node, pods, report)
        self._evictions = PodEvictions(api, self.node, pods, report, unix_ns)
        self._status = StatusMaker(self.grants.gpus, options.offline_places)
        self._reporter = NodeReporter(api, self.node, options.node_name, self._status, self.owner, unix_ns)
        self._publisher = SlicePublisher(api, options.node_name, options.offline_places, self.owner, report)
        self.preparer = ClaimPreparer(api, self.node, self.cdi, self.grants, self._files, report)
        self._device_plugin: DevicePlugin | None = None
        self._servers: list[SocketServer] = []

    # -- start and end -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Install the files of this version and serve; raise `CotenantError` if that is impossible."""
        self._files.install()
        self.mode = self._choose_mode()
        self._status.allocation = names.ALLOCATION_CLAIM if self.mode == "dra" else names.ALLOCATION_DEVICE_PLUGIN
        if self.mode == "dra":
            self._servers = self._dra_servers()
        else:
            self._servers = [self._device_plugin_server()]
        for server in self._servers:
            server.start()
        self._report(f"cotenant {__version__} serves node {self._options.node_name} as {self.mode}")

    def _choose_mode(self) -> str:
        """Return how to serve; say which feature gates are missing if the DRA driver cannot be used."""
        if self._options.mode == "device-plugin":
            return self._options.mode
        missing = missing_support(self._api, self._options.node_name)
        if not missing:
            return "dra"
        detail = "; ".join(missing)
        if self._options.mode == "dra":
            raise WorldError(f"the DRA driver cannot be used: {detail}; or use --mode device-plugin")
        self._report(f"the DRA driver cannot be used, so the device plugin serves {names.EXTENDED_RESOURCE}: {detail}")
        self._publisher.withdraw()
        return "device-plugin"

    def _dra_servers(self) -> list[SocketServer]:
        """Return the sockets of the driver and of its registration; the kubelet connects to the second one first."""
        kubelet = self._options.kubelet_dir
        endpoint = kubelet / "plugins" / names.DRIVER / "dra.sock"
        service = DraService(self.preparer, self._report)
        registration = Registration(endpoint, self._must_publish.set, self._report)
        return [
            SocketServer(endpoint, {protocol.DRA_SERVICE: service.methods()}),
            SocketServer(
                kubelet / "plugins_registry" / f"{names.DRIVER}-reg.sock",
                {protocol.REGISTRATION_SERVICE: registration.functions()},
            ),
        ]

    def _device_plugin_server(self) -> SocketServer:
        lookup = self.grants.write_lookup()
        self.owner()
        found = _VERSION.match(self._kubelet_version)
        passes_cdi = found is not None and (int(found[1]), int(found[2])) >= _CDI_KUBELET
        self._device_plugin = DevicePlugin(
            self._options.places,
            lambda gpus: container_edits(self._files, self.node, lookup, gpus),
            self.cdi if passes_cdi else None,
            self._report,
        )
        path = self._options.device_plugin_dir / device_plugin.SOCKET
        return SocketServer(path, {protocol.DEVICE_PLUGIN_SERVICE: self._device_plugin.functions()})

    def stop(self) -> None:
        """Stop serving; pods, grants and CDI specs stay."""
        if self._device_plugin is not None:
            self._device_plugin.close()
        for server in reversed(self._servers):
            server.stop()

    def owner(self) -> dict[str, Any]:
        """Return the reference to the Node, with which its objects are deleted."""
        if self._owner is None:
            node = self._api.get(resource_path("v1", "nodes", name=self._options.node_name), dict)
            meta = node["metadata"]
            self._kubelet_version = node.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", "")
            reference = {"apiVersion": "v1", "kind": "Node", "name": meta["name"], "uid": meta["uid"]}
            self._owner = {**reference, "controller": True}
        return self._owner

    # -- what happens about once per second --------------------------------------------------------------------------

    def observe(self, now: Instant) -> None:
        """Keep the sockets, the published GPUs and the report of the node up to date."""
        self._try("sockets", self._keep_sockets)
        tenants: wire.TenantList | None = None
        problem = ""
        try:
            tenants = self.node.tenants()
            self._answered_ns = now
            self._devices = devices_of(tenants.gpus, tenants.devices)
        except CotenantError as error:
            problem = str(error)
            self._answered_ns = now if self._answered_ns is None else self._answered_ns
            if now - self._answered_ns < DOWN_NS:
                return
            disabled = GpuCondition.DISABLED
            self._devices = [msgspec.structs.replace(device, condition=disabled) for device in self._devices]
        self._note("daemon", problem)
        if self._device_plugin is not None:
            self._device_plugin.update(self._devices)
        elif self._servers:
            self._try("slices", lambda: self._publish(now))
        self._try("report", lambda: self._reporter.observe(tenants, problem, now))
        if self._reporter.is_new_daemon:
            self._try("grants", self.preparer.refresh_grants)

    def attend(self) -> None:
        """Answer waiting pods, and evict those of tenants that must end."""
        try:
            tenants = self.node.tenants()
        except CotenantError:
            return  # `observe` reports it
        for uid in tenants.waiting_pods:
            self._try(f"pod {uid}", functools.partial(self._answers.answer, uid))
        self._try("evictions", lambda: self._evictions.handle(tenants))
        waiting = {f"pod {uid}" for uid in tenants.waiting_pods}
        with self._lock:
            for key in [key for key in self._problems if key.startswith("pod ") and key not in waiting]:
                del self._problems[key]

    def _publish(self, now: Instant) -> None:
        is_due = self._must_publish.is_set() or self._published is None or now - self._published_ns >= PUBLISH_NS
        if not is_due and self._published == self._devices:
            return
        self._must_publish.clear()
        try:
            self._publisher.publish(self._devices)
        except CotenantError:
            self._must_publish.set()
            raise
        self._published, self._published_ns = self._devices, now

    def _keep_sockets(self) -> None:
        """Serve again on sockets that were deleted, as a starting kubelet does, and register there."""
        for server in self._servers:
            if not server.is_present():
                if self._device_plugin is not None:
                    self._device_plugin.close()
                    server.stop()
                    self._device_plugin.reopen()
                server.start()
                self._kubelet_inode = 0
        if self._device_plugin is not None:
            self._register()

    def _register(self) -> None:
        """Register at the kubelet after its start, which the inode of its socket shows."""
        directory = self._options.device_plugin_dir
        try:
            inode = (directory / device_plugin.KUBELET_SOCKET).stat().st_ino
        except OSError:
            self._kubelet_inode = 0
            raise WorldError(f"no kubelet serves {directory / device_plugin.KUBELET_SOCKET}; start it") from None
        if inode != self._kubelet_inode:
            device_plugin.register(directory)
            self._kubelet_inode = inode
            self._report(f"the kubelet registered {names.EXTENDED_RESOURCE}")

    # -- problems ----------------------------------------------------------------------------------------------------

    def _try(self, key: str, function: Callable[[], object]) -> None:
        """Call a function that the next round calls again; report its error if it is a new one."""
        try:
            function()
        except CotenantError as error:
            self._note(key, str(error))
        else:
            self._note(key, "")

    def _note(self, key: str, problem: str) -> None:
        with self._lock:
            before = self._problems.pop(key, "")
            if problem:
                self._problems[key] = problem
        if problem != before:
            self._report(problem or f"recovered: {before}")


def serve_plugin(options: PluginOptions) -> int:
    """Run the plugin until SIGTERM or SIGINT; return the exit code."""
    name_process("cotenant-plugin")
    options.check()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    plugin = Plugin(options, ApiClient(load_api_config(options.kubeconfig, options.context)), _print_line)
    if not _start(plugin, stopping):
        return 0
    attending = threading.Thread(target=_repeat, args=(plugin.attend, ATTEND_S, stopping), name="cotenant-attend")
    attending.start()
    try:
        _repeat(lambda: plugin.observe(monotonic_ns()), OBSERVE_S, stopping)
    finally:
        stopping.set()
        attending.join()
        plugin.stop()
    return 0


def _start(plugin: Plugin, stopping: threading.Event) -> bool:
    """Start the plugin as soon as the API server answers; return False if it was stopped before."""
    reported = ""
    while not stopping.is_set():
        try:
            plugin.start()
            return True
        except ApiError as error:
            if error.status and error.status < 500:
                raise
            if str(error) != reported:
                reported = str(error)
                _print_line(f"{error}; trying again")
        stopping.wait(OBSERVE_S)
    return False


def _repeat(function: Callable[[], None], interval_s: float, stopping: threading.Event) -> None:
    while not stopping.is_set():
        function()
        stopping.wait(interval_s)


def _print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
