"""Run a training job with a rank on each of two simulated GPUs, each next to a service, under several sharing modes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
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
    online_p99_ratio: float
    collectives_vs_alone: float
    spin_ms_max: float
    hangs: int
    disturbed: list[DisturbedResult]
    modes: list[ModeResult]
    met: dict[str, bool]


class Played(msgspec.Struct, frozen=True, kw_only=True):
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
    modes = []
    alone_by_pattern = {}
    for pattern in PATTERNS:
        report(f"services alone: {pattern}")
        alone_by_pattern[pattern] = run("MPS", device, pattern, for_ns, has_job=False)
        for mode in MODES:
            report(f"{mode}: {pattern}")
            played = run(mode, device, pattern, for_ns)
            modes.append(mode_result(mode, pattern, played, alone_by_pattern[pattern], job_alone))
    disturbed = []
    for disturbance in DISTURBANCES:
        report(f"disturbance: {disturbance}")
        played = run("cotenant", device, PATTERNS[0], DISTURBED_RUN_NS, disturbance=disturbance)
        disturbed.append(disturbed_result(disturbance, played, alone_by_pattern[PATTERNS[0]]))
    own = [result for result in modes if result.mode == "cotenant"]
    figures = {
        "online_p99_ratio": max(result.online_p99_ratio for result in own),
        "collectives_vs_alone": min(result.collectives_vs_alone for result in own),
        "spin_ms_max": max(result.spin_ms_max for result in (*own, *disturbed)),
        "hangs": sum(result.hangs for result in disturbed),
    }
    return CollectiveReport(
        seconds=for_ns / SECOND_NS,
        online_p99_ratio=figures["online_p99_ratio"],
        collectives_vs_alone=figures["collectives_vs_alone"],
        spin_ms_max=figures["spin_ms_max"],
        hangs=int(figures["hangs"]),
        disturbed=disturbed,
        modes=modes,
        met=targets_met(figures),
    )


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
    disturbance: Disturbance = "none",
) -> Played:
    """Run both devices; without a pattern the job is alone, and without a job the services are."""
    gang = gang_page()
    job = Job()
    simulations = []
    memories = []
    for rank in range(RANKS):
        load, collectives = training()
        online = None if pattern is None else service(pattern, rank, for_ns)
        clients, gates, memory = _tenants(mode, device, (online, load if has_job else None), collectives, gang, rank)
        memories.append(memory)
        simulations.append(
            RankSimulation(
                device, clients, gates, Costs(), rank, job=job, collectives=collectives if has_job else frozenset()
            )
        )
    progress: list[list[tuple[Instant, int]]] = [[] for _ in range(RANKS)]
    for simulation, seen in zip(simulations, progress, strict=True):
        simulation.every(SECOND_NS // 10, _progress_of(simulation, seen))
    if disturbance != "none":
        _disturb(simulations[1], memories[1], disturbance, gang)
    play_together(simulations, for_ns)
    begin = [next(count for at_ns, count in seen if at_ns >= WARM_NS) for seen in progress]
    return Played(
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
    rank: int,
) -> tuple[list[Client], list[LaunchGate], WritableBuffer]:
    """Return the programs of one device with their gates, and the memory of the device's pages."""
    online, offline = loads
    is_sliced, policy = mode in _SLICED, _POLICIES.get(mode)
    is_first = policy is not None and not is_sliced
    memory = device_memory()
    _write(memory, rank, policy or GatePolicy.OPEN, is_sliced=is_sliced)
    sm_count = 0 if is_sliced else device.sm_count
    clients: list[Client] = []
    gates: list[LaunchGate] = []
    if online is not None:
        clients.append(Client(online, 0, 2 * rank, warm=0, priority=-1 if is_first else 0))
        works, steps = works_of(online, sm_count)
        gates.append(
            OpenGate()
            if policy is None
            else TenantGate(memory, (_SERVICE, 1), works, steps, sm_step_ppm=sm_step_of(sm_count))
        )
    if offline is not None:
        clients.append(Client(offline, 1 if is_sliced else 0, 2 * rank + 1))
        works, steps = works_of(offline, sm_count)
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
    return clients, gates, memory


