"""`cotenant demo`: an inference service and a training job on one GPU in every sharing mode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from cotenant.cli.demo.changing_load import RUNS, changing_load_s, run_changing_load, show_changing_load
from cotenant.cli.demo.live_page import live_page
from cotenant.cli.demo.workloads import RATE_PER_S, service, training
from cotenant.cli.render.countdown import StepReport
from cotenant.cli.render.html.changing_load import ChangingLoad
from cotenant.cli.render.html.demo import conclusion, report_page
from cotenant.cli.render.html.page import busy_warning, write_report
from cotenant.cli.render.html.phase import PhaseResult, Span, TimelineWindow
from cotenant.cli.render.profile import duration
from cotenant.cli.render.tables import table
from cotenant.errors import CotenantError, WorldError
from cotenant.harness.harness import NodePolicy, PlayersRun, SharingHarness
from cotenant.harness.run import Mode, SharingRun
from cotenant.runner.machine import MachineState, read_machine
from cotenant.timeline.recorder import record, write
from cotenant.trace.recording import ContextSwitch, Recording
from cotenant.units.instant import MILLISECOND_NS
from cotenant.workload.load import Workload
from cotenant.workload.player import quantile

_COTENANT: Final[Mode] = "cotenant mps"
PHASES: Final[tuple[tuple[Mode, str], ...]] = (
    ("alone", "alone"),
    ("slices", "default sharing"),
    ("mps", "MPS"),
    ("mps priorities", "MPS with priorities"),
    (_COTENANT, "cotenant"),
)
ALONE_S: Final = 1.0
_START_S: Final = 1.5
_PROFILE_S: Final = 2.5
_STEP_S: Final = 1.0
"""What starting and ending the programs of a step takes."""
ROUNDS: Final = 3
WINDOW_NS: Final = 20 * MILLISECOND_NS
_LEAD_NS: Final = 2 * MILLISECOND_NS
_TRACE_NS: Final = 1000 * MILLISECOND_NS
_V100_SMS: Final = 80


class DemoResult(msgspec.Struct, frozen=True):
    """Results of the demo and the files that it wrote."""

    fine: bool
    phases: list[PhaseResult]
    changing_load: ChangingLoad
    offline_alone_steps_per_s: float
    report: str
    trace: str
    """Trace file; empty if none could be written."""
    machine: MachineState
    """The machine when the demo began."""


def demonstrate_sharing(
    console: Console,
    home: Path,
    report: Path,
    requests: int,
    *,
    as_json: bool,
    with_page: bool,
) -> int:
    """Run the phases, print a table and write the report; return 0 if every phase completed."""
    online, offline = service(requests, 0), training()
    machine = read_machine()
    with contextlib.ExitStack() as stack:
        report_step = stack.enter_context(StepReport(None if as_json else console, planned_s(requests)))
        report_step.step(f"demo: starting a software V100 and a node in {home}")
        harness = stack.enter_context(SharingHarness(home, detail=True))
        harness.set_policy(NodePolicy())
        if with_page:
            stack.enter_context(live_page(harness.directories, report_step))
        report_step.step("demo: profiling the service and the training job, each alone")
        for load in (online, offline):
            harness.record(load)
        phases, alone_rate, trace = _phases(
            harness, requests, offline, report.with_name("demo-trace.json"), report_step
        )
        changing_load = run_changing_load(harness, offline, (phases[0].p99_ns, alone_rate), requests, report_step)
    page = report_page(phases, changing_load, online, offline, alone_rate, trace, machine)
    write_report("--report", report, page)
    fine = all(phase.requests == requests for phase in phases) and all(phase.steps_per_s > 0 for phase in phases[1:])
    fine = fine and all(run.training is None or run.training > 0 for run in changing_load.runs)
    result = DemoResult(fine, phases, changing_load, alone_rate, str(report.absolute()), trace, machine)
    if as_json:
        print(msgspec.json.encode(result).decode())
    else:
        _show(console, result)
    return 0 if fine else 1


def planned_s(requests: int) -> list[float]:
    """Return how long each step of the demo takes on an idle machine."""
    phase_s = requests / ROUNDS / RATE_PER_S + _STEP_S
    rounds = [ALONE_S + _STEP_S, *[phase_s] * len(PHASES)] * ROUNDS
    return [_START_S, _PROFILE_S, *rounds, *[changing_load_s(requests) + _STEP_S] * len(RUNS)]


def _phases(
    harness: SharingHarness, requests: int, offline: Workload, trace: Path, report_step: StepReport
) -> tuple[list[PhaseResult], float, str]:
    """Run the phases in turn, several times, so that other load on the machine affects all of them.

    In each round the training job also runs alone, to measure its own throughput. The timelines are recorded in the
    last round, and under cotenant also the trace.
    """
    players_runs: dict[Mode, list[PlayersRun]] = {mode: [] for mode, _ in PHASES}
    timelines: dict[Mode, TimelineWindow] = {}
    alone: list[SharingRun] = []
    trace_path = ""
    for number in range(ROUNDS):
        report_step.step(f"demo: round {number + 1} of {ROUNDS}, the training job alone")
        alone.append(harness.run_players("offline alone", None, offline, for_s=ALONE_S).run)
        online = service(requests * (number + 1) // ROUNDS - requests * number // ROUNDS, number)
        for mode, name in PHASES:
            report_step.step(f"demo: round {number + 1} of {ROUNDS}, {name}: {online.requests} requests to the service")
            recorder = DeviceRecorder(harness, report_step)
            on_played = recorder.on_played if number == ROUNDS - 1 else (lambda _online, _offline: None)
            players_run = harness.run_players(mode, online, None if mode == "alone" else offline, on_played=on_played)
            players_runs[mode].append(players_run)
            if recorder.recording is not None:
                timelines[mode] = timeline_window(recorder.recording, recorder.pids, _spans(players_run))
                trace_path = _write(recorder.recording, trace, report_step) if mode == _COTENANT else ""
    phases = [phase_result(name, players_runs[mode], offline, timelines[mode]) for mode, name in PHASES]
    return phases, steps_per_s(alone, offline), trace_path


def steps_per_s(runs: Sequence[SharingRun], offline: Workload) -> float:
    """Return the throughput of the training job over several runs, from the kernel time that it completed."""
    steps = sum(run.offline_done_ns for run in runs) / offline.kernels_ns
    return steps / (sum(run.wall_ns for run in runs) / 1e9)


class DeviceRecorder:
    """Records the buffers of the device and of the programs at the end of a run."""

    def __init__(self, harness: SharingHarness, report_step: Callable[[str], None]) -> None:
        """Take the harness of the run; nothing is recorded yet."""
        self._harness = harness
        self._report_step = report_step
        self.pids = (0, 0)
        self.recording: Recording | None = None

    def on_played(self, online_pid: int, offline_pid: int) -> None:
        """Record the buffers."""
        self.pids = (online_pid, offline_pid)
        self.recording = record(self._harness.directories, 0, self._report_step)


def _spans(players_run: PlayersRun) -> list[Span]:
    return [(due, end) for due, _, end in players_run.online["detail"]]


def phase_result(
    name: str, players_runs: Sequence[PlayersRun], offline: Workload, timeline: TimelineWindow
) -> PhaseResult:
    """Return the combined results of the rounds of one phase."""
    runs = [players_run.run for players_run in players_runs]
    latencies_ns = sorted(end - due for players_run in players_runs for due, _, end in players_run.online["detail"])
    wall_ns = sum(run.wall_ns for run in runs)
    return PhaseResult(
        name=name,
        requests=len(latencies_ns),
        requests_per_s=len(latencies_ns)
        / (sum(players_run.online["completion_ns"] for players_run in players_runs) / 1e9),
        p50_ns=quantile(latencies_ns, 0.5),
        p99_ns=quantile(latencies_ns, 0.99),
        max_ns=latencies_ns[-1],
        latencies_ns=latencies_ns,
        steps_per_s=steps_per_s(runs, offline),
        busy=sum(run.busy_ns for run in runs) / wall_ns,
        sm_activity=sum(run.sm_ns for run in runs) / (wall_ns * _V100_SMS),
        waited_ns=sum(run.online_delayed_ns for run in runs),
        timeline=timeline,
    )


def timeline_window(recording: Recording, pids: tuple[int, int], requests: Sequence[Span]) -> TimelineWindow:
    """Return the 20 ms, beginning shortly before a request, in which the service used the device most."""
    spans = {pid: ran_spans(recording, pid) for pid in pids}
    online, offline = spans[pids[0]], spans[pids[1]] if pids[1] else []
    if not online:
        raise WorldError("the device has no records of the service; try again")
    begins = [due - _LEAD_NS for due, end in requests if due - _LEAD_NS >= online[0][0]] or [online[0][0]]
    begin_ns = max(begins, key=lambda begin: sum(end - start for start, end in cut(online, begin, begin + WINDOW_NS)))
    window = begin_ns, begin_ns + WINDOW_NS
    return TimelineWindow(*window, cut(requests, *window), cut(online, *window), cut(offline, *window))


def ran_spans(recording: Recording, pid: int) -> list[Span]:
    """Return when a program's kernels ran, sorted, without the time they were switched out."""
    running: list[Span] = []
    for device in recording.devices:
        switches: dict[int, list[ContextSwitch]] = {}
        for switch in device.switches:
            switches.setdefault(switch.client, []).append(switch)
        for op in device.ops:
            if op.pid != pid or not op.kind.on_sms:
                continue
            start_ns: int | None = op.start_ns
            for switch in switches.get(op.client, []):
                if not op.start_ns < switch.at_ns < op.end_ns:
                    continue
                if switch.is_on:
                    start_ns = switch.at_ns
                elif start_ns is not None:
                    running.append((start_ns, switch.at_ns))
                    start_ns = None
            if start_ns is not None:
                running.append((start_ns, op.end_ns))
    return sorted(running)


