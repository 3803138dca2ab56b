"""Run every attack several times under two sharing modes, and compare with a well-behaved neighbour."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.errors import CotenantError
from cotenant.node.model.log_event import LogEvent, LogEventKind, LogLevel
from cotenant.runner.clock import monotonic_ns, pause
from cotenant.workload.player import quantile
from cotenant_lab.bench.attack.attacks import ATTACKS, Attack
from cotenant_lab.bench.attack.setup import NODE_FLAGS, QUOTA_BYTES, REQUEST_NS, AttackerProcess, AttackSetup
from cotenant_lab.bench.attack.stalls import StallRecorder, corrected, stalled_ns

ROUNDS: Final = 5
MODES: Final = ("slices", "mps")
LARGEST_RATIO: Final = 1.2
_SAMPLE_S: Final = 0.05
_READY_S: Final = 30.0
_START_S: Final = 10.0
_AFTER_DETECTION_NS: Final = 10**9
_EVICTIONS: Final = (LogEventKind.EVICTING, LogEventKind.EVICTED, LogEventKind.KILLED)
_TARGET_ATTACKS: Final = 40
_TARGET_RUNS: Final = 400
_TARGET_DETECTED_S: Final = 1.0
ReportLine = Callable[[str], None]


class Phases(msgspec.Struct, frozen=True):
    """Durations of the phases of a run."""

    baseline_s: float = 1.0
    attack_s: float = 1.5
    bypass_s: float = 2.4
    """A bypass is observed for longer: it must be detected within a second, and end within another one."""
    may_end_early: bool = False
    """Whether the attack phase ends when no process of the attacker is left."""

    def attack_duration_s(self, attack: Attack) -> float:
        """Return the duration of an attack."""
        return self.bypass_s if attack.is_bypass else self.attack_s


PHASES: Final = Phases()


class AttackRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one attack."""

    attack: str
    mode: str
    round: int
    started: bool
    """Whether the attacker made at least one attempt."""
    attempts: int
    successes: int
    """System calls and requests that the attacker made, and those that returned no error."""
    ended: str
    requests: int
    failed_requests: int
    baseline_p99_ms: float
    p99_ms: float
    ratio: float
    """p99 of the attack over the p99 with a well-behaved neighbour."""
    recovered: bool
    """Whether the online tenant serves after the attack, also where its requests failed."""
    change: str
    """What the node did to the online tenant; empty: nothing."""
    node_died: bool
    node_error: str
    """The last line that a node wrote before it died."""
    foreign_kill: bool
    evicted: bool
    detected_s: float | None = None
    """Time from the bypass to the node's first event about it; None: it was not detected, or is no bypass."""
    refused: bool = False
    """Whether the driver refused the memory that a bypass requested, so that there was nothing to detect."""
    bytes_past_quota: int = 0
    """Device memory beyond the quota one second after the detection, or at the end if there is none."""
    stalled_ms: float = 0.0
    """For how long a processor of this machine stood still during the run; latencies do not contain this time."""

    @property
    def is_harmed(self) -> bool:
        """Whether the online tenant had a failed request, a higher p99, or was changed."""
        return self.has_failed or self.ratio > LARGEST_RATIO

    @property
    def has_failed(self) -> bool:
        """Whether the online tenant had a failed request or was changed."""
        return bool(self.failed_requests or self.change or not self.recovered)


