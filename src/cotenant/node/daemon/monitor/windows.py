"""The objective monitor: reads the pages of online tenants periodically and posts adjustments of the online share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from cotenant.gate.grant import Kind
from cotenant.node.model.control import ControlLimits, DeviceWindow, OnlineShareSetpoint
from cotenant.node.model.event import Event, NodeSettings, OnlineShareProposed
from cotenant.node.model.tenant import Tenant, TenantView
from cotenant.node.state.control import Control
from cotenant.node.state.diurnal import DiurnalProfiles
from cotenant.node.state.tenant_tables import user_limit_ppm
from cotenant.node.state.windows import Occupant, Page, Windows
from cotenant.predict.diurnal_profile import Program
from cotenant.predict.usage import TaskUse
from cotenant.runner.clock import monotonic_ns
from cotenant.units.instant import Instant


class NodeView(Protocol):
    """The node's state as the monitors read it."""

    @property
    def turn(self) -> int:
        """The number of turns so far."""
        ...

    @property
    def settings(self) -> NodeSettings:
        """The settings in force."""
        ...

    def tenants(self) -> list[TenantView]:
        """Return the tenants that hold a slot."""
        ...


class PageReader(Protocol):
    """Reads tenants' pages."""

    def page(self, gpu: int, slot: int) -> Page:
        """Return the page of a slot; empty where there is none."""
        ...


class ObjectiveMonitor:
    """Wakes periodically while an online tenant with an objective is on a device.

    The instants of windows are CLOCK_MONOTONIC, as those in the pages are.
    """

    def __init__(
        self,
        node: NodeView,
        gates: PageReader,
        setpoints: Callable[[], Mapping[int, OnlineShareSetpoint]],
        post: Callable[[Event], None],
        clock: Callable[[], Instant] = monotonic_ns,
        profiles: DiurnalProfiles | None = None,
        has_simple_modes: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start without windows; `setpoints` returns the online shares in force, from which adjustment continues.

        `profiles` holds the diurnal profiles of programs, and converts instants of this clock to the time of day.
        `has_simple_modes`: whether offline work can be limited to a part of the SMs, and the rules allow the node to.
        """
        self._node = node
        self._gates = gates
        self._setpoints = setpoints
        self._post = post
        self._clock = clock
        self._profiles = profiles or DiurnalProfiles()
        self._has_simple_modes = has_simple_modes
        self._turn = -1
        self._due: Instant = 0
        self._occupants: dict[int, list[Occupant]] = {}
        self._uses: dict[int, dict[int, TaskUse]] = {}
        self._programs: dict[int, dict[int, Program]] = {}
        self._windows: dict[int, Windows] = {}
        self._limits: ControlLimits | None = None
        self._control = Control(ControlLimits(), self._profiles)

    @property
    def is_watching(self) -> bool:
        """Return whether any device has a tenant with an objective."""
        return bool(self._occupants)

    def remember(self) -> None:
        """Add the observations up to now to the diurnal profiles."""
        self._control.remember(self._clock())

    def next_wakeup(self) -> Instant | None:
        """Return the next wake-up; None without objectives."""
        self._refresh()
        return self._due if self._occupants else None

    def wake(self, now: Instant) -> None:
        """Take a window of every device that has a tenant with an objective."""
        self._due = now + self._node.settings.control.period_ns
        at_ns = self._clock()
        for gpu, occupants in self._occupants.items():
            windows = self._windows.get(gpu)
            if windows is None:
                windows = self._windows[gpu] = Windows(gpu, at_ns)
            window = windows.window(at_ns, occupants, self._pages(gpu, occupants))
            uses, programs = self._uses.get(gpu), self._programs.get(gpu)
            adjustment = self._control.on_window(
                window, at_ns, uses, programs, has_simple_modes=self._has_simple_modes()
            )
            if adjustment is not None:
                self._post(OnlineShareProposed(adjustment))

    def _pages(self, gpu: int, occupants: list[Occupant]) -> dict[int, Page]:
        pages = {occupant.slot: self._gates.page(gpu, occupant.slot) for occupant in occupants}
        return {slot: page for slot, page in pages.items() if page}

    def _refresh(self) -> None:
        """Update tenants and limits, after any turn that may have changed them."""
        if self._turn == self._node.turn:
            return
        self._turn = self._node.turn
        limits = self._node.settings.control
        if limits != self._limits:
            self._limits = limits
            self.remember()
            self._control = Control(limits, self._profiles)
            for gpu, setpoint in self._setpoints().items():
                self._control.restore(gpu, setpoint.online_ppm, is_simple=setpoint.is_simple)
        by_gpu: dict[int, list[Occupant]] = {}
        self._uses, self._programs = {}, {}
        for view in (each for tenant in self._node.tenants() for each in tenant.by_device()):
            grant = view.tenant.grant
            is_online = grant.kind is Kind.ONLINE
            # A paused tenant misses its objective by the operator's choice.
            slo_ns = grant.slo_ns if is_online and not view.tenant.paused else 0
            limit_ppm = user_limit_ppm(view.tenant)
            occupant = Occupant(grant.slot, grant.generation, is_online, slo_ns, grant.priority, limit_ppm)
            by_gpu.setdefault(grant.gpu, []).append(occupant)
            if view.tenant.spec.use is not None:
                self._uses.setdefault(grant.gpu, {})[grant.slot] = view.tenant.spec.use
            program = _program_of(view.tenant)
            if is_online and program is not None:
                self._programs.setdefault(grant.gpu, {})[grant.slot] = program
        before = set(self._occupants)
        self._occupants = {
            gpu: occupants
            for gpu, occupants in by_gpu.items()
            if gpu >= 0 and limits.enabled and any(occupant.slo_ns for occupant in occupants)
        }
        self._windows = {gpu: windows for gpu, windows in self._windows.items() if gpu in self._occupants}
        for gpu in before - set(self._occupants):  # the next tenants must not be judged by the previous ones
            at_ns = self._clock()
            self._control.on_window(DeviceWindow(gpu, at_ns, at_ns), at_ns)


def _program_of(tenant: Tenant) -> Program | None:
    """Return the program of a tenant by its task, else by its requested name; None if it has neither."""
    task = tenant.spec.task or tenant.spec.name
    return Program(tenant.uid, task) if task else None
