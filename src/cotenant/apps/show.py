"""How do results look in a terminal? Tables for people; the JSON for machines is made beside them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cotenant.domain.gate import GateRules
from cotenant.domain.instant import SECOND_NS
from cotenant.domain.ledger import LedgerAccount
from cotenant.domain.protect import GpuWatch, Health, Stage
from cotenant.domain.tenant import Tenant, TenantView, Terms
from cotenant.errors import WorldError
from cotenant.format import wire
from cotenant.format.quantity import (
    counted,
    format_duration,
    format_share,
    format_size,
    round_duration,
    round_share,
    round_size,
)
from cotenant.live.doctor import Finding, Level
from cotenant.live.ledger import look_at
from cotenant.live.softgpu.manage import SoftGpu

if TYPE_CHECKING:  # both bring the whole machine of the node, and most of what is shown has nothing to do with it
    from cotenant.apps.replay import ReplayReport
    from cotenant.apps.simulate import Outcome

Accounts: TypeAlias = Mapping[tuple[int, int], LedgerAccount]
"""The ledgers' accounts by device and slot."""

_WIDE: Final = 110
_NAME_CELLS: Final = 14
_LEVEL_STYLE: Final = {Level.GOOD: "green", Level.NOTE: "yellow", Level.BAD: "bold red"}


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, fold: bool = False) -> Table:
    """A plain table. Rows stay on one line and the last column gives way, unless its cells may `fold`."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    listed = [list(row) for row in rows]
    for index, column in enumerate(columns):
        gives_way = fold or index == len(columns) - 1
        widest = max((len(row[index]) for row in listed), default=0)
        least = None if gives_way else max(widest, len(column))
        made.add_column(column, overflow="fold" if fold else "ellipsis", no_wrap=not fold, min_width=least)
    for row in listed:
        made.add_row(*(cell if isinstance(cell, Text) else Text(_shown(cell)) for cell in row))
    return made


def _shown(text: str) -> str:
    """Words of others as they can be shown: nothing in them moves the cursor, and rich finds no markup in a Text."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def show_tenants(console: Console, roll: wire.Tenants, held: Accounts, *, everybody: bool) -> None:
    """`cotenant ps`; where a terminal is narrow, without columns that say nothing of anybody."""
    taken = f"{len(roll.tenants)} of {counted(roll.slots, 'slot')} taken"
    title = f"{taken}, node pid {roll.pid}, {counted(len(roll.gpus), 'GPU')}"
    columns = ["NAME", "SLOT", "STATUS", "KIND", "PRIO", "SLO", "MEMORY", "SHARE", "GPU", "RESTARTS", "PID", "AGE"]
    wide = console.width >= _WIDE
    gpus = [gpu.name if wide else gpu.name.partition(" ")[0] for gpu in roll.gpus]  # its number comes first
    rows: list[list[str | Text]] = []
    last: list[str] = []  # what gives way where a terminal is narrow
    for view in roll.tenants:
        status = Text(_status(view), style="green" if _status(view) == "alive" else "yellow")
        rows.append(_tenant_row(view.tenant, status, roll.now_ns, gpus, held))
        last.append("" if everybody else " ".join(view.tenant.spec.command.split()))
    for departure in reversed(roll.departed) if everybody else ():
        rows.append(_tenant_row(departure.tenant, Text("gone", style="dim"), departure.ended_ns, gpus, {}))
        last.append(departure.ending)
    if everybody:  # how somebody ended is worth more than what was once promised
        kept = [columns.index(column) for column in ("NAME", "SLOT", "STATUS", "KIND", "PID", "AGE")]
        columns = [*(columns[index] for index in kept), "ENDING"]
        rows = [[*(row[index] for index in kept), cell] for row, cell in zip(rows, last, strict=True)]
    elif wide:  # a command line is worth a column only where it squeezes nothing
        columns.append("COMMAND")
        rows = [[*row, cell] for row, cell in zip(rows, last, strict=True)]
    else:
        silent = [index for index in range(len(columns)) if rows and all(str(row[index]) == "-" for row in rows)]
        kept = [index for index in range(len(columns)) if index not in silent]
        columns, rows = [columns[index] for index in kept], [[row[index] for index in kept] for row in rows]
    console.print(table(title, columns, rows))
    if not rows:
        console.print("nobody is here; start a tenant with: cotenant run -- COMMAND", style="dim")
    for gpu, watch in enumerate(roll.devices):
        if watch.health not in (Health.INIT, Health.HEALTHY):
            console.print(Text(f"GPU {gpu} is {watch.health.value}: {watch.why}", style="yellow"))
    names = {view.tenant.terms.slot: view.tenant.name for view in roll.tenants}
    for dial in sorted(roll.dials, key=lambda dial: dial.gpu):
        parts = [f"{names[slot]} {round_share(share_ppm)}" for slot, share_ppm in dial.shares if slot in names]
        divided = f", divided among {' and '.join(parts)}" if parts else ""
        console.print(Text(f"GPU {dial.gpu}: online keeps {round_share(dial.online_ppm)} while it is active{divided}"))


