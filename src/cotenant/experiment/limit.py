"""Does a tenant get its share of the device, and no more? By the device's own counters, with real processes."""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec

from cotenant.errors import CotenantError, WorldError
from cotenant.live.client import tenants_of
from cotenant.live.clock import LiveClock, pause
from cotenant.live.directory import Places
from cotenant.live.process import run_to_end
from cotenant.live.soak.press import KINDS
from cotenant.live.softgpu import manage

SHARES: Final = (10, 30, 50, 70, 90)
QUICK_SHARES: Final = (30, 70)
BASELINE_SHARES: Final = (10, 50, 90)
SHORT_NS: Final = 1_000_000
"""Kernels that are longer cannot be spread evenly over a window of 100 ms."""
_MEASURED: Final = ("small", "large", "graph")
_NEIGHBOUR: Final = "greedy"
_TENANT: Final = "tenant"
_WINDOW_S: Final = 0.1
_WARM_S: Final = 1.0
_SECONDS: Final = 10.0
_QUICK_S: Final = 2.0
_TURNS: Final = 5
_NEAR: Final = 5.0
"""A tenant that unlimited and alone uses no more than this above the target cannot show whether a limit holds."""
_PATIENCE_S: Final = 60.0
_LESSONS: Final = "40"
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
    reachable: bool
    """Whether the same program used clearly more than the target without a limit, alone, on this machine."""


class LimitReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that the bench found."""

    bench: str = "limit"
    seconds: float
    error_pct_mean: float
    error_pct_max: float
    oscillation_pct: float
    """The worst over kernels of up to 1 ms."""
    alone_ratio: float
    """The worst kind: what it uses when conserving and alone, of what it uses without a limit."""
    unlimited_pct: dict[str, float]
    unreachable: int
    cases: list[LimitCase]
    baseline: list[LimitCase]
    """The same by the size of grids against utilization, inside the program."""
    baseline_error_pct_mean: float
    baseline_error_pct_max: float


class _Seen(NamedTuple):
    """The device's counters at an instant of its own."""

    at_ns: int
    sms: int
    sm_ns: dict[str, int]

    def since(self, before: _Seen, account: str) -> float:
        """Of the device, what somebody used since then."""
        used_ns = self.sm_ns.get(account, 0) - before.sm_ns.get(account, 0)
        return 100 * used_ns / ((self.at_ns - before.at_ns) * self.sms)


def bench_limit(say: Say, *, quick: bool = False) -> LimitReport:
    """Each kind of work at each share, alone and beside a neighbour that takes all it can get."""
    home = Path(tempfile.mkdtemp(prefix="cotenant-limit-"))
    seconds = _QUICK_S if quick else _SECONDS
    shares, baseline_shares = (QUICK_SHARES, QUICK_SHARES[:1]) if quick else (SHARES, BASELINE_SHARES)
    cases: list[LimitCase] = []
    baseline: list[LimitCase] = []
    unlimited: dict[str, float] = {}
    ratios: list[float] = []
    try:
        with _World(home) as world:
            world.learn((*_MEASURED, _NEIGHBOUR))
            for kind in _MEASURED:
                unlimited[kind], ratio = world.alone(kind, 1 if quick else _TURNS)
                ratios.append(ratio)
                say(f"{kind}: alone without a limit {unlimited[kind]:.1f}% of the device, conserving {ratio:.3f} of it")
                for beside in ("alone", _NEIGHBOUR):
                    for case in world.cases(kind, beside, shares, seconds, unlimited[kind]):
                        cases.append(case)
                        say(_line(case))
                for beside in ("alone", _NEIGHBOUR):
                    for case in world.baseline(kind, beside, baseline_shares, seconds, unlimited[kind]):
                        baseline.append(case)
                        say(f"by grid size: {_line(case)}")
    finally:
        shutil.rmtree(home, ignore_errors=True)
    counted = [case for case in cases if case.reachable]
    short = [case.oscillation_pct for case in counted if case.kernel_ns <= SHORT_NS]
    return LimitReport(
        seconds=seconds,
        error_pct_mean=_mean(cases),
        error_pct_max=max(case.error_pct for case in counted),
        oscillation_pct=max(short, default=0.0),
        alone_ratio=round(min(ratios), 4),
        unlimited_pct=unlimited,
        unreachable=len(cases) - len(counted),
        cases=cases,
        baseline=baseline,
        baseline_error_pct_mean=_mean(baseline),
        baseline_error_pct_max=max(case.error_pct for case in baseline if case.reachable),
    )


def _mean(cases: list[LimitCase]) -> float:
    return round(statistics.fmean(case.error_pct for case in cases if case.reachable), 3)


def _line(case: LimitCase) -> str:
    told = f"{case.kind} {case.beside}: {case.actual_pct:.2f}% of {case.target_pct:.0f}%"
    return f"{told}, oscillation {case.oscillation_pct:.2f}, neighbour {case.neighbour_pct:.1f}%"


