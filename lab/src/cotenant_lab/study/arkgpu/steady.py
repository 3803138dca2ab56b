"""Stability of control: ten simulated minutes of steady load for every mix, and how often the share oscillates.

Simulating six thousand periods of every mix at the level of kernels would take hours. Therefore each mix is simulated
by kernels for a few seconds at each of several fixed shares, and the windows that the controller would have received
are recorded. Then the controller runs at its own period and receives windows drawn at random from those of the two
shares next to the one that it has set. Some mixes are simulated by kernels throughout, as a check.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.gate.request_buckets import count_above
from cotenant.node.model.control import ControlLimits, DeviceWindow
from cotenant.node.policy.limit.share import delay_of
from cotenant.node.state.control import Control
from cotenant.simulate.kernels import RunSettings
from cotenant.simulate.sharing import Guest, RunSpec
from cotenant.simulate.steering import steered
from cotenant.units.instant import SECOND_NS
from cotenant.workload.arrivals import draw_arrivals, with_arrivals
from cotenant.workload.load import Workload
from cotenant.workload.rates import constant_rate
from cotenant_lab.baselines.modes import share
from cotenant_lab.study.arkgpu.cases import OBJECTIVES, OFFLINE_PRIORITY, ONLINE_PRIORITY, Mixes, Service
from cotenant_lab.study.arkgpu.steps import QUICK_SERVICES
from cotenant_lab.study.fikit.run import Progress
from cotenant_lab.study.workers import mapping

PART: Final = "steady load"
KERNELS: Final = "steady load by kernels"
STEADY_NS: Final = 600 * SECOND_NS
SETTLING_NS: Final = 60 * SECOND_NS
"""Changes in this first part count as settling."""
LEVEL: Final = 0.20
SWING: Final = 0.10
"""Fraction of the device: smaller oscillations are ignored."""
CYCLE: Final = 3
"""This number of full oscillations after settling counts as a limit cycle; fewer are reactions to random load."""
GRID: Final = (0.2, 0.4, 0.6, 0.8, 0.98)
GRID_NS: Final = 3 * SECOND_NS
BY_KERNELS: Final = ("trt resnet18 fp16", "trt resnet50 int8")
"""Services that are simulated by kernels for all ten minutes, with the first training."""
_START: Final = 0.98


class SteadyCase(msgspec.Struct, frozen=True, kw_only=True):
    """A service and a training at a constant level."""

    name: str
    service: Service
    training: Workload
    seed: int


class SteadyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one mix."""

    name: str
    objective: int
    by_kernels: bool
    changes: int
    """Changes of the share after settling."""
    swings: int
    """Full oscillations after settling."""
    share: float
    """At the end."""
    attainment: float
    """Of the requests after settling."""
    is_cycle: bool


def steady_cases(mixes: Mixes, seed: int, *, quick: bool) -> list[SteadyCase]:
    """Return every service with every training."""
    return [
        SteadyCase(
            name=f"{service.load.name} + {training.name}",
            service=service,
            training=training,
            seed=seed * 1000 + index,
        )
        for index, service in enumerate(list(mixes.services.values())[: QUICK_SERVICES if quick else None])
        for training in list(mixes.trainings.values())[: 1 if quick else None]
    ]


def steady_run(case: SteadyCase, setting: RunSettings, for_ns: int, objective: int = OBJECTIVES[0]) -> RunSpec:
    """Return a run with Poisson arrivals at a constant rate."""
    arrivals = draw_arrivals(constant_rate(LEVEL * case.service.most_per_s), for_ns, case.seed)
    return RunSpec(
        guests=(
            Guest(
                load=with_arrivals(case.service.load, arrivals),
                online=True,
                priority=ONLINE_PRIORITY,
                slo_ns=case.service.slo_ns(objective),
            ),
            Guest(load=case.training, online=False, priority=OFFLINE_PRIORITY),
        ),
        setting=setting,
        for_ns=for_ns,
        warm_ns=0,
    )


