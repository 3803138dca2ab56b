"""Does control come to rest? Ten simulated minutes of steady load for every mix, and how often the share swings.

Six thousand periods of every mix at the level of kernels would take hours. So each mix is played by kernels for a few
seconds at each of several fixed shares, and the windows that the controller would have seen are kept. Then the
controller itself, at its own period, is shown windows drawn at random from those of the two shares around the one that
it has set. Some mixes are played by kernels throughout, as a check on this.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.domain.control import ControlLimits, DeviceWindow, count_above
from cotenant.domain.instant import SECOND_NS
from cotenant.domain.load import Load
from cotenant.domain.rhythm import steady
from cotenant.experiment.control import steered
from cotenant.experiment.kernels import Setting
from cotenant.experiment.lab.arkgpu_cases import OBJECTIVES, OFFLINE_PRIORITY, ONLINE_PRIORITY, Mixes, Service
from cotenant.experiment.lab.arkgpu_steps import QUICK_SERVICES
from cotenant.experiment.lab.fikit import Progress
from cotenant.experiment.lab.workers import mapping
from cotenant.experiment.together import Guest, Run
from cotenant.experiment.ways import share
from cotenant.machine.control import Control
from cotenant.policy.limit.share import delay_of
from cotenant.sim.arrivals import arrivals_of, driven

PART: Final = "steady load"
KERNELS: Final = "steady load by kernels"
STEADY_NS: Final = 600 * SECOND_NS
SETTLING_NS: Final = 60 * SECOND_NS
"""The first of it: what happens then is settling."""
LEVEL: Final = 0.20
SWING: Final = 0.10
"""Of the device: a smaller movement to and fro is none."""
CYCLE: Final = 3
"""So many full swings after settling are a limit cycle; fewer are answers to what chance brings."""
GRID: Final = (0.2, 0.4, 0.6, 0.8, 0.98)
GRID_NS: Final = 3 * SECOND_NS
BY_KERNELS: Final = ("trt resnet18 fp16", "trt resnet50 int8")
"""Services that are played by kernels for all ten minutes, beside the first training."""
_START: Final = 0.98


class SteadyCase(msgspec.Struct, frozen=True, kw_only=True):
    """A service beside a training, at one level throughout."""

    name: str
    service: Service
    training: Load
    seed: int


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """How one mix fared."""

    name: str
    objective: int
    by_kernels: bool
    changes: int
    """Of the share after settling."""
    swings: int
    """Full ones, there and back, after settling."""
    share: float
    """In the end."""
    attainment: float
    """Of the requests after settling."""
    is_cycle: bool


def steady_cases(mixes: Mixes, seed: int, *, quick: bool) -> list[SteadyCase]:
    """Every service beside every training."""
    return [
        SteadyCase(
            name=f"{service.load.name} + {training.name}",
            service=service,
            training=training,
            seed=seed * 1000 + place,
        )
        for place, service in enumerate(list(mixes.services.values())[: QUICK_SERVICES if quick else None])
        for training in list(mixes.trainings.values())[: 1 if quick else None]
    ]


def steady_run(case: SteadyCase, setting: Setting, for_ns: int, objective: int = OBJECTIVES[0]) -> Run:
    """At random instants with one rate."""
    arrivals = arrivals_of(steady(LEVEL * case.service.most_per_s), for_ns, case.seed)
    return Run(
        guests=(
            Guest(
                load=driven(case.service.load, arrivals),
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


def recorded(case: SteadyCase, setting: Setting) -> list[list[DeviceWindow]]:
    """By share of the grid: the windows of a run in which it was fixed, without the first of them."""
    found = []
    for part in GRID:
        rules = msgspec.structs.replace(setting.rules, delay_ppm=delay_of(round(part * 1e6)))
        fixed = msgspec.structs.replace(setting, rules=rules)
        windows: list[DeviceWindow] = []
        run = steady_run(case, fixed, SECOND_NS // 2 + GRID_NS)
        steered("fixed", run, ControlLimits(adjust="off"), sliced=False, watch=windows.append)
        found.append(windows[5:])
    return found


def rests_of(case: SteadyCase, setting: Setting) -> list[Rest]:
    """By every objective."""
    library = recorded(case, setting)
    return [rest_of(case, objective, library) for objective in OBJECTIVES]


def rest_of(case: SteadyCase, objective: int, recorded_windows: Sequence[Sequence[DeviceWindow]]) -> Rest:
    """Ten minutes of windows as they were recorded."""
    slo_ns = case.service.slo_ns(objective)
    library = [[promised(window, slo_ns) for window in windows] for windows in recorded_windows]
    limits, chance = ControlLimits(), random.Random(case.seed)
    control, ppm = Control(limits), round(_START * 1e6)
    shares, within, known = [], 0, 0
    for tick in range(1, STEADY_NS // limits.period_ns + 1):
        now_ns = tick * limits.period_ns
        window = drawn(library, ppm / 1e6, chance)
        moved = msgspec.structs.replace(window, begin_ns=now_ns - limits.period_ns, end_ns=now_ns)
        adjustment = control.seen(moved, now_ns)
        ppm = ppm if adjustment is None else adjustment.online_ppm
        if now_ns >= SETTLING_NS:
            shares.append(ppm / 1e6)
            within += sum(tenant.requests - tenant.over for tenant in moved.tenants if tenant.promised)
            known += sum(tenant.requests for tenant in moved.tenants if tenant.promised)
    return _rest(case, objective, shares, within / max(known, 1), by_kernels=False)


def promised(window: DeviceWindow, slo_ns: int) -> DeviceWindow:
    """The same window by another objective, which what online work did beside a fixed share does not depend on."""
    tenants = tuple(
        msgspec.structs.replace(tenant, slo_ns=slo_ns, over=round(count_above(tenant.latencies, slo_ns)))
        if tenant.promised
        else tenant
        for tenant in window.tenants
    )
    return msgspec.structs.replace(window, tenants=tenants)


def rest_by_kernels(case: SteadyCase, setting: Setting, for_ns: int = STEADY_NS) -> list[Rest]:
    """The same from the first kernel to the last, by the strictest objective."""
    run = msgspec.structs.replace(steady_run(case, setting, for_ns), warm_ns=SETTLING_NS)
    outcome = share("cotenant", run)
    shares = [_START, *(turn.online_ppm / 1e6 for turn in outcome.turns)]
    after = [turn.online_ppm / 1e6 for turn in outcome.turns if turn.at_ns >= SETTLING_NS]
    before = shares[len(shares) - len(after) - 1]
    attainment = outcome.guests[0].attainment(case.service.slo_ns(OBJECTIVES[0]))
    return [_rest(case, OBJECTIVES[0], [before, *after], attainment, by_kernels=True)]


def drawn(library: Sequence[Sequence[DeviceWindow]], part: float, chance: random.Random) -> DeviceWindow:
    """A window of one of the two shares around this one, the nearer the likelier."""
    above = bisect.bisect_left(GRID, part)
    if above == 0 or above == len(GRID):
        return chance.choice(library[min(above, len(GRID) - 1)])
    low, high = GRID[above - 1], GRID[above]
    return chance.choice(library[above if chance.random() * (high - low) < part - low else above - 1])


def swings_of(shares: Sequence[float], least: float = SWING) -> int:
    """How often it went one way by so much and came back by as much."""
    turns, extreme, way = 0, shares[0], 0
    for one in shares:
        if way >= 0 and one <= extreme - least:
            turns, extreme, way = turns + 1, one, -1
        elif way <= 0 and one >= extreme + least:
            turns, extreme, way = turns + 1, one, 1
        elif (way > 0 and one > extreme) or (way < 0 and one < extreme):
            extreme = one
    return turns // 2


def _rest(case: SteadyCase, objective: int, shares: Sequence[float], attainment: float, *, by_kernels: bool) -> Rest:
    swings = swings_of(shares)
    return Rest(
        name=case.name,
        objective=objective,
        by_kernels=by_kernels,
        changes=sum(after != before for before, after in itertools.pairwise(shares)),
        swings=swings,
        share=shares[-1],
        attainment=attainment,
        is_cycle=swings >= CYCLE,
    )


def judge_steady(
    cases: Sequence[SteadyCase], setting: Setting, workers: int, progress: Progress, *, quick: bool
) -> list[Rest]:
    """Every mix by recorded windows, and some by kernels unless it must be quick."""
    by_kernels = () if quick else BY_KERNELS
    chosen = [
        next(case for case in cases if case.service.load.name == name)
        for name in by_kernels
        if any(case.service.load.name == name for case in cases)
    ]
    found: list[Rest] = []
    with mapping(workers) as mapped:
        for part, play, some in ((PART, rests_of, cases), (KERNELS, rest_by_kernels, chosen)):
            progress(part, 0, len(some))
            for done, rests in enumerate(mapped(play, some, [setting] * len(some)), start=1):
                found += rests
                progress(part, done, len(some))
    return found
