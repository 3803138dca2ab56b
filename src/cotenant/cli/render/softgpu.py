"""Tables about software GPUs for `cotenant softgpu`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant.softgpu.manage import NOTES, SoftwareGpu
from cotenant.units.text import counted, format_size, round_duration

_WIDE_COLUMNS: Final = 110


def show_softgpus(console: Console, gpus: Sequence[SoftwareGpu]) -> None:
    """Print a table of software GPUs."""
    rows: list[list[str | Text]] = []
    for gpu in gpus:
        word = "lost" if gpu.is_lost else "alive" if gpu.alive else "stuck" if gpu.pid else "dead"
        state = Text(word, style="green" if word == "alive" else "bold red")
        memory = format_size(gpu.memory_bytes) if gpu.memory_bytes else "-"
        rows.append([f"soft:{gpu.ordinal}", state, gpu.name or "-", memory, str(gpu.pid or "-"), str(gpu.clients)])
    console.print(
        table(counted(len(rows), "software GPU"), ["GPU", "STATE", "MODEL", "MEMORY", "PID", "CLIENTS"], rows)
    )
    if rows:
        console.print("use one with: cotenant run --gpu soft:0 -- COMMAND", style="dim")
        _show_notes(console)
    else:
        console.print("create some with: cotenant softgpu create --gpu v100 --count 2", style="dim")


def _show_notes(console: Console) -> None:
    for note in NOTES:
        console.print(f"note: {note}", style="dim")


def show_counters(console: Console, state: Mapping[str, Any]) -> None:
    """Print the counters of a software GPU, its clients, and the errors it has raised."""
    counters, code = state["counters"], state["code"]
    used_bytes = state["memory_bytes"] - state["memory_free_bytes"]
    rows: list[list[str]] = [
        ["model", f"{state['name']} ({state['sm_count']} SMs)"],
        ["memory", f"{format_size(used_bytes)} of {format_size(state['memory_bytes'])} in use"],
        ["clients", f"{len(state['clients'])} connected, {state['left']} disconnected"],
        ["kernels", f"{counters['kernels']:,} ({counters['blocks']:,} blocks)"],
        ["loaded kernels", f"{code['executable_kernels']:,} executable, {code['refused_kernels']:,} not executable"],
        ["copies", f"{counters['copies']:,}, {format_size(counters['host_bytes'])} to and from the host"],
        ["busy", round_duration(counters["busy_ns"])],
        ["SM time", round_duration(counters["sm_ns"])],
        ["last sample", _usage(state["utilization"])],
        ["waited for other clients", round_duration(counters["delayed_ns"])],
        ["speed", "lost" if state["lost"] else f"{state['speed']:.0%}"],
    ]
    console.print(table(f"soft:{state['ordinal']}, server pid {state['pid']}", ["FIELD", "VALUE"], rows))
    _show_notes(console)
    if state["clients"]:
        columns = ["PID", "KERNELS", "BUSY", "MEMORY", "WAITED", "WAITED FOR"]
        console.print(table("clients", columns, [_client_row(client) for client in state["clients"]]))
    if state["accounts"]:
        columns = ["ACCOUNT", "CLIENTS", "ALL CLIENTS", "MEMORY", "PEAK MEMORY"]
        console.print(table("accounts", columns, [_account_row(account) for account in state["accounts"]]))
    if state["xids"]:
        entries = [[str(xid["sequence"]), str(xid["xid"]), xid["text"]] for xid in state["xids"]]
        console.print(table("Xids", ["NUMBER", "XID", "TEXT"], entries))
    if state["unsupported"]:
        calls = [[name, str(count)] for name, count in sorted(state["unsupported"].items())]
        console.print(table("unsupported driver calls", ["CALL", "COUNT"], calls))


def show_faults(console: Console, kinds: Sequence[Mapping[str, Any]]) -> None:
    """Print the kinds of faults; a narrow terminal gets no column AFFECTS."""
    columns = ["KIND", "CUDA_ERROR_", "XID", "AFFECTS", "EFFECT"]
    rows = []
    for kind in kinds:
        code, xids = kind["code"].removeprefix("CUDA_ERROR_") or "-", ", ".join(map(str, kind["xids"])) or "-"
        rows.append([kind["kind"], code, xids, kind["strikes"], kind["about"]])
    shown = [index for index in range(len(columns)) if console.width >= _WIDE_COLUMNS or columns[index] != "AFFECTS"]
    faults = table("faults", [columns[index] for index in shown], [[row[index] for index in shown] for row in rows])
    faults.columns[-1].no_wrap = False
    console.print(faults)


def _usage(usage: Mapping[str, Any]) -> str:
    busy_pct = 100 * usage["busy_ns"] / max(1, usage["period_ns"])
    return (
        f"busy {busy_pct:.0f} % of {round_duration(usage['period_ns'])}, {100 * usage['sm_activity']:.0f} % of the SMs"
    )


def _account_row(account: Mapping[str, Any]) -> list[str]:
    sizes = (format_size(account["memory_bytes"]), format_size(account["memory_peak_bytes"]))
    return [account["account"], str(account["clients"]), str(account["connected"]), *sizes]


def _client_row(client: Mapping[str, Any]) -> list[str]:
    counters = client["counters"]
    blockers = [f"{blocker['pid']} ({round_duration(blocker['delay_ns'])})" for blocker in client["delayed_by"]]
    return [
        str(client["pid"]),
        f"{counters['kernels']:,}",
        round_duration(counters["busy_ns"]),
        format_size(counters["memory_bytes"]),
        round_duration(counters["delayed_ns"]),
        ", ".join(blockers) or "-",
    ]