def cut(spans: Sequence[Span], begin_ns: int, end_ns: int) -> list[Span]:
    """Return the spans that overlap a window."""
    return [(start, end) for start, end in spans if end > begin_ns and start < end_ns]


def _write(recording: Recording, path: Path, report_step: Callable[[str], None]) -> str:
    """Write the last second as a Perfetto trace; return the path, or an empty text if that failed."""
    try:
        write(last_of(recording, _TRACE_NS), str(path))
    except CotenantError as error:
        report_step(f"demo: no trace was written: {error}")
        return ""
    report_step(f"demo: the timeline under cotenant is in {path}: open it in ui.perfetto.dev")
    return str(path.absolute())


def last_of(recording: Recording, span_ns: int) -> Recording:
    """Return the end of a recording, so that the trace stays small."""
    start_ns = max(recording.start_ns, recording.end_ns - span_ns)
    programs = tuple(
        msgspec.structs.replace(program, events=[event for event in program.events if event.at_ns >= start_ns])
        for program in recording.programs
    )
    devices = tuple(
        msgspec.structs.replace(
            device,
            ops=[op for op in device.ops if op.start_ns >= start_ns],
            switches=[switch for switch in device.switches if switch.at_ns >= start_ns],
        )
        for device in recording.devices
    )
    return msgspec.structs.replace(recording, start_ns=start_ns, programs=programs, devices=devices)


