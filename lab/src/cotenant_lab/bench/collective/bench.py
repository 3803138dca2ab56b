"""Run a training job with a rank on each of two simulated GPUs, each next to a service, under several sharing modes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from cotenant.gate.rank_gate import RankGate, free_rank, gang_page
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules, ProcessEntry
from cotenant.gate.tenant_gate import TenantGate
from cotenant.gate.tenant_table import WritableBuffer, device_memory, write_tenant_table
from cotenant.simulate.kernels import sm_step_of, works_of
from cotenant.softgpu.costs import hardware
from cotenant.softgpu.sim.device import DeviceConfig
from cotenant.softgpu.sim.host import Client, Costs, LaunchGate, OpenGate
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS, Duration, Instant
from cotenant.workload.load import Workload
from cotenant_lab.bench.collective.loads import PATTERNS, Pattern, service, training
from cotenant_lab.bench.collective.ranks import Job, RankSimulation, play_together

PRESET: Final = "v100"
RANKS: Final = 2
RUN_NS: Final = 8 * SECOND_NS
QUICK_RUN_NS: Final = 2 * SECOND_NS
WARM_NS: Final = SECOND_NS
DISTURBED_NS: Final = 3 * SECOND_NS // 2
RESTORED_NS: Final = DISTURBED_NS + SECOND_NS
DISTURBED_RUN_NS: Final = 6 * SECOND_NS
DRAIN_NS: Final = 100 * MILLISECOND_NS
STALL_NS: Final = 2 * SECOND_NS
"""A rank that neither is paused nor has ended, and finishes no collective for this long, hangs."""
TARGETS: Final = {"online_p99_ratio": 1.10, "collectives_vs_alone": 0.5, "spin_ms_max": 10.0, "hangs": 0}
ReportLine: TypeAlias = Callable[[str], None]
Mode: TypeAlias = Literal[
    "cotenant", "cotenant, no gang", "cotenant, time slices", "MPS with priorities", "MPS", "time slices"
]
MODES: Final[tuple[Mode, ...]] = (
    "cotenant",
    "cotenant, no gang",
    "cotenant, time slices",
    "MPS with priorities",
    "MPS",
    "time slices",
)


class GangSetting(msgspec.Struct, frozen=True):
    """Options of `cotenant node`: --delay and --sms, in millionths; `sms_ppm` None: its default."""

    delay_ppm: int = GateRules().delay_ppm
    sms_ppm: int | None = None

    @property
    def flags(self) -> str:
        """Return the options as they are written; empty: the defaults."""
        sms = "" if self.sms_ppm is None else f"--sms {self.sms_ppm / 10_000:g}%"
        return f"--delay {self.delay_ppm / 10_000:g}% {sms}".strip()


DEFAULT: Final = GangSetting()
WITHOUT_SPACE_PPM: Final = 10_000
"""A part of the SMs that is too small to be used: launches wait for gaps."""
SETTINGS: Final = (DEFAULT, *(GangSetting(delay, WITHOUT_SPACE_PPM) for delay in (20_000, 50_000, 100_000, 200_000)))
"""Of these, the one with the most collectives within the limit of the online p99 counts."""
Disturbance: TypeAlias = Literal["none", "pause", "evict", "kill"]
DISTURBANCES: Final[tuple[Disturbance, ...]] = ("pause", "evict", "kill")
_POLICIES: Final[dict[Mode, GatePolicy]] = {
    "cotenant": GatePolicy.FILL,
    "cotenant, no gang": GatePolicy.FILL,
    "cotenant, time slices": GatePolicy.FILL,
    "MPS with priorities": GatePolicy.OPEN,
}
_SLICED: Final[frozenset[Mode]] = frozenset({"cotenant, time slices", "time slices"})
_TRAINER, _SERVICE = 1, 0


class ModeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The job and both services in one sharing mode."""

    mode: Mode
    pattern: str
    setting: str
    """Options of the node; empty without one."""
    online_p50_ratio: float
    online_p99_ratio: float
    """Over the service alone; of the service that lost more."""
    collectives_vs_alone: float
    """Collectives per time over those of the job without services."""
    spin_ms_max: float
    """The longest time that a rank spun while another one waited at its gate."""
    spin_ms_p99: float
    spin_part: float
    """Part of the time in which the ranks spun, whatever the reason, over that alone: in the mean of the ranks."""


