"""Wires `cotenant top`: looks at the gates' files again and again, and finds names for who is in them."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from cotenant.apps.show import capped, rules_json, table
from cotenant.apps.show_requests import ServedBySlot, requests_table, served_json
from cotenant.domain.gate import GateRules
from cotenant.domain.gpu import WHOLE_PPM, Gpu
from cotenant.domain.ledger import LedgerAccount
from cotenant.domain.pace import DeviceLook, GateState, Pace, pace_of
from cotenant.domain.protect import GpuWatch, Health
from cotenant.domain.served import served_between
from cotenant.domain.tenant import TenantView
from cotenant.errors import CotenantError, InvariantError, WorldError
from cotenant.format.journal import TurnReader
from cotenant.format.log import describe_rules
from cotenant.format.quantity import counted, format_share, round_duration, round_share, round_size
from cotenant.host import Divergence, replay, same_promises
from cotenant.live.client import tenants_of
from cotenant.live.clock import LiveClock, pause
from cotenant.live.directory import Places
from cotenant.live.gate import devices_in, look_at
from cotenant.live.journal import Recovery, last_settings
from cotenant.live.ledger import look_at as look_at_ledger
from cotenant.machine.node import NodeMachine
from cotenant.policy.limit.share import share_of

EVERY_S: Final = 1.0
REQUESTS_LOOKS: Final = 10
"""Requests are shown of so many of these: one second has too few of them for a tail."""
_STYLES: Final = {
    GateState.PAUSED: "yellow",
    GateState.WAITING: "cyan",
    GateState.RUNNING: "green",
    GateState.QUIET: "dim",
}
_NOTE: Final = "DEVICE, FILLED: by announced times. P50, P99: at most so long, in powers of two."
_NOBODY: Final = "nobody is here; start a tenant with: cotenant run -- COMMAND"
_NO_GATE: Final = "the node knows no GPU, so nobody waits for anybody; name one with: cotenant node --gpu NAME=MEMORY"
_NARROW: Final = 90
_SHORT_NAME_CELLS: Final = 10


class Device(msgspec.Struct, frozen=True):
    """One device between two looks."""

    gpu: int
    name: str
    rules: GateRules
    tenants: list[tuple[str, Pace]]
    health: str = ""
    """Its state, and why; empty where no node says."""
    memory_bytes: int = 0
    held: Mapping[int, LedgerAccount] = {}
    """The ledger's accounts, by slot."""
    served: ServedBySlot = {}
    """The latest requests of online tenants."""


class Shown(msgspec.Struct, frozen=True):
    """All devices between two looks, and whether the daemon answered."""

    is_served: bool
    seconds: float
    devices: list[Device]


