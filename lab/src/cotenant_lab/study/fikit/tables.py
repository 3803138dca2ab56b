"""Terminal tables of study `fikit`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant_lab.bench.fill.metrics import COTENANT
from cotenant_lab.study.claim import show_claims
from cotenant_lab.study.fikit.parts import PartsSummary
from cotenant_lab.study.fikit.report import FikitReport
from cotenant_lab.study.fikit.run import FikitGroup, FikitResult

_NAME_MOST = 44
_SHOWN = (
    "online_delay_ratio",
    "online_delay_of_wall",
    "online_speedup_vs_sharing",
    "online_slowdown",
    "offline_ratio_vs_sharing",
    "offline_vs_alone",
    "fill_vs_oracle",
)


def show_fikit(console: Console, report: FikitReport) -> None:
    """Print the report of `cotenant-lab study fikit`."""
    for sharing in COTENANT:
        pairs = report.groups.get("pairs")
        if pairs is not None:
            _show_cases(console, pairs, sharing)
    for group in report.groups.values():
        _show_group(console, group)
    for title, end in (("all kernels", report.sliceable), ("library kernels run whole", report.library_unsliceable)):
        if end is not None:
            _show_parts(console, title, end)
    paper = "; ".join(f"{name} {text}" for name, text in report.paper.items())
    console.print(Text(f"FIKIT, as published (other programs, real GPUs): {paper}"))
    for agreement in report.agreement:
        console.print(
            Text(
                f"live and simulated, {agreement.metric} ({agreement.sharing}): Spearman {agreement.spearman:.2f}, "
                f"median difference {agreement.median_error:.3f} over {agreement.pairs} pairs"
            )
        )
    show_claims(console, report.claims)
    for target, met in report.met.items():
        console.print(Text(f"{target}: {'met' if met else 'missed'}", style="green" if met else "bold red"))


def _show_cases(console: Console, group: FikitGroup, sharing: str) -> None:
    columns = ["PAIR", "GAPS", "DELAY", "OF WALL", "SPEEDUP", "OFFLINE / SHARING", "/ ALONE", "/ ORACLE"]
    rows: list[list[str | Text]] = [_row(case, sharing) for case in group.cases]
    console.print(table(f"cotenant against {sharing}", columns, rows))
    console.print()


def _row(result: FikitResult, sharing: str) -> list[str | Text]:
    metrics, mode = result.metrics, COTENANT[sharing]
    return [
        metrics.name[:_NAME_MOST],
        f"{result.gap_ratio:.0%}",
        f"{metrics.online_delay_ratio[mode]:.3f}",
        f"{result.delay_of_wall[sharing]:.3f}",
        f"{metrics.online_speedup_vs_sharing[sharing]:.2f}",
        f"{metrics.offline_ratio_vs_sharing[sharing]:.2f}",
        f"{metrics.offline_vs_alone[mode]:.3f}",
        f"{result.fill_vs_oracle[sharing]:.2f}" if sharing in result.fill_vs_oracle else "",
    ]


def _show_group(console: Console, group: FikitGroup) -> None:
    rows: list[list[str | Text]] = []
    for sharing in COTENANT:
        for metric in _SHOWN:
            range_ = group.metrics.get(f"{metric}_{sharing}")
            if range_ is not None:
                rows.append([metric, sharing, f"{range_.min:.3f}", f"{range_.median:.3f}", f"{range_.max:.3f}"])
    console.print(table(f"{group.name}: {len(group.cases)} cases", ["METRIC", "SHARING", "MIN", "MEDIAN", "MAX"], rows))
    parts = ", ".join(f"{part:.0%} against {sharing}" for sharing, part in group.fast_fraction.items())
    console.print(Text(f"online more than 3.5 times as fast: {parts}"))
    console.print()


def _show_parts(console: Console, title: str, end: PartsSummary) -> None:
    """Print what a service loses next to each training, and summaries."""
    rows: list[list[str | Text]] = [
        [case.training, f"{case.p99_ratio:.3f}", f"{case.mean_ratio:.3f}", f"{case.offline:.2f}"] for case in end.cases
    ]
    columns = ["TRAINING", "P99", "MEAN", "OFFLINE"]
    console.print(table(f"{end.service}, launches in parts: {title}; over those alone", columns, rows))
    bound = end.best_spatial_bound
    summaries = [
        ("gate under MPS", end.p99_ratio_max, end.offline_median),
        ("gate between time slices", end.slices_p99_ratio_max, end.slices_offline_median),
        ("service that fills every SM", end.busy_service_p99_ratio_max, end.busy_service_offline_median),
        ("best fixed part of the SMs", bound.p99_ratio_max, bound.offline_median),
        *((cell, values["p99_ratio_max"], values["offline_median"]) for cell, values in end.perturbed.items()),
    ]
    for name, p99_ratio, offline in summaries:
        console.print(Text(f"{name}: largest p99 {p99_ratio:.3f}, median offline speed {offline:.2f}"))
    console.print()