class DisturbedResult(msgspec.Struct, frozen=True, kw_only=True):
    """The job while one rank is paused for a second, evicted, or killed."""

    disturbance: Disturbance
    spin_ms_max: float
    online_p99_ratio: float
    collectives_before: int
    collectives_after: int
    hangs: int


class CollectiveReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of `bench collective`: the worst of both patterns with cotenant, and every mode."""

    bench: str = "collective"
    costs: str = "hardware"
    seconds: float
    settings: dict[str, str]
    """By pattern: the options of the node that the figures below are of."""
    online_p99_ratio: float
    collectives_vs_alone: float
    spin_ms_max: float
    hangs: int
    disturbed: list[DisturbedResult]
    modes: list[ModeResult]
    met: dict[str, bool]


class CollectiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of both devices."""

    latencies_ns: list[list[Duration]]
    collectives: int
    """Collectives of the slower rank within the window."""
    spins: list[tuple[Duration, Duration]]
    progress: list[list[tuple[Instant, int]]]
    """For each rank: the number of collectives that it had finished, ten times a second."""
    for_ns: Duration


def bench_collective(report: ReportLine, *, quick: bool = False) -> CollectiveReport:
    """Run all modes with both patterns of the services, and disturb the job in mode "cotenant"."""
    for_ns = QUICK_RUN_NS if quick else RUN_NS
    device = hardware(PRESET)
    report("the job alone")
    job_alone = run("MPS", device, None, for_ns)
    modes: list[ModeResult] = []
    chosen: dict[Pattern, GangSetting] = {}
    disturbed: list[DisturbedResult] = []
    for pattern in PATTERNS:
        report(f"services alone: {pattern}")
        alone = run("MPS", device, pattern, for_ns, has_job=False)
        by_setting = {}
        for setting in SETTINGS:
            report(f"cotenant {setting.flags}: {pattern}")
            played = run("cotenant", device, pattern, for_ns, setting=setting)
            by_setting[setting] = mode_result("cotenant", pattern, setting, played, alone, job_alone)
        modes += by_setting.values()
        setting = chosen[pattern] = best_setting(by_setting)
        for mode in MODES[1:]:
            report(f"{mode}: {pattern}")
            options = setting if mode.startswith("cotenant") else DEFAULT
            played = run(mode, device, pattern, for_ns, setting=options)
            modes.append(mode_result(mode, pattern, options, played, alone, job_alone))
    setting = chosen[PATTERNS[0]]
    alone = run("MPS", device, PATTERNS[0], DISTURBED_RUN_NS, has_job=False)
    for disturbance in DISTURBANCES:
        report(f"disturbance: {disturbance}")
        played = run("cotenant", device, PATTERNS[0], DISTURBED_RUN_NS, setting=setting, disturbance=disturbance)
        disturbed.append(disturbed_result(disturbance, played, alone))
    flags = {pattern: setting.flags for pattern, setting in chosen.items()}
    own = [result for result in modes if result.mode == "cotenant" and result.setting == flags[_pattern(result)]]
    figures = {
        "online_p99_ratio": max(result.online_p99_ratio for result in own),
        "collectives_vs_alone": min(result.collectives_vs_alone for result in own),
        "spin_ms_max": max([result.spin_ms_max for result in own] + [result.spin_ms_max for result in disturbed]),
        "hangs": sum(result.hangs for result in disturbed),
    }
    return CollectiveReport(
        seconds=for_ns / SECOND_NS,
        settings={str(pattern): text for pattern, text in flags.items()},
        online_p99_ratio=figures["online_p99_ratio"],
        collectives_vs_alone=figures["collectives_vs_alone"],
        spin_ms_max=figures["spin_ms_max"],
        hangs=int(figures["hangs"]),
        disturbed=disturbed,
        modes=modes,
        met=targets_met(figures),
    )


def best_setting(results: Mapping[GangSetting, ModeResult]) -> GangSetting:
    """Return the setting with the most collectives within the limit of the online p99, or else the lowest p99."""
    limit = TARGETS["online_p99_ratio"]
    within = [setting for setting, result in results.items() if result.online_p99_ratio <= limit]
    if within:
        return max(within, key=lambda setting: results[setting].collectives_vs_alone)
    return min(results, key=lambda setting: results[setting].online_p99_ratio)


def _pattern(result: ModeResult) -> Pattern:
    return next(pattern for pattern in PATTERNS if pattern == result.pattern)


def targets_met(figures: dict[str, float]) -> dict[str, bool]:
    """Return, by target, whether it is met."""
    return {
        name: figures[name] >= limit if name == "collectives_vs_alone" else figures[name] <= limit
        for name, limit in TARGETS.items()
    }


