"""Shows how the requests of online tenants went: latency against the objective, and by whom they are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias, cast

import msgspec
from rich.console import Console, RenderableType
from rich.text import Text

from cotenant.apps.show import capped, table
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import SECOND_NS
from cotenant.domain.pace import GateCounts
from cotenant.domain.served import Served, served_between
from cotenant.domain.tenant import Kind
from cotenant.errors import WorldError
from cotenant.format import wire
from cotenant.format.quantity import round_duration
from cotenant.live.clock import monotonic_ns
from cotenant.live.gate import look_at

ServedBySlot: TypeAlias = Mapping[int, Served]
_GOOD_PPM: Final = 990_000


def served_so_far(pages: Path, roll: wire.Tenants) -> ServedBySlot:
    """The requests of the online tenants since each began, by slot."""
    online = [view.tenant.terms for view in roll.tenants if view.tenant.terms.kind is Kind.ONLINE]
    now = monotonic_ns()
    try:
        looks = {gpu: look_at(pages, gpu, now) for gpu in {terms.gpu for terms in online if terms.gpu >= 0}}
    except WorldError:
        return {}  # another's node: who may ask it may not read its tenants' pages
    found = {}
    for terms in online:
        look = looks.get(terms.gpu)
        counts = None if look is None else look.counts.get(terms.slot)
        if counts is not None and counts.generation == terms.generation:
            found[terms.slot] = served_between(GateCounts(), counts, now, terms.slo_ns)
    return found


def served_json(served: Served | None) -> dict[str, object] | None:
    """Names instead of positions, and no units in text."""
    return None if served is None else msgspec.to_builtins(served)


def with_requests(shown: dict[str, object], served: ServedBySlot) -> dict[str, object]:
    """What `cotenant ps --json` says, with the requests of each tenant that is here."""
    tenants = cast("list[dict[str, object]]", shown["tenants"])
    slots = [cast("int", tenant["slot"]) for tenant in tenants]
    both = zip(tenants, slots, strict=True)
    return {**shown, "tenants": [{**tenant, "served": served_json(served.get(slot))} for tenant, slot in both]}


def show_requests(console: Console, roll: wire.Tenants, served: ServedBySlot) -> None:
    """Below `cotenant ps`: those of whom anything is known, or should be."""
    names = {view.tenant.terms.slot: view.tenant.name for view in roll.tenants}
    rows = [(names[slot], one) for slot, one in sorted(served.items()) if one.requests or one.oldest_ns or one.slo_ns]
    if rows:
        console.print(requests_table("requests so far", rows, has_rates=False))


def requests_table(title: str, tenants: Sequence[tuple[str, Served]], *, has_rates: bool = True) -> RenderableType:
    """One line for each tenant that has requests, or should have; how often they come only over a known time."""
    columns = ["NAME", "REQUESTS", *(["RATE/S"] if has_rates else []), "P50", "P99", "SLO", "WITHIN", "OLDEST", "KNOWN"]
    return table(title, columns, [_row(name, served, has_rate=has_rates) for name, served in tenants])


def _row(name: str, served: Served, *, has_rate: bool) -> list[str | Text]:
    rate = f"{served.requests * SECOND_NS / served.for_ns:.1f}" if served.for_ns else "-"
    is_late = served.slo_ns and served.p99_ns > served.slo_ns
    return [
        capped(name),
        f"{served.requests:,}",
        *([rate] if has_rate else []),
        _time(served.p50_ns),
        Text(_time(served.p99_ns), style="bold red" if is_late else ""),
        _time(served.slo_ns),
        _within(served.within_ppm),
        _time(served.oldest_ns),
        ("told" if served.is_told else "seen") if served.requests else "-",
    ]


def _within(ppm: int | None) -> Text:
    if ppm is None:
        return Text("-")
    return Text(f"{100 * ppm / WHOLE_PPM:.2f}%", style="green" if ppm >= _GOOD_PPM else "bold red")


def _time(duration_ns: int) -> str:
    return round_duration(duration_ns) if duration_ns else "-"
