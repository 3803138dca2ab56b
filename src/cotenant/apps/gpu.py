"""Wires `cotenant gpu`: which NVML to ask, what the GPUs show, and which processes are tenants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Group
from rich.text import Text

from cotenant.apps.show import table
from cotenant.apps.softgpu import home
from cotenant.errors import PeerError, WorldError
from cotenant.format.quantity import counted
from cotenant.live.client import tenants_of
from cotenant.live.clock import pause
from cotenant.live.directory import Places
from cotenant.live.gpu import GpuProcess, GpuReading, nvml, read_gpus, soft_directory
from cotenant.live.process import lineage

_EVERY_S: Final = 1.0
_BAR_CELLS: Final = 8
_WIDE: Final = 130
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_HIGH_PCT: Final = 90


class Shown(msgspec.Struct, frozen=True):
    """What the GPUs show, and the names of tenants by the pid of a process on a GPU."""

    gpus: list[GpuReading]
    tenants: dict[int, str]


def look(own: Places, door: Path, environ: Mapping[str, str], *, again: bool) -> Iterator[Shown]:
    """One look at the GPUs, or one every second for as long as somebody watches."""
    soft = soft_directory(environ, home(own))
    with nvml(soft):
        while True:
            readings = read_gpus(soft)
            yield Shown(readings, _tenants(door, [process.pid for gpu in readings for process in gpu.processes]))
            if not again:
                return
            pause(_EVERY_S)


def _tenants(door: Path, pids: Sequence[int]) -> dict[int, str]:
    """A tenant is a program under `cotenant run`, so whatever descends from that process is the tenant's."""
    if not pids:
        return {}
    try:
        names = {view.tenant.pid: view.tenant.name for view in tenants_of(door).tenants}
    except (WorldError, PeerError):
        return {}  # no node, no tenants; the GPUs can be shown all the same
    owners = {pid: next((names[ancestor] for ancestor in lineage(pid) if ancestor in names), "") for pid in pids}
    return {pid: name for pid, name in owners.items() if name}


def gpus_json(shown: Shown) -> dict[str, Any]:
    """`cotenant gpu --json`."""
    gpus: list[dict[str, Any]] = msgspec.to_builtins(shown.gpus)
    for gpu in gpus:
        for process in gpu["processes"]:
            process["tenant"] = shown.tenants.get(process["pid"])
    return {"gpus": gpus}


def gpus_table(shown: Shown, width: int) -> Group:
    """`cotenant gpu`, as far as a terminal of this width holds it."""
    kind = "software GPU" if any(gpu.is_soft for gpu in shown.gpus) else "GPU"
    columns = ["GPU", "NAME", "MEMORY", "BUSY", "SMS", "CLOCK", "POWER", "TEMP", "MODE", "UUID"]
    rows = [_gpu_row(gpu, bar=width >= _WIDE) for gpu in shown.gpus]
    kept = len(columns) if width >= _WIDE else columns.index("MODE")
    parts = [table(counted(len(shown.gpus), kind), columns[:kept], [row[:kept] for row in rows])]
    rows = [_process_row(gpu, process, shown.tenants) for gpu in shown.gpus for process in gpu.processes]
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
    part = gpu.memory_used_bytes / gpu.memory_bytes if gpu.memory_bytes else 0.0
    full = min(_BAR_CELLS, round(part * _BAR_CELLS))
    style = "red" if 100 * part >= _HIGH_PCT else "green"
    sizes = f"{gpu.memory_used_bytes / _GIB:.1f}/{gpu.memory_bytes / _GIB:.1f} GiB"
    if not bar:
        return Text(sizes)
    return Text.assemble(("█" * full, style), ("░" * (_BAR_CELLS - full), "dim"), " ", sizes)


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
