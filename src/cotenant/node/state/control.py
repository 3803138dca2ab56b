"""The control loop of the online share: forecasts from the windows of a device, decisions by the adjust policy.

It is not part of the node's state machine, because ten windows per second would flood the journal. Only its decisions
become events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from cotenant.node.model.control import AdjustCause, Adjustment, ControlLimits, DeviceWindow
from cotenant.node.model.protection import clipped
from cotenant.node.policy.adjust import POLICIES, SIMPLE_MODES
from cotenant.node.policy.adjust.decision import AdjustDecision, Adjuster, Forecast
from cotenant.node.policy.adjust.simple_mode import ModeChooser, ModeInput
from cotenant.node.policy.limit.share import PeerTenant, Shares, shares_among
from cotenant.node.state.diurnal import DiurnalProfiles
from cotenant.node.state.share_needs import ShareNeeds
from cotenant.predict.diurnal_profile import Program
from cotenant.predict.load import Load
from cotenant.predict.usage import TaskUse
from cotenant.units.instant import MILLISECOND_NS, Instant

_MODE_SETTLED_NS: Final = 300 * MILLISECOND_NS


class _DeviceControl:
    """The adjuster of one device, with the loads, programs and shares of its tenants by slot."""

    __slots__ = (
        *(
            "adjuster",
            "at_gate",
            "generations",
            "loads",
            "measured",
            "mode",
            "needs",
            "peers",
            "programs",
            "settled_ns",
        ),
        "shares",
    )

    def __init__(self, adjuster: Adjuster, needs: ShareNeeds, mode: ModeChooser) -> None:
        self.adjuster = adjuster
        self.mode = mode
        self.settled_ns: Instant = 0
        self.at_gate: Adjuster | None = None
        """The gate's adjuster while a simple mode is in force."""
        self.needs = needs
        self.generations: dict[int, int] = {}
        self.loads: dict[int, Load] = {}
        self.programs: Mapping[int, Program] = {}
        self.shares: Shares = ()
        self.peers: tuple[PeerTenant, ...] = ()
        self.measured: frozenset[int] = frozenset()

    def division(self, window: DeviceWindow) -> tuple[Shares, bool]:
        """Return the shares of peers, and whether they must be applied even though the policy made no decision.

        They must be applied if a peer joined, left, or changed its priority or limit, or if the need of a peer was
        measured for the first time. A changed need alone is no reason: needs change in every window.
        """
        promised = Counter(tenant.priority for tenant in window.tenants if tenant.promised)
        divided = [tenant for tenant in window.tenants if promised[tenant.priority] > 1]
        peers = tuple(
            PeerTenant(tenant.slot, tenant.generation, tenant.priority, tenant.promised, tenant.limit_ppm)
            for tenant in divided
        )
        needs = self.adjuster.needs()
        measured = frozenset(slot for slot, need_ppm in needs.items() if need_ppm > 0)
        has_changed = peers != self.peers or (bool(self.shares) and measured != self.measured)
        self.peers, self.measured = peers, measured
        shares = shares_among(peers, needs)
        return shares, has_changed and shares != self.shares


