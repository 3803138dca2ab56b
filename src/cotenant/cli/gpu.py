"""`cotenant gpu`: the state of this machine's GPUs as NVML reports it, and the tenants of their processes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from rich.console import Group
from rich.live import Live
from rich.text import Text

from cotenant.cli.command import configure, find, group, load, output, print_json
from cotenant.cli.parser import Parser
from cotenant.cli.render.tables import table
from cotenant.errors import PeerError, WorldError
from cotenant.node.client.connection import list_tenants
from cotenant.node.directories import Directories
from cotenant.node.nvml import GpuProcess, GpuReading, nvml, read_gpus, softgpu_directory
from cotenant.runner.clock import pause
from cotenant.runner.process import ancestors
from cotenant.softgpu.commands import home
from cotenant.units.text import counted

_REFRESH_S: Final = 1.0
_BAR_CELLS: Final = 8
_WIDE_COLUMNS: Final = 130
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_HIGH_PCT: Final = 90


def configure_gpu(parser: Parser) -> None:
    configure(parser, _gpu, "directories", json=True)
    about = "Refresh every second, until interrupted."
    group(parser, "Output").add_argument("-w", "--watch", action="store_true", help=about)


def _gpu(options: argparse.Namespace) -> int:
    gpu_snapshots = snapshots(load(options)[1], find(options)[1], os.environ, watch=options.watch)
    console = output()
    if options.json:
        for snapshot in gpu_snapshots:
            print_json(gpus_json(snapshot))
    elif not (options.watch and console.is_terminal):
        for snapshot in gpu_snapshots:
            console.print(gpus_table(snapshot, console.width))
    else:
        with Live(console=console, auto_refresh=False) as live:
            for snapshot in gpu_snapshots:
                live.update(gpus_table(snapshot, console.width), refresh=True)
    return 0


class GpuSnapshot(msgspec.Struct, frozen=True):
    """The readings of all GPUs, and the names of tenants by the pid of a process on a GPU."""

    gpus: list[GpuReading]
    tenants: dict[int, str]


def snapshots(own: Directories, node: Directories, environ: Mapping[str, str], *, watch: bool) -> Iterator[GpuSnapshot]:
    """Yield one snapshot of the GPUs, or with `watch` one every second without end."""
    soft = softgpu_directory(environ, home(own))
    with nvml(soft):
        while True:
            readings = read_gpus(soft)
            yield GpuSnapshot(readings, _tenants(node, [process.pid for gpu in readings for process in gpu.processes]))
            if not watch:
                return
            pause(_REFRESH_S)


def _tenants(node: Directories, pids: Sequence[int]) -> dict[int, str]:
    """Return the tenant of each process: the one whose `cotenant run` process is its ancestor."""
    if not pids:
        return {}
    try:
        names = {view.tenant.pid: view.tenant.name for view in list_tenants(node).tenants}
    except (WorldError, PeerError):
        return {}  # without a node there are no tenants, and the GPUs can still be shown
    owners = {pid: next((names[ancestor] for ancestor in ancestors(pid) if ancestor in names), "") for pid in pids}
    return {pid: name for pid, name in owners.items() if name}


def gpus_json(snapshot: GpuSnapshot) -> dict[str, Any]:
    """Return the output of `cotenant gpu --json`."""
    gpus: list[dict[str, Any]] = msgspec.to_builtins(snapshot.gpus)
    for gpu in gpus:
        for process in gpu["processes"]:
            process["tenant"] = snapshot.tenants.get(process["pid"])
    return {"gpus": gpus}


def gpus_table(snapshot: GpuSnapshot, width: int) -> Group:
    """Return the tables of `cotenant gpu`; a terminal narrower than 130 columns gets fewer of them."""
    kind = "software GPU" if any(gpu.is_soft for gpu in snapshot.gpus) else "GPU"
    columns = ["GPU", "NAME", "MEMORY", "BUSY", "SMS", "CLOCK", "POWER", "TEMP", "MODE", "UUID"]
    rows = [_gpu_row(gpu, bar=width >= _WIDE_COLUMNS) for gpu in snapshot.gpus]
    count = len(columns) if width >= _WIDE_COLUMNS else columns.index("MODE")
    parts = [table(counted(len(snapshot.gpus), kind), columns[:count], [row[:count] for row in rows])]
    rows = [_process_row(gpu, process, snapshot.tenants) for gpu in snapshot.gpus for process in gpu.processes]
    if rows:
        columns = ["GPU", "PID", "TENANT", "MEMORY", "BUSY", "MPS", "COMMAND"]
        title = "1 process" if len(rows) == 1 else f"{len(rows)} processes"
        parts.append(table(title, columns, rows))
    return Group(*parts)


def _gpu_row(gpu: GpuReading, *, bar: bool) -> list[str | Text]:
    if gpu.is_lost:
        return [_number(gpu), Text("lost", style="bold red"), *["-"] * 8]
    return [
        _number(gpu),
        gpu.name,
        _memory(gpu, bar=bar),
        _pct(gpu.utilization_pct),
        _pct(gpu.sm_activity_pct),
        "-" if gpu.sm_clock_mhz is None else f"{gpu.sm_clock_mhz} MHz",
        _power(gpu),
        "-" if gpu.temperature_c is None else f"{gpu.temperature_c}°C",
        gpu.compute_mode or "-",
        gpu.uuid,
    ]


def _number(gpu: GpuReading) -> str:
    return f"soft:{gpu.index}" if gpu.is_soft else str(gpu.index)


def _memory(gpu: GpuReading, *, bar: bool) -> Text:
    fraction = gpu.memory_used_bytes / gpu.memory_bytes if gpu.memory_bytes else 0.0
    filled = min(_BAR_CELLS, round(fraction * _BAR_CELLS))
    style = "red" if 100 * fraction >= _HIGH_PCT else "green"
    sizes = f"{gpu.memory_used_bytes / _GIB:.1f}/{gpu.memory_bytes / _GIB:.1f} GiB"
    if not bar:
        return Text(sizes)
    return Text.assemble(("█" * filled, style), ("░" * (_BAR_CELLS - filled), "dim"), " ", sizes)


def _power(gpu: GpuReading) -> str:
    if gpu.power_mw is None:
        return "-"
    limit = "" if gpu.power_limit_mw is None else f"/{gpu.power_limit_mw // 1000}"
    return f"{gpu.power_mw // 1000}{limit} W"


def _pct(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} %"


def _process_row(gpu: GpuReading, process: GpuProcess, tenants: Mapping[int, str]) -> list[str | Text]:
    return [
        _number(gpu),
        str(process.pid),
        tenants.get(process.pid, "-"),
        "-" if process.memory_bytes is None else f"{process.memory_bytes / _MIB:,.0f} MiB",
        _pct(process.utilization_pct),
        "yes" if process.is_mps else "-",
        process.command,
    ]
