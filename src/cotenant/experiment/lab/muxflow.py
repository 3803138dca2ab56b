"""What does sharing do to one node? Use of the device and online latencies before and after, in simulated time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from cotenant.experiment.fill.figures import PairFigures, figures_of
from cotenant.experiment.fill.scene import Mode, Scene
from cotenant.experiment.kernels import Setting, Tenant, play, play_alone
from cotenant.experiment.lab.fikit import (
    OFFLINE_PRIORITY,
    ONLINE_PRIORITY,
    SHARED,
    Progress,
    offline_alone,
    scene_of,
)
from cotenant.experiment.lab.muxflow_cases import DAY, NodeCase
from cotenant.experiment.lab.workers import mapping

PART: Final = "simulated"
P99_MOST: Final = 1.05
"""Of the online p99 alone: the target."""


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """How well a device was used in a run, and how long its online requests took."""

    utilization: float
    """Of the time, the part with at least one block on the device."""
    sm_activity: float
    """Of SMs times time, the part with at least one block."""
    p99_ms: float
    requests: int


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One case: the node with the service alone, and by way of sharing."""

    level: float
    figures: PairFigures
    before: Use
    after: dict[str, Use]
    p99_ratio: dict[str, float]
    """By mode: the online p99 over that alone, by the device's clock."""


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Of a figure over cases."""

    min: float
    median: float
    p90: float
    max: float
    mean: float


class NodeDay(msgspec.Struct, frozen=True, kw_only=True):
    """Means of a node over the day, by figure; over the levels that its service reaches, in their proportions."""

    name: str
    before: dict[str, float]
    after: dict[str, dict[str, float]]


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """All cases. The distributions are by mode and by figure."""

    cases: list[Judged]
    figures: dict[str, dict[str, Distribution]]
    day: dict[str, dict[str, Distribution]]
    within: dict[str, float]
    """By mode: the part of the cases whose p99 is at most 5 % above that alone."""


def use_of(scene: Scene, sms: int) -> Use:
    """What a run says of its device."""
    wall_ns = max(scene.wall_ns, 1)
    return Use(
        utilization=scene.busy_ns / wall_ns,
        sm_activity=scene.sm_ns / (wall_ns * sms),
        p99_ms=scene.latency_p99_ns / 1e6,
        requests=scene.requests,
    )


def judge_node(case: NodeCase, setting: Setting) -> Judged:
    """All runs of one case; a function of the case and the setting alone."""
    pair = case.pair
    tenants = [
        Tenant(load=pair.online, priority=ONLINE_PRIORITY),
        Tenant(load=pair.offline, priority=OFFLINE_PRIORITY),
    ]
    scenes: dict[Mode, Scene] = {
        "alone": scene_of("alone", play_alone(pair.online, setting)),
        "offline alone": offline_alone(pair.offline, setting),
    }
    scenes |= {mode: scene_of(mode, play(policy, tenants, setting).played) for mode, policy in SHARED.items()}
    before = use_of(scenes["alone"], setting.device.sm_count)
    after = {mode: use_of(scenes[mode], setting.device.sm_count) for mode in SHARED}
    return Judged(
        level=case.level,
        figures=figures_of(pair.name, pair.family, [scenes]),
        before=before,
        after={str(mode): use for mode, use in after.items()},
        p99_ratio={mode: use.p99_ms / before.p99_ms for mode, use in after.items()},
    )


def judge_nodes(cases: Sequence[NodeCase], setting: Setting, workers: int, progress: Progress) -> Simulated:
    """Every case; the number of workers changes nothing in them."""
    judged: list[Judged] = []
    progress(PART, 0, len(cases))
    with mapping(workers) as mapped:
        for one in mapped(judge_node, cases, [setting] * len(cases)):
            judged.append(one)
            progress(PART, len(judged), len(cases))
    return simulated_of(judged)


def simulated_of(judged: Sequence[Judged]) -> Simulated:
    """The distributions carry the claims, not a chosen case."""
    figures: dict[str, dict[str, Distribution]] = {"before": _distributions(judged, _BEFORE)}
    for mode in SHARED:
        figures[mode] = _distributions(judged, _after(mode))
    days = days_of(judged)
    day = {"before": _columns([one.before for one in days])}
    day |= {mode: _columns([one.after[mode] for one in days]) for mode in SHARED}
    within = {mode: statistics.fmean(one.p99_ratio[mode] <= P99_MOST for one in judged) for mode in SHARED}
    return Simulated(
        cases=list(judged), figures=figures, day=day, within={str(key): part for key, part in within.items()}
    )


def days_of(judged: Sequence[Judged]) -> list[NodeDay]:
    """One for each service beside one training."""
    nodes: dict[str, list[Judged]] = {}
    for one in judged:
        nodes.setdefault(one.figures.name, []).append(one)
    return [
        NodeDay(
            name=name,
            before={figure: _weighted(found, of) for figure, of in _BEFORE.items()},
            after={mode: {figure: _weighted(found, of) for figure, of in _over_day(mode).items()} for mode in SHARED},
        )
        for name, found in nodes.items()
    ]


def distribution_of(values: Sequence[float]) -> Distribution:
    """Of at least one value."""
    ordered = sorted(values)
    return Distribution(
        min=ordered[0],
        median=statistics.median(ordered),
        p90=ordered[min(int(0.9 * len(ordered)), len(ordered) - 1)],
        max=ordered[-1],
        mean=statistics.fmean(ordered),
    )


_Of = Callable[[Judged], float]
_BEFORE: Final[dict[str, _Of]] = {
    "utilization": lambda one: one.before.utilization,
    "sm_activity": lambda one: one.before.sm_activity,
}


def _over_day(mode: Mode) -> dict[str, _Of]:
    return {
        "utilization": lambda one: one.after[mode].utilization,
        "sm_activity": lambda one: one.after[mode].sm_activity,
        "offline_vs_alone": lambda one: one.figures.offline_vs_alone[mode],
    }


def _after(mode: Mode) -> dict[str, _Of]:
    return {
        **_over_day(mode),
        "p99_ratio": lambda one: one.p99_ratio[mode],
        "delay_ratio": lambda one: one.figures.online_delay_ratio[mode],
    }


def _distributions(judged: Sequence[Judged], figures: Mapping[str, _Of]) -> dict[str, Distribution]:
    return {name: distribution_of([of(one) for one in judged]) for name, of in figures.items()}


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, Distribution]:
    return {name: distribution_of([row[name] for row in rows]) for name in rows[0]}


def _weighted(found: Sequence[Judged], of: _Of) -> float:
    weights = [DAY[one.level] for one in found]
    return statistics.fmean((of(one) for one in found), weights)
