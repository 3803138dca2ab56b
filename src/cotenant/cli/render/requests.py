"""Tables of the requests of online tenants: latencies, and attainment of the objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, cast

import msgspec
from rich.console import Console, RenderableType
from rich.text import Text

from cotenant.cli.render.tables import capped, table
from cotenant.gate.activity import GateCounts
from cotenant.gate.grant import Kind
from cotenant.gate.request_counts import RequestStats, request_stats_between
from cotenant.node import wire
from cotenant.units.instant import SECOND_NS
from cotenant.units.share import WHOLE_PPM
from cotenant.units.text import round_duration

ServedBySlot: TypeAlias = Mapping[int, RequestStats]
_GOOD_PPM: Final = 990_000


def served_so_far(activity: wire.Activity, registry: wire.TenantList) -> ServedBySlot:
    """Return the request statistics of the online tenants since each of them started, by slot."""
    online = [view.tenant.grant for view in registry.tenants if view.tenant.grant.kind is Kind.ONLINE]
    snapshots = {gpu.gate.gpu: gpu.gate for gpu in activity.gpus if gpu.gate is not None}
    stats = {}
    for grant in online:
        snapshot = snapshots.get(grant.gpu)
        counts = None if snapshot is None else snapshot.counts.get(grant.slot)
        if snapshot is not None and counts is not None and counts.generation == grant.generation:
            stats[grant.slot] = request_stats_between(GateCounts(), counts, snapshot.at_ns, grant.slo_ns)
    return stats


def served_json(served: RequestStats | None) -> dict[str, object] | None:
    """Return the fields of request statistics."""
    return None if served is None else msgspec.to_builtins(served)


def with_requests(output: dict[str, object], served: ServedBySlot) -> dict[str, object]:
    """Return the output of `cotenant ps --json` with the request statistics of each tenant."""
    tenants = cast("list[dict[str, object]]", output["tenants"])
    slots = [cast("int", tenant["slot"]) for tenant in tenants]
    pairs = zip(tenants, slots, strict=True)
    return {**output, "tenants": [{**tenant, "served": served_json(served.get(slot))} for tenant, slot in pairs]}


def show_requests(console: Console, registry: wire.TenantList, served: ServedBySlot) -> None:
    """Print the tenants that have requests or an objective."""
    names = {view.tenant.grant.slot: view.tenant.name for view in registry.tenants}
    rows = [
        (names[slot], stats)
        for slot, stats in sorted(served.items())
        if stats.requests or stats.oldest_ns or stats.slo_ns
    ]
    if rows:
        console.print(requests_table("requests so far", rows, has_rates=False))


def requests_table(
    title: str, tenants: Sequence[tuple[str, RequestStats]], *, has_rates: bool = True
) -> RenderableType:
    """Return a table with one row per tenant; rates need a known interval."""
    columns = [
        "NAME",
        "REQUESTS",
        *(["RATE/S"] if has_rates else []),
        "P50",
        "P99",
        "SLO",
        "ATTAINED",
        "OLDEST",
        "SOURCE",
    ]
    return table(title, columns, [_row(name, served, has_rate=has_rates) for name, served in tenants])


def _row(name: str, served: RequestStats, *, has_rate: bool) -> list[str | Text]:
    rate = f"{served.requests * SECOND_NS / served.for_ns:.1f}" if served.for_ns else "-"
    is_late = served.slo_ns and served.p99_ns > served.slo_ns
    return [
        capped(name),
        f"{served.requests:,}",
        *([rate] if has_rate else []),
        _duration_text(served.p50_ns),
        Text(_duration_text(served.p99_ns), style="bold red" if is_late else ""),
        _duration_text(served.slo_ns),
        _attainment(served.within_ppm),
        _duration_text(served.oldest_ns),
        ("reported" if served.is_reported else "observed") if served.requests else "-",
    ]


def _attainment(ppm: int | None) -> Text:
    if ppm is None:
        return Text("-")
    return Text(f"{100 * ppm / WHOLE_PPM:.2f}%", style="green" if ppm >= _GOOD_PPM else "bold red")


def _duration_text(duration_ns: int) -> str:
    return round_duration(duration_ns) if duration_ns else "-"