def _show(console: Console, result: DemoResult) -> None:
    rows = []
    for phase in result.phases:
        shared = phase.steps_per_s > 0
        part = f" ({phase.steps_per_s / result.offline_alone_steps_per_s:.0%})" if shared else ""
        rows.append(
            [
                phase.name,
                duration(phase.p50_ns),
                duration(phase.p99_ns),
                f"{phase.requests_per_s:.1f}/s",
                f"{phase.steps_per_s:.1f}/s{part}" if shared else "-",
                f"{phase.busy:.0%}",
                f"{phase.sm_activity:.0%}",
                duration(phase.waited_ns),
            ]
        )
    headers = ["MODE", "P50", "P99", "REQUESTS", "TRAINING", "BUSY", "SMS", "WAITED"]
    title = f"one software V100; the training job alone: {result.offline_alone_steps_per_s:.1f} steps/s"
    console.print()
    console.print(table(title, headers, rows))
    console.print("BUSY: fraction of the time with work on the device; SMS: SM activity", highlight=False)
    console.print("WAITED: time that kernels of the service waited for those of the training job", highlight=False)
    show_changing_load(console, result.changing_load)
    console.print()
    console.print(conclusion(result.phases, result.offline_alone_steps_per_s), highlight=False)
    if result.machine.is_busy:
        console.print(busy_warning(result.machine), style="bold red", highlight=False)
    console.print(f"report: {result.report}", highlight=False, soft_wrap=True)
