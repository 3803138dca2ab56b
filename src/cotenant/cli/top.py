"""`cotenant top`: ask the node for the gates' counters every second and show the activity of each GPU's tenants."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from cotenant.cli.command import RESTRICTED, configure, find, group, output, print_json, print_line
from cotenant.cli.kubernetes import add_cluster, show_gpus
from cotenant.cli.parser import Parser
from cotenant.cli.render.requests import ServedBySlot, requests_table, served_json
from cotenant.cli.render.tables import capped, table
from cotenant.cli.render.tenants import rules_json
from cotenant.errors import ConfigError
from cotenant.gate.activity import DeviceSnapshot, GateState, TenantActivity, activity_between
from cotenant.gate.ledger import LedgerAccount
from cotenant.gate.request_counts import request_stats_between
from cotenant.gate.rules import GateRules
from cotenant.node import wire
from cotenant.node.client.connection import list_tenants, read_activity
from cotenant.node.decision_log import describe_rules
from cotenant.node.directories import Directories
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import GpuWatch, Health
from cotenant.node.policy.limit.share import share_of
from cotenant.runner.clock import pause
from cotenant.units.share import WHOLE_PPM
from cotenant.units.text import counted, format_share, round_duration, round_share, round_size

PERIOD_S: Final = 1.0
REQUEST_PERIODS: Final = 10
"""Request latencies cover this many periods: one second has too few requests for a 99th percentile."""
_STYLES: Final = {
    GateState.PAUSED: "yellow",
    GateState.WAITING: "cyan",
    GateState.RUNNING: "green",
    GateState.QUIET: "dim",
}
_NOTE: Final = "DEVICE and FILLED are expected device times; P50 and P99 are upper bounds, rounded to powers of two."
_NO_TENANTS: Final = "no tenants; start one with: cotenant run -- COMMAND"
_NO_GATE: Final = "the node has no GPU, so there is no gate; name one with: cotenant node --gpu NAME=MEMORY"
_NARROW_COLUMNS: Final = 90
_SHORT_NAME_CELLS: Final = 10


def configure_top(parser: Parser) -> None:
    configure(parser, _top, "directories", json=True)
    format_group = group(parser, "Output")
    format_group.add_argument("--once", action="store_true", help="Show one second and exit; the default with --json.")
    about = "Show N seconds and exit (default: until interrupted)."
    format_group.add_argument("--seconds", type=int, metavar="N", help=about)
    add_cluster(parser, "Show the GPUs of all nodes of a Kubernetes cluster.")


def _top(options: argparse.Namespace) -> int:
    if options.seconds is not None and (options.seconds < 1 or options.once):
        raise ConfigError("--seconds", options.seconds, "write a whole number of at least 1, without --once")
    once = options.once or (options.json and options.seconds is None)
    if options.all_nodes:
        return show_gpus(options, 1 if once else options.seconds)
    activities = watch(find(options)[1], 1 if once else options.seconds, print_line)
    console = output()
    if options.json:
        for activity in activities:
            print_json(top_json(activity))
    elif once or not console.is_terminal:
        for activity in activities:
            console.print(top_tables(activity, console.width))
    else:
        _show_live(find(options)[1], options.seconds, console)
    return 0


def _show_live(directories: Directories, times: int | None, console: Console) -> None:
    """Show the tables in place; keys scroll, sort and quit."""
    from cotenant.cli.top_keys import TopKeys, raw_keys

    keys, shown = TopKeys(), [NodeActivity(0.0, [])]

    def draw() -> None:
        devices = [msgspec.structs.replace(device, tenants=keys.arrange(device.tenants)) for device in shown[0].devices]
        tables = top_tables(NodeActivity(shown[0].seconds, devices), console.width) if devices else Text("reading")
        live.update(Group(tables, Text(keys.legend(), style="dim")), refresh=True)

    with raw_keys(), Live(console=console, auto_refresh=False, screen=True) as live:
        draw()
        for activity in watch(directories, times, print_line, lambda seconds: keys.wait(seconds, draw)):
            if keys.is_ended:
                return
            shown[0] = activity
            draw()


class DeviceActivity(msgspec.Struct, frozen=True):
    """The activity of one GPU's tenants between two snapshots."""

    gpu: int
    name: str
    rules: GateRules
    tenants: list[tuple[str, TenantActivity]]
    health: str = ""
    """The health of the GPU and the reason; empty if no node answers."""
    memory_bytes: int = 0
    held: Mapping[int, LedgerAccount] = {}
    """The accounts of the memory ledger, by slot."""
    served: ServedBySlot = {}
    """The latest requests of online tenants, by slot."""


class NodeActivity(msgspec.Struct, frozen=True):
    """The activity of the tenants of all GPUs between two snapshots."""

    seconds: float
    devices: list[DeviceActivity]