class AttackResult(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of one attack under one sharing mode."""

    attack: str
    group: str
    about: str
    start: str
    mode: str
    runs: int
    harmed: int
    uncontained: str
    """Why it cannot be contained; empty: it must be contained."""
    failed_requests: int
    ratio_p50: float
    ratio_max: float
    evicted: int
    attempts: int
    successes: int
    detected_s_max: float | None
    bytes_past_quota_max: int


class AttackReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of `bench attack`."""

    bench: str = "attack"
    rounds: int
    attacks: int
    runs: int
    online_harmed: int
    """Runs with a failed request, or a p99 above 1.2 times that with a well-behaved neighbour; without those attacks
    that cannot be contained."""
    baseline_above: int
    """Runs whose p99 with a well-behaved neighbour was above 1.2 times the median of all runs: the noise of the
    machine."""
    node_died: int
    foreign_kills: int
    bypass_detected_s_max: float
    undetected: int
    """Runs of a bypass that the node did not notice; each counts with the time that it was observed."""
    refused: int
    """Runs of a bypass whose memory the driver refused."""
    bytes_past_quota_1s_after_detection: int
    uncontained: list[str]
    """Attacks that harmed the online tenant and that cannot be contained."""
    not_started: list[str]
    stalled_ms_p50: float
    stalled_ms_max: float
    """For how long a processor of this machine stood still during a run."""
    ratio_p50: float
    ratio_p90: float
    ratio_p99: float
    ratio_max: float
    node_flags: list[str]
    results: list[AttackResult]
    harmed_runs: list[AttackRun]
    """Runs in which the online tenant was harmed or the node died."""
    met: dict[str, bool]
    """Targets by field."""


def bench_attack(
    rounds: int, report: ReportLine, *, only: Sequence[str] = (), modes: Sequence[str] = MODES
) -> AttackReport:
    """Run each attack `rounds` times under each mode, while a service runs without pause."""
    attacks = [attack for attack in ATTACKS if not only or attack.name in only]
    interrupted = threading.Event()
    # Both modes run concurrently: most of the time is waiting for processes to start.
    with (
        tempfile.TemporaryDirectory(prefix="cotenant-stalls-") as home,
        StallRecorder(Path(home)) as recorder,
        ThreadPoolExecutor(len(modes)) as pool,
    ):
        parts = [
            pool.submit(_run_mode, attacks, rounds, AttackSites(mode, PHASES, recorder), report, interrupted)
            for mode in modes
        ]
        try:
            runs = [run for part in parts for run in part.result()]
        except BaseException:
            interrupted.set()  # the threads end their processes before the pool is left
            raise
    return summarize(attacks, runs, rounds, modes)


def _run_mode(
    attacks: Sequence[Attack], rounds: int, sites: AttackSites, report: ReportLine, interrupted: threading.Event
) -> list[AttackRun]:
    runs: list[AttackRun] = []
    try:
        for number in range(rounds):
            for place, attack in enumerate(attacks, 1):
                if interrupted.is_set():
                    return runs
                is_last = place == len(attacks)
                following = attacks[place % len(attacks)] if not is_last or number + 1 < rounds else None
                run = sites.run_once(attack, number, following)
                runs.append(run)
                report(f"{run.mode}, round {number + 1} of {rounds}, {place} of {len(attacks)}: {describe(run)}")
    finally:
        sites.close()
    return runs


def describe(run: AttackRun) -> str:
    """Return the outcome of a run in one line."""
    parts = [f"{run.attack}: p99 {run.p99_ms:.1f} ms, {run.ratio:.2f} of the baseline"]
    if not run.started:
        parts.append(f"did not start ({run.ended})")
    if run.failed_requests:
        parts.append(f"{run.failed_requests} failed requests")
    if run.change:
        parts.append(run.change)
    if run.node_died:
        parts.append(f"the node died ({run.node_error})")
    if run.foreign_kill:
        parts.append("an unrelated process was killed")
    if run.evicted:
        parts.append("evicted")
    if run.detected_s is not None:
        parts.append(f"detected after {run.detected_s:.2f} s")
    if run.refused:
        parts.append("refused by the driver")
    if run.bytes_past_quota:
        parts.append(f"{run.bytes_past_quota >> 20} MiB past the quota")
    return ", ".join(parts)


class AttackSites:
    """The setup in which attacks run one after the other; replaced when an attack has damaged it."""

    def __init__(self, mode: str, phases: Phases = PHASES, recorder: StallRecorder | None = None) -> None:
        """Start nothing yet."""
        self._mode = mode
        self._recorder = recorder
        self._phases = phases
        self._stack = contextlib.ExitStack()
        self._setup: AttackSetup | None = None
        self._number = 0
        self._prepared: AttackerProcess | None = None

    def run_once(self, attack: Attack, round_number: int, following: Attack | None = None) -> AttackRun:
        """Run one attack in a setup that no earlier attack has damaged."""
        if self._setup is None:
            home = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="cotenant-attack-"))
            self._setup = self._stack.enter_context(AttackSetup(Path(home), mps=self._mode == "mps"))
        setup = self._setup
        attacker = self._attacker(attack)
        if following is not None and not attack.damages:
            self._prepared = self._start(following)
        run = run_attack(setup, attack, attacker, round_number, self._phases, self._recorder)
        if (
            attack.damages
            or run.node_died
            or not setup.is_clear(self._prepared.name if self._prepared is not None else "")
        ):
            self.close()
        return run

    def _attacker(self, attack: Attack) -> AttackerProcess:
        """Return a process that is about to use the device: the prepared one unless an attack has ended it."""
        attacker, self._prepared = self._prepared, None
        if attacker is not None:
            attacker.order("start")
            if attacker.attack == attack and attacker.await_note("ready", _READY_S):
                return attacker
            attacker.end()
        attacker = self._start(attack)
        attacker.order("start")
        return attacker

    def _start(self, attack: Attack) -> AttackerProcess:
        assert self._setup is not None
        self._number += 1
        allowance_s = _START_S if attack.is_bypass else 0.0  # a program that bypasses the hook must start first
        return AttackerProcess(self._setup, attack, self._number, self._phases.attack_duration_s(attack) + allowance_s)

    def close(self) -> None:
        """End the setup."""
        if self._prepared is not None:
            self._prepared.end()
        self._prepared = self._setup = None
        self._stack.close()


