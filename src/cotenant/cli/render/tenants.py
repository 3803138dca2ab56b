"""Tables and JSON about tenants, their grants and the node's health, for `cotenant ps`, `self`, `set` and `doctor`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from cotenant.cli.render.tables import age_text, capped, table
from cotenant.gate.grant import Grant
from cotenant.gate.ledger import LedgerAccount, LedgerSnapshot
from cotenant.gate.rules import GateRules
from cotenant.node import wire
from cotenant.node.client.doctor import Finding, Level
from cotenant.node.model.protection import ExitPhase, GpuWatch, Health
from cotenant.node.model.tenant import Tenant, TenantView
from cotenant.units.text import counted, format_duration, format_share, format_size, round_share, round_size

Accounts: TypeAlias = Mapping[tuple[int, int], LedgerAccount]
"""The accounts of the memory ledgers by GPU and slot."""

_ACCOUNT_FIELDS: Final = (
    *("held_bytes", "denied", "wanted_bytes", "measured_bytes", "unseen_bytes", "over_bytes", "imported_bytes"),
)
_WIDE_COLUMNS: Final = 110
_LEVEL_STYLE: Final = {Level.GOOD: "green", Level.NOTE: "yellow", Level.BAD: "bold red"}


def show_tenants(
    console: Console,
    registry: wire.TenantList,
    accounts: Accounts,
    *,
    with_departed: bool,
    ledgers: Sequence[LedgerSnapshot] = (),
) -> None:
    """Print the tenants; a narrow terminal gets no columns in which every cell is empty."""
    slots = f"{len(registry.tenants)} of {counted(registry.slots, 'slot')} taken"
    title = f"{slots}, node pid {registry.pid}, {counted(len(registry.gpus), 'GPU')}"
    columns = ["NAME", "SLOT", "STATUS", "KIND", "PRIO", "SLO", "MEMORY", "SHARE", "GPU", "RESTARTS", "PID", "AGE"]
    wide = console.width >= _WIDE_COLUMNS
    gpus = [gpu.name if wide else gpu.name.partition(" ")[0] for gpu in registry.gpus]
    rows: list[list[str | Text]] = []
    last_cells: list[str] = []  # the cells of the last column, which is cut in a narrow terminal
    for view in (each for tenant in registry.tenants for each in tenant.by_device()):
        status = Text(_status(view), style="green" if _status(view) == "alive" else "yellow")
        rows.append(_tenant_row(view.tenant, status, registry.now_ns, gpus, accounts))
        last_cells.append("" if with_departed else " ".join(view.tenant.spec.command.split()))
    for departure in reversed(registry.departed) if with_departed else ():
        rows.append(_tenant_row(departure.tenant, Text("gone", style="dim"), departure.ended_ns, gpus, {}))
        last_cells.append(departure.ending)
    if with_departed:  # the column ENDING replaces the columns about the grant
        shown = [columns.index(column) for column in ("NAME", "SLOT", "STATUS", "KIND", "PID", "AGE")]
        columns = [*(columns[index] for index in shown), "ENDING"]
        rows = [[*(row[index] for index in shown), cell] for row, cell in zip(rows, last_cells, strict=True)]
    elif wide:
        columns.append("COMMAND")
        rows = [[*row, cell] for row, cell in zip(rows, last_cells, strict=True)]
    else:
        empty = [index for index in range(len(columns)) if rows and all(str(row[index]) == "-" for row in rows)]
        shown = [index for index in range(len(columns)) if index not in empty]
        columns, rows = [columns[index] for index in shown], [[row[index] for index in shown] for row in rows]
    console.print(table(title, columns, rows))
    if not rows:
        console.print("no tenants; start one with: cotenant run -- COMMAND", style="dim")
    for gpu, watch in enumerate(registry.devices):
        if watch.health not in (Health.INIT, Health.HEALTHY):
            console.print(Text(f"GPU {gpu} is {watch.health.value}: {watch.why}", style="yellow"))
    for note in _memory_notes(registry, accounts, ledgers):
        console.print(Text(note, style="yellow"))
    names = {view.tenant.grant.slot: view.tenant.name for view in registry.tenants}
    for setpoint in sorted(registry.setpoints, key=lambda setpoint: setpoint.gpu):
        parts = [f"{names[slot]} {round_share(share_ppm)}" for slot, share_ppm in setpoint.shares if slot in names]
        division = f": {', '.join(parts)}" if parts else ""
        share = f"online share {round_share(setpoint.online_ppm)} while online tenants are active"
        console.print(Text(f"GPU {setpoint.gpu}: {share}{division}"))


def _memory_notes(registry: wire.TenantList, accounts: Accounts, ledgers: Sequence[LedgerSnapshot]) -> Iterator[str]:
    """Yield what the devices report beyond what tenants may use and their hooks saw."""
    for view in (each for tenant in registry.tenants for each in tenant.by_device()):
        account = _account(view.tenant.grant, accounts)
        if account is not None and account.unseen_bytes:
            yield f"{view.tenant.name} uses {round_size(account.unseen_bytes)} that its hook did not see"
        if account is not None and account.over_bytes:
            yield f"{view.tenant.name} uses {round_size(account.over_bytes)} more than its quota"
        if account is not None and account.imported_bytes:
            opened = round_size(account.imported_bytes)
            yield f"{view.tenant.name} has {opened} of other tenants open, which counts for them"
    for ledger in ledgers:
        if ledger.foreign_bytes:
            yield f"GPU {ledger.gpu}: processes that belong to no tenant use {round_size(ledger.foreign_bytes)}"
        if ledger.unmatched_bytes:
            unmatched = round_size(ledger.unmatched_bytes)
            yield f"GPU {ledger.gpu}: {unmatched} belong to processes in another pid namespace than the node's"


def _status(view: TenantView) -> str:
    """Return the status column: disconnected first, then the phase of an exit, then paused or alive."""
    if not view.connected:
        return "disconnected"
    phase = view.tenant.lifecycle.phase
    return phase.value if phase is not ExitPhase.RUNNING else "paused" if view.tenant.paused else "alive"


def accounts_of(activity: wire.Activity) -> Accounts:
    """Return the device memory of the tenants."""
    return {
        (ledger.gpu, slot): account
        for ledger in (gpu.ledger for gpu in activity.gpus)
        if ledger is not None
        for slot, account in ledger.accounts.items()
    }


def _account(grant: Grant, accounts: Accounts) -> LedgerAccount | None:
    account = accounts.get((grant.gpu, grant.slot))
    return account if account is not None and account.generation == grant.generation else None


def _memory(grant: Grant, accounts: Accounts) -> str:
    """Return the column MEMORY: memory in use, and the reservation."""
    account = _account(grant, accounts)
    held = "" if account is None else round_size(account.held_bytes)
    if not grant.memory_bytes:
        return held if account is not None and account.held_bytes else "-"
    return f"{held}{'/' if held else ''}{format_size(grant.memory_bytes)}"


def _tenant_row(tenant: Tenant, status: Text, until_ns: int, gpus: list[str], accounts: Accounts) -> list[str | Text]:
    spec, grant = tenant.spec, tenant.grant
    return [
        capped(tenant.name),
        f"{grant.slot}/{grant.generation}",
        status,
        spec.kind.value,
        str(grant.priority),
        format_duration(spec.slo_ns) if spec.slo_ns else "-",
        _memory(grant, accounts),
        format_share(spec.share_ppm) if spec.share_ppm else "-",
        capped(gpus[grant.gpu]) if 0 <= grant.gpu < len(gpus) else "-",
        str(tenant.restarts or "-"),
        str(tenant.pid),
        age_text(max(0, until_ns - tenant.joined_ns)),
    ]


def show_findings(console: Console, findings: Iterable[Finding]) -> bool:
    """Print the findings of `cotenant doctor`; return whether none of them is bad."""
    is_good = True
    for finding in findings:
        is_good = is_good and finding.level is not Level.BAD
        console.print(Text.assemble((f"{finding.level.value:>4} ", _LEVEL_STYLE[finding.level]), finding.what))
        if finding.remedy:
            console.print(Padding(Text(f"-> {finding.remedy}", style="dim"), (0, 0, 0, 5)))
    return is_good


def show_grant(console: Console, grant: Grant, tenant: str) -> None:
    """Print the grant of a tenant."""
    rows = [
        ["tenant", tenant],
        ["slot", f"{grant.slot}/{grant.generation}"],
        ["kind", grant.kind.value],
        ["priority", str(grant.priority)],
        ["slo", format_duration(grant.slo_ns) if grant.slo_ns else "none"],
        ["memory", format_size(grant.memory_bytes) if grant.memory_bytes else "none reserved"],
        ["share", format_share(grant.share_ppm) if grant.share_ppm else "none guaranteed"],
        ["gpu", ", ".join(map(str, grant.gpus)) or "the node has none"],
    ]
    console.print(table("grant in force", ["FIELD", "VALUE"], rows))


def tenants_json(
    registry: wire.TenantList, accounts: Accounts, ledgers: Sequence[LedgerSnapshot] = ()
) -> dict[str, object]:
    """Return the output of `cotenant ps --json`."""
    present = [
        {
            **_tenant_json(view.tenant, registry.now_ns),
            "status": _status(view),
            **_held_json(view.tenant.grant, accounts),
            "on_devices": [
                {"gpu": gpu, **_held_json(view.tenant.grant.on(gpu), accounts)} for gpu in view.tenant.grant.gpus
            ],
        }
        for view in registry.tenants
    ]
    departed = [
        {**_tenant_json(departure.tenant, departure.ended_ns), "status": "gone", "ending": departure.ending}
        for departure in registry.departed
    ]
    return {
        "node": {
            "pid": registry.pid,
            "version": registry.node_version,
            "slots": registry.slots,
            "turns": registry.turns,
        },
        "gpus": [gpu.name for gpu in registry.gpus],
        "devices": [device_json(watch) for watch in registry.devices],
        "foreign": [
            {"gpu": ledger.gpu, "foreign_bytes": ledger.foreign_bytes, "unmatched_bytes": ledger.unmatched_bytes}
            for ledger in ledgers
        ],
        "online": [
            {"gpu": setpoint.gpu, "online_ppm": setpoint.online_ppm, "shares": dict(setpoint.shares)}
            for setpoint in registry.setpoints
        ],
        "rules": rules_json(registry.rules),
        "tenants": present,
        "departed": departed,
    }


def _held_json(grant: Grant, accounts: Accounts) -> dict[str, object]:
    account = _account(grant, accounts)
    if account is None:
        return dict.fromkeys(_ACCOUNT_FIELDS)
    return {field: getattr(account, field) for field in _ACCOUNT_FIELDS}


def device_json(watch: GpuWatch) -> dict[str, object]:
    """Return the health of a GPU."""
    return {"state": watch.health.value, "why": watch.why, "since_ns": watch.since_ns, "turn": watch.turn}


def rules_json(rules: GateRules) -> dict[str, object]:
    """Return the rules of a gate without its tenant entries."""
    others = (name for name in rules.__struct_fields__ if name not in ("policy", "entries"))
    return {"policy": rules.policy.value, **{name: getattr(rules, name) for name in others}}


def _tenant_json(tenant: Tenant, until_ns: int) -> dict[str, object]:
    spec, grant = tenant.spec, tenant.grant
    return {
        "name": tenant.name,
        "slot": grant.slot,
        "generation": grant.generation,
        "kind": spec.kind.value,
        "priority": grant.priority,
        "paused": tenant.paused,
        "stage": tenant.lifecycle.phase.value,
        "stage_why": tenant.lifecycle.why,
        "stage_turn": tenant.lifecycle.turn,
        "restarts": tenant.restarts,
        "slo_ns": spec.slo_ns,
        "memory_bytes": spec.memory_bytes,
        "share_ppm": spec.share_ppm,
        "limit": spec.limit.value,
        "gpu": grant.gpu,
        "gpus": list(grant.gpus),
        "pid": tenant.pid,
        "uid": tenant.uid,
        "age_ns": max(0, until_ns - tenant.joined_ns),
        "task": spec.task,
        "command": spec.command,
    }