def _status(view: TenantView) -> str:
    """Away matters most: who is away may not come back. Who is on its way out is that, paused or not."""
    if not view.connected:
        return "away"
    stage = view.tenant.standing.stage
    return stage.value if stage is not Stage.RUNNING else "paused" if view.tenant.paused else "alive"


def accounts_of(pages: Path, roll: wire.Tenants) -> Accounts:
    """What tenants hold of their devices' memory; nothing where the ledgers are another user's to read."""
    found: dict[tuple[int, int], LedgerAccount] = {}
    for gpu in range(len(roll.gpus)):
        with contextlib.suppress(WorldError):
            look = look_at(pages, gpu)
            found |= {} if look is None else {(gpu, slot): account for slot, account in look.accounts.items()}
    return found


def _account(terms: Terms, held: Accounts) -> LedgerAccount | None:
    account = held.get((terms.gpu, terms.slot))
    return account if account is not None and account.generation == terms.generation else None


def _memory(terms: Terms, held: Accounts) -> str:
    """What it holds of what it may."""
    account = _account(terms, held)
    holds = "" if account is None else round_size(account.held_bytes)
    if not terms.memory_bytes:
        return holds if account is not None and account.held_bytes else "-"
    return f"{holds}{'/' if holds else ''}{format_size(terms.memory_bytes)}"


def _tenant_row(tenant: Tenant, status: Text, until_ns: int, gpus: list[str], held: Accounts) -> list[str | Text]:
    spec, terms = tenant.spec, tenant.terms
    return [
        capped(tenant.name),
        f"{terms.slot}/{terms.generation}",
        status,
        spec.kind.value,
        str(terms.priority),
        format_duration(spec.slo_ns) if spec.slo_ns else "-",
        _memory(terms, held),
        format_share(spec.share_ppm) if spec.share_ppm else "-",
        capped(gpus[terms.gpu]) if 0 <= terms.gpu < len(gpus) else "-",
        str(tenant.restarts or "-"),
        str(tenant.pid),
        age_text(max(0, until_ns - tenant.joined_ns)),
    ]


def capped(name: str) -> str:
    """A name as long as a table can show without hiding what stands beside it."""
    return name if len(name) <= _NAME_CELLS else name[: _NAME_CELLS - 1] + "…"


def age_text(age_ns: int) -> str:
    """How long ago, in the two units that matter."""
    seconds = age_ns // SECOND_NS
    for unit, size, inner, inner_size in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // inner_size}{inner}"
    return f"{seconds}s"


def show_findings(console: Console, findings: Iterable[Finding]) -> bool:
    """`cotenant doctor`; returns whether nothing is bad."""
    well = True
    for finding in findings:
        well = well and finding.level is not Level.BAD
        console.print(Text.assemble((f"{finding.level.value:>4} ", _LEVEL_STYLE[finding.level]), finding.what))
        if finding.remedy:
            console.print(Padding(Text(f"-> {finding.remedy}", style="dim"), (0, 0, 0, 5)))
    return well