class _World:
    """A software GPU and a node, in one directory; ended with it."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._places = Places(home / "run", home / "state")
        self._gpus = self._places.runtime / "softgpu"
        self._clock = LiveClock(0)
        self._node: subprocess.Popen[bytes] | None = None
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        for directory in (self._places.runtime, self._places.state):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        manage.create(self._gpus, "v100", 1)
        self._node = self._start(self._cotenant("node", "--slots", "4"), "")
        for _ in self._until("the node does not answer"):
            try:
                tenants_of(self._places.socket)
            except CotenantError:
                continue
            return self
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._running):
            self._end(name)
        if self._node is not None:
            self._node.terminate()
            self._node.wait()
        manage.destroy(self._gpus)

    def learn(self, kinds: tuple[str, ...]) -> None:
        """Let every kernel be timed once, alone: a limit is as good as what is known of the work."""
        for kind in kinds:
            run_to_end([*self._tenant(_TENANT, kind, "--measure", "always"), _LESSONS], dict(os.environ))

    def alone(self, kind: str, turns: int) -> tuple[float, float]:
        """What it uses without a limit, and what part of that when conserving: turn by turn, in one process."""
        used: dict[str, list[float]] = {"off": [], "conserving": []}
        self._begin(_TENANT, kind, "--share", "30%")
        for limit in ("off", "conserving") * turns:
            self._set("--limit", limit)
            pause(_WINDOW_S)
            before = self._look()
            pause(_WARM_S)
            used[limit].append(self._look().since(before, _TENANT))
        self._end(_TENANT)
        off = statistics.fmean(used["off"])
        ratios = [held / free for held, free in zip(used["conserving"], used["off"], strict=True)]
        return round(off, 2), statistics.median(ratios)  # others may have used the processor meanwhile

    def cases(
        self, kind: str, beside: str, shares: tuple[int, ...], seconds: float, unlimited: float
    ) -> Iterator[LimitCase]:
        """One share after the other, of processes that stay: each is set while they run."""
        if beside == _NEIGHBOUR:
            self._begin(_NEIGHBOUR, _NEIGHBOUR)
        self._begin(_TENANT, kind, "--share", f"{shares[0]}%", "--limit", "static")
        for share in shares:
            self._set("--share", f"{share}%")
            yield self._case(kind, beside, share, seconds, unlimited)
        for name in (_TENANT, _NEIGHBOUR) if beside == _NEIGHBOUR else (_TENANT,):
            self._end(name)

    def baseline(
        self, kind: str, beside: str, shares: tuple[int, ...], seconds: float, unlimited: float
    ) -> Iterator[LimitCase]:
        """The same by a program that holds itself to a percentage, beside the same neighbour; nobody else holds it."""
        if beside == _NEIGHBOUR:
            self._begin(_NEIGHBOUR, _NEIGHBOUR)
        for share in shares:
            self._begin(_TENANT, kind, itself_pct=share)
            pause(_WARM_S)  # its watcher needs longer to settle
            yield self._case(kind, beside, share, seconds, unlimited)
            self._end(_TENANT)
        if beside == _NEIGHBOUR:
            self._end(_NEIGHBOUR)

    def _case(self, kind: str, beside: str, share: int, seconds: float, unlimited: float) -> LimitCase:
        pause(_WARM_S)
        looks = [self._look()]
        while looks[-1].at_ns - looks[0].at_ns < seconds * 1e9:
            pause(_WINDOW_S)
            looks.append(self._look())
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
            reachable=share + _NEAR <= unlimited,
        )

    # -- tenants and their device ---------------------------------------------------------------------------------

    def _look(self) -> _Seen:
        books: dict[str, Any] = manage.inspect(self._gpus, 0)
        used = {client["account"]: client["counters"]["sm_ns"] for client in books["clients"]}
        return _Seen(books["now_ns"], books["sm_count"], used)

    def _cotenant(self, *words: str) -> list[str]:
        where = ["--runtime", str(self._places.runtime), "--state", str(self._places.state)]
        return [sys.executable, "-m", "cotenant", words[0], *where, *words[1:]]

    def _tenant(self, name: str, kind: str, *flags: str) -> list[str]:
        how = ["--name", name, "--gpu", "soft:0", "--offline", "--task", kind, *flags]
        return [*self._cotenant("run", *how), "--", sys.executable, "-m", "cotenant.live.soak.press", kind]

    def _set(self, *words: str) -> None:
        run_to_end(self._cotenant("set", _TENANT, *words), dict(os.environ))

    def _start(self, command: list[str], account: str) -> subprocess.Popen[bytes]:
        with (self._home / "complaints").open("ab") as complaints:
            return subprocess.Popen(
                command,
                env={**os.environ, "SOFTGPU_ACCOUNT": account} if account else None,
                stdin=subprocess.DEVNULL,
                stdout=complaints,
                stderr=complaints,
            )

    def _begin(self, name: str, kind: str, *flags: str, itself_pct: int = 0) -> None:
        """And wait until the device has seen something of it."""
        itself = ["0", str(itself_pct)] if itself_pct else []
        command = [*self._tenant(name, kind, "--measure", "never", *flags), *itself]
        self._running[name] = self._start(command, name)
        for _ in self._until(f"{name} launches nothing; see what it says in {self._home}"):
            if self._running[name].poll() is not None:
                told = (self._home / "complaints").read_text(encoding="utf-8", errors="replace")
                raise WorldError(f"{name} ended: {told.strip()[-300:]}")
            if self._look().sm_ns.get(name):
                return

    def _end(self, name: str) -> None:
        """`cotenant run` sees to its program."""
        process = self._running.pop(name)
        process.terminate()
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _until(self, otherwise: str) -> Iterator[None]:
        end_ns = self._clock.now() + round(_PATIENCE_S * 1e9)
        while self._clock.now() < end_ns:
            yield
            pause(_WINDOW_S / 2)
        raise WorldError(otherwise)
