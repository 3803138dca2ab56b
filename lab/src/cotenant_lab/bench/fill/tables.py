"""Terminal tables of `cotenant-lab bench fill`: one row per pair, and the ranges over all pairs."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant_lab.bench.fill.bench import FillReport
from cotenant_lab.bench.fill.metrics import COTENANT, PairMetrics

_UNKNOWN = "?"
_NAME_MOST = 40


def show_fill(console: Console, report: FillReport) -> None:
    """Print the report of `cotenant-lab bench fill`."""
    show_frontier(console, report)
    for sharing, mode in COTENANT.items() if report.pairs else ():
        rows = [_row(pair, sharing, mode) for pair in report.pairs]
        headers = [
            "PAIR",
            "DELAY",
            "SPEEDUP",
            "OFFLINE VS SHARING",
            "WHILE ONLINE RUNS",
            "OFFLINE VS ALONE",
            "OVERHEAD",
        ]
        console.print(table(f"cotenant against default sharing by {sharing}", headers, rows, fold=True))
    rows = [
        [name, *(f"{value:.3f}" for value in (range_.min, range_.median, range_.max))]
        for name, range_ in report.metrics.items()
    ]
    console.print(table("over all pairs", ["METRIC", "MIN", "MEDIAN", "MAX"], rows))
    if report.curve:
        rows = [
            [
                point.bound,
                point.pair[:_NAME_MOST],
                point.mode,
                f"{point.online_delay_ratio:.2%}",
                f"{point.offline_vs_alone:.0%}",
            ]
            for point in report.curve
        ]
        console.print(table("over the bound", ["BOUND", "PAIR", "MODE", "DELAY", "OFFLINE VS ALONE"], rows))
    for missing in report.left_out:
        console.print(f"omitted: {missing.name}: {missing.why}", highlight=False)
    for pair in report.pairs:
        for failure in pair.failed:
            console.print(f"failed: {pair.name}: {failure}", highlight=False)


def show_frontier(console: Console, report: FillReport) -> None:
    """Print the comparison with the simple modes, as far as it was measured."""
    rows = [
        [
            cell.pair,
            f"{cell.limit:g}",
            cell.simple or "none",
            f"{cell.simple_offline:.0%}",
            cell.cotenant or "none",
            f"{cell.cotenant_offline:.0%}",
            _UNKNOWN if cell.vs_best_simple is None else f"{cell.vs_best_simple:.2f}",
        ]
        for frontier in report.frontiers
        for cell in frontier.cells
    ]
    headers = ["PAIR", "P99 LIMIT", "BEST SIMPLE MODE", "OFFLINE", "BEST COTENANT SETTING", "OFFLINE", "RATIO"]
    console.print(table("offline speed within a limit of the online p99, in simulated time", headers, rows, fold=True))
    compared = [
        ("cotenant over the best simple mode", report.vs_best_simple),
        ("live", report.live),
        *((f"physics: {each.cell}", each.vs_best_simple) for each in report.perturbed),
    ]
    summary = [[name, f"{each.min:.2f}", f"{each.median:.2f}"] for name, each in compared if each is not None]
    chosen = report.objective
    if chosen is not None:
        ratios = (chosen.vs_best_simple_min, chosen.vs_best_simple_median)
        summary.append(["with the limit as objective", *(f"{ratio:.2f}" for ratio in ratios)])
    console.print(table("over all cells", ["COMPARISON", "MIN", "MEDIAN"], summary))
    values = [
        ("delay budgets kept, by waits of kernels", report.promise_kept),
        ("by mean latency", report.promise_kept_by_latency),
        ("objectives kept", None if chosen is None else chosen.kept),
        ("spread of offline speed", report.offline_spread),
        ("offline speed next to an idle holder", report.idle_holder_offline),
    ]
    shown = "; ".join(f"{name}: {value:.0%}" for name, value in values if value is not None)
    console.print(f"cells without a simple mode: {report.cells_without_alternative}; {shown}", highlight=False)
    missed = [name for name, is_met in report.met.items() if not is_met]
    console.print(f"targets missed: {', '.join(missed) or 'none'}", highlight=False)


def _row(pair: PairMetrics, sharing: str, mode: str) -> list[str]:
    return [
        pair.name,
        _part(pair.online_delay_ratio, mode, ".2%"),
        _part(pair.online_speedup_vs_sharing, sharing, ".2f"),
        _part(pair.offline_ratio_vs_sharing, sharing, ".2f"),
        _part(pair.offline_rate_vs_sharing, sharing, ".2f"),
        _part(pair.offline_vs_alone, mode, ".0%"),
        _UNKNOWN if pair.overhead_pct is None else f"{pair.overhead_pct:.1f} %",
    ]


def _part(metrics: Mapping[str, float], name: str, form: str) -> str:
    return format(metrics[name], form) if name in metrics else _UNKNOWN