def _write(memory: WritableBuffer, rank: int, policy: GatePolicy, *, is_sliced: bool, is_paused: bool = False) -> None:
    """Write the tenant table of a device with its service and its rank."""
    defaults = GateRules()
    online, trainer = GateEntry(_SERVICE, 1, 2, True), GateEntry(_TRAINER, 1, 7, False, paused=is_paused)
    rules = msgspec.structs.replace(
        defaults, policy=policy, switch_ns=defaults.switch_ns if is_sliced else 0, entries=(online, trainer)
    )
    processes = (
        ProcessEntry(_SERVICE, 1, _SERVICE, online),
        ProcessEntry(_TRAINER, _generation_of(rank), _TRAINER, trainer),
    )
    write_tenant_table(memory, rules, processes)


def _generation_of(rank: int) -> int:
    return 100 + rank


def _disturb(
    simulation: RankSimulation, memory: WritableBuffer, disturbance: Disturbance, gang: WritableBuffer
) -> None:
    """Pause, evict or kill the rank of a device; the node sees at once that a process has ended."""
    rank = simulation.number

    def pause(is_paused: bool) -> None:
        _write(memory, rank, GatePolicy.FILL, is_sliced=False, is_paused=is_paused)

    def kill(now_ns: Instant) -> None:
        simulation.kill_rank(now_ns)
        free_rank(gang, _generation_of(rank))

    def step(now_ns: Instant) -> None:
        if now_ns == DISTURBED_NS and disturbance == "kill":
            kill(now_ns)
        elif now_ns == DISTURBED_NS:
            pause(True)
        elif now_ns == RESTORED_NS and disturbance == "pause":
            pause(False)
        elif now_ns == DISTURBED_NS + DRAIN_NS and disturbance == "evict":
            kill(now_ns)

    simulation.every(DRAIN_NS, step)


def _progress_of(simulation: RankSimulation, seen: list[tuple[Instant, int]]) -> Callable[[Instant], None]:
    return lambda now_ns: seen.append((now_ns, simulation.passed))


def _latencies(simulation: RankSimulation) -> list[Duration]:
    dues, ends = simulation.requests_of(0)
    return [end_ns - due_ns for due_ns, end_ns in zip(dues, ends, strict=False) if due_ns >= WARM_NS]


# ---- figures --------------------------------------------------------------------------------------------------------


def mode_result(mode: Mode, pattern: Pattern, played: Played, alone: Played, job_alone: Played) -> ModeResult:
    """Compare a run with the services and the job alone."""
    held_ns = sorted(held for _, held in played.spins)
    spun_ns = sum(spin for spin, _ in played.spins)
    return ModeResult(
        mode=mode,
        pattern=pattern,
        online_p50_ratio=_worst_ratio(played, alone, 0.5),
        online_p99_ratio=_worst_ratio(played, alone, 0.99),
        collectives_vs_alone=played.collectives / max(job_alone.collectives, 1),
        spin_ms_max=held_ns[-1] / MILLISECOND_NS if held_ns else 0.0,
        spin_ms_p99=held_ns[int(0.99 * (len(held_ns) - 1))] / MILLISECOND_NS if held_ns else 0.0,
        spin_part=spun_ns / RANKS / played.for_ns,
    )


def _worst_ratio(played: Played, alone: Played, fraction: float) -> float:
    return max(
        _quantile(shared, fraction) / _quantile(by_itself, fraction)
        for shared, by_itself in zip(played.latencies_ns, alone.latencies_ns, strict=True)
    )


def _quantile(values: Sequence[int], fraction: float) -> float:
    if fraction == 0.5:
        return statistics.median(values)
    ordered = sorted(values)
    return ordered[min(round(fraction * len(ordered)), len(ordered) - 1)]


def disturbed_result(disturbance: Disturbance, played: Played, alone: Played) -> DisturbedResult:
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
