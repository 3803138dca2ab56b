"""Live part of study `arkgpu`: processes on a software GPU under a load that rises and falls, in each mode."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.harness.harness import NodePolicy, PlayersRun, SharingHarness
from cotenant.harness.run import Mode, SharingRun
from cotenant.node.journal import NodeJournalReader
from cotenant.node.model.event import OnlineShareProposed
from cotenant.units.instant import SECOND_NS
from cotenant.workload.arrivals import draw_arrivals, with_arrivals
from cotenant.workload.load import BACK_TO_BACK, Workload
from cotenant.workload.rates import StepRate
from cotenant_lab.bench.fill.pairs import MissingPair, read_pairs

OBJECTIVE: Final = 3
"""Multiple of the p99 that the service itself measures alone, one request after the other, by its own clock. The
cores of this machine run the device, the node and the programs, and their effect on a request is included."""
LEVELS: Final = (0.10, 0.30, 0.10)
HOLD_NS: Final = 3 * SECOND_NS
OFFLINE_ALONE_S: Final = 1.0
SOLO_REQUESTS: Final = 200
MODES: Final[dict[str, Mode]] = {
    "alone": "alone",
    "exclusive": "apart",
    "cotenant": "cotenant mps",
    "cotenant-slice": "cotenant slices",
    "mps": "mps",
    "slices": "slices",
}
_CHOSEN: Final = (
    ("trt resnet18 fp16", "train resnet50 b32"),
    ("trt resnet50 int8", "train mobilenetv2 b64"),
)


class ArkLiveCase(msgspec.Struct, frozen=True, kw_only=True):
    """A service and a training."""

    name: str
    online: Workload
    offline: Workload


class LiveMode(msgspec.Struct, frozen=True, kw_only=True):
    """One sharing mode: medians over rounds."""

    attainment: float
    """Fraction of requests answered within the objective after they were due, by the service's own clock."""
    p99_ms: float
    within_per_s: float
    delay_ms: float
    """By the device's accounting: mean time that the kernels of a request waited because of another client."""
    offline: float
    """Kernel time per time, over that alone."""
    goodput: float
    """Sum of attainment and offline progress, per device; for the service alone, without a training, its own."""


class LiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one case."""

    name: str
    rounds: int
    slo_ms: float
    solo_p99_ms: float
    requests: int
    """In each run."""
    modes: dict[str, LiveMode]
    changes: list[tuple[float, float, str]]
    """Last run under `cotenant`: time (s from its start), online share from then on, and cause."""


def live_cases(directory: Path, *, quick: bool) -> tuple[list[ArkLiveCase], list[MissingPair]]:
    """Return the cases whose files exist; only one if quick."""
    pairs, _ = read_pairs(directory)
    loads = {load.name: load for pair in pairs for load in (pair.online, pair.offline)}
    cases, missing = [], []
    for service, training in _CHOSEN[: 1 if quick else None]:
        absent = [name for name in (service, training) if name not in loads]
        if absent:
            missing.append(MissingPair(f"{service} + {training}, live", f"no measurements of {absent[0]} exist"))
            continue
        cases.append(ArkLiveCase(name=f"{service} + {training}", online=loads[service], offline=loads[training]))
    return cases, missing


def evaluate_live(
    home: Path, cases: Sequence[ArkLiveCase], rounds: int, progress: Callable[[], None] = lambda: None
) -> list[LiveResult]:
    """Run all modes in turn, so that other load on the machine affects all of them."""
    results = []
    with SharingHarness(home, detail=True, devices=2) as harness:
        harness.set_policy(NodePolicy())
        for case in cases:
            for load in (case.online, case.offline):
                harness.record(load)
            results.append(_evaluate(harness, case, rounds, progress))
    return results


def _evaluate(harness: SharingHarness, case: ArkLiveCase, rounds: int, progress: Callable[[], None]) -> LiveResult:
    solo = msgspec.structs.replace(case.online, arrival=BACK_TO_BACK, requests=SOLO_REQUESTS)
    text = harness.run_players("alone", solo, None).online["latency_ns"]
    slo_ns = OBJECTIVE * text["p99"]
    rates = tuple((index * HOLD_NS, level * SECOND_NS / text["p50"]) for index, level in enumerate(LEVELS))
    online = with_arrivals(case.online, draw_arrivals(StepRate(rates), HOLD_NS * len(LEVELS), 1))
    runs_by_mode: dict[str, list[LiveMode]] = {mode: [] for mode in MODES}
    changes: list[tuple[float, float, str]] = []
    for _ in range(rounds):
        alone = harness.play("offline alone", None, case.offline, OFFLINE_ALONE_S)
        for mode, harness_mode in MODES.items():
            adjustments_before = len(_adjustments(harness))
            offline = None if harness_mode == "alone" else case.offline
            performed = harness.run_players(
                harness_mode, online, offline, online_flags=["--slo", f"{slo_ns}ns"], reports_latency=True
            )
            runs_by_mode[mode].append(_live_mode(performed, slo_ns, alone, 2 if harness_mode == "apart" else 1))
            if mode == "cotenant":
                changes = _adjustments(harness)[adjustments_before:]
        progress()
    return LiveResult(
        name=case.name,
        rounds=rounds,
        slo_ms=slo_ns / 1e6,
        solo_p99_ms=text["p99"] / 1e6,
        requests=online.requests,
        modes={mode: _median_run(runs) for mode, runs in runs_by_mode.items()},
        changes=[(at_s - changes[0][0], part, cause) for at_s, part, cause in changes],
    )


def _live_mode(performed: PlayersRun, slo_ns: int, alone: SharingRun, devices: int) -> LiveMode:
    """Compute the results of one run, relative to the training alone on the machine."""
    run, rows = performed.run, performed.online["detail"]
    within = sum(end - due <= slo_ns for due, _, end in rows)
    span_s = (rows[-1][2] - rows[0][0]) / SECOND_NS
    offline = run.offline_done_ns / run.wall_ns / (alone.offline_done_ns / alone.wall_ns)
    attainment = within / len(rows)
    return LiveMode(
        attainment=attainment,
        p99_ms=performed.online["latency_ns"]["p99"] / 1e6,
        within_per_s=within / span_s,
        delay_ms=run.online_delayed_ns / len(rows) / 1e6,
        offline=offline,
        goodput=(attainment + offline) / devices,
    )


def _median_run(runs: Sequence[LiveMode]) -> LiveMode:
    return LiveMode(
        **{name: statistics.median(getattr(run, name) for run in runs) for name in LiveMode.__struct_fields__}
    )


def _adjustments(harness: SharingHarness) -> list[tuple[float, float, str]]:
    """Return every adjustment of the online share that the node has journaled so far."""
    with harness.directories.journal.open("rb") as file:
        return [
            (turn.now / SECOND_NS, turn.event.adjustment.online_ppm / 1e6, turn.event.adjustment.cause.value)
            for turn in NodeJournalReader(file.read)
            if isinstance(turn.event, OnlineShareProposed)
        ]