def show_terms(console: Console, terms: Terms, tenant: str) -> None:
    """`cotenant terms`."""
    rows = [
        ["tenant", tenant],
        ["slot", f"{terms.slot}/{terms.generation}"],
        ["kind", terms.kind.value],
        ["priority", str(terms.priority)],
        ["slo", format_duration(terms.slo_ns) if terms.slo_ns else "none"],
        ["memory", format_size(terms.memory_bytes) if terms.memory_bytes else "none reserved"],
        ["share", format_share(terms.share_ppm) if terms.share_ppm else "none guaranteed"],
        ["gpu", str(terms.gpu) if terms.gpu >= 0 else "the node has none"],
    ]
    console.print(table("terms in force", ["WHAT", "VALUE"], rows))


def show_replay(console: Console, report: ReplayReport) -> None:
    """`cotenant replay`."""
    if report.reproduced:
        torn = f"; a torn tail of {report.torn_bytes} bytes was dropped" if report.torn_bytes else ""
        made = f"{counted(report.turns, 'turn')}, {counted(report.actions, 'action')}"
        console.print(f"{made}: every one reproduced{torn}", highlight=False)
    elif report.damage:
        console.print(f"{report.file}: {report.damage}", style="bold red", highlight=False, markup=False)
    else:
        console.print(f"turn {report.diverged_at} goes another way", style="bold red", highlight=False)
        console.print(f"recorded: {report.recorded}\nnow:      {report.actual}", highlight=False, markup=False)


def show_outcome(console: Console, outcome: Outcome) -> None:
    """`cotenant simulate`."""
    counted = {name: value for name, value in msgspec.structs.asdict(outcome).items() if name != "endings"}
    rows = [[name.replace("_", " "), str(value)] for name, value in counted.items()]
    rows += [[f"ended: {ending}", str(count)] for ending, count in outcome.endings.items()]
    console.print(table("what became of everybody", ["WHAT", "COUNT"], rows))


def show_bench(console: Console, figures: Mapping[str, object]) -> None:
    """`cotenant bench`."""
    rows = [[name, f"{value:,.3f}" if isinstance(value, float) else str(value)] for name, value in figures.items()]
    console.print(table("medians of interleaved runs", ["FIGURE", "VALUE"], rows))


def tenants_json(roll: wire.Tenants, held: Accounts) -> dict[str, object]:
    """`cotenant ps --json`: names instead of positions, and no units in text."""
    here = [
        {**_tenant_json(view.tenant, roll.now_ns), "status": _status(view), **_held_json(view.tenant.terms, held)}
        for view in roll.tenants
    ]
    departed = [
        {**_tenant_json(gone.tenant, gone.ended_ns), "status": "gone", "ending": gone.ending} for gone in roll.departed
    ]
    return {
        "node": {"pid": roll.pid, "version": roll.node_version, "slots": roll.slots, "turns": roll.turns},
        "gpus": [gpu.name for gpu in roll.gpus],
        "devices": [device_json(watch) for watch in roll.devices],
        "online": [
            {"gpu": dial.gpu, "online_ppm": dial.online_ppm, "shares": dict(dial.shares)} for dial in roll.dials
        ],
        "rules": rules_json(roll.rules),
        "tenants": here,
        "departed": departed,
    }


def _held_json(terms: Terms, held: Accounts) -> dict[str, object]:
    account = _account(terms, held)
    if account is None:
        return {"held_bytes": None, "denied": None, "wanted_bytes": None}
    return {"held_bytes": account.held_bytes, "denied": account.denied, "wanted_bytes": account.wanted_bytes}


def device_json(watch: GpuWatch) -> dict[str, object]:
    """How a device is doing."""
    return {"state": watch.health.value, "why": watch.why, "since_ns": watch.since_ns, "turn": watch.turn}


def rules_json(rules: GateRules) -> dict[str, object]:
    """By which rules tenants let each other pass; the seats are the tenants."""
    return {**{name: getattr(rules, name) for name in rules.__struct_fields__[1:-1]}, "policy": rules.policy.value}