class Control:
    """Share adjustment for all devices of a node."""

    def __init__(self, limits: ControlLimits, profiles: DiurnalProfiles | None = None) -> None:
        """Begin without tenants, with the diurnal profiles of known programs; `limits.adjust` names the policy."""
        self._limits = limits
        self._profiles = profiles or DiurnalProfiles()
        self._devices: dict[int, _DeviceControl] = {}
        self._restored: dict[int, tuple[int, bool]] = {}

    def restore(self, gpu: int, online_ppm: int, *, is_simple: bool = False) -> None:
        """Set the online share and the mode that a device has before its first window."""
        self._restored[gpu] = online_ppm, is_simple

    def remember(self, now: Instant) -> None:
        """Add the load of all tenants so far to the diurnal profiles, as when they leave."""
        for device in self._devices.values():
            self._learn_profiles(device, device.loads, now)

    def on_window(
        self,
        window: DeviceWindow,
        now: Instant,
        uses: Mapping[int, TaskUse] | None = None,
        programs: Mapping[int, Program] | None = None,
        *,
        has_simple_modes: bool = False,
    ) -> Adjustment | None:
        """Handle one window; return the adjustment, if any. `uses` and `programs` are by slot.

        `has_simple_modes`: offline work can be limited to a part of the SMs, and the rules leave the node the choice.
        """
        promised = {tenant.slot: tenant for tenant in window.tenants if tenant.promised}
        if not promised or not self._limits.enabled:
            removed = self._devices.pop(window.gpu, None)
            if removed is not None:
                self._learn_profiles(removed, removed.loads, now)
            return None
        device = self._devices.get(window.gpu)
        is_new = device is None and window.gpu not in self._restored
        if device is None:
            online_ppm, is_simple = self._restored.pop(window.gpu, (self._limits.max_online_ppm, False))
            device = self._devices[window.gpu] = _DeviceControl(
                POLICIES[self._limits.adjust](self._limits, online_ppm),
                ShareNeeds(self._limits),
                SIMPLE_MODES[self._limits.simple_mode](is_simple=is_simple),
            )
        self._forget_others(device, {slot: tenant.generation for slot, tenant in promised.items()}, now)
        device.programs = programs or {}
        forecasts, ahead_ns = {}, self._profiles.ahead_ns
        for slot, tenant in promised.items():
            load = device.loads.get(slot) or self._profiles.load(device.programs.get(slot), self._limits.period_ns)
            device.loads[slot] = load = load.after(tenant.requests, window.begin_ns + ahead_ns)
            if device.mode.is_simple:  # a process cannot tell whose work delayed it if that work need not ask
                tenant = msgspec.structs.replace(tenant, delayed_ns=0, undelayed_ns=0)  # noqa: PLW2901 - the same one
            need_ppm = device.needs.update(tenant, window, load, (uses or {}).get(slot), device.adjuster.online_ppm)
            at_peak_ppm, tolerable_ppm = device.needs.at_peak_ppm(slot), device.needs.tolerable_ppm(slot)
            forecasts[slot] = Forecast(load.next_window(window.end_ns + ahead_ns), need_ppm, at_peak_ppm, tolerable_ppm)
        # Requests that end soon after a change of the mode began before it.
        decision = device.adjuster.step(window, forecasts, now) if now >= device.settled_ns else None
        if decision is None and is_new:  # from here on the online share replaces the delay budget of the rules
            first = next(iter(promised.values()))
            detail = "its need is not known yet"
            decision = AdjustDecision(
                device.adjuster.online_ppm, AdjustCause.JOINED, detail, first.slot, first.generation
            )
        decision = self._choose_mode(device, window, decision, now, is_possible=has_simple_modes)
        shares, must_divide = device.division(window)
        if decision is None and must_divide:
            detail = f"{len(shares)} peers share the device" if shares else "no peers share the device any more"
            decision = AdjustDecision(device.adjuster.online_ppm, AdjustCause.DIVIDED, detail)
        if decision is None:
            return None
        device.shares = shares
        return Adjustment(
            window.gpu,
            decision.online_ppm,
            decision.cause,
            clipped(decision.detail),
            shares,
            decision.slot,
            decision.generation,
            device.mode.is_simple,
        )

    def _choose_mode(
        self,
        device: _DeviceControl,
        window: DeviceWindow,
        decision: AdjustDecision | None,
        now: Instant,
        *,
        is_possible: bool,
    ) -> AdjustDecision | None:
        """Let the policy choose between gate and simple mode; a change of the mode is reported instead of the share's.

        Each mode has an adjuster of its own, because latencies at a share differ. That of the gate continues later.
        """
        limits = self._limits
        online_ppm = device.adjuster.online_ppm
        given = ModeInput(online_ppm, limits.max_online_ppm, is_possible, limits.quantile_ppm)
        reason = device.mode.step(window, given, now)
        if reason is None:
            return decision
        device.settled_ns = now + _MODE_SETTLED_NS
        if device.mode.is_simple:
            device.at_gate, device.adjuster = device.adjuster, POLICIES[limits.adjust](limits, limits.max_online_ppm)
            return AdjustDecision(device.adjuster.online_ppm, AdjustCause.SIMPLE_MODE, reason)
        device.adjuster = device.at_gate or POLICIES[limits.adjust](limits, limits.max_online_ppm)
        device.at_gate = None
        return AdjustDecision(device.adjuster.online_ppm, AdjustCause.GATE_MODE, reason)

    def online_ppm(self, gpu: int) -> int | None:
        """Return the online share of a device; None: it is not adjusted."""
        device = self._devices.get(gpu)
        return None if device is None else device.adjuster.online_ppm

    def why(self, gpu: int) -> str:
        """Return the reason for the current online share."""
        device = self._devices.get(gpu)
        if device is None:
            return "no online tenant has a latency objective"
        divided_among = f"; {len(device.shares)} peers divide the device" if device.shares else ""
        mode = "; the gate is open, and offline work has the other SMs" if device.mode.is_simple else ""
        return f"{device.adjuster.why()}{divided_among}{mode}"

    def _forget_others(self, device: _DeviceControl, generations: dict[int, int], now: Instant) -> None:
        """Forget the loads of tenants that left; their diurnal profiles belong to the programs."""
        departed = [slot for slot, generation in device.generations.items() if generations.get(slot) != generation]
        self._learn_profiles(device, departed, now)
        for slot in departed:
            device.loads.pop(slot, None)
        device.generations = generations

    def _learn_profiles(self, device: _DeviceControl, slots: Iterable[int], now: Instant) -> None:
        for slot in slots:
            if slot in device.loads:
                self._profiles.add_load(device.programs.get(slot), device.loads[slot], self._limits.period_ns, now)
