"""Requests about the daemon itself: its status, and reading the config again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cotenant import __version__
from cotenant.errors import CotenantError
from cotenant.node import wire
from cotenant.node.config.file import Config
from cotenant.node.config.reload import describe_changes, difference
from cotenant.node.daemon.access import Access
from cotenant.node.daemon.discovery import GpuDiscovery
from cotenant.node.daemon.guarded_host import GuardedHost, HostGuards
from cotenant.node.daemon.listener import ListeningSockets, LiveListener
from cotenant.node.daemon.log import DefectLog, NodeLog
from cotenant.node.daemon.node_files import NodeFiles
from cotenant.node.daemon.observer import TurnObserver
from cotenant.node.daemon.rediscovery import Rediscovery
from cotenant.node.daemon.request_limit import DroppedRequests, RequestLimiter
from cotenant.node.daemon.systemd import ServiceManager
from cotenant.node.directories import Directories, link_socket, listen
from cotenant.node.model.admission import Reject
from cotenant.node.model.event import Event, GpuCalibrated, NodeStopping, SettingsChanged
from cotenant.node.model.protection import OnBypass
from cotenant.node.model.tenant import GPU_LIMIT
from cotenant.node.state.node import NodeMachine
from cotenant.runner.background import BackgroundTasks
from cotenant.runner.host import Effects
from cotenant.runner.journal_file import FileJournal
from cotenant.runner.live_loop import LiveLoop, stop_on_signals
from cotenant.runner.ports import Clock
from cotenant.units.instant import Instant
from cotenant.units.text import counted


class ConfigSource(NamedTuple):
    """Where the config of a node comes from."""

    load: Callable[[], Config]
    """Reads the config again, flags over file; raises `CotenantError` if it is invalid."""
    path: Path | None = None


class ServiceParts(NamedTuple):
    """The parts of a node whose state the service reports."""

    machine: NodeMachine
    host: GuardedHost
    files: NodeFiles
    dropped: DroppedRequests
    is_mps_ready: Callable[[], bool | None]
    """Returns None if the node runs no MPS."""
    access: Access
    reopen_sockets: Callable[[], None]
    """Creates the sockets again, with the modes that the present operators need."""


class NodeGuard:
    """The parts that keep a node serving: its files, the guarded host of its turns, and the requests about it."""

    def __init__(
        self,
        config: Config,
        source: ConfigSource | None,
        directories: Directories,
        log: NodeLog,
        access: Access,
        reserve_pages: Callable[[int], str],
    ) -> None:
        """Create and lock the directories.

        `reserve_pages` prepares the pages of this many further tenants; it returns why it cannot, or nothing.
        """
        self._reserve_pages = reserve_pages
        self._config = config
        self._source = source
        self._directories = directories
        self._log = log
        self._access = access
        self.files = NodeFiles(directories)
        self._tasks: BackgroundTasks | None = None

    def listen(self) -> ListeningSockets:
        """Return the listening sockets; everybody may connect to the tenants'."""
        sockets = ListeningSockets(
            listen(self._directories.tenant_socket, 0o666),
            listen(self._directories.operator_socket, *self._access.socket_mode()),
        )
        link_socket(self._directories.tenant_socket, self._directories.tenant_directory)
        return sockets

    def begin(
        self,
        loop: LiveLoop[Event],
        clock: Clock,
        machine: NodeMachine,
        effects: Effects,
        journal: FileJournal,
        server: LiveListener,
        observer: TurnObserver,
        is_mps_ready: Callable[[], bool | None],
    ) -> None:
        """Bind the host to the loop and answer requests about the daemon."""
        dropped = DroppedRequests(loop.post)

        def refuse(peer: int, reject: Reject) -> None:
            observer.refusals[reject.reason.value] += 1
            server.refuse(peer, reject)

        def reopen_sockets() -> None:
            server.replace_sockets(self.listen())
            for path in (self._directories.tenant_socket, self._directories.operator_socket):
                self.files.add_socket(path, reopen_sockets)

        def problem() -> str:
            devices = min(max(1, len(machine.settings.gpus)), GPU_LIMIT)
            return self.files.problem() or self._reserve_pages((len(machine.waiting_peers()) + 1) * devices)

        guards = HostGuards(refuse, problem, loop.post, RequestLimiter(os.geteuid()), dropped)
        self._host = GuardedHost(machine, effects, journal, self._directories.state, observer, guards)
        parts = ServiceParts(machine, self._host, self.files, dropped, is_mps_ready, self._access, reopen_sockets)
        service = NodeService(self._config, self._source, self._directories, clock, self._log, parts, loop.post)
        self._service = service
        server.service = service.answer
        server.on_violation = lambda uid: dropped.count(uid, "violations of the protocol", clock.now())
        server.on_defect = DefectLog(self._log.report, clock)
        loop.bind(self._host)
        stop_on_signals(loop, lambda why: loop.post(NodeStopping(why)), service.reload)
        for path in (self._directories.tenant_socket, self._directories.operator_socket):
            self.files.add_socket(path, reopen_sockets)
        self.files.watch(loop.post)
        for timer in (self.files, self._host, dropped):
            loop.add_timer(timer)

    def rediscover(self, loop: LiveLoop[Event], machine: NodeMachine, discovery: GpuDiscovery | None) -> None:
        """Notice software GPUs that come and go, unless the devices are configured."""
        if discovery is not None:
            self._tasks = BackgroundTasks(loop, "cotenant-find")
            loop.add_timer(Rediscovery(machine, discovery, self._tasks, loop.post))

    def ready(self) -> None:
        """Tell the service manager that the node serves."""
        self._service.ready(f"serving {self._directories.tenant_socket}")

    def stopping(self) -> None:
        """Tell the service manager that the node ends."""
        self._service.stopping()
        if self._tasks is not None:
            self._tasks.close()

    def close(self, now: Instant) -> None:
        """Write what is not in the journal yet, remove the sockets and release the locks."""
        if not self._host.write_pending(now):
            kept = counted(self._host.kept_turns, "turn")
            self._log.report(f"{self._host.problem}; {kept} that only this process knew are lost")
        self.files.close()


