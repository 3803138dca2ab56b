"""The monitors of the node: devices, ledgers, objectives, diurnal profiles, and MPS if configured."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from cotenant.gate.grant import Grant
from cotenant.gate.live_grants import LiveGrantPages
from cotenant.gate.live_ledgers import LiveLedgers
from cotenant.gate.live_tables import LiveTenantTables
from cotenant.gate.rules import GatePolicy
from cotenant.node.config.file import Config
from cotenant.node.daemon.diurnal_file import DiurnalFile
from cotenant.node.daemon.enforcer import LiveEnforcer, since_boot
from cotenant.node.daemon.monitor.calibrator import CalibrationFile, Calibrator
from cotenant.node.daemon.monitor.context_size import DEADLINE_S, ContextProber
from cotenant.node.daemon.monitor.diurnal import DiurnalSaver
from cotenant.node.daemon.monitor.monitor import DeviceMonitor, MonitorParts
from cotenant.node.daemon.monitor.nvml_sampler import NvmlSampler
from cotenant.node.daemon.monitor.windows import ObjectiveMonitor
from cotenant.node.daemon.mps import MPS_DIRECTORY, MpsControl, MpsSupervisor
from cotenant.node.daemon.mps_limits import DeviceMemoryController, client_limits
from cotenant.node.daemon.preemption import TimeSlicePolicy, preemption_of
from cotenant.node.daemon.proc import ProcessTree
from cotenant.node.daemon.processes import LiveProcesses
from cotenant.node.daemon.tenant_pages import TenantPages
from cotenant.node.directories import Directories
from cotenant.node.model.event import Event, GpuSampled
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.preemption import TimeSlice
from cotenant.node.model.protection import GpuSample
from cotenant.node.model.tenant import Tenant
from cotenant.node.state.diurnal import DiurnalProfiles
from cotenant.node.state.node import NodeMachine
from cotenant.runner.background import BackgroundTasks
from cotenant.runner.clock import LiveClock, wall_clock_offset_ns
from cotenant.runner.live_loop import LiveLoop
from cotenant.softgpu.commands import home

VISIBLE_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
_CLOCK_STEP_PPM: Final = 10_000
"""Smaller changes of a clock are not published."""
_CLOCK_USE_PPM: Final = 50_000
"""Least utilization at which the clock of a device is published."""


class Monitoring:
    """Creates, starts and closes the monitors."""

    def __init__(
        self,
        config: Config,
        directories: Directories,
        machine: NodeMachine,
        loop: LiveLoop[Event],
        clock: LiveClock,
        pages: tuple[LiveGrantPages, LiveTenantTables],
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
        self._time_slices = TimeSlicePolicy(
            TimeSlice[config.node.time_slice.upper()],
            lambda gpu, index: preemption_of(gpu, index, homes, os.environ),
            report,
        )
        grants, self._tables = pages
        tree = ProcessTree()
        self.ledgers = LiveLedgers(grants)
        self.processes = LiveProcesses(loop, (grants, self._tables, self.ledgers), report, tree=tree)
        self.pages = TenantPages(self.processes, self._tables)
        self._memory_controller = DeviceMemoryController(tree.cgroups)
        self._tasks = BackgroundTasks(loop, "cotenant-watch")
        records = directories.runtime / "hook"
        prober = None
        if config.protect.probe == "on":
            prober = ContextProber(BackgroundTasks(loop, "cotenant-probe"), homes, self._mps_environment, DEADLINE_S)
        parts = MonitorParts(
            grants,
            self._tables,
            self.ledgers,
            self.processes,
            NvmlSampler(homes),
            self._tasks,
            records,
            prober,
            self._limit_tenants,
        )
        self._calibrator = Calibrator(
            machine,
            BackgroundTasks(loop, "cotenant-cost"),
            homes,
            self._mps_environment,
            CalibrationFile(directories.calibrations),
            loop.post,
        )
        self._on_sample: Callable[[int, GpuSample], None] = lambda *_: None
        self._devices = DeviceMonitor(machine, parts, self._post)
        self._report = report
        file = DiurnalFile(directories.diurnal, report)
        profiles = DiurnalProfiles(file.read(), wall_clock_offset_ns())
        self._objectives = ObjectiveMonitor(
            machine,
            self.pages,
            lambda: machine.registry.tables.setpoints,
            loop.post,
            profiles=profiles,
            has_simple_modes=self._has_simple_modes,
        )
        self._diurnal_tasks = BackgroundTasks(loop, "cotenant-days")
        self._saver = DiurnalSaver(file, profiles, self._objectives, self._diurnal_tasks, report)

    def _has_simple_modes(self) -> bool:
        """Return whether offline work can be limited to a part of the SMs, and the rules leave the node the choice."""
        rules = self._machine.rules
        return self.mps is not None and rules.policy is GatePolicy.FILL and rules.sm_ppm is None

    def enforcer(self) -> LiveEnforcer:
        """Return the port that ends processes and restarts MPS."""
        restart = (lambda: None) if self.mps is None else self.mps.restart
        return LiveEnforcer(
            self.processes,
            self._report,
            find_tenant=self._find_tenant,
            joined_ns=lambda tenant: since_boot(tenant.joined_ns, self._clock.now()),
            restart_mps=restart,
        )

    def is_mps_ready(self) -> bool | None:
        """Return whether the MPS server is ready; None if the node runs no MPS."""
        return None if self.mps is None else self.mps.is_ready

    def environment(self, grant: Grant) -> dict[str, str]:
        """Return the variables that a tenant's process needs now: the visible devices, and its limits under MPS."""
        gpus = self._machine.settings.gpus
        if not grant.gpus or max(grant.gpus) >= len(gpus):
            return {}
        control = self._machine.settings.control
        headroom_ppm = control.headroom_ppm if self.mps is not None and control.mps_share else None
        devices = [(self._tables.read(gpu), gpus[gpu]) for gpu in grant.gpus]
        limits = client_limits(grant, devices, headroom_ppm)
        visible = ",".join(gpus[gpu].visible(gpu) for gpu in grant.gpus)
        return {**self._mps_environment(), VISIBLE_VARIABLE: visible, **limits}

    def begin(self, on_sample: Callable[[int, GpuSample], None], gpus: Sequence[Gpu]) -> None:
        """Start the monitors of these devices; `on_sample` receives every sample, also those that cause no turn."""
        self._on_sample = on_sample
        self._time_slices.begin(gpus)
        self._loop.add_timer(self._devices)
        self._loop.add_timer(self._calibrator)
        self._loop.add_timer(self._objectives)
        self._loop.add_timer(self._saver)
        if self.mps is not None:
            self._loop.add_timer(self.mps)
            self.mps.begin()

    def close(self) -> None:
        """Stop the monitors. MPS keeps running while there are tenants."""
        self._devices.close()
        self._time_slices.close()
        self._calibrator.close()
        self._tasks.close()
        self._diurnal_tasks.close()
        self._saver.close()
        if self.mps is not None:
            self.mps.close(keep=bool(self._machine.tenants()))
        self.processes.close()

    def _post(self, event: Event) -> None:
        """Post an event; a sample that changes nothing causes no turn, which keeps the journal short."""
        if isinstance(event, GpuSampled):
            self._on_sample(event.gpu, event.sample)
            self._publish_clock(event.gpu, event.sample)
            if not self._machine.is_changed_by(event, self._clock.now()):
                return
        self._loop.post(event)

    def _publish_clock(self, gpu: int, sample: GpuSample) -> None:
        """Publish the clock of a device by which its tenants scale their kernel times.

        A published clock remains until a device in use shows another one. It is therefore also taken at low
        utilization: a wrong value would make all kernels seem long, keep them from running, and so remain forever.
        """
        if sample.clock_ppm > 0 and sample.utilization_ppm >= _CLOCK_USE_PPM:
            self._tables.set_clock(gpu, sample.clock_ppm // _CLOCK_STEP_PPM * _CLOCK_STEP_PPM)

    def _mps_environment(self) -> dict[str, str]:
        return {} if self.mps is None else self.mps.environment()

    def _find_tenant(self, slot: int, pid: int) -> Tenant | None:
        """Return the latest tenant of a slot that this process joined for; it may have left in this turn."""
        registry = self._machine.registry
        known = [*(departure.tenant for departure in registry.departed), *registry.holders.values()]
        return next((tenant for tenant in reversed(known) if (tenant.grant.slot, tenant.pid) == (slot, pid)), None)

    def _limit_tenants(self, bus_ids: Mapping[int, str]) -> None:
        """Set the driver's own limits under MPS, after changes of the tenants; `bus_ids` holds PCI addresses."""
        if self.mps is None:
            return
        self.processes.node_pids = self.mps.pids
        tenants = self._machine.tenants()
        grants = [view.tenant.grant.on(gpu) for view in tenants for gpu in view.tenant.grant.gpus]
        containers = {grant: self.processes.container((grant.slot, grant.generation)) for grant in grants}
        self._memory_controller.forget(containers.values())
        for grant, container in containers.items():
            region = self._memory_controller.region_of(bus_ids.get(grant.gpu, "")) if container else None
            if region is not None and grant.memory_bytes:
                self._memory_controller.limit(container, region, grant.memory_bytes)


def software_gpu_homes(directories: Directories, environ: Mapping[str, str]) -> list[Path]:
    """Return the directories of software GPUs: the node's own, then the one that the environment names."""
    named = environ.get("COTENANT_SOFTGPU")
    return [home(directories), *([Path(named)] if named else [])]
