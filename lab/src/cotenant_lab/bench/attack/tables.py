"""Terminal table of `cotenant-lab bench attack`: one row per attack and sharing mode."""

from __future__ import annotations

from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant_lab.bench.attack.bench import AttackReport, AttackResult


def show_attack(console: Console, report: AttackReport) -> None:
    """Print the report of `cotenant-lab bench attack`."""
    for mode, title in (("slices", "sharing by time slices"), ("mps", "sharing by MPS")):
        rows = [_row(result) for result in report.results if result.mode == mode]
        if rows:
            headings = ["ATTACK", "", "STARTED AS", "RESULT", "P99 RATIO", "MAX", "EVICTED"]
            console.print(table(title, headings, rows, fold=True))
    console.print(
        f"{report.attacks} attacks, {report.runs} runs: the online tenant was harmed in {report.online_harmed} "
        f"(with a well-behaved neighbour, p99 was as high in {report.baseline_above}), "
        f"the node died in {report.node_died}, unrelated processes were killed in {report.foreign_kills}"
    )
    console.print(
        f"bypass: detected after at most {report.bypass_detected_s_max:.2f} s ({report.undetected} not detected), "
        f"{report.bytes_past_quota_1s_after_detection} B past the quota one second later"
    )
    console.print(
        f"p99 over that with a well-behaved neighbour: median {report.ratio_p50:.2f}, 90 % {report.ratio_p90:.2f}, "
        f"99 % {report.ratio_p99:.2f}, largest {report.ratio_max:.2f}; "
        f"without stalls of this machine's processors, median {report.stalled_ms_p50:.0f} ms per run"
    )
    for result in report.results:
        if result.uncontained and result.harmed:
            console.print(f"not contained by the hardware: {result.attack} ({result.mode}): {result.uncontained}")
    for name, met in report.met.items():
        console.print(f"{'met' if met else 'MISSED'}: {name}", style="" if met else "bold red", highlight=False)


def _row(result: AttackResult) -> list[str]:
    if not result.harmed:
        outcome = "contained"
    else:
        outcome = f"{'uncontained' if result.uncontained else 'HARMED'} in {result.harmed} of {result.runs}"
    if result.bytes_past_quota_max:
        outcome += f", {result.bytes_past_quota_max >> 20} MiB past the quota"
    return [
        result.attack,
        result.about,
        result.start,
        outcome,
        f"{result.ratio_p50:.2f}",
        f"{result.ratio_max:.2f}",
        f"{result.evicted} of {result.runs}",
    ]