class NodeService:
    """Answers requests about the daemon."""

    def __init__(
        self,
        config: Config,
        source: ConfigSource | None,
        directories: Directories,
        clock: Clock,
        log: NodeLog,
        parts: ServiceParts,
        post: Callable[[Event], None],
    ) -> None:
        """Start with the config in force; `post` delivers changed settings to the state machine."""
        self._config = config
        self._source = source
        self._directories = directories
        self._clock = clock
        self._log = log
        self._parts = parts
        self._post = post
        self._manager = ServiceManager(os.environ)
        self._started_ns = clock.now()

    def answer(self, request: wire.ServiceRequest) -> wire.Answer:
        """Answer a request."""
        return self.status() if isinstance(request, wire.GetStatus) else self.reload()

    def ready(self, text: str) -> None:
        """Tell the service manager that the node serves."""
        self._manager.ready(text)

    def stopping(self) -> None:
        """Tell the service manager that the node ends."""
        self._manager.stopping()

    def storage_problem(self) -> str:
        """Return why nothing can be stored now; empty: storing works."""
        return self._parts.host.problem or self._parts.files.problem()

    def status(self) -> wire.NodeStatus:
        """Return the state of the daemon."""
        machine = self._parts.machine
        views = machine.tenants()
        is_mps_ready = self._parts.is_mps_ready()
        return wire.NodeStatus(
            version=wire.VERSION,
            node_version=__version__,
            pid=os.getpid(),
            uptime_ns=self._clock.now() - self._started_ns,
            runtime=str(self._directories.runtime),
            state=str(self._directories.state),
            config=self._config_path(),
            sockets=[str(socket) for socket in self._parts.files.socket_paths()],
            slots=machine.settings.slots,
            tenants=len(views),
            disconnected=sum(not view.connected for view in views),
            gpus=list(machine.settings.gpus),
            devices=machine.watches(),
            storage=self.storage_problem(),
            kept_turns=self._parts.host.kept_turns,
            dropped=self._parts.dropped.total,
            mps="off" if is_mps_ready is None else "ready" if is_mps_ready else "not ready",
            calibrations=[
                GpuCalibrated(gpu, calibration)
                for gpu, calibration in sorted(machine.registry.tables.calibrations.items())
            ],
        )

    def reload(self) -> wire.ReloadResult:
        """Read the config again and apply what can change while the node runs; an invalid config changes nothing."""
        self._manager.reloading()
        try:
            result = self._reload()
        finally:
            self._manager.ready("serving")
        if result.error:
            self._log.report(f"the config was not reloaded: {result.error}")
        else:
            restart = f"; a restart is needed for {', '.join(result.needs_restart)}" if result.needs_restart else ""
            self._log.report(f"the config was reloaded: {len(result.applied)} changed{restart}")
        return result

    def _reload(self) -> wire.ReloadResult:
        if self._source is None:
            return self._failed("this node was started without a config source")
        try:
            new = self._source.load()
        except CotenantError as error:
            return self._failed(str(error))
        changes = difference(self._config, new)
        problem = self.storage_problem()
        if changes.applied and problem:
            return self._failed(f"the node cannot record it now: {problem}")
        config = changes.in_force
        try:
            self._parts.access.update(config.operators, config.limits)
        except CotenantError as error:
            return self._failed(str(error))
        if config.operators != self._config.operators:
            try:
                self._parts.reopen_sockets()
            except (CotenantError, OSError) as error:  # the node tries again every second, as for deleted sockets
                self._log.report(f"the sockets cannot be created again with the new permissions yet: {error}")
        self._config = config
        self._log.set_form(config.node.log)
        machine = self._parts.machine
        limits = (config.protect.limits(), config.control.limits())
        settings = config.node.settings(machine.settings.gpus, *limits, OnBypass(config.protect.on_bypass))
        if settings != machine.settings:
            self._post(SettingsChanged(settings, describe_changes(config, changes.applied)))
        return wire.ReloadResult(self._config_path(), changes.applied, changes.needs_restart)

    def _failed(self, error: str) -> wire.ReloadResult:
        return wire.ReloadResult(self._config_path(), [], [], error)

    def _config_path(self) -> str:
        return "" if self._source is None or self._source.path is None else str(self._source.path)
