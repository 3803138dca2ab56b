"""Output of `cotenant load`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from cotenant.serve.load.open_loop import LoadReport


def show_load(console: Console, report: LoadReport) -> None:
    """Print a row for each model, and notes where the numbers need them."""
    table = Table("model", box=None)
    for name in ("offered/s", "answered/s", "goodput/s", "SLO", "refused", "failed", "timed out"):
        table.add_column(name, justify="right")
    times = Table("ms", box=None)
    for name in ("p50", "p90", "p99", "p99.9", "max", "refusals p99"):
        times.add_column(name, justify="right")
    for model in report.models:
        table.add_row(
            model.model,
            *(f"{rate:,.1f}" for rate in (model.offered_rps, model.answered_rps, model.goodput_rps)),
            f"{model.slo_ms:g} ms" if model.slo_ms else "-",
            *(str(count) for count in (model.refused, model.failed, model.expired + model.unsent)),
        )
        numbers = (model.p50_ms, model.p90_ms, model.p99_ms, model.p999_ms, model.max_ms)
        refusals = f"{model.refusal_p99_ms:.2f}" if model.refused else "-"
        times.add_row(model.model, *(f"{number:.2f}" for number in numbers), refusals)
    console.print(table)
    console.print(times)
    console.print("Latencies are measured from the instant at which a request was due to be sent.")
    console.print(f"Sending used {report.core_part:.0%} of a CPU core.")
    late = sum(model.late_sends for model in report.models)
    if late:
        lag_us = max(model.send_lag_p99_us for model in report.models)
        offered, lag_ms = sum(model.offered for model in report.models), lag_us / 1000
        console.print(
            f"{late} of {offered} requests were sent more than 1 ms late (p99 {lag_ms:.2f} ms): the machine was busy."
        )
    other_statuses = {status: count for status, count in report.statuses.items() if status not in ("200", "OK")}
    if other_statuses:
        console.print("Other statuses: " + ", ".join(f"{status} x{count}" for status, count in other_statuses.items()))
