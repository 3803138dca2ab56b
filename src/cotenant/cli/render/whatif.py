"""Output of `cotenant whatif`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant.simulate.whatif import Interval, ModeForecast, TenantForecast, WhatIfReport


def milliseconds(value: Interval) -> str:
    """Return a latency in milliseconds with its interval."""
    return f"{value.point:.3g} ms ({value.low:.3g} to {value.high:.3g})"


def fraction(value: Interval) -> str:
    """Return a fraction as percent with its interval."""
    return f"{value.point:.0%} ({value.low:.0%} to {value.high:.0%})"


def share_text(tenant: TenantForecast) -> str:
    """Return the share that a tenant needs."""
    if not tenant.online:
        return "-"
    if tenant.share_need is not None:
        return fraction(tenant.share_need)
    return "100%, without reserve" if tenant.met else "more than one GPU"


def answer_line(report: WhatIfReport) -> str:
    """Return the answer in one sentence."""
    certainty = "at any duration within the intervals" if report.is_likely else "at the expected durations"
    if not any(tenant.online for tenant in report.tenants) and report.one_gpu_is_enough:
        return f"One {report.gpu_name} holds all tenants; none of them has an objective."
    if report.one_gpu_is_enough:
        return f"One {report.gpu_name} is enough for all objectives {certainty}."
    if report.gpus_needed is None:
        return f"No number of {report.gpu_name} is enough: {report.why_none}."
    needed = report.gpus_needed
    return (
        f"One {report.gpu_name} is not enough {certainty}; {needed.point:.0f} are needed "
        f"({needed.low:.0f} to {needed.high:.0f})."
    )


def show_whatif(console: Console, report: WhatIfReport) -> None:
    """Print the tenants under cotenant, the other modes, and the answer."""
    columns = ["TENANT", "KIND", "ALONE", "OBJECTIVE", "P99", "MET", "SHARE NEEDED", "PROGRESS", "STEPS/S"]
    rows = [_tenant_row(tenant) for tenant in report.tenants]
    console.print(table(f"Sharing one {report.gpu_name} under cotenant", columns, rows))
    names = [tenant.name for tenant in report.tenants]
    console.print(table("Other modes", ["MODE", *names], [_mode_row(mode, names) for mode in report.modes]))
    note = "p99 of online tenants (! over the objective), speed of offline ones relative to alone. Intervals: 90 %."
    console.print(Text(f"{note} Simulated time: {report.seconds:g} s.", style="dim"))
    for line in report.warnings:
        console.print(Text(line, style="yellow"))
    console.print(Text(answer_line(report), style="bold"))
    if len(report.placement) > 1:
        for number, group in enumerate(report.placement):
            console.print(Text(f"  GPU {number}: {', '.join(group)}"))


def _tenant_row(tenant: TenantForecast) -> list[str | Text]:
    met = "-" if tenant.met is None else "yes" if tenant.met else "no"
    if tenant.met and not tenant.met_at_high:
        met = "likely"
    share = share_text(tenant)
    return [
        tenant.name + (" (measured)" if tenant.measured else ""),
        f"online {tenant.rate_per_s:g}/s" if tenant.online else "offline",
        milliseconds(tenant.alone_ms),
        f"{tenant.slo_ms:g} ms" if tenant.online else "-",
        milliseconds(tenant.p99_ms) if tenant.p99_ms is not None else "-",
        met,
        share,
        fraction(tenant.progress) if tenant.progress is not None else "-",
        f"{tenant.steps_per_s.point:.3g}" if tenant.steps_per_s is not None else "-",
    ]


def _mode_row(mode: ModeForecast, names: list[str]) -> list[str | Text]:
    cells: list[str | Text] = [mode.mode]
    for name in names:
        if name in mode.p99_ms:
            text = f"{mode.p99_ms[name]:.3g} ms{'' if mode.met[name] else ' !'}"
            cells.append(Text(text, style="" if mode.met[name] else "red"))
        else:
            cells.append(f"{mode.progress[name]:.0%}")
    return cells