def run_attack(
    setup: AttackSetup,
    attack: Attack,
    attacker: AttackerProcess,
    round_number: int,
    phases: Phases,
    recorder: StallRecorder | None = None,
) -> AttackRun:
    """Measure the service with the attacker as a well-behaved neighbour, then while it attacks."""
    node_pid = setup.node_pid
    setup.new_events()
    try:
        is_ready = attacker.await_note("ready", _READY_S)
        setup.await_service()
        before = setup.due() + 1
        for _ in _sampling(phases.baseline_s):
            _bytes_of(setup)
        attacker.order("go")
        first = setup.due() + 1
        attacker.await_note("bypass" if attack.is_bypass else "begin", _START_S)
        samples = []
        for _ in _sampling(phases.attack_duration_s(attack)):
            samples.append((monotonic_ns(), _bytes_of(setup)))
            if phases.may_end_early and not attacker.has_children():
                break
        last = setup.due()
    finally:
        attacker.end()
    recovered = setup.await_service(last)
    node_died = setup.node_pid != node_pid
    baseline, attacked = setup.served(before, first - 1), setup.served(first, last)
    done = [note for note in attacker.notes() if note["what"] == "done"]
    events = setup.new_events()
    detected_s, past_bytes = _detection(attack, attacker.notes("bypass"), events, samples)
    stalls = [] if recorder is None else recorder.read()
    due = setup.due_instants([*baseline, *attacked])
    latencies_ns = corrected(baseline | attacked, due, stalls, REQUEST_NS)
    p99 = [
        quantile(sorted(latencies_ns[number] for number in numbers) or [0], 0.99) / 1e6
        for numbers in (baseline, attacked)
    ]
    begin, end = setup.due_instants([before, last]).values()
    return AttackRun(
        attack=attack.name,
        mode="mps" if setup.mps else "slices",
        round=round_number,
        started=is_ready and bool(attacker.notes("bypass" if attack.is_bypass else "attempted")),
        attempts=sum(note["attempts"] for note in done),
        successes=sum(note["successes"] for note in done),
        ended=" ".join(str(note["ended"]) for note in done) or attacker.output(),
        requests=last - first + 1,
        failed_requests=last - first + 1 - len(attacked),
        baseline_p99_ms=p99[0],
        p99_ms=p99[1],
        ratio=p99[1] / max(p99[0], 1e-3),
        recovered=recovered,
        change="" if node_died or attack.damages else setup.change_of_service(),
        node_died=node_died,
        node_error=setup.node_error() if node_died else "",
        foreign_kill=setup.has_lost_victim(),
        evicted=any(event.what in _EVICTIONS and event.tenant != "service" for _, event in events),
        detected_s=detected_s,
        refused=bool(attacker.notes("bypass-refused")),
        bytes_past_quota=past_bytes,
        stalled_ms=stalled_ns(stalls, begin, end) / 1e6,
    )


def _sampling(for_s: float) -> Iterator[None]:
    end_ns = monotonic_ns() + round(for_s * 1e9)
    while monotonic_ns() < end_ns:
        yield
        pause(_SAMPLE_S)


def _bytes_of(setup: AttackSetup) -> int:
    """Return the device memory of the attacker; 0 if the device does not answer in time."""
    with contextlib.suppress(CotenantError):
        return setup.attacker_bytes()
    return 0


def _detection(
    attack: Attack,
    notes: list[dict[str, Any]],
    events: list[tuple[int, LogEvent]],
    samples: list[tuple[int, int]],
) -> tuple[float | None, int]:
    """Return when a bypass was detected, and the bytes past the quota a second later."""
    held = [(at_ns, max(0, used - QUOTA_BYTES)) for at_ns, used in samples]
    if not attack.is_bypass or not notes:
        return None, held[-1][1] if held else 0
    since_ns = min(note["at_ns"] for note in notes)
    detected = [
        at_ns for at_ns, event in events if at_ns >= since_ns and event.tenant != "service" and _is_detection(event)
    ]
    if not detected:
        return None, held[-1][1]
    at_ns = min(detected)
    later = [past for sample_ns, past in held if sample_ns >= at_ns + _AFTER_DETECTION_NS]
    return (at_ns - since_ns) / 1e9, max(later, default=held[-1][1])


