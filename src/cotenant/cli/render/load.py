"""Output of `cotenant load`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from cotenant.serve.load.open_loop import LoadReport


def show_load(console: Console, loaded: LoadReport) -> None:
    """Print a row for each model, and notes where the numbers need them."""
    table = Table("model", box=None)
    for name in ("offered/s", "answered/s", "goodput/s", "SLO", "refused", "failed", "timed out"):
        table.add_column(name, justify="right")
    times = Table("ms", box=None)
    for name in ("p50", "p90", "p99", "p99.9", "max", "refusals p99"):
        times.add_column(name, justify="right")
    for one in loaded.models:
        table.add_row(
            one.model,
            *(f"{rate:,.1f}" for rate in (one.offered_rps, one.answered_rps, one.goodput_rps)),
            f"{one.slo_ms:g} ms" if one.slo_ms else "-",
            *(str(count) for count in (one.refused, one.failed, one.expired + one.unsent)),
        )
        numbers = (one.p50_ms, one.p90_ms, one.p99_ms, one.p999_ms, one.max_ms)
        refusals = f"{one.refusal_p99_ms:.2f}" if one.refused else "-"
        times.add_row(one.model, *(f"{number:.2f}" for number in numbers), refusals)
    console.print(table)
    console.print(times)
    console.print("Latencies are measured from the instant at which a request was due to be sent.")
    console.print(f"Sending used {loaded.core_part:.0%} of a CPU core.")
    late = sum(one.late_sends for one in loaded.models)
    if late:
        lag_us = max(one.send_lag_p99_us for one in loaded.models)
        offered, lag_ms = sum(one.offered for one in loaded.models), lag_us / 1000
        console.print(
            f"{late} of {offered} requests were sent more than 1 ms late (p99 {lag_ms:.2f} ms): the machine was busy."
        )
    odd = {status: count for status, count in loaded.statuses.items() if status not in ("200", "OK")}
    if odd:
        console.print("Other statuses: " + ", ".join(f"{status} x{count}" for status, count in odd.items()))