class _Names:
    """Who holds which slot in which generation, and what the devices are called: by the daemon, or by its journal."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._is_read = False
        self._tenants: dict[tuple[int, int], str] = {}
        self._slo_ns: dict[tuple[int, int], int] = {}
        self._gpus: list[Gpu] = []
        self._watches: list[GpuWatch] = []
        self.is_served = False

    def renew(self) -> None:
        """Ask the daemon; without one its journal is read, once: nobody writes to it."""
        try:
            roll = tenants_of(self._places.socket, EVERY_S)
        except CotenantError:
            self.is_served, self._watches = False, []
            if not self._is_read:
                self._is_read = True
                self._read_journal()
            return
        self.is_served, self._is_read = True, False
        self._gpus, self._watches = roll.gpus, roll.devices
        views = roll.tenants
        for view in views:
            self._note(view)

    def tenant(self, pace: Pace) -> str:
        return self._tenants.get((pace.slot, pace.generation), f"slot {pace.slot}/{pace.generation}")

    def slo_ns(self, pace: Pace) -> int:
        return self._slo_ns.get((pace.slot, pace.generation), 0)

    def _note(self, view: TenantView) -> None:
        terms = view.tenant.terms
        self._tenants[terms.slot, terms.generation] = view.tenant.name
        self._slo_ns[terms.slot, terms.generation] = terms.slo_ns

    def gpu(self, index: int) -> Gpu:
        return self._gpus[index] if index < len(self._gpus) else Gpu("", 0)

    def health(self, index: int) -> str:
        if index >= len(self._watches):
            return ""
        watch = self._watches[index]
        return f"{watch.health.value}{f': {watch.why}' if watch.why else ''}"

    def _read_journal(self) -> None:
        """As far as it can be read: names are a comfort, the files say the rest."""
        machine = NodeMachine()
        with contextlib.suppress(WorldError, InvariantError, Divergence):
            replay(machine, Recovery(self._places.journal, TurnReader).turns(), same_promises)
        for view in machine.tenants():
            self._note(view)
        settings = last_settings(self._places.journal)
        self._gpus = [] if settings is None else list(settings.gpus)


def watch(places: Places, times: int | None) -> Iterator[Shown]:
    """What happened in each second, so many times or for as long as somebody looks."""
    clock = LiveClock(0)  # the instants in the pages are those of the kernel's own monotonic clock
    names = _Names(places)
    before = _look(places, clock)
    looks = deque([before], REQUESTS_LOOKS)
    if not before:
        tenants_of(places.socket, EVERY_S)  # a node without a GPU answers; without a node there is nothing to look at
    while times is None or times > 0:
        pause(EVERY_S)
        after = _look(places, clock)
        names.renew()
        yield _shown(before, after, names, _ledgers(places, list(after)), looks[0])
        before = after
        looks.append(after)
        times = None if times is None else times - 1


def _look(places: Places, clock: LiveClock) -> dict[int, DeviceLook]:
    looks = [look_at(places.pages, gpu, clock.now()) for gpu in devices_in(places.pages)]
    return {look.gpu: look for look in looks if look is not None}


def _ledgers(places: Places, gpus: Sequence[int]) -> dict[int, Mapping[int, LedgerAccount]]:
    looks = [look_at_ledger(places.pages, gpu) for gpu in gpus]
    return {look.gpu: look.accounts for look in looks if look is not None}


def _shown(
    before: dict[int, DeviceLook],
    after: dict[int, DeviceLook],
    names: _Names,
    ledgers: Mapping[int, Mapping[int, LedgerAccount]],
    earlier: dict[int, DeviceLook],
) -> Shown:
    devices = []
    elapsed_ns = 0
    for gpu, look in after.items():
        first = before.get(gpu, look)
        elapsed_ns = max(elapsed_ns, look.at_ns - first.at_ns)
        tenants = [(names.tenant(pace), pace) for pace in pace_of(first, look)]
        found, held = names.gpu(gpu), ledgers.get(gpu, {})
        served = _served(earlier.get(gpu, first), look, [(pace, names.slo_ns(pace)) for _, pace in tenants])
        health, memory_bytes = names.health(gpu), found.memory_bytes
        devices.append(Device(gpu, found.name, look.rules, tenants, health, memory_bytes, held, served))
    return Shown(names.is_served, elapsed_ns / 1e9, devices)


def _served(before: DeviceLook, after: DeviceLook, paces: Sequence[tuple[Pace, int]]) -> ServedBySlot:
    seats = {seat.slot: seat for seat in after.rules.seats}
    for_ns = after.at_ns - before.at_ns
    return {
        pace.slot: served_between(
            before.counts_of(seats[pace.slot]), after.counts_of(seats[pace.slot]), after.at_ns, slo_ns, for_ns
        )
        for pace, slo_ns in paces
        if pace.is_online
    }


def top_json(shown: Shown) -> dict[str, Any]:
    """`cotenant top --json`: one object per second."""
    devices = [
        {
            "gpu": device.gpu,
            "name": device.name,
            "health": device.health,
            "memory_bytes": device.memory_bytes,
            "held_bytes": sum(_held(device, pace) for _, pace in device.tenants),
            "rules": rules_json(device.rules),
            "tenants": [
                {
                    "name": name,
                    **msgspec.to_builtins(pace),
                    "held_bytes": _held(device, pace),
                    "served": served_json(device.served.get(pace.slot)),
                }
                for name, pace in device.tenants
            ],
        }
        for device in shown.devices
    ]
    return {"served": shown.is_served, "seconds": shown.seconds, "devices": devices}


def _rules(rules: GateRules) -> str:
    """Those in force; control may have set the delay, and then it has many digits."""
    exact, about = (f"delay {written(rules.delay_ppm)}" for written in (format_share, round_share))
    return describe_rules(rules).replace(exact, f"{about} (online keeps {round_share(share_of(rules.delay_ppm))})")


def top_tables(shown: Shown, width: int) -> RenderableType:
    """`cotenant top`: who uses each device, and who waits for whom."""
    parts: list[RenderableType] = []
    for device in shown.devices:
        what = f"GPU {device.gpu}{f' ({device.name})' if device.name else ''}"
        parts.append(Text(f"{what}, {counted(len(device.tenants), 'tenant')}{_memory(device)}", style="bold"))
        if device.health:
            is_well = device.health.startswith((Health.HEALTHY.value, Health.INIT.value))
            parts.append(Text(device.health, style="green" if is_well else "bold yellow"))
        parts.append(Text(_rules(device.rules), style="dim"))
        if device.tenants:
            tenants = [(_named(name, width), pace) for name, pace in device.tenants]
            held = {pace.slot: round_size(_held(device, pace)) for _, pace in tenants} if width >= _NARROW else {}
            parts += [_use(tenants, held), _waits(tenants), *_broken(tenants)]
            served = [(name, device.served[pace.slot]) for name, pace in tenants if pace.slot in device.served]
            parts += [requests_table("", served)] if served else []
    if not shown.is_served and shown.devices:
        parts.append(Text("the node is down: everybody goes on under these rules", style="yellow"))
    if any(device.tenants for device in shown.devices):
        parts.append(Text(_NOTE, style="dim"))
    else:
        parts.append(Text(_NOBODY if shown.devices else _NO_GATE, style="dim"))
    return Group(*parts)


def _held(device: Device, pace: Pace) -> int:
    """Device memory of a tenant; an account of another generation is an earlier tenant's."""
    account = device.held.get(pace.slot)
    return account.held_bytes if account is not None and account.generation == pace.generation else 0


