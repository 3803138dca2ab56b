"""Second part of `cotenant demo`: a changing request load with a latency objective together with a training job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console

from cotenant.cli.demo.workloads import CHANGING_LOAD_S, LOAD_PARTS, REQUESTS, changing_service
from cotenant.cli.render.countdown import StepReport
from cotenant.cli.render.html.changing_load import ChangingLoad, ChangingLoadRun, changing_load_rows
from cotenant.cli.render.profile import duration
from cotenant.cli.render.tables import table
from cotenant.harness.harness import SharingHarness
from cotenant.harness.run import Mode
from cotenant.node.client.connection import read_activity
from cotenant.node.policy.limit.share import share_of
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS, Duration
from cotenant.units.text import format_duration
from cotenant.workload.load import Workload
from cotenant.workload.player import quantile

OBJECTIVE: Final = 3
"""The objective as a multiple of the 99th percentile alone, rounded up to a millisecond."""
RUNS: Final[tuple[tuple[Mode, str, int], ...]] = (
    ("alone", "alone", 0),
    ("mps", "MPS", 2),
    ("mps priorities", "MPS with priorities", 3),
    ("cotenant mps", "cotenant", 4),
)
"""Mode, name, and number of the phase whose colour the run has."""
_SEED: Final = 7
_MIN_LENGTH: Final = 0.2
"""Shortest load relative to the default one."""


def changing_load_s(requests: int) -> float:
    """Return the length of the changing load; with fewer requests than the default, it is shorter."""
    return CHANGING_LOAD_S * min(max(requests / REQUESTS, _MIN_LENGTH), 1.0)


def run_changing_load(
    harness: SharingHarness,
    offline: Workload,
    alone: tuple[int, float],
    requests: int,
    report_step: StepReport,
) -> ChangingLoad:
    """Run the same requests in each mode of `RUNS`; `alone` is the service's p99 and the training throughput.

    With fewer requests than the default, the load is shorter.
    """
    alone_p99_ns, alone_steps_per_s = alone
    load_s = changing_load_s(requests)
    slo_ns = -(-OBJECTIVE * alone_p99_ns // MILLISECOND_NS) * MILLISECOND_NS
    online = changing_service(_SEED, load_s)
    runs = []
    for mode, name, number in RUNS:
        report_step.step(
            f"demo: changing load, {name}: {online.requests} requests in {load_s:.0f} s, "
            f"objective {duration(slo_ns)} for 99 of 100"
        )
        runs.append(_run(harness, (mode, name, number), online, offline, slo_ns, alone_steps_per_s))
    parts = [(round(begin * load_s / CHANGING_LOAD_S * SECOND_NS), name) for begin, name in LOAD_PARTS]
    return ChangingLoad(slo_ns=slo_ns, span_ns=round(load_s * SECOND_NS), parts=parts, runs=runs)


def _run(
    harness: SharingHarness,
    mode_entry: tuple[Mode, str, int],
    online: Workload,
    offline: Workload,
    slo_ns: Duration,
    alone_steps_per_s: float,
) -> ChangingLoadRun:
    mode, name, number = mode_entry
    progress = _Progress(harness, is_cotenant=mode.startswith("cotenant"))
    options = ["--slo", format_duration(slo_ns)]
    neighbour = None if mode == "alone" else offline
    players_run = harness.run_players(
        mode, online, neighbour, online_flags=options, reports_latency=True, follow=progress.capture
    )
    detail: list[tuple[int, int, int]] = players_run.online["detail"]
    begin_ns = detail[0][0] - online.arrival.instants_ns[0]
    requests = [(due - begin_ns, end - due) for due, _, end in detail]
    latencies = sorted(latency for _, latency in requests)
    run = players_run.run
    return ChangingLoadRun(
        name=name,
        number=number,
        requests=requests,
        shares=progress.shares(begin_ns),
        paces=progress.paces(begin_ns, offline.kernels_ns, alone_steps_per_s) if neighbour is not None else [],
        attained=sum(latency <= slo_ns for latency in latencies) / len(latencies),
        p99_ns=quantile(latencies, 0.99),
        training=None
        if neighbour is None
        else run.offline_done_ns / offline.kernels_ns / (run.wall_ns / 1e9) / alone_steps_per_s,
    )


class _Progress:
    """Samples of training progress and of the online share during a run."""

    def __init__(self, harness: SharingHarness, *, is_cotenant: bool) -> None:
        self._directories = harness.directories if is_cotenant else None
        self._samples: list[tuple[int, int, int]] = []

    def capture(self, counters: dict[str, Any], done_ns: int) -> None:
        """Record the instant, the training work completed so far, and the online share."""
        online_ppm = 0
        if self._directories is not None:
            gate = read_activity(self._directories).gpus[0].gate
            online_ppm = 0 if gate is None else share_of(gate.rules.delay_ppm)
        self._samples.append((counters["now_ns"], done_ns, online_ppm))

    def shares(self, begin_ns: int) -> list[tuple[int, int]]:
        """Return each value of the online share and the instant since which it was in force."""
        changes: list[tuple[int, int]] = []
        for at_ns, _, online_ppm in self._samples if self._directories is not None else ():
            if not changes or changes[-1][1] != online_ppm:
                changes.append((max(at_ns - begin_ns, 0), online_ppm))
        return changes

    def paces(self, begin_ns: int, step_ns: int, alone_steps_per_s: float) -> list[tuple[int, int, float]]:
        """Return the relative training throughput between two samples."""
        paces = []
        for (from_ns, before_ns, _), (to_ns, after_ns, _) in zip(self._samples, self._samples[1:], strict=False):
            steps_per_s = (after_ns - before_ns) / step_ns / ((to_ns - from_ns) / 1e9)
            paces.append((from_ns - begin_ns, to_ns - begin_ns, steps_per_s / alone_steps_per_s))
        return paces


def show_changing_load(console: Console, changing_load: ChangingLoad) -> None:
    """Print a table of the runs and the range of the online share."""
    rows: Sequence[Sequence[str]] = changing_load_rows(changing_load)
    headers = ["MODE", f"WITHIN {duration(changing_load.slo_ns)}", "P99", "TRAINING"]
    console.print()
    console.print(table("changing load, the same requests in every mode", headers, rows))
    console.print("TRAINING: throughput relative to alone", style="dim", highlight=False)
    for run in changing_load.runs:
        if run.shares:
            shares = [online_ppm / 1e4 for _, online_ppm in run.shares]
            summary = f"{run.name}: online share {min(shares):.0f}% to {max(shares):.0f}% of the device"
            console.print(f"{summary}, changed {len(shares) - 1} times", highlight=False)
