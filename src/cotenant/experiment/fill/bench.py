"""What does sharing cost the online program, and what is left for the offline one? All pairs, all ways to share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.domain.instant import MILLISECOND_NS
from cotenant.domain.load import Load
from cotenant.errors import CotenantError, WorldError
from cotenant.experiment.fill.compare import Compared, agreement, compare_pairs, ranges_of_compared
from cotenant.experiment.fill.figures import COTENANT, PairFigures, Range, Round, figures_of, ranges_of
from cotenant.experiment.fill.pairs import PLANS, RUN_NS, Missing, Pair, Plan, read_pairs
from cotenant.experiment.fill.scene import Mode, Scene
from cotenant.experiment.fill.stage import PRESET, NodePolicy, Stage
from cotenant.experiment.kernels import Setting
from cotenant.sim.device import preset

ROUNDS: Final = 3
QUICK_RUN_NS: Final = 120 * MILLISECOND_NS
BOUNDS: Final = ("100us", "250us", "500us", "1ms", "2ms")
ALONE_S: Final = 0.3
MODES: Final[tuple[Mode, ...]] = (
    "alone",
    "offline alone",
    "through",
    "unsampled",
    "slices",
    "cotenant slices",
    "mps",
    "cotenant mps",
)
Say = Callable[[str], None]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One bound of a curve."""

    pair: str
    bound: str
    mode: str
    online_delay_ratio: float
    online_slowdown: float
    offline_vs_alone: float


class FillReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that the bench found."""

    bench: str = "fill"
    rounds: int
    policy: NodePolicy
    figures: dict[str, Range]
    pairs: list[PairFigures]
    compared: list[Compared]
    delay_apart: dict[str, float]
    """By sharing: the median distance of the online delay ratio, live from simulated."""
    left_out: list[Missing]
    curve: list[Point]


def bench_fill(
    directory: Path, rounds: int, policy: NodePolicy, say: Say, *, quick: bool = False, sweep: bool = False
) -> FillReport:
    """Every pair whose measurements are there; of a quick run one of each family, for a shorter time."""
    plans = one_of_each(PLANS) if quick else PLANS
    pairs, missing = read_pairs(directory, plans, QUICK_RUN_NS if quick else RUN_NS)
    for one in missing:
        say(f"left out: {one.name}: {one.why}")
    if not pairs:
        raise WorldError(f"there are no measurements in {directory}; set COTENANT_DATA or --data to where they are")
    with tempfile.TemporaryDirectory(prefix="cotenant-fill-") as home, Stage(Path(home)) as stage:
        figures = measure_pairs(stage, pairs, rounds, policy, say)
        curve = sweep_bounds(stage, swept(pairs), rounds, policy, say) if sweep else []
    compared = compare_pairs(pairs, figures, Setting(device=preset(PRESET), rules=policy.rules()), say)
    return FillReport(
        rounds=rounds,
        policy=policy,
        figures=ranges_of(figures) | ranges_of_compared(compared),
        pairs=figures,
        compared=compared,
        delay_apart=agreement(compared, figures),
        left_out=missing,
        curve=curve,
    )


def one_of_each(plans: Sequence[Plan]) -> list[Plan]:
    """The first of every family."""
    first: dict[str, Plan] = {}
    for plan in plans:
        first.setdefault(plan.family, plan)
    return list(first.values())


def swept(pairs: Sequence[Pair]) -> list[Pair]:
    """What a curve is drawn for: a pair with gaps within its requests, one with few, and one with pauses between."""
    first = {pair.family: pair for pair in reversed(pairs)}
    return [first[family] for family in ("eager", "host-bound", "poisson") if family in first]


def measure_pairs(stage: Stage, pairs: Sequence[Pair], rounds: int, policy: NodePolicy, say: Say) -> list[PairFigures]:
    """Rounds over all pairs and modes in turn, after cotenant has seen every load alone."""
    failed: dict[str, list[str]] = {pair.name: [] for pair in pairs}
    stage.rule(policy)
    record(stage, pairs, say)
    seen: dict[str, list[Round]] = {pair.name: [] for pair in pairs}
    for number in range(1, rounds + 1):
        for place, pair in enumerate(pairs, start=1):
            say(f"round {number} of {rounds}, pair {place} of {len(pairs)}: {pair.name}")
            found: dict[Mode, Scene] = {}
            for mode in MODES:
                try:
                    found[mode] = play(stage, pair, mode)
                except CotenantError as error:
                    failed[pair.name].append(f"{mode}: {error}")
                    say(f"{pair.name}, {mode}: {error}")
            seen[pair.name].append(found)
    return [figures_of(pair.name, pair.family, seen[pair.name], failed[pair.name]) for pair in pairs]


def record(stage: Stage, pairs: Sequence[Pair], say: Say) -> None:
    """Every load once, alone, with every kernel timed: sharing begins with what is known."""
    loads: dict[str, Load] = {load.name: load for pair in pairs for load in (pair.online, pair.offline)}
    for place, load in enumerate(loads.values(), start=1):
        say(f"timing load {place} of {len(loads)} alone: {load.name}")
        stage.record(load)


def play(stage: Stage, pair: Pair, mode: Mode) -> Scene:
    """One run of a pair."""
    if mode == "offline alone":
        return stage.play(mode, None, pair.offline, ALONE_S)
    return stage.play(mode, pair.online, None if mode in ("alone", "through", "unsampled") else pair.offline)


def sweep_bounds(stage: Stage, pairs: Sequence[Pair], rounds: int, policy: NodePolicy, say: Say) -> list[Point]:
    """Delay and offline throughput over the bound D on outstanding offline device time."""
    found = []
    for bound in BOUNDS:
        stage.rule(msgspec.structs.replace(policy, bound=bound))
        for pair in pairs:
            say(f"bound {bound}: {pair.name}")
            modes: tuple[Mode, ...] = ("alone", "offline alone", *COTENANT.values())
            seen = [{mode: play(stage, pair, mode) for mode in modes} for _ in range(rounds)]
            figures = figures_of(pair.name, pair.family, seen)
            for mode in COTENANT.values():
                point = Point(
                    pair=pair.name,
                    bound=bound,
                    mode=mode,
                    online_delay_ratio=figures.online_delay_ratio[mode],
                    online_slowdown=figures.online_slowdown[mode],
                    offline_vs_alone=figures.offline_vs_alone[mode],
                )
                found.append(point)
    return found