def recorded(case: SteadyCase, setting: RunSettings) -> list[list[DeviceWindow]]:
    """Return, by share of the grid, the windows of a run at that fixed share, without the first ones."""
    windows_by_share = []
    for part in GRID:
        rules = msgspec.structs.replace(setting.rules, delay_ppm=delay_of(round(part * 1e6)))
        fixed = msgspec.structs.replace(setting, rules=rules)
        windows: list[DeviceWindow] = []
        run = steady_run(case, fixed, SECOND_NS // 2 + GRID_NS)
        steered("fixed", run, ControlLimits(adjust="off"), sliced=False, watch=windows.append)
        windows_by_share.append(windows[5:])
    return windows_by_share


def steady_results(case: SteadyCase, setting: RunSettings) -> list[SteadyResult]:
    """Evaluate every objective."""
    library = recorded(case, setting)
    return [steady_result(case, objective, library) for objective in OBJECTIVES]


def steady_result(case: SteadyCase, objective: int, recorded_windows: Sequence[Sequence[DeviceWindow]]) -> SteadyResult:
    """Run the controller for ten minutes on recorded windows."""
    slo_ns = case.service.slo_ns(objective)
    library = [[promised(window, slo_ns) for window in windows] for windows in recorded_windows]
    limits, rng = ControlLimits(), random.Random(case.seed)
    control, ppm = Control(limits), round(_START * 1e6)
    shares, within, requests = [], 0, 0
    for tick in range(1, STEADY_NS // limits.period_ns + 1):
        now_ns = tick * limits.period_ns
        window = draw_window(library, ppm / 1e6, rng)
        shifted = msgspec.structs.replace(window, begin_ns=now_ns - limits.period_ns, end_ns=now_ns)
        adjustment = control.on_window(shifted, now_ns)
        ppm = ppm if adjustment is None else adjustment.online_ppm
        if now_ns >= SETTLING_NS:
            shares.append(ppm / 1e6)
            within += sum(tenant.requests - tenant.over for tenant in shifted.tenants if tenant.promised)
            requests += sum(tenant.requests for tenant in shifted.tenants if tenant.promised)
    return _result(case, objective, shares, within / max(requests, 1), by_kernels=False)


def promised(window: DeviceWindow, slo_ns: int) -> DeviceWindow:
    """Return the same window for another objective, on which the behaviour at a fixed share does not depend."""
    tenants = tuple(
        msgspec.structs.replace(tenant, slo_ns=slo_ns, over=round(count_above(tenant.latencies, slo_ns)))
        if tenant.promised
        else tenant
        for tenant in window.tenants
    )
    return msgspec.structs.replace(window, tenants=tenants)


def steady_by_kernels(case: SteadyCase, setting: RunSettings, for_ns: int = STEADY_NS) -> list[SteadyResult]:
    """Simulate all ten minutes by kernels, with the strictest objective."""
    run = msgspec.structs.replace(steady_run(case, setting, for_ns), warm_ns=SETTLING_NS)
    outcome = share("cotenant", run)
    shares = [_START, *(turn.online_ppm / 1e6 for turn in outcome.turns)]
    later_shares = [turn.online_ppm / 1e6 for turn in outcome.turns if turn.at_ns >= SETTLING_NS]
    share_at_settling = shares[len(shares) - len(later_shares) - 1]
    attainment = outcome.guests[0].attainment(case.service.slo_ns(OBJECTIVES[0]))
    return [_result(case, OBJECTIVES[0], [share_at_settling, *later_shares], attainment, by_kernels=True)]


def draw_window(library: Sequence[Sequence[DeviceWindow]], part: float, rng: random.Random) -> DeviceWindow:
    """Draw a window of one of the two grid shares next to `part`, the nearer one with higher probability."""
    upper = bisect.bisect_left(GRID, part)
    if upper == 0 or upper == len(GRID):
        return rng.choice(library[min(upper, len(GRID) - 1)])
    low, high = GRID[upper - 1], GRID[upper]
    return rng.choice(library[upper if rng.random() * (high - low) < part - low else upper - 1])


def swings_of(shares: Sequence[float], min_swing: float = SWING) -> int:
    """Return how often the share moved by at least `least` and back by as much."""
    turns, extreme, direction = 0, shares[0], 0
    for share_now in shares:
        if direction >= 0 and share_now <= extreme - min_swing:
            turns, extreme, direction = turns + 1, share_now, -1
        elif direction <= 0 and share_now >= extreme + min_swing:
            turns, extreme, direction = turns + 1, share_now, 1
        elif (direction > 0 and share_now > extreme) or (direction < 0 and share_now < extreme):
            extreme = share_now
    return turns // 2


def _result(
    case: SteadyCase, objective: int, shares: Sequence[float], attainment: float, *, by_kernels: bool
) -> SteadyResult:
    swings = swings_of(shares)
    return SteadyResult(
        name=case.name,
        objective=objective,
        by_kernels=by_kernels,
        changes=sum(share_now != previous for previous, share_now in itertools.pairwise(shares)),
        swings=swings,
        share=shares[-1],
        attainment=attainment,
        is_cycle=swings >= CYCLE,
    )


def evaluate_steady(
    cases: Sequence[SteadyCase], setting: RunSettings, workers: int, progress: Progress, *, quick: bool
) -> list[SteadyResult]:
    """Evaluate every mix by recorded windows, and some by kernels unless quick."""
    by_kernels = () if quick else BY_KERNELS
    chosen = [
        next(case for case in cases if case.service.load.name == name)
        for name in by_kernels
        if any(case.service.load.name == name for case in cases)
    ]
    all_results: list[SteadyResult] = []
    with mapping(workers) as mapped:
        for part, play, part_cases in ((PART, steady_results, cases), (KERNELS, steady_by_kernels, chosen)):
            progress(part, 0, len(part_cases))
            for done, results in enumerate(mapped(play, part_cases, [setting] * len(part_cases)), start=1):
                all_results += results
                progress(part, done, len(part_cases))
    return all_results
