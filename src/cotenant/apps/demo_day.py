"""Wires the demo's second part: the service's load changes, its objective holds, and training takes what is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from rich.console import Console

from cotenant.apps.demo_loads import DAY_PARTS, DAY_S, REQUESTS, changing_service
from cotenant.apps.report.day import Day, DayRun, day_rows
from cotenant.apps.show import table
from cotenant.apps.show_profile import duration
from cotenant.domain.instant import MILLISECOND_NS, SECOND_NS, Duration
from cotenant.domain.load import Load
from cotenant.experiment.fill.scene import Mode
from cotenant.experiment.fill.stage import Stage
from cotenant.format.quantity import format_duration
from cotenant.live.player import quantile
from cotenant.policy.limit.share import share_of
from cotenant.policy.schedule.roster import read_roster

OBJECTIVE: Final = 3
"""Times the 99th percentile alone, rounded up to a millisecond."""
RUNS: Final[tuple[tuple[Mode, str, int], ...]] = (("mps", "MPS", 2), ("cotenant mps", "cotenant", 3))
_SEED: Final = 7
_SHORTEST: Final = 0.2
"""Of the usual day."""


def play_day(stage: Stage, offline: Load, alone: tuple[int, float], requests: int, say: Callable[[str], None]) -> Day:
    """The same requests under MPS and under cotenant; `alone`: p99 of the service, and steps a second of the training.

    Fewer requests in an act make a shorter day.
    """
    alone_p99_ns, pace = alone
    day_s = DAY_S * min(max(requests / REQUESTS, _SHORTEST), 1.0)
    slo_ns = -(-OBJECTIVE * alone_p99_ns // MILLISECOND_NS) * MILLISECOND_NS
    online = changing_service(_SEED, day_s)
    runs = []
    for mode, name, number in RUNS:
        say(
            f"demo: a load that changes, {name}: {online.requests} requests in {day_s:.0f} s, "
            f"objective {duration(slo_ns)} for 99 of 100"
        )
        runs.append(_run(stage, (mode, name, number), online, offline, slo_ns, pace))
    parts = [(round(begin * day_s / DAY_S * SECOND_NS), name) for begin, name in DAY_PARTS]
    return Day(slo_ns=slo_ns, span_ns=round(day_s * SECOND_NS), parts=parts, runs=runs)


def _run(
    stage: Stage, way: tuple[Mode, str, int], online: Load, offline: Load, slo_ns: Duration, pace: float
) -> DayRun:
    mode, name, number = way
    seen = _Seen(stage, is_ruled=mode.startswith("cotenant"))
    terms = ["--slo", format_duration(slo_ns)]
    performance = stage.perform(mode, online, offline, terms=terms, tells=True, follow=seen.look)
    detail: list[tuple[int, int, int]] = performance.online["detail"]
    begin_ns = detail[0][0] - online.arrival.instants_ns[0]
    requests = [(due - begin_ns, end - due) for due, _, end in detail]
    latencies = sorted(latency for _, latency in requests)
    scene = performance.scene
    return DayRun(
        name=name,
        number=number,
        requests=requests,
        shares=seen.shares(begin_ns),
        paces=seen.paces(begin_ns, offline.kernels_ns, pace),
        attained=sum(latency <= slo_ns for latency in latencies) / len(latencies),
        p99_ns=quantile(latencies, 0.99),
        training=scene.offline_done_ns / offline.kernels_ns / (scene.wall_ns / 1e9) / pace,
    )


class _Seen:
    """What the device and the node said while the load changed."""

    def __init__(self, stage: Stage, *, is_ruled: bool) -> None:
        self._file = stage.places.pages / "gate-0" if is_ruled else None
        self._looks: list[tuple[int, int, int]] = []

    def look(self, books: dict[str, Any], done_ns: int) -> None:
        """The instant, what the training job has done, and the online share."""
        online_ppm = 0
        if self._file is not None:
            online_ppm = share_of(read_roster(self._file.read_bytes()).delay_ppm)
        self._looks.append((books["now_ns"], done_ns, online_ppm))

    def shares(self, begin_ns: int) -> list[tuple[int, int]]:
        """Each once, from when on it was seen."""
        found: list[tuple[int, int]] = []
        for at_ns, _, online_ppm in self._looks if self._file is not None else ():
            if not found or found[-1][1] != online_ppm:
                found.append((max(at_ns - begin_ns, 0), online_ppm))
        return found

    def paces(self, begin_ns: int, step_ns: int, pace: float) -> list[tuple[int, int, float]]:
        """Between two looks."""
        found = []
        for (from_ns, before_ns, _), (to_ns, after_ns, _) in zip(self._looks, self._looks[1:], strict=False):
            steps_per_s = (after_ns - before_ns) / step_ns / ((to_ns - from_ns) / 1e9)
            found.append((from_ns - begin_ns, to_ns - begin_ns, steps_per_s / pace))
        return found


def show_day(console: Console, day: Day) -> None:
    """A table of the runs, and how the share moved."""
    rows: Sequence[Sequence[str]] = day_rows(day)
    headers = ["A LOAD THAT CHANGES", f"WITHIN {duration(day.slo_ns)}", "P99", "TRAINING"]
    console.print()
    console.print(table("the same requests under both; training: of its speed alone", headers, rows))
    for run in day.runs:
        if run.shares:
            kept = [online_ppm / 1e4 for _, online_ppm in run.shares]
            said = (
                f"{run.name}: online work kept {min(kept):.0f} to {max(kept):.0f} % of the device while it was active"
            )
            console.print(f"{said}, set anew {len(kept) - 1} times", highlight=False)
