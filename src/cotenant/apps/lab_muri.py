"""Wires the lab of a cluster's past: reads Muri's trace and results, replays them, and shows how near that comes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from cotenant.apps.lab import measurement_bytes
from cotenant.apps.lab_progress import parts_shown
from cotenant.apps.show import table
from cotenant.errors import ConfigError, WorldError
from cotenant.experiment.lab.muri_report import Judged, Report, judge_muri
from cotenant.experiment.lab.muri_rules import ORDERS
from cotenant.format.measured.muri import read_result, read_trace

_TRACE: Final = "muri/cluster_trace.csv"
_HOUR_S: Final = 3600
FILES: Final = {policy: policy if policy.startswith(("S", "M")) else policy.lower() for policy in ORDERS}


def run_muri(directory: Path, console: Console, say: Callable[[str], None], *, quick: bool) -> Report:
    """The judgement; meanwhile a bar on a terminal, and elsewhere a line for each part."""
    path = directory / _TRACE
    if not path.exists():
        raise WorldError(
            f"the measurements to judge by are not here: {path} does not exist; "
            "set COTENANT_DATA or --data to the directory that holds them"
        )
    jobs = read_trace(measurement_bytes(path), str(path))
    results = {}
    for policy, name in FILES.items():
        found = directory / "muri" / f"physical_result_{name}.job.csv.gz"
        if quick and policy.startswith("Muri"):
            continue
        if found.exists():
            results[policy] = read_result(measurement_bytes(found), str(found))
            missing = [job.number for job in jobs if job.number not in results[policy]]
            if missing:
                raise ConfigError("job_id", missing[0], "has no result; fetch the measurements again", where=str(found))
        else:
            say(f"left out: {policy}: {found} does not exist")
    if not results or not jobs:
        raise ConfigError("data", str(path.parent), "has no job or no result; fetch the measurements again")
    with parts_shown(console, say, "to do") as progress:
        return judge_muri(jobs, results, 1 if quick else os.cpu_count() or 1, progress)


def show_muri(console: Console, report: Report) -> None:
    """`cotenant lab muri`."""
    columns = ["POLICY", "MEAN JCT (h)", "REPLAYED", "ERROR", "MAKESPAN (h)", "REPLAYED", "ERROR", "STARTS", "REPLAYED"]
    title = f"{report.source}: measured and replayed"
    console.print(table(title, [*columns, "A JOB, MEDIAN", "FITTED HERE"], [_row(one) for one in report.judged]))
    costs = report.costs
    console.print(Text(f"a start costs {costs.start_s:.1f} s; interleaved steps take {costs.longer:.2f} times as long"))
    for one in report.judged:
        if one.bare_jct_error != one.jct_error:
            console.print(Text(f"{one.policy}, without the second: mean JCT {one.bare_jct_error:+.1%}"))
    console.print(
        Text("a replayer of its own, by the published rules: neither our brain nor our simulator is judged here")
    )
    for target, met in report.met.items():
        console.print(Text(f"{target}: {'met' if met else 'missed'}", style="green" if met else "bold red"))


def _row(one: Judged) -> list[str | Text]:
    return [
        one.policy,
        f"{one.jct_s / _HOUR_S:.1f}",
        f"{one.replayed_jct_s / _HOUR_S:.1f}",
        f"{one.jct_error:+.1%}",
        f"{one.makespan_s / _HOUR_S:.1f}",
        f"{one.replayed_makespan_s / _HOUR_S:.1f}",
        f"{one.makespan_error:+.1%}",
        str(one.starts),
        str(one.replayed_starts),
        f"{one.job_error_median:.1%}",
        one.fitted,
    ]
