"""Does a tenant get its share of the device, and no more? By the device's own counters, with real processes."""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from cotenant.experiment.limit_more import LimitMore, Machine, least, resized, together
from cotenant.experiment.limit_world import WINDOW_S, Seen, World
from cotenant.live.clock import pause
from cotenant.live.soak.press import KINDS

SHARES: Final = (10, 30, 50, 70, 90)
QUICK_SHARES: Final = (30, 70)
BASELINE_SHARES: Final = (30, 70)
SHORT_NS: Final = 1_000_000
"""Kernels that are longer cannot be spread evenly over a window of 100 ms."""
_MEASURED: Final = ("small", "large", "graph")
_MORE: Final = ("mixed", "narrow")
_NEIGHBOUR: Final = "greedy"
_TENANT: Final = "tenant"
_WARM_S: Final = 1.0
_SECONDS: Final = 10.0
_SHORT_S: Final = 2.0
_TURNS: Final = 3
_NEAR: Final = 5.0
"""A tenant that unlimited and alone uses no more than this above the target cannot show whether a limit holds."""
Say = Callable[[str], None]


class LimitCase(msgspec.Struct, frozen=True, kw_only=True):
    """One share of one kind of work, static; all figures in percent of the device: its SMs times the time."""

    kind: str
    kernel_ns: int
    beside: str
    target_pct: float
    actual_pct: float
    error_pct: float
    oscillation_pct: float
    neighbour_pct: float
    load: float
    """Of the machine, over a minute, when it ended."""
    reachable: bool
    """Whether the same program used clearly more than the target without a limit, alone, on this machine."""
    stalled_pct: float
    """Of the time, how long the worst processor kept a sleeper from waking up: then no host launches from there."""


class Unlimited(msgspec.Struct, frozen=True, kw_only=True):
    """The same program without a limit, in the same run: what of the oscillation is the machine's."""

    kind: str
    kernel_ns: int
    beside: str
    actual_pct: float
    oscillation_pct: float


class LimitReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that the bench found."""

    bench: str = "limit"
    seconds: float
    machine: Machine
    error_pct_mean: float
    error_pct_max: float
    oscillation_pct: float
    """The worst over kernels of up to 1 ms."""
    oscillation_pct_mean: float
    unlimited_oscillation_pct: float
    """The worst over the same programs without a limit."""
    alone_ratio: float
    """The worst kind: what it uses when conserving and alone, of what it uses without a limit."""
    unreachable: int
    """Cases whose program does not use clearly more without a limit; they count like the others."""
    cases: list[LimitCase]
    unlimited: list[Unlimited]
    more: list[LimitMore]
    """Others than the cases above: several tenants or processes, mixtures, wrong profiles."""
    more_error_pct_max: float
    least_pct: float
    """What an offline tenant whose least share is 10 % has beside an online one that is always busy."""
    resize_settle_ms: float
    """The longest, after `cotenant set` has returned, until half a second is within 5 points of the new share."""
    baseline: list[LimitCase]
    """The same by the size of grids against utilization, inside the program."""
    baseline_error_pct_mean: float
    baseline_error_pct_max: float


def bench_limit(say: Say, *, quick: bool = False) -> LimitReport:
    """Each kind of work at each share, alone and beside a neighbour that takes all it can get."""
    home = Path(tempfile.mkdtemp(prefix="cotenant-limit-"))
    seconds = _SHORT_S if quick else _SECONDS
    shares, baseline_shares = (QUICK_SHARES, QUICK_SHARES[:1]) if quick else (SHARES, BASELINE_SHARES)
    cases: list[LimitCase] = []
    baseline: list[LimitCase] = []
    unlimited: list[Unlimited] = []
    ratios: list[float] = []
    began = Machine.look()
    try:
        with World(home) as world:
            world.learn((*_MEASURED, *_MORE, _NEIGHBOUR))
            for kind in _MEASURED:
                ratios.append(_alone(world, kind, 1 if quick else _TURNS))
                say(f"{kind}: conserving and alone {ratios[-1]:.3f} of what it uses without a limit")
                for beside in ("alone", _NEIGHBOUR):
                    free, held = _cases(world, kind, beside, shares, seconds)
                    unlimited.append(free)
                    say(f"{kind} {beside}: {free.actual_pct:.2f}% without a limit, varies {free.oscillation_pct:.2f}")
                    for case in held:
                        cases.append(_reached(case, unlimited))
                        say(_line(case))
                for beside in ("alone", _NEIGHBOUR):
                    for case in _baseline(world, kind, beside, baseline_shares):
                        baseline.append(case)
                        say(f"by grid size: {_line(case)}")
            more = []
            for found in together(world, _SHORT_S):
                more.append(found)
                say(f"{found.case}: {found.tenant} has {found.actual_pct:.2f}% of {found.target_pct:.0f}%")
            least_pct, settle_ms = least(world, _SHORT_S), resized(world)
            say(f"a least share of 10%: {least_pct:.2f}%; another share: after {settle_ms:.0f} ms")
    finally:
        shutil.rmtree(home, ignore_errors=True)
    short = [case.oscillation_pct for case in cases if case.kernel_ns <= SHORT_NS]
    return LimitReport(
        seconds=seconds,
        machine=began.until_now(),
        error_pct_mean=_mean(cases),
        error_pct_max=max(case.error_pct for case in cases),
        oscillation_pct=max(short, default=0.0),
        oscillation_pct_mean=round(statistics.fmean(short or [0.0]), 3),
        unlimited_oscillation_pct=max(
            (one.oscillation_pct for one in unlimited if one.kernel_ns <= SHORT_NS), default=0.0
        ),
        alone_ratio=round(min(ratios), 4),
        unreachable=sum(not case.reachable for case in cases),
        cases=cases,
        unlimited=unlimited,
        more=more,
        more_error_pct_max=max(one.error_pct for one in more),
        least_pct=least_pct,
        resize_settle_ms=settle_ms,
        baseline=baseline,
        baseline_error_pct_mean=_mean(baseline),
        baseline_error_pct_max=max(case.error_pct for case in baseline),
    )


def _mean(cases: list[LimitCase]) -> float:
    return round(statistics.fmean(case.error_pct for case in cases), 3)


def _line(case: LimitCase) -> str:
    told = f"{case.kind} {case.beside}: {case.actual_pct:.2f}% of {case.target_pct:.0f}%"
    beside = f"oscillation {case.oscillation_pct:.2f}, neighbour {case.neighbour_pct:.1f}%"
    return f"{told}, {beside}, a processor stood still {case.stalled_pct:.1f}%"


def _alone(world: World, kind: str, turns: int) -> float:
    """What part of what it uses without a limit it uses when conserving: turn by turn, in one process."""
    used: dict[str, list[float]] = {"off": [], "conserving": []}
    world.begin(_TENANT, kind, "--share", "30%")
    for limit in ("off", "conserving") * turns:
        world.set(_TENANT, "--limit", limit)
        pause(WINDOW_S)
        before = world.look()
        pause(_WARM_S)
        used[limit].append(world.look().since(before, _TENANT))
    world.end(_TENANT)
    # Others may have used the processor meanwhile: hence the median.
    return statistics.median(held / free for held, free in zip(used["conserving"], used["off"], strict=True))


def _cases(
    world: World, kind: str, beside: str, shares: tuple[int, ...], seconds: float
) -> tuple[Unlimited, Iterator[LimitCase]]:
    """Without a limit, then one share after the other, of processes that stay: each is set while they run."""
    if beside == _NEIGHBOUR:
        world.begin(_NEIGHBOUR, _NEIGHBOUR)
    world.begin(_TENANT, kind, "--share", f"{shares[0]}%", "--limit", "off")
    free = _case(world, kind, beside, 100, _SHORT_S)
    told = Unlimited(
        kind=kind,
        kernel_ns=free.kernel_ns,
        beside=beside,
        actual_pct=free.actual_pct,
        oscillation_pct=free.oscillation_pct,
    )

    def held() -> Iterator[LimitCase]:
        world.set(_TENANT, "--limit", "static")
        for share in shares:
            world.set(_TENANT, "--share", f"{share}%")
            yield _case(world, kind, beside, share, seconds)
        world.end(*((_TENANT, _NEIGHBOUR) if beside == _NEIGHBOUR else (_TENANT,)))

    return told, held()


def _baseline(world: World, kind: str, beside: str, shares: tuple[int, ...]) -> Iterator[LimitCase]:
    """The same by a program that holds itself to a percentage, beside the same neighbour; nobody else holds it."""
    if beside == _NEIGHBOUR:
        world.begin(_NEIGHBOUR, _NEIGHBOUR)
    for share in shares:
        world.begin(_TENANT, kind, more=("--itself", str(share)))
        pause(_WARM_S)  # its watcher needs longer to settle
        yield _case(world, kind, beside, share, _SHORT_S)
        world.end(_TENANT)
    if beside == _NEIGHBOUR:
        world.end(_NEIGHBOUR)


def _case(world: World, kind: str, beside: str, share: int, seconds: float) -> LimitCase:
    pause(_WARM_S)
    before = world.lost()
    looks: list[Seen] = world.windows(seconds)
    stalled_pct = world.lost().since_pct(before)
    windows = [after.since(before, _TENANT) for before, after in itertools.pairwise(looks)]
    actual = looks[-1].since(looks[0], _TENANT)
    return LimitCase(
        kind=kind,
        kernel_ns=KINDS[kind].kernel_ns,
        beside=beside,
        target_pct=share,
        actual_pct=round(actual, 3),
        error_pct=round(abs(actual - share), 3),
        oscillation_pct=round(statistics.pstdev(windows), 3),
        neighbour_pct=round(looks[-1].since(looks[0], _NEIGHBOUR), 2),
        load=round(os.getloadavg()[0], 2),
        reachable=True,
        stalled_pct=round(stalled_pct, 2),
    )


def _reached(case: LimitCase, unlimited: list[Unlimited]) -> LimitCase:
    [alone] = [one.actual_pct for one in unlimited if (one.kind, one.beside) == (case.kind, "alone")]
    return msgspec.structs.replace(case, reachable=case.target_pct + _NEAR <= alone)