def _memory(device: Device) -> str:
    held_bytes = sum(_held(device, pace) for _, pace in device.tenants)
    return f", {round_size(held_bytes)} of {round_size(device.memory_bytes)} held" if device.memory_bytes else ""


def _named(name: str, width: int) -> str:
    """A name, shorter where a terminal is narrow: no column may be lost to it."""
    if width >= _NARROW or len(name) <= _SHORT_NAME_CELLS:
        return capped(name)
    return name[: _SHORT_NAME_CELLS - 1] + "…"


def _use(tenants: Sequence[tuple[str, Pace]], held: Mapping[int, str]) -> RenderableType:
    columns = ["NAME", "PRIORITY", "STATE", "LAUNCH/S", "DEVICE", "FILLED", "OF IDLE", "MISS", "SPIN"]
    if held:
        columns.insert(3, "MEMORY")
    rows: list[list[str | Text]] = [
        [
            name,
            f"{pace.priority} {'online' if pace.is_online else 'offline'}",
            Text(pace.state.value, style=_STYLES[pace.state]),
            *([held[pace.slot]] if held else []),
            _rate(pace.launches_per_s),
            _percent(pace.device_ppm),
            _percent(pace.filled_ppm),
            _percent(pace.filled_of_idle_ppm),
            "-" if pace.miss_ns is None else round_duration(pace.miss_ns),
            _percent(pace.spun_ppm),
        ]
        for name, pace in tenants
    ]
    return table("", columns, rows)


def _waits(tenants: Sequence[tuple[str, Pace]]) -> RenderableType:
    columns = ["NAME", "WAITS/S", "P50", "P99", "COST/S", "P50", "P99", "LOST", "LATE", "EARLY"]
    rows = [
        [
            name,
            _rate(pace.waits_per_s),
            _at_most(pace.waited_p50_ns),
            _at_most(pace.waited_p99_ns),
            _rate(pace.overruns_per_s),
            _at_most(pace.overrun_p50_ns),
            _at_most(pace.overrun_p99_ns),
            _percent(pace.overrun_ppm),
            _rate(pace.late_per_s),
            _percent(pace.early_ppm),
        ]
        for name, pace in tenants
    ]
    return table("", columns, rows)


def _broken(tenants: Sequence[tuple[str, Pace]]) -> list[Text]:
    """What must never be: it was let pass although it had seen that one above launched."""
    stale = [(name, pace.stale) for name, pace in tenants if pace.stale]
    return [Text(f"{name}: {counted(times, 'stale admission')}, please report it", "bold red") for name, times in stale]


def _rate(per_s: float) -> str:
    if per_s >= 10_000:
        return f"{per_s / 1000:.1f}k" if per_s < 100_000 else f"{per_s / 1000:.0f}k"
    return "-" if not per_s else f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"


def _percent(ppm: int | None) -> str:
    if not ppm:
        return "-" if ppm is None else "0%"
    percent = 100 * ppm / WHOLE_PPM
    return f"{percent:.0f}%" if percent >= 10 else f"{percent:.2f}%"


def _at_most(bound_ns: int) -> str:
    return round_duration(bound_ns) if bound_ns else "-"
