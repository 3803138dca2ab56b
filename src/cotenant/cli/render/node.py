"""The state of the daemon for `cotenant node status`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant.node import wire
from cotenant.node.directories import Directories
from cotenant.units.text import counted, format_size, round_duration, round_size


def status_record(status: wire.NodeStatus | None, directories: Directories) -> dict[str, Any]:
    """Return the state as a record for programs; without a node, its directories."""
    if status is None:
        return {"running": False, "runtime": str(directories.runtime), "state": str(directories.state)}
    return {
        "running": True,
        "pid": status.pid,
        "version": status.node_version,
        "uptime_s": status.uptime_ns / 1e9,
        "runtime": status.runtime,
        "state": status.state,
        "config": status.config,
        "sockets": status.sockets,
        "slots": status.slots,
        "tenants": status.tenants,
        "disconnected": status.disconnected,
        "gpus": [
            {"name": gpu.name, "memory_bytes": gpu.memory_bytes, "health": watch.health.value, "why": watch.why}
            for gpu, watch in zip(status.gpus, status.devices, strict=True)
        ],
        "storage": {"ok": not status.storage, "problem": status.storage, "kept_turns": status.kept_turns},
        "dropped_requests": status.dropped,
        "mps": status.mps,
    }


def show_status(console: Console, status: wire.NodeStatus) -> None:
    """Print the state as a table."""
    away = f", {status.disconnected} disconnected" if status.disconnected else ""
    rows = [
        ["version", status.node_version],
        ["running for", round_duration(status.uptime_ns)],
        ["config", status.config or "-"],
        ["runtime directory", status.runtime],
        ["state directory", status.state],
        ["sockets", ", ".join(Path(path).name for path in status.sockets) or "missing"],
        ["tenants", f"{status.tenants} in {counted(status.slots, 'slot')}{away}"],
        ["storage", _storage(status)],
        ["dropped requests", f"{status.dropped:,}"],
        ["MPS", status.mps],
    ]
    for index, (gpu, watch) in enumerate(zip(status.gpus, status.devices, strict=True)):
        why = f": {watch.why}" if watch.why else ""
        rows.append([f"GPU {index}", f"{gpu.name}, {format_size(gpu.memory_bytes)}, {watch.health.value}{why}"])
    if not status.gpus:
        rows.append(["GPUs", "none"])
    console.print(table(f"node, pid {status.pid}", ["FIELD", "VALUE"], rows))


def _storage(status: wire.NodeStatus) -> str:
    if status.storage:
        return f"failing: {status.storage}; {counted(status.kept_turns, 'turn')} kept in memory"
    try:
        return f"writable, {round_size(shutil.disk_usage(status.state).free)} free"
    except OSError:  # the directory of another user
        return "writable"