class _NodeNames:
    """The names of tenants by slot and generation, their objectives, and the GPUs."""

    def __init__(self) -> None:
        self._tenants: dict[tuple[int, int], str] = {}
        self._slo_ns: dict[tuple[int, int], int] = {}
        self._gpus: list[Gpu] = []
        self._watches: list[GpuWatch] = []

    def refresh(self, registry: wire.TenantList) -> None:
        """Take the names from the node's list; a tenant that just left is still shown by its name."""
        self._gpus, self._watches = registry.gpus, registry.devices
        for view in registry.tenants:
            grant = view.tenant.grant
            self._tenants[grant.slot, grant.generation] = view.tenant.name
            self._slo_ns[grant.slot, grant.generation] = grant.slo_ns

    def tenant(self, activity: TenantActivity) -> str:
        return self._tenants.get((activity.slot, activity.generation), f"slot {activity.slot}/{activity.generation}")

    def slo_ns(self, activity: TenantActivity) -> int:
        return self._slo_ns.get((activity.slot, activity.generation), 0)

    def gpu(self, index: int) -> Gpu:
        return self._gpus[index] if index < len(self._gpus) else Gpu("", 0)

    def health(self, index: int) -> str:
        if index >= len(self._watches):
            return ""
        watch = self._watches[index]
        return f"{watch.health.value}{f': {watch.why}' if watch.why else ''}"


def watch(
    directories: Directories,
    times: int | None,
    report: Callable[[str], None] = lambda _: None,
    wait: Callable[[float], None] = pause,
) -> Iterator[NodeActivity]:
    """Yield the activity of each second, `times` times or without end; `report` receives one line about limits.

    `wait` waits between two seconds.
    """
    names = _NodeNames()
    activity = read_activity(directories)
    if activity.is_restricted:
        report(RESTRICTED)
    before = _snapshots(activity)
    snapshots = deque([before], REQUEST_PERIODS)
    while times is None or times > 0:
        wait(PERIOD_S)
        names.refresh(list_tenants(directories))
        activity = read_activity(directories)
        after = _snapshots(activity)
        yield _activity(before, after, names, _ledgers(activity), snapshots[0])
        before = after
        snapshots.append(after)
        times = None if times is None else times - 1


def _snapshots(activity: wire.Activity) -> dict[int, DeviceSnapshot]:
    return {gpu.gate.gpu: gpu.gate for gpu in activity.gpus if gpu.gate is not None}


def _ledgers(activity: wire.Activity) -> dict[int, Mapping[int, LedgerAccount]]:
    return {gpu.ledger.gpu: gpu.ledger.accounts for gpu in activity.gpus if gpu.ledger is not None}


def _activity(
    before: dict[int, DeviceSnapshot],
    after: dict[int, DeviceSnapshot],
    names: _NodeNames,
    ledgers: Mapping[int, Mapping[int, LedgerAccount]],
    earlier: dict[int, DeviceSnapshot],
) -> NodeActivity:
    devices = []
    elapsed_ns = 0
    for gpu, snapshot in after.items():
        first = before.get(gpu, snapshot)
        elapsed_ns = max(elapsed_ns, snapshot.at_ns - first.at_ns)
        tenants = [(names.tenant(tenant), tenant) for tenant in activity_between(first, snapshot)]
        device, accounts = names.gpu(gpu), ledgers.get(gpu, {})
        served = _served(earlier.get(gpu, first), snapshot, [(tenant, names.slo_ns(tenant)) for _, tenant in tenants])
        health, memory_bytes = names.health(gpu), device.memory_bytes
        devices.append(
            DeviceActivity(gpu, device.name, snapshot.rules, tenants, health, memory_bytes, accounts, served)
        )
    return NodeActivity(elapsed_ns / 1e9, devices)


def _served(
    before: DeviceSnapshot, after: DeviceSnapshot, tenants: Sequence[tuple[TenantActivity, int]]
) -> ServedBySlot:
    entries = {entry.slot: entry for entry in after.rules.entries}
    for_ns = after.at_ns - before.at_ns
    return {
        tenant.slot: request_stats_between(
            before.counts_of(entries[tenant.slot]), after.counts_of(entries[tenant.slot]), after.at_ns, slo_ns, for_ns
        )
        for tenant, slo_ns in tenants
        if tenant.is_online
    }


def top_json(activity: NodeActivity) -> dict[str, Any]:
    """Return the output of `cotenant top --json` for one second."""
    devices = [
        {
            "gpu": device.gpu,
            "name": device.name,
            "health": device.health,
            "memory_bytes": device.memory_bytes,
            "held_bytes": sum(_held(device, tenant) for _, tenant in device.tenants),
            "rules": rules_json(device.rules),
            "tenants": [
                {
                    "name": name,
                    **msgspec.to_builtins(tenant),
                    "held_bytes": _held(device, tenant),
                    "served": served_json(device.served.get(tenant.slot)),
                }
                for name, tenant in device.tenants
            ],
        }
        for device in activity.devices
    ]
    return {"seconds": activity.seconds, "devices": devices}


