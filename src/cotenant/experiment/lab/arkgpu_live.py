"""Does control keep objectives on a real node? Processes on a software GPU, a load that rises and falls, four ways."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.domain.event import SharesAdjusted
from cotenant.domain.instant import SECOND_NS
from cotenant.domain.load import BACK_TO_BACK, Load
from cotenant.domain.rhythm import Steps
from cotenant.experiment.fill.pairs import Missing, read_pairs
from cotenant.experiment.fill.scene import Mode, Scene
from cotenant.experiment.fill.stage import NodePolicy, Performance, Stage
from cotenant.format.journal import TurnReader
from cotenant.sim.arrivals import arrivals_of, driven

OBJECTIVE: Final = 3
"""Times the p99 that the service itself measures alone, one request after the other, by its own clock: the cores of the
machine are the device, the node and the programs at once, and what they do to a request is in it."""
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


class LiveCase(msgspec.Struct, frozen=True, kw_only=True):
    """A service and a training."""

    name: str
    online: Load
    offline: Load


class LiveWay(msgspec.Struct, frozen=True, kw_only=True):
    """One way to share: medians over rounds."""

    attainment: float
    """By the service's own clock, from when a request was due."""
    p99_ms: float
    within_per_s: float
    delay_ms: float
    """By the device's books: what the kernels of a request waited because of another client, in the mean."""
    offline: float
    """Kernel time per time, over that alone."""
    goodput: float
    """Attainment and offline progress in sum, per device; of the service alone, without any training, its own."""


class LiveTold(msgspec.Struct, frozen=True, kw_only=True):
    """One case."""

    name: str
    rounds: int
    slo_ms: float
    solo_p99_ms: float
    requests: int
    """In each run."""
    ways: dict[str, LiveWay]
    changes: list[tuple[float, float, str]]
    """Of the last run under `cotenant`: when (s from its beginning), what online work kept from then on, and why."""


def live_cases(directory: Path, *, quick: bool) -> tuple[list[LiveCase], list[Missing]]:
    """Those whose measurements are there; one where it must be quick."""
    pairs, _ = read_pairs(directory)
    loads = {load.name: load for pair in pairs for load in (pair.online, pair.offline)}
    found, missing = [], []
    for service, training in _CHOSEN[: 1 if quick else None]:
        absent = [one for one in (service, training) if one not in loads]
        if absent:
            missing.append(Missing(f"{service} + {training}, live", f"there are no measurements of {absent[0]}"))
            continue
        found.append(LiveCase(name=f"{service} + {training}", online=loads[service], offline=loads[training]))
    return found, missing


def judge_live(
    home: Path, cases: Sequence[LiveCase], rounds: int, progress: Callable[[], None] = lambda: None
) -> list[LiveTold]:
    """All ways in turns, so that what the machine does meanwhile meets all of them."""
    told = []
    with Stage(home, detail=True, devices=2) as stage:
        stage.rule(NodePolicy())
        for case in cases:
            for load in (case.online, case.offline):
                stage.record(load)
            told.append(_judge(stage, case, rounds, progress))
    return told


def _judge(stage: Stage, case: LiveCase, rounds: int, progress: Callable[[], None]) -> LiveTold:
    solo = msgspec.structs.replace(case.online, arrival=BACK_TO_BACK, requests=SOLO_REQUESTS)
    said = stage.perform("alone", solo, None).online["latency_ns"]
    slo_ns = OBJECTIVE * said["p99"]
    rates = tuple((place * HOLD_NS, level * SECOND_NS / said["p50"]) for place, level in enumerate(LEVELS))
    online = driven(case.online, arrivals_of(Steps(rates), HOLD_NS * len(LEVELS), 1))
    found: dict[str, list[LiveWay]] = {way: [] for way in MODES}
    changes: list[tuple[float, float, str]] = []
    for _ in range(rounds):
        alone = stage.play("offline alone", None, case.offline, OFFLINE_ALONE_S)
        for way, mode in MODES.items():
            before = len(_adjusted(stage))
            offline = None if mode == "alone" else case.offline
            performed = stage.perform(mode, online, offline, terms=["--slo", f"{slo_ns}ns"], tells=True)
            found[way].append(_way(performed, slo_ns, alone, 2 if mode == "apart" else 1))
            if way == "cotenant":
                changes = _adjusted(stage)[before:]
        progress()
    return LiveTold(
        name=case.name,
        rounds=rounds,
        slo_ms=slo_ns / 1e6,
        solo_p99_ms=said["p99"] / 1e6,
        requests=online.requests,
        ways={way: _middle(some) for way, some in found.items()},
        changes=[(at - changes[0][0], part, why) for at, part, why in changes],
    )


def _way(performed: Performance, slo_ns: int, alone: Scene, devices: int) -> LiveWay:
    """By what the training does alone on the machine, without any service."""
    scene, rows = performed.scene, performed.online["detail"]
    within = sum(end - due <= slo_ns for due, _, end in rows)
    span_s = (rows[-1][2] - rows[0][0]) / SECOND_NS
    offline = scene.offline_done_ns / scene.wall_ns / (alone.offline_done_ns / alone.wall_ns)
    attainment = within / len(rows)
    return LiveWay(
        attainment=attainment,
        p99_ms=performed.online["latency_ns"]["p99"] / 1e6,
        within_per_s=within / span_s,
        delay_ms=scene.online_delayed_ns / len(rows) / 1e6,
        offline=offline,
        goodput=(attainment + offline) / devices,
    )


def _middle(some: Sequence[LiveWay]) -> LiveWay:
    return LiveWay(
        **{name: statistics.median(getattr(one, name) for one in some) for name in LiveWay.__struct_fields__}
    )


def _adjusted(stage: Stage) -> list[tuple[float, float, str]]:
    """Every step of the share that the node has journaled so far."""
    with stage.places.journal.open("rb") as file:
        return [
            (turn.now / SECOND_NS, turn.event.adjustment.online_ppm / 1e6, turn.event.adjustment.cause.value)
            for turn in TurnReader(file.read)
            if isinstance(turn.event, SharesAdjusted)
        ]
