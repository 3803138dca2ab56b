"""The monitors of the node: devices, ledgers, objectives, diurnal profiles, and MPS if configured."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from cotenant.gate.gate_file import HEADROOM_VARIABLE, LiveTenantTables
from cotenant.gate.grant import Grant, Kind
from cotenant.gate.ledger_file import LiveLedgers
from cotenant.node.config.file import Config
from cotenant.node.daemon.diurnal_file import DiurnalFile
from cotenant.node.daemon.enforcer import LiveEnforcer, since_boot
from cotenant.node.daemon.monitor.context_size import DEADLINE_S, ContextProber
from cotenant.node.daemon.monitor.diurnal import DiurnalSaver
from cotenant.node.daemon.monitor.monitor import DeviceMonitor, MonitorParts
from cotenant.node.daemon.monitor.nvml_sampler import NvmlSampler
from cotenant.node.daemon.monitor.processes import ProcessTable
from cotenant.node.daemon.monitor.windows import ObjectiveMonitor
from cotenant.node.daemon.mps import MPS_DIRECTORY, MpsControl, MpsSupervisor
from cotenant.node.directories import Directories
from cotenant.node.model.event import Event, GpuSampled
from cotenant.node.model.protection import GpuSample
from cotenant.node.state.diurnal import DiurnalProfiles
from cotenant.node.state.node import NodeMachine
from cotenant.runner.background import BackgroundTasks
from cotenant.runner.clock import LiveClock, wall_clock_offset_ns
from cotenant.runner.live_loop import LiveLoop
from cotenant.softgpu.commands import home
from cotenant.units.instant import Instant


class Monitoring:
    """Creates, starts and closes the monitors."""

    def __init__(
        self,
        config: Config,
        directories: Directories,
        machine: NodeMachine,
        loop: LiveLoop[Event],
        clock: LiveClock,
        gates: LiveTenantTables,
        report: Callable[[str], None],
    ) -> None:
        """Create the monitors without starting them; raise `ConfigError` if MPS is configured but not available."""
        self._machine = machine
        self._loop = loop
        self._clock = clock
        homes = software_gpu_homes(directories, os.environ)
        self.mps: MpsSupervisor | None = None
        if config.node.mps == "on":
            program = MpsControl(directories.runtime / MPS_DIRECTORY, os.environ, homes)
            self.mps = MpsSupervisor(loop, clock, program, lambda: len(machine.settings.gpus))
        self.ledgers = LiveLedgers(directories.pages, config.node.slots)
        self._processes = ProcessTable()
        self._tasks = BackgroundTasks(loop, "cotenant-watch")
        records = directories.runtime / "hook"
        prober = None
        if config.protect.probe == "on":
            prober = ContextProber(BackgroundTasks(loop, "cotenant-probe"), homes, self._mps_environment, DEADLINE_S)
        parts = MonitorParts(gates, self.ledgers, self._processes, NvmlSampler(homes), self._tasks, records, prober)
        self._on_sample: Callable[[int, GpuSample], None] = lambda *_: None
        self._devices = DeviceMonitor(machine, parts, self._post)
        self._report = report
        file = DiurnalFile(directories.diurnal, report)
        profiles = DiurnalProfiles(file.read(), wall_clock_offset_ns())
        self._objectives = ObjectiveMonitor(
            machine, gates, lambda: machine.registry.tables.setpoints, loop.post, profiles=profiles
        )
        self._diurnal_tasks = BackgroundTasks(loop, "cotenant-days")
        self._saver = DiurnalSaver(file, profiles, self._objectives, self._diurnal_tasks, report)

    def enforcer(self) -> LiveEnforcer:
        """Return the port that ends processes and restarts MPS."""
        restart = (lambda: None) if self.mps is None else self.mps.restart
        return LiveEnforcer(self.ledgers, self._processes, self._report, joined_ns=self._joined_ns, restart_mps=restart)

    def environment(self, grant: Grant) -> dict[str, str]:
        """Return the variables that a program on a device needs besides its grant."""
        if grant.gpu < 0:
            return {}
        control = self._machine.settings.control
        is_capped = self.mps is not None and control.mps_share and grant.kind is Kind.OFFLINE
        headroom = {HEADROOM_VARIABLE: str(control.headroom_ppm)} if is_capped else {}
        return {**self._mps_environment(), **headroom}

    def begin(self, on_sample: Callable[[int, GpuSample], None]) -> None:
        """Start the monitors; `on_sample` receives every sample, also those that cause no turn."""
        self._on_sample = on_sample
        self._loop.add_timer(self._devices)
        self._loop.add_timer(self._objectives)
        self._loop.add_timer(self._saver)
        if self.mps is not None:
            self._loop.add_timer(self.mps)
            self.mps.begin()

    def close(self) -> None:
        """Stop the monitors. MPS keeps running while there are tenants."""
        self._devices.close()
        self._tasks.close()
        self._diurnal_tasks.close()
        self._saver.close()
        if self.mps is not None:
            self.mps.close(keep=bool(self._machine.tenants()))
        self.ledgers.close()

    def _post(self, event: Event) -> None:
        """Post an event; a sample that changes nothing causes no turn, which keeps the journal short."""
        if isinstance(event, GpuSampled):
            self._on_sample(event.gpu, event.sample)
            if not self._machine.is_changed_by(event, self._clock.now()):
                return
        self._loop.post(event)

    def _mps_environment(self) -> dict[str, str]:
        return {} if self.mps is None else self.mps.environment()

    def _joined_ns(self, slot: int) -> Instant | None:
        tenants = [view.tenant for view in self._machine.tenants() if view.tenant.grant.slot == slot]
        return since_boot(tenants[0].joined_ns, self._clock.now()) if tenants else None


def software_gpu_homes(directories: Directories, environ: Mapping[str, str]) -> list[Path]:
    """Return the directories of software GPUs: the node's own, then the one that the environment names."""
    named = environ.get("COTENANT_SOFTGPU")
    return [home(directories), *([Path(named)] if named else [])]
