"""How is the bench of the server shown to people?"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from cotenant.experiment.server import ServerReport


def show_server(console: Console, report: ServerReport) -> None:
    """A table, and how they compare."""
    table = Table("contender", "at a time", "rps", "p50 us", "p99 us", "cpu us/request", box=None)
    for one in report.figures:
        numbers = (one.rps, one.p50_us, one.p99_us, one.cpu_us_per_request)
        table.add_row(one.name, str(one.concurrency), *(f"{number:,.0f}" for number in numbers))
    console.print(table)
    console.print(f"HTTP over a plain FastAPI endpoint: {report.vs_fastapi} (ONNX: {report.vs_fastapi_onnx})")
    uvloop = f"under uvloop {report.vs_bare_echo_uvloop}"
    console.print(f"gRPC over a bare grpc.aio echo: {report.vs_bare_echo} ({uvloop}, ONNX: {report.vs_bare_echo_onnx})")