def _tenant_json(tenant: Tenant, until_ns: int) -> dict[str, object]:
    spec, terms = tenant.spec, tenant.terms
    return {
        "name": tenant.name,
        "slot": terms.slot,
        "generation": terms.generation,
        "kind": spec.kind.value,
        "priority": terms.priority,
        "paused": tenant.paused,
        "stage": tenant.standing.stage.value,
        "stage_why": tenant.standing.why,
        "stage_turn": tenant.standing.turn,
        "restarts": tenant.restarts,
        "slo_ns": spec.slo_ns,
        "memory_bytes": spec.memory_bytes,
        "share_ppm": spec.share_ppm,
        "limit": spec.limit.value,
        "gpu": terms.gpu,
        "pid": tenant.pid,
        "uid": tenant.uid,
        "age_ns": max(0, until_ns - tenant.joined_ns),
        "task": spec.task,
        "command": spec.command,
    }


def show_softgpus(console: Console, gpus: Sequence[SoftGpu]) -> None:
    """`cotenant softgpu list`."""
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
    else:
        console.print("make some with: cotenant softgpu create --gpu v100 --count 2", style="dim")


def show_books(console: Console, books: Mapping[str, Any]) -> None:
    """`cotenant softgpu inspect`."""
    counters = books["counters"]
    taken_bytes = books["memory_bytes"] - books["memory_free_bytes"]
    rows: list[list[str]] = [
        ["model", f"{books['name']} ({books['sm_count']} SMs)"],
        ["memory", f"{format_size(taken_bytes)} taken of {format_size(books['memory_bytes'])}"],
        ["clients", f"{len(books['clients'])} connected, {books['left']} left"],
        ["kernels", f"{counters['kernels']:,} ({counters['blocks']:,} blocks)"],
        ["copies", f"{counters['copies']:,}, {format_size(counters['host_bytes'])} to and from the host"],
        ["busy", round_duration(counters["busy_ns"])],
        ["SM time", round_duration(counters["sm_ns"])],
        ["last sample", _usage(books["utilization"])],
        ["waited for others", round_duration(counters["delayed_ns"])],
        ["speed", "lost" if books["lost"] else f"{books['speed']:.0%}"],
    ]
    console.print(table(f"soft:{books['ordinal']}, server pid {books['pid']}", ["WHAT", "VALUE"], rows))
    if books["clients"]:
        columns = ["PID", "KERNELS", "BUSY", "MEMORY", "WAITED", "BECAUSE OF"]
        console.print(table("clients", columns, [_client_row(client) for client in books["clients"]]))
    if books["accounts"]:
        columns = ["ACCOUNT", "CLIENTS", "EVER", "MEMORY", "AT MOST"]
        console.print(table("accounts", columns, [_account_row(account) for account in books["accounts"]]))
    if books["xids"]:
        entries = [[str(each["sequence"]), str(each["xid"]), each["text"]] for each in books["xids"]]
        console.print(table("Xids", ["NUMBER", "XID", "TEXT"], entries))
    if books["unsupported"]:
        calls = [[name, str(count)] for name, count in sorted(books["unsupported"].items())]
        console.print(table("called, but not supported", ["CALL", "TIMES"], calls))


def show_faults(console: Console, kinds: Sequence[Mapping[str, Any]]) -> None:
    """`cotenant softgpu fault --list`; where a terminal is narrow, without whom each strikes."""
    columns = ["KIND", "CUDA_ERROR_", "XID", "STRIKES", "WHAT HAPPENS"]
    rows = []
    for kind in kinds:
        code, xids = kind["code"].removeprefix("CUDA_ERROR_") or "-", ", ".join(map(str, kind["xids"])) or "-"
        rows.append([kind["kind"], code, xids, kind["strikes"], kind["about"]])
    kept = [index for index in range(len(columns)) if console.width >= _WIDE or columns[index] != "STRIKES"]
    made = table("faults", [columns[index] for index in kept], [[row[index] for index in kept] for row in rows])
    made.columns[-1].no_wrap = False
    console.print(made)


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
    culprits = [f"{culprit['pid']} ({round_duration(culprit['delay_ns'])})" for culprit in client["delayed_by"]]
    return [
        str(client["pid"]),
        f"{counters['kernels']:,}",
        round_duration(counters["busy_ns"]),
        format_size(counters["memory_bytes"]),
        round_duration(counters["delayed_ns"]),
        ", ".join(culprits) or "-",
    ]