def _is_detection(event: LogEvent) -> bool:
    return event.level is not LogLevel.INFO or event.what in _EVICTIONS


# -- summary -----------------------------------------------------------------------------------------------------
def summarize(attacks: Sequence[Attack], runs: Sequence[AttackRun], rounds: int, modes: Sequence[str]) -> AttackReport:
    """Return the report of all runs."""
    by_name = {attack.name: attack for attack in attacks}
    reasons = {(attack.name, mode): attack.reason(mps=mode == "mps") for attack in attacks for mode in modes}
    harmed = [run for run in runs if run.is_harmed]
    unexcused = [run for run in harmed if not reasons[run.attack, run.mode]]
    bypasses = [run for run in runs if by_name[run.attack].is_bypass and run.started and not run.refused]
    detected_s = [PHASES.bypass_s if run.detected_s is None else run.detected_s for run in bypasses]
    ratios = sorted(run.ratio for run in runs) or [0.0]
    stalled = sorted(run.stalled_ms for run in runs) or [0.0]
    baselines = sorted(run.baseline_p99_ms for run in runs) or [0.0]
    not_started = sorted({run.attack for run in runs if not run.started})
    report = AttackReport(
        rounds=rounds,
        attacks=len(attacks),
        runs=len(runs),
        online_harmed=len(unexcused),
        baseline_above=sum(value > LARGEST_RATIO * _quantile(baselines, 0.5) for value in baselines),
        node_died=sum(run.node_died for run in runs),
        foreign_kills=sum(run.foreign_kill for run in runs),
        bypass_detected_s_max=max(detected_s, default=0.0),
        undetected=sum(run.detected_s is None for run in bypasses),
        refused=sum(run.refused for run in runs),
        bytes_past_quota_1s_after_detection=max((run.bytes_past_quota for run in runs), default=0),
        uncontained=sorted({run.attack for run in harmed if reasons[run.attack, run.mode]}),
        not_started=not_started,
        stalled_ms_p50=_quantile(stalled, 0.5),
        stalled_ms_max=stalled[-1],
        ratio_p50=_quantile(ratios, 0.5),
        ratio_p90=_quantile(ratios, 0.9),
        ratio_p99=_quantile(ratios, 0.99),
        ratio_max=ratios[-1],
        node_flags=list(NODE_FLAGS),
        results=[
            _result(attack, mode, [run for run in runs if (run.attack, run.mode) == (attack.name, mode)])
            for attack in attacks
            for mode in modes
        ],
        harmed_runs=[run for run in runs if run.is_harmed or run.node_died],
        met={},
    )
    return msgspec.structs.replace(report, met=_targets(report))


def _targets(report: AttackReport) -> dict[str, bool]:
    return {
        "attacks": report.attacks >= _TARGET_ATTACKS,
        "runs": report.runs >= _TARGET_RUNS,
        "online_harmed": not report.online_harmed,
        "node_died": not report.node_died,
        "foreign_kills": not report.foreign_kills,
        "bypass_detected_s_max": report.bypass_detected_s_max <= _TARGET_DETECTED_S,
        "bytes_past_quota_1s_after_detection": not report.bytes_past_quota_1s_after_detection,
        "not_started": not report.not_started,
    }


def _result(attack: Attack, mode: str, runs: Sequence[AttackRun]) -> AttackResult:
    ratios = sorted(run.ratio for run in runs) or [0.0]
    detected = [run.detected_s for run in runs if run.detected_s is not None]
    return AttackResult(
        attack=attack.name,
        group=attack.group.value,
        about=attack.about,
        start=attack.start.value,
        mode=mode,
        runs=len(runs),
        harmed=sum(run.is_harmed for run in runs),
        uncontained=attack.reason(mps=mode == "mps"),
        failed_requests=sum(run.failed_requests for run in runs),
        ratio_p50=_quantile(ratios, 0.5),
        ratio_max=ratios[-1],
        evicted=sum(run.evicted for run in runs),
        attempts=sum(run.attempts for run in runs),
        successes=sum(run.successes for run in runs),
        detected_s_max=max(detected, default=None),
        bytes_past_quota_max=max((run.bytes_past_quota for run in runs), default=0),
    )


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]