# ---- one run --------------------------------------------------------------------------------------------------------


def run(
    mode: Mode,
    device: DeviceConfig,
    pattern: Pattern | None,
    for_ns: Duration,
    *,
    has_job: bool = True,
    setting: GangSetting = DEFAULT,
    disturbance: Disturbance = "none",
) -> CollectiveRun:
    """Run both devices; without a pattern the job is alone, and without a job the services are."""
    gang = gang_page()
    job = Job()
    simulations = []
    all_tables = []
    for rank in range(RANKS):
        load, collectives = training()
        online = None if pattern is None else service(pattern, rank, for_ns)
        tables = _Tables(rank, _POLICIES.get(mode, GatePolicy.OPEN), setting, is_sliced=mode in _SLICED)
        clients, gates = _tenants(mode, device, (online, load if has_job else None), collectives, gang, tables)
        all_tables.append(tables)
        simulations.append(
            RankSimulation(
                device, clients, gates, Costs(), rank, job=job, collectives=collectives if has_job else frozenset()
            )
        )
    progress: list[list[tuple[Instant, int]]] = [[] for _ in range(RANKS)]
    for simulation, seen in zip(simulations, progress, strict=True):
        simulation.every(SECOND_NS // 10, _progress_of(simulation, seen))
    if disturbance != "none":
        _disturb(simulations[1], all_tables[1], disturbance, gang)
    play_together(simulations, for_ns)
    begin = [next(count for at_ns, count in seen if at_ns >= WARM_NS) for seen in progress]
    return CollectiveRun(
        latencies_ns=[_latencies(simulation) for simulation in simulations] if pattern is not None else [],
        collectives=min(sim.passed - count for sim, count in zip(simulations, begin, strict=True)),
        spins=job.spins,
        progress=progress,
        for_ns=for_ns,
    )


def _tenants(
    mode: Mode,
    device: DeviceConfig,
    loads: tuple[Workload | None, Workload | None],
    collectives: frozenset[int],
    gang: WritableBuffer,
    tables: _Tables,
) -> tuple[list[Client], list[LaunchGate]]:
    """Return the programs of one device with their gates."""
    online, offline = loads
    is_sliced, policy = mode in _SLICED, _POLICIES.get(mode)
    is_first = policy is not None and not is_sliced
    memory, rank = tables.memory, tables.rank
    sm_count = 0 if is_sliced else device.sm_count
    clients: list[Client] = []
    gates: list[LaunchGate] = []
    if online is not None:
        clients.append(Client(online, 0, 2 * rank, warm=0, priority=-1 if is_first else 0))
        works, steps = works_of(online, device, is_mps=not is_sliced)
        gates.append(
            OpenGate()
            if policy is None
            else TenantGate(memory, (_SERVICE, 1), works, steps, sm_step_ppm=sm_step_of(sm_count))
        )
    if offline is not None:
        clients.append(Client(offline, 1 if is_sliced else 0, 2 * rank + 1))
        works, steps = works_of(offline, device, is_mps=not is_sliced)
        has_gang = mode in ("cotenant", "cotenant, time slices")
        gates.append(
            OpenGate()
            if policy is None
            else RankGate(
                memory,
                (_TRAINER, _generation_of(rank)),
                works,
                steps,
                collectives,
                gang=(gang, RANKS) if has_gang else None,
                sm_step_ppm=sm_step_of(sm_count),
            )
        )
    return clients, gates


class _Tables:
    """The memory of a device's pages, and its tenant table with a service and a rank."""

    def __init__(self, rank: int, policy: GatePolicy, setting: GangSetting, *, is_sliced: bool) -> None:
        self.memory = device_memory()
        self.rank = rank
        defaults = GateRules()
        self._rules = msgspec.structs.replace(
            defaults,
            policy=policy,
            delay_ppm=setting.delay_ppm,
            sm_ppm=setting.sms_ppm,
            switch_ns=defaults.switch_ns if is_sliced else 0,
        )
        self.write()

    def write(self, *, is_paused: bool = False) -> None:
        """Write the table."""
        online, trainer = GateEntry(_SERVICE, 1, 2, True), GateEntry(_TRAINER, 1, 7, False, paused=is_paused)
        rules = msgspec.structs.replace(self._rules, entries=(online, trainer))
        processes = (
            ProcessEntry(_SERVICE, 1, _SERVICE, online),
            ProcessEntry(_TRAINER, _generation_of(self.rank), _TRAINER, trainer),
        )
        write_tenant_table(self.memory, rules, processes)


def _generation_of(rank: int) -> int:
    return 100 + rank


def _disturb(simulation: RankSimulation, tables: _Tables, disturbance: Disturbance, gang: WritableBuffer) -> None:
    """Pause, evict or kill the rank of a device; the node sees at once that a process has ended."""

    def kill(now_ns: Instant) -> None:
        simulation.kill_rank(now_ns)
        free_rank(gang, _generation_of(tables.rank))

    def step(now_ns: Instant) -> None:
        if now_ns == DISTURBED_NS and disturbance == "kill":
            kill(now_ns)
        elif now_ns == DISTURBED_NS:
            tables.write(is_paused=True)
        elif now_ns == RESTORED_NS and disturbance == "pause":
            tables.write()
        elif now_ns == DISTURBED_NS + DRAIN_NS and disturbance == "evict":
            kill(now_ns)

    simulation.every(DRAIN_NS, step)


def _progress_of(simulation: RankSimulation, seen: list[tuple[Instant, int]]) -> Callable[[Instant], None]:
    return lambda now_ns: seen.append((now_ns, simulation.passed))


def _latencies(simulation: RankSimulation) -> list[Duration]:
    dues, ends = simulation.requests_of(0)
    return [end_ns - due_ns for due_ns, end_ns in zip(dues, ends, strict=False) if due_ns >= WARM_NS]


# ---- figures --------------------------------------------------------------------------------------------------------


def mode_result(
    mode: Mode,
    pattern: Pattern,
    setting: GangSetting,
    played: CollectiveRun,
    alone: CollectiveRun,
    job_alone: CollectiveRun,
) -> ModeResult:
    """Compare a run with the services and the job alone."""
    held_ns = sorted(held for _, held in played.spins)
    spun_ns = sum(spin for spin, _ in played.spins)
    return ModeResult(
        mode=mode,
        pattern=pattern,
        setting=setting.flags if mode.startswith("cotenant") else "",
        online_p50_ratio=_worst_ratio(played, alone, 0.5),
        online_p99_ratio=_worst_ratio(played, alone, 0.99),
        collectives_vs_alone=played.collectives / max(job_alone.collectives, 1),
        spin_ms_max=held_ns[-1] / MILLISECOND_NS if held_ns else 0.0,
        spin_ms_p99=held_ns[int(0.99 * (len(held_ns) - 1))] / MILLISECOND_NS if held_ns else 0.0,
        spin_part=spun_ns / RANKS / played.for_ns,
    )


def _worst_ratio(played: CollectiveRun, alone: CollectiveRun, fraction: float) -> float:
    return max(
        _quantile(shared, fraction) / _quantile(by_itself, fraction)
        for shared, by_itself in zip(played.latencies_ns, alone.latencies_ns, strict=True)
    )


def _quantile(values: Sequence[int], fraction: float) -> float:
    if fraction == 0.5:
        return statistics.median(values)
    ordered = sorted(values)
    return ordered[min(round(fraction * len(ordered)), len(ordered) - 1)]


def disturbed_result(disturbance: Disturbance, played: CollectiveRun, alone: CollectiveRun) -> DisturbedResult:
    """Return what a disturbance of the second rank did to the first one."""
    first, second = played.progress
    before = next(count for at_ns, count in first if at_ns >= DISTURBED_NS)
    return DisturbedResult(
        disturbance=disturbance,
        spin_ms_max=max((held for _, held in played.spins), default=0) / MILLISECOND_NS,
        online_p99_ratio=_worst_ratio(played, alone, 0.99),
        collectives_before=before,
        collectives_after=first[-1][1] - before,
        hangs=sum(
            _has_hung(seen, since_ns)
            for seen, since_ns in (
                (first, RESTORED_NS if disturbance == "pause" else DISTURBED_NS),
                *([(second, RESTORED_NS)] if disturbance == "pause" else []),
            )
        ),
    )


def _has_hung(seen: Sequence[tuple[Instant, int]], since_ns: Instant) -> bool:
    """Return whether a rank finished no collective for too long at any time since an instant."""
    progressed_ns, last = since_ns, -1
    for at_ns, count in seen:
        if at_ns < since_ns:
            continue
        if count != last:
            progressed_ns, last = at_ns, count
        if at_ns - progressed_ns > STALL_NS:
            return True
    return False
