"""Does gap filling keep its promise? Pairs of loads under default sharing, under the gate and under the oracle."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from cotenant.domain.gate import GateRules
from cotenant.domain.instant import MILLISECOND_NS
from cotenant.domain.load import Load
from cotenant.experiment.fill.figures import COTENANT, PairFigures, Range, figures_of, range_of, ranges_of
from cotenant.experiment.fill.pairs import Pair
from cotenant.experiment.fill.scene import Mode, Scene
from cotenant.experiment.kernels import Policy, Setting, Tenant, plan_oracle, play, play_alone
from cotenant.experiment.lab.workers import mapping
from cotenant.sim.kernels_host import Costs
from cotenant.sim.kernels_played import Played

OFFLINE_ALONE_NS: Final = 200 * MILLISECOND_NS
ONLINE_PRIORITY: Final = 1
OFFLINE_PRIORITY: Final = 7
WORTH_FILLING: Final = 0.01
"""Of the time: a pair in which even the oracle finds less than this has nothing to fill."""
SHARED: Final[dict[Mode, Policy]] = {
    "slices": "open-slice",
    "mps": "open-mps",
    "cotenant slices": "fill-slice",
    "cotenant mps": "fill",
}
PAPER: Final[dict[str, str]] = {
    "online_speedup_vs_sharing": "1.33 to 14.87, more than half above 3.5",
    "offline_ratio_vs_sharing": "0.84 to 1",
    "cost": "below 10 %",
}
"""FIKIT's published figures, measured on real GPUs with other programs."""

Progress: TypeAlias = Callable[[str, int, int], None]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A pair to judge, and what is particular to it."""

    pair: Pair
    jitter_ppm: int = Costs().jitter_ppm
    rules: GateRules = GateRules()


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One pair: the table of `bench fill`, and what the oracle would have done with the delay that was spent."""

    figures: PairFigures
    gap_ratio: float
    """Of the online program's time alone, the part in which none of its work is on the device."""
    delay_of_wall: dict[str, float]
    """By sharing: what its kernels waited, over the whole of its time alone, pauses between requests included."""
    fill_vs_oracle: dict[str, float]
    """Offline kernel time over the oracle's at the same delay; above 1 where it ran beside, unlike the oracle."""
    oracle_vs_wall: dict[str, float]
    """Offline kernel time of the oracle over the time of the run: what there was to fill."""
    filled_gaps: dict[str, int]
    spun: dict[str, float]
    """Of a processor, what the offline program spun away."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Cases of one sort, and how their figures are distributed."""

    name: str
    cases: list[Judged]
    figures: dict[str, Range]
    above: dict[str, float]
    """By sharing: the part of the pairs whose online program is over 3.5 times as fast as by default."""


def judge(case: Case, setting: Setting) -> Judged:
    """All runs of one case; a function of the case and the setting alone."""
    setting = msgspec.structs.replace(
        setting, rules=case.rules, costs=msgspec.structs.replace(setting.costs, jitter_ppm=case.jitter_ppm)
    )
    pair = case.pair
    tenants = [
        Tenant(load=pair.online, priority=ONLINE_PRIORITY),
        Tenant(load=pair.offline, priority=OFFLINE_PRIORITY),
    ]
    alone = play_alone(pair.online, setting)
    scenes: dict[Mode, Scene] = {
        "alone": scene_of("alone", alone),
        "offline alone": offline_alone(pair.offline, setting),
    }
    oracle: dict[str, float] = {}
    against: dict[str, float] = {}
    filled: dict[str, int] = {}
    spun: dict[str, float] = {}
    for mode, policy in SHARED.items():
        shared = play(policy, tenants, setting)
        played = shared.played
        scenes[mode] = scene_of(mode, played)
        if mode not in COTENANT.values():
            continue
        sharing = mode.removeprefix("cotenant ")
        plan = plan_oracle(alone, pair.offline, setting, played.clients[0].delayed_ns, sliced=sharing == "slices")
        oracle[sharing] = plan.done_ns / alone.wall_ns
        against[sharing] = played.clients[1].done_ns / max(plan.done_ns, 1)
        filled[sharing] = shared.passes(2)
        spun[sharing] = shared.count("spun_ns") / played.end_ns
    gap_ns = sum(close_ns - open_ns for open_ns, close_ns in alone.gaps_ns)
    return Judged(
        figures=figures_of(pair.name, pair.family, [scenes]),
        gap_ratio=gap_ns / max(alone.wall_ns, 1),
        delay_of_wall={sharing: scenes[mode].online_delayed_ns / alone.wall_ns for sharing, mode in COTENANT.items()},
        fill_vs_oracle=against,
        oracle_vs_wall=oracle,
        filled_gaps=filled,
        spun=spun,
    )


def judge_all(
    cases: Mapping[str, Sequence[Case]], setting: Setting, workers: int, progress: Progress
) -> dict[str, Group]:
    """Every case of every group; the number of workers changes nothing in them."""
    groups = {}
    with mapping(workers) as mapped:
        for name, members in cases.items():
            judged: list[Judged] = []
            progress(name, 0, len(members))
            for one in mapped(judge, members, [setting] * len(members)):
                judged.append(one)
                progress(name, len(judged), len(members))
            groups[name] = group_of(name, judged)
    return groups


def group_of(name: str, judged: Sequence[Judged]) -> Group:
    """The distribution carries the claim, not a chosen pair."""
    figures = ranges_of([one.figures for one in judged])
    above = {}
    for sharing in ("slices", "mps"):
        worth = [one for one in judged if one.oracle_vs_wall[sharing] >= WORTH_FILLING]
        columns = {
            "fill_vs_oracle": [one.fill_vs_oracle[sharing] for one in worth],
            "online_delay_of_wall": [one.delay_of_wall[sharing] for one in judged],
            "spun": [one.spun[sharing] for one in judged],
        }
        for figure, values in columns.items():
            if (found := range_of(values)) is not None:
                figures[f"{figure}_{sharing}"] = found
        speedups = [one.figures.online_speedup_vs_sharing[sharing] for one in judged]
        above[sharing] = sum(value > 3.5 for value in speedups) / max(len(speedups), 1)
    return Group(name=name, cases=list(judged), figures=figures, above=above)


def scene_of(mode: Mode, played: Played) -> Scene:
    """A run as the bench writes one down."""
    online, *others = played.clients
    latencies = sorted(online.latencies_ns)
    return Scene(
        mode=mode,
        wall_ns=played.wall_ns,
        requests=online.requests,
        latency_sum_ns=sum(latencies),
        latency_p50_ns=round(statistics.median(latencies)),
        latency_p99_ns=latencies[min(round(0.99 * len(latencies)), len(latencies) - 1)],
        online_delayed_ns=online.delayed_ns,
        offline_done_ns=sum(other.done_ns for other in others),
        busy_ns=played.busy_ns,
        sm_ns=played.sm_ns,
    )


def offline_alone(offline: Load, setting: Setting) -> Scene:
    """A training load with the device to itself, for a while."""
    played = play_alone(offline, setting, for_ns=OFFLINE_ALONE_NS, seed=1)
    return Scene(
        mode="offline alone",
        wall_ns=played.wall_ns,
        offline_done_ns=played.clients[0].done_ns,
        busy_ns=played.busy_ns,
        sm_ns=played.sm_ns,
    )
