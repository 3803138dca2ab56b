"""Output of commands about models: imports, corrections, families of kernels, and playback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant.profile.estimate.commands import ImportedModel
from cotenant.profile.estimate.compare import FamilyChange
from cotenant.profile.estimate.corrections import CorrectionRow
from cotenant.profile.estimate.duration import Correction
from cotenant.profile.estimate.stream import EstimatedStream
from cotenant.units.estimate import Estimate
from cotenant.units.text import round_duration


def interval(estimate: Estimate) -> str:
    """Return a duration with its interval."""
    low, point, high = (round_duration(round(value)) for value in (estimate.low, estimate.point, estimate.high))
    return f"{point} ({low} to {high})"


def show_imported(console: Console, imported: Sequence[ImportedModel]) -> None:
    """Print one row per stored stream, and every operator that has no rule."""
    columns = ["TASK", "GPU", "KERNELS", "LATENCY (90% INTERVAL)", "DEVICE TIME", "BUSY", "MEMORY", "GFLOP", "MOVED"]
    rows: list[list[str | Text]] = [
        [
            new.task,
            new.stream.gpu.key,
            str(len(new.stream.kernels)),
            interval(new.stream.latency_ns),
            interval(new.stream.device_ns),
            f"{new.stream.busy:.0%}",
            f"{new.stream.memory_bytes / 2**20:.0f} MiB",
            f"{new.stream.flops / 1e9:.2f}",
            f"{new.stream.moved_bytes / 2**20:.0f} MiB",
        ]
        for new in imported
    ]
    console.print(table("Estimated kernel streams", columns, rows))
    for new in imported:
        families = ", ".join(f"{row.family} {row.share:.0%}" for row in new.stream.families[:5])
        console.print(Text(f"{new.task}: {families}", style="dim"))
        for line in (*new.stream.remarks, *memory_lines(new.stream)):
            console.print(Text(f"{new.task}: {line}", style="yellow"))
    if imported:
        first = imported[0]
        text = f"play it with: cotenant run --gpu soft:0 -- cotenant play {first.stream.name} --rate 60"
        console.print(Text(text, style="dim"))


def memory_lines(stream: EstimatedStream) -> list[str]:
    """Return a sentence if the model is larger than the GPU."""
    gpu = stream.gpu
    if stream.memory_bytes <= gpu.memory_bytes:
        return []
    needed = f"it needs {stream.memory_bytes / 2**30:.1f} GiB of memory, and {gpu.name} has"
    return [f"{needed} {gpu.memory_bytes >> 30} GiB: its times are those of a GPU with enough memory"]


def imported_json(new: ImportedModel) -> dict[str, Any]:
    """Return one stored stream of `profile import --json`."""
    return {"task": new.task, "device": new.device, "file": new.path, **stream_json(new.stream)}


def stream_json(stream: EstimatedStream) -> dict[str, Any]:
    """Return a stream as JSON values."""
    return {
        "model": stream.name,
        "gpu": stream.gpu.key,
        "batch": stream.batch,
        "mode": stream.options.mode,
        "train": stream.options.train,
        "kernels": len(stream.kernels),
        "latency_ns": estimate_json(stream.latency_ns),
        "device_ns": estimate_json(stream.device_ns),
        "busy": round(stream.busy, 4),
        "memory_bytes": stream.memory_bytes,
        "flops": stream.flops,
        "moved_bytes": stream.moved_bytes,
        "families": [
            {"family": row.family, "kernels": row.kernels, "device_ns": round(row.device_ns), "share": row.share}
            for row in stream.families
        ],
        "unsupported": [
            {"operator": row.type, "count": row.count, "share": round(row.share, 6), "reason": row.reason}
            for row in stream.unsupported
        ],
        "notes": list(stream.notes),
        "corrected_by": stream.correction.measurements,
    }


def estimate_json(estimate: Estimate) -> dict[str, float]:
    """Return an estimate with named parts."""
    return {
        "low": round(estimate.low),
        "point": round(estimate.point),
        "high": round(estimate.high),
        "coverage": estimate.coverage,
    }


def show_correction(console: Console, name: str, factors: Correction, rows: Sequence[CorrectionRow]) -> None:
    """Print the factors of a GPU, and each measurement before and after."""
    cells: list[list[str | Text]] = [
        [
            row.name,
            round_duration(round(row.measured_ns)),
            f"{round_duration(round(row.before_ns))} ({row.before_ns / row.measured_ns - 1:+.0%})",
            f"{round_duration(round(row.after_ns))} ({row.after_ns / row.measured_ns - 1:+.0%})",
        ]
        for row in rows
    ]
    console.print(table(f"Corrections of {name}", ["MODEL", "MEASURED", "ESTIMATE", "CORRECTED"], cells))
    text = f"arithmetic x{factors.arithmetic:.2f}, memory x{factors.memory:.2f}, host x{factors.host:.2f}"
    console.print(Text(f"times of this GPU are now {text}; models imported earlier keep their times"))


def show_families(console: Console, rows: Sequence[FamilyChange]) -> None:
    """Print device times per request by family of two profiles."""
    cells: list[list[str | Text]] = [
        [
            row.family,
            round_duration(round(row.before_ns)),
            round_duration(round(row.after_ns)),
            "-" if row.ratio is None else f"{row.ratio:.2f}",
            f"{row.before_kernels:.0f}",
            f"{row.after_kernels:.0f}",
        ]
        for row in rows
    ]
    columns = ["FAMILY", "BEFORE", "AFTER", "RATIO", "KERNELS", "AFTER"]
    console.print(table("Device time per request by family of kernels", columns, cells))


def show_played(console: Console, task: str, summary: Mapping[str, Any]) -> None:
    """Print the latencies of a playback."""
    latency = {name: round_duration(value) for name, value in summary["latency_ns"].items()}
    console.print(
        Text(
            f"{task}: {summary['requests']} requests, {summary['requests_per_s']:.1f}/s, latency "
            f"p50 {latency['p50']}, p90 {latency['p90']}, p99 {latency['p99']}, max {latency['max']}"
        )
    )
