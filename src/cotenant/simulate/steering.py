"""The product's own sharing mode: its gate at every launch, and its controller over the pages of the gate.

This module decides nothing. Launches call the gate's own code, windows are read from the same pages by the same code as
on a node, and the node's own tenant table computes the effect of an adjustment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from cotenant.gate.grant import Grant, Kind
from cotenant.gate.rules import GatePolicy
from cotenant.gate.tenant_gate import TenantGate
from cotenant.gate.tenant_table import device_memory, gate_page, read_page, write_tenant_table
from cotenant.node.model.control import Adjustment, ControlLimits, DeviceWindow, OnlineShareSetpoint
from cotenant.node.model.tenant import Tenant, TenantSpec
from cotenant.node.state.control import Control
from cotenant.node.state.tenant_tables import TenantTables, user_limit_ppm
from cotenant.node.state.windows import Occupant, Windows
from cotenant.simulate.kernels import sm_step_of, works_of
from cotenant.simulate.sharing import (
    Guest,
    RunSpec,
    ShareChange,
    SharingOutcome,
    clients_of,
    simulate_run,
    simulation_of,
)
from cotenant.softgpu.sim.host import Client, LaunchGate

Watch: TypeAlias = Callable[[DeviceWindow], None]
_GPU: Final = 0
_GENERATION: Final = 1
_HIGHER_PRIORITY: Final = -1
"""Under MPS, `cotenant run` starts offline programs at a lower client priority than online ones."""


class Steering:
    """A device's gate file and its controller. A tenant's slot is its position in the run."""

    def __init__(self, run: RunSpec, limits: ControlLimits, *, sliced: bool, watch: Watch | None = None) -> None:
        """Add an entry for every tenant."""
        self._watch = watch
        self._guests, self._sms = run.guests, 0 if sliced else run.setting.device.sm_count
        self._device = run.setting.device
        self._estimate_factor = run.setting.estimate_factor
        self._tenants = [_tenant(guest, index) for index, guest in enumerate(run.guests)]
        self._occupants = [
            Occupant(index, _GENERATION, guest.online, guest.slo_ns, guest.priority, user_limit_ppm(tenant))
            for index, (guest, tenant) in enumerate(zip(run.guests, self._tenants, strict=True))
        ]
        switch_ns = run.setting.rules.switch_ns if sliced else 0  # the gate's assumption, not the device's value
        self._rules = msgspec.structs.replace(run.setting.rules, switch_ns=switch_ns)
        self._tables = TenantTables(self._tenants)
        self._control = Control(limits)
        self._has_simple_modes = not sliced and self._rules.policy is GatePolicy.FILL and self._rules.sm_ppm is None
        self._windows = Windows(_GPU, 0)
        self.memory = device_memory()
        self.turns: list[ShareChange] = []
        self._write()

    def on_period(self, now_ns: int) -> None:
        """Handle the end of a control period."""
        pages = {occupant.slot: self.page(occupant.slot) for occupant in self._occupants}
        window = self._windows.window(now_ns, self._occupants, pages)
        if self._watch is not None:
            self._watch(window)
        adjustment = self._control.on_window(window, now_ns, has_simple_modes=self._has_simple_modes)
        if adjustment is not None:
            self.adjust(adjustment, now_ns)

    def gates(self) -> list[LaunchGate]:
        """Return each tenant's admission at the gate, as the hook performs it inside a process."""
        return [
            TenantGate(
                self.memory,
                (index, _GENERATION),
                *works_of(guest.load, self._device, self._estimate_factor, is_mps=self._sms > 0),
                guest.slo_ns,
                sm_step_ppm=sm_step_of(self._sms),
            )
            for index, guest in enumerate(self._guests)
        ]

    def page(self, slot: int) -> dict[str, int | list[int]]:
        """Return the current content of a tenant's page."""
        return read_page(gate_page(self.memory, slot))

    def adjust(self, adjustment: Adjustment, now_ns: int) -> None:
        """Apply a decision from now on."""
        setpoint = OnlineShareSetpoint(_GPU, adjustment.online_ppm, adjustment.shares, adjustment.is_simple)
        self._tables.set_online_share(setpoint)
        for tenant in self._tenants:
            self._tables.put(tenant)
        self._write()
        self.turns.append(
            ShareChange(
                at_ns=now_ns,
                online_ppm=adjustment.online_ppm,
                cause=adjustment.cause.value,
                detail=adjustment.detail,
                shares=adjustment.shares,
            )
        )

    def _write(self) -> None:
        write_tenant_table(self.memory, self._tables.table(_GPU, self._rules))


def cotenant(run: RunSpec) -> SharingOutcome:
    """Share under MPS with client priorities."""
    return steered("cotenant", run, ControlLimits(), sliced=False)


def cotenant_slice(run: RunSpec) -> SharingOutcome:
    """Share by time slices."""
    return steered("cotenant-slice", run, ControlLimits(), sliced=True)


def steered(
    mode: str, run: RunSpec, limits: ControlLimits, *, sliced: bool, watch: Watch | None = None
) -> SharingOutcome:
    """Run within these limits; with adjust off the setting's rules stay. `watch` receives every window."""
    steering = Steering(run, limits, sliced=sliced, watch=watch)
    simulation = simulation_of(run, _clients(run.guests, clients_of(run, sliced=sliced)), steering.gates())
    simulation.every(limits.period_ns, steering.on_period)
    return simulate_run(mode, run, simulation, steering.turns)


def _clients(guests: Sequence[Guest], clients: Sequence[Client]) -> list[Client]:
    return [
        msgspec.structs.replace(client, priority=_HIGHER_PRIORITY if guest.online else 0)
        for guest, client in zip(guests, clients, strict=True)
    ]


def _tenant(guest: Guest, slot: int) -> Tenant:
    kind = Kind.ONLINE if guest.online else Kind.OFFLINE
    spec = TenantSpec(kind, guest.priority, slo_ns=guest.slo_ns, share_ppm=guest.share_ppm, limit=guest.limit)
    grant = Grant(slot, _GENERATION, kind, guest.priority, guest.share_ppm, 0, guest.slo_ns, _GPU)
    return Tenant(guest.load.name, grant, spec, slot + 1, 0, 0)
