"""Measure the share of the device that limited tenants get, by the device's counters, with real processes."""

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

from cotenant.runner.clock import pause
from cotenant_lab.bench.limit.more_cases import MachineLoad, SharedLimitCase, min_share, resized, run_shared_cases
from cotenant_lab.bench.limit.setup import WINDOW_S, DeviceCounters, LimitSetup
from cotenant_lab.programs.busy import KINDS

SHARES: Final = (10, 30, 50, 70, 90)
QUICK_SHARES: Final = (30, 70)
BASELINE_SHARES: Final = (30, 70)
SHORT_NS: Final = 1_000_000
"""Longer kernels cannot be spread evenly over a window of 100 ms."""
_MEASURED: Final = ("small", "large", "graph")
_MORE: Final = ("mixed", "narrow")
_NEIGHBOUR: Final = "greedy"
_TENANT: Final = "tenant"
_WARM_S: Final = 1.0
_SECONDS: Final = 10.0
_SHORT_S: Final = 2.0
_TURNS: Final = 3
_NEAR: Final = 5.0
"""A program that uses at most this much more than the target when unlimited cannot show whether a limit holds."""
ReportLine = Callable[[str], None]


class LimitCase(msgspec.Struct, frozen=True, kw_only=True):
    """One static share of one kind of work; all values in percent of the device (SMs times time)."""

    kind: str
    kernel_ns: int
    neighbour: str
    target_pct: float
    actual_pct: float
    error_pct: float
    oscillation_pct: float
    neighbour_pct: float
    load: float
    """Load average of the machine over one minute at the end."""
    reachable: bool
    """Whether the same program used clearly more than the target without a limit, alone, on this machine."""
    stalled_pct: float
    """Largest fraction of time for which a processor did not run a waking thread."""


class UnlimitedCase(msgspec.Struct, frozen=True, kw_only=True):
    """The same program without a limit, in the same run: the oscillation that the machine causes."""

    kind: str
    kernel_ns: int
    neighbour: str
    actual_pct: float
    oscillation_pct: float


class LimitReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of `bench limit`."""

    bench: str = "limit"
    costs: str = "hardware"
    seconds: float
    machine: MachineLoad
    error_pct_mean: float
    error_pct_max: float
    oscillation_pct: float
    """Maximum over kernels of up to 1 ms."""
    oscillation_pct_mean: float
    unlimited_oscillation_pct: float
    """Maximum over the same programs without a limit."""
    alone_ratio: float
    """Minimum over kinds: the use of a work-conserving tenant alone over its use without a limit."""
    unreachable: int
    """Cases whose program does not use clearly more without a limit; they count like the others."""
    cases: list[LimitCase]
    unlimited: list[UnlimitedCase]
    more: list[SharedLimitCase]
    """Further cases: several tenants or processes, mixed kernels, wrong profiles."""
    more_error_pct_max: float
    min_share_pct: float
    """What an offline tenant with a minimum share of 10 % gets while an online tenant is always busy."""
    resize_settle_ms: float
    """Longest time from the return of `cotenant set` until half a second is within 5 points of the new share."""
    baseline: list[LimitCase]
    """The same cases, limited by grid size against utilization inside the program."""
    baseline_error_pct_mean: float
    baseline_error_pct_max: float


def bench_limit(report: ReportLine, *, quick: bool = False) -> LimitReport:
    """Measure each kind of work at each share, alone and with a neighbour that takes all it can get."""
    home = Path(tempfile.mkdtemp(prefix="cotenant-limit-"))
    seconds = _SHORT_S if quick else _SECONDS
    shares, baseline_shares = (QUICK_SHARES, QUICK_SHARES[:1]) if quick else (SHARES, BASELINE_SHARES)
    cases: list[LimitCase] = []
    baseline: list[LimitCase] = []
    unlimited: list[UnlimitedCase] = []
    ratios: list[float] = []
    load_before = MachineLoad.now()
    try:
        with LimitSetup(home) as setup:
            setup.learn((*_MEASURED, *_MORE, _NEIGHBOUR))
            for kind in _MEASURED:
                ratios.append(_alone(setup, kind, 1 if quick else _TURNS))
                report(f"{kind}: work-conserving and alone {ratios[-1]:.3f} of its use without a limit")
                for neighbour in ("alone", _NEIGHBOUR):
                    free, limited = _cases(setup, kind, neighbour, shares, seconds)
                    unlimited.append(free)
                    report(
                        f"{kind} {neighbour}: {free.actual_pct:.2f}% without a limit, "
                        f"oscillation {free.oscillation_pct:.2f}"
                    )
                    for case in limited:
                        cases.append(_reached(case, unlimited))
                        report(_line(case))
                for neighbour in ("alone", _NEIGHBOUR):
                    for case in _baseline(setup, kind, neighbour, baseline_shares):
                        baseline.append(case)
                        report(f"limited by grid size: {_line(case)}")
            more = []
            for shared_case in run_shared_cases(setup, _SHORT_S):
                more.append(shared_case)
                used = f"{shared_case.actual_pct:.2f}% of {shared_case.target_pct:.0f}%"
                report(f"{shared_case.case}: {shared_case.tenant} has {used}")
            min_share_pct, settle_ms = min_share(setup, _SHORT_S), resized(setup)
            report(f"minimum share of 10%: {min_share_pct:.2f}%; a new share holds after {settle_ms:.0f} ms")
    finally:
        shutil.rmtree(home, ignore_errors=True)
    short = [case.oscillation_pct for case in cases if case.kernel_ns <= SHORT_NS]
    return LimitReport(
        seconds=seconds,
        machine=load_before.until_now(),
        error_pct_mean=_mean(cases),
        error_pct_max=max(case.error_pct for case in cases),
        oscillation_pct=max(short, default=0.0),
        oscillation_pct_mean=round(statistics.fmean(short or [0.0]), 3),
        unlimited_oscillation_pct=max(
            (case.oscillation_pct for case in unlimited if case.kernel_ns <= SHORT_NS), default=0.0
        ),
        alone_ratio=round(min(ratios), 4),
        unreachable=sum(not case.reachable for case in cases),
        cases=cases,
        unlimited=unlimited,
        more=more,
        more_error_pct_max=max(case.error_pct for case in more),
        min_share_pct=min_share_pct,
        resize_settle_ms=settle_ms,
        baseline=baseline,
        baseline_error_pct_mean=_mean(baseline),
        baseline_error_pct_max=max(case.error_pct for case in baseline),
    )


def _mean(cases: list[LimitCase]) -> float:
    return round(statistics.fmean(case.error_pct for case in cases), 3)


def _line(case: LimitCase) -> str:
    used = f"{case.kind} {case.neighbour}: {case.actual_pct:.2f}% of {case.target_pct:.0f}%"
    effects = f"oscillation {case.oscillation_pct:.2f}, neighbour {case.neighbour_pct:.1f}%"
    return f"{used}, {effects}, processor stalled {case.stalled_pct:.1f}%"


def _alone(setup: LimitSetup, kind: str, turns: int) -> float:
    """Return the use of a work-conserving tenant over its use without a limit: alternating turns of one process."""
    used: dict[str, list[float]] = {"off": [], "conserving": []}
    setup.begin(_TENANT, kind, "--share", "30%")
    for limit in ("off", "conserving") * turns:
        setup.set(_TENANT, "--limit", limit)
        pause(WINDOW_S)
        begin = setup.snapshot()
        pause(_WARM_S)
        used[limit].append(setup.snapshot().since(begin, _TENANT))
    setup.end(_TENANT)
    # Other programs may have used the processor in one of the turns: hence the median.
    return statistics.median(limited / free for limited, free in zip(used["conserving"], used["off"], strict=True))


def _cases(
    setup: LimitSetup, kind: str, neighbour: str, shares: tuple[int, ...], seconds: float
) -> tuple[UnlimitedCase, Iterator[LimitCase]]:
    """Measure without a limit, then one share after the other; limits are set while the same processes run."""
    if neighbour == _NEIGHBOUR:
        setup.begin(_NEIGHBOUR, _NEIGHBOUR)
    setup.begin(_TENANT, kind, "--share", f"{shares[0]}%", "--limit", "off")
    free = _case(setup, kind, neighbour, 100, _SHORT_S)
    results = UnlimitedCase(
        kind=kind,
        kernel_ns=free.kernel_ns,
        neighbour=neighbour,
        actual_pct=free.actual_pct,
        oscillation_pct=free.oscillation_pct,
    )

    def limited_cases() -> Iterator[LimitCase]:
        setup.set(_TENANT, "--limit", "static")
        for share in shares:
            setup.set(_TENANT, "--share", f"{share}%")
            yield _case(setup, kind, neighbour, share, seconds)
        setup.end(*((_TENANT, _NEIGHBOUR) if neighbour == _NEIGHBOUR else (_TENANT,)))

    return results, limited_cases()


def _baseline(setup: LimitSetup, kind: str, neighbour: str, shares: tuple[int, ...]) -> Iterator[LimitCase]:
    """Measure a program that limits itself to a share, with the same neighbour and without a limit of ours."""
    if neighbour == _NEIGHBOUR:
        setup.begin(_NEIGHBOUR, _NEIGHBOUR)
    for share in shares:
        setup.begin(_TENANT, kind, program_flags=("--itself", str(share)))
        pause(_WARM_S)  # its controller needs longer to settle
        yield _case(setup, kind, neighbour, share, _SHORT_S)
        setup.end(_TENANT)
    if neighbour == _NEIGHBOUR:
        setup.end(_NEIGHBOUR)


def _case(setup: LimitSetup, kind: str, neighbour: str, share: int, seconds: float) -> LimitCase:
    pause(_WARM_S)
    begin = setup.lost()
    snapshots: list[DeviceCounters] = setup.windows(seconds)
    stalled_pct = setup.lost().since_pct(begin)
    windows = [end.since(begin, _TENANT) for begin, end in itertools.pairwise(snapshots)]
    actual = snapshots[-1].since(snapshots[0], _TENANT)
    return LimitCase(
        kind=kind,
        kernel_ns=KINDS[kind].kernel_ns,
        neighbour=neighbour,
        target_pct=share,
        actual_pct=round(actual, 3),
        error_pct=round(abs(actual - share), 3),
        oscillation_pct=round(statistics.pstdev(windows), 3),
        neighbour_pct=round(snapshots[-1].since(snapshots[0], _NEIGHBOUR), 2),
        load=round(os.getloadavg()[0], 2),
        reachable=True,
        stalled_pct=round(stalled_pct, 2),
    )


def _reached(case: LimitCase, unlimited: list[UnlimitedCase]) -> LimitCase:
    [alone] = [
        unlimited_case.actual_pct
        for unlimited_case in unlimited
        if (unlimited_case.kind, unlimited_case.neighbour) == (case.kind, "alone")
    ]
    return msgspec.structs.replace(case, reachable=case.target_pct + _NEAR <= alone)