def _rules(rules: GateRules) -> str:
    """Describe the rules in force; a delay set by online-share control is rounded."""
    exact, about = (f"delay {format_(rules.delay_ppm)}" for format_ in (format_share, round_share))
    return describe_rules(rules).replace(exact, f"{about} (online share {round_share(share_of(rules.delay_ppm))})")


def top_tables(activity: NodeActivity, width: int) -> RenderableType:
    """Return the tables of `cotenant top`: device use, waits and requests of each GPU's tenants."""
    parts: list[RenderableType] = []
    for device in activity.devices:
        title = f"GPU {device.gpu}{f' ({device.name})' if device.name else ''}"
        parts.append(Text(f"{title}, {counted(len(device.tenants), 'tenant')}{_memory(device)}", style="bold"))
        if device.health:
            is_healthy = device.health.startswith((Health.HEALTHY.value, Health.INIT.value))
            parts.append(Text(device.health, style="green" if is_healthy else "bold yellow"))
        parts.append(Text(_rules(device.rules), style="dim"))
        if device.tenants:
            tenants = [(_short_name(name, width), tenant) for name, tenant in device.tenants]
            held = (
                {tenant.slot: round_size(_held(device, tenant)) for _, tenant in tenants}
                if width >= _NARROW_COLUMNS
                else {}
            )
            parts += [_use(tenants, held), _waits(tenants), *_stale_admissions(tenants)]
            served = [(name, device.served[tenant.slot]) for name, tenant in tenants if tenant.slot in device.served]
            parts += [requests_table("", served)] if served else []
    if any(device.tenants for device in activity.devices):
        parts.append(Text(_NOTE, style="dim"))
    else:
        parts.append(Text(_NO_TENANTS if activity.devices else _NO_GATE, style="dim"))
    return Group(*parts)


def _held(device: DeviceActivity, activity: TenantActivity) -> int:
    """Return the device memory of a tenant; an account of another generation belongs to an earlier tenant."""
    account = device.held.get(activity.slot)
    return account.held_bytes if account is not None and account.generation == activity.generation else 0


def _memory(device: DeviceActivity) -> str:
    held_bytes = sum(_held(device, tenant) for _, tenant in device.tenants)
    return f", {round_size(held_bytes)} of {round_size(device.memory_bytes)} held" if device.memory_bytes else ""


def _short_name(name: str, width: int) -> str:
    """Return a name, shortened in a narrow terminal so that every column fits."""
    if width >= _NARROW_COLUMNS or len(name) <= _SHORT_NAME_CELLS:
        return capped(name)
    return name[: _SHORT_NAME_CELLS - 1] + "…"


def _use(tenants: Sequence[tuple[str, TenantActivity]], held: Mapping[int, str]) -> RenderableType:
    columns = ["NAME", "PRIORITY", "STATE", "LAUNCH/S", "DEVICE", "FILLED", "OF IDLE", "ERROR", "SPIN"]
    if held:
        columns.insert(3, "MEMORY")
    rows: list[list[str | Text]] = [
        [
            name,
            f"{tenant.priority} {'online' if tenant.is_online else 'offline'}",
            Text(tenant.state.value, style=_STYLES[tenant.state]),
            *([held[tenant.slot]] if held else []),
            _rate(tenant.launches_per_s),
            _percent(tenant.device_ppm),
            _percent(tenant.filled_ppm),
            _percent(tenant.filled_of_idle_ppm),
            "-" if tenant.miss_ns is None else round_duration(tenant.miss_ns),
            _percent(tenant.spun_ppm),
        ]
        for name, tenant in tenants
    ]
    return table("", columns, rows)


def _waits(tenants: Sequence[tuple[str, TenantActivity]]) -> RenderableType:
    columns = ["NAME", "WAITS/S", "P50", "P99", "COST/S", "P50", "P99", "LOST", "LATE", "EARLY"]
    rows = [
        [
            name,
            _rate(tenant.waits_per_s),
            _duration_text(tenant.waited_p50_ns),
            _duration_text(tenant.waited_p99_ns),
            _rate(tenant.overruns_per_s),
            _duration_text(tenant.overrun_p50_ns),
            _duration_text(tenant.overrun_p99_ns),
            _percent(tenant.overrun_ppm),
            _rate(tenant.late_per_s),
            _percent(tenant.early_ppm),
        ]
        for name, tenant in tenants
    ]
    return table("", columns, rows)


def _stale_admissions(tenants: Sequence[tuple[str, TenantActivity]]) -> list[Text]:
    """Report stale admissions, which are a defect: a launch passed after a higher-priority one was announced."""
    stale = [(name, tenant.stale) for name, tenant in tenants if tenant.stale]
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


def _duration_text(bound_ns: int) -> str:
    return round_duration(bound_ns) if bound_ns else "-"
