"""Wires the demo's main story: a service and a training job on one GPU, alone, as is usual, under MPS, by cotenant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from cotenant.apps.demo_day import play_day, show_day
from cotenant.apps.demo_loads import service, training
from cotenant.apps.report.act import Act, Picture, Span
from cotenant.apps.report.day import Day
from cotenant.apps.report.page import report_page
from cotenant.apps.show import table
from cotenant.apps.show_profile import duration
from cotenant.apps.trace import record, write
from cotenant.domain.instant import MILLISECOND_NS
from cotenant.domain.load import Load
from cotenant.domain.trace import Recording, Turn
from cotenant.errors import ConfigError, CotenantError, WorldError
from cotenant.experiment.fill.scene import Mode, Scene
from cotenant.experiment.fill.stage import NodePolicy, Performance, Stage
from cotenant.live.player import quantile

_COTENANT: Final[Mode] = "cotenant mps"
ACTS: Final[tuple[tuple[Mode, str], ...]] = (
    ("alone", "alone"),
    ("slices", "default sharing"),
    ("mps", "MPS"),
    (_COTENANT, "cotenant"),
)
ALONE_S: Final = 1.0
ROUNDS: Final = 3
PICTURE_NS: Final = 20 * MILLISECOND_NS
_BEFORE_NS: Final = 2 * MILLISECOND_NS
_TRACE_NS: Final = 1000 * MILLISECOND_NS
_V100_SMS: Final = 80


class Story(msgspec.Struct, frozen=True):
    """What the demo found, and where it is written."""

    fine: bool
    acts: list[Act]
    day: Day
    offline_alone_steps_per_s: float
    report: str
    trace: str
    """Empty: none was written, and why was said."""


def tell_share_story(
    console: Console, home: Path, report: Path, requests: int, say: Callable[[str], None], *, as_json: bool
) -> int:
    """Four acts, a table, a page; returns 0 when every act ended as it should."""
    online, offline = service(requests, 0), training()
    say(f"demo: a software V100 and a node of their own in {home}")
    with Stage(home, detail=True) as stage:
        stage.rule(NodePolicy())
        say("demo: cotenant times the kernels of the service and of the training job, each alone")
        for load in (online, offline):
            stage.record(load)
        acts, pace, trace = _acts(stage, requests, offline, report.with_name("demo-trace.json"), say)
        day = play_day(stage, offline, (acts[0].p99_ns, pace), requests, say)
    try:
        report.write_text(report_page(acts, day, online, offline, pace, trace), encoding="utf-8")
    except OSError as error:
        raise ConfigError("--report", str(report), f"it cannot be written: {error.strerror}") from None
    fine = all(act.requests == requests for act in acts) and all(act.steps_per_s > 0 for act in acts[1:])
    fine = fine and all(run.training > 0 for run in day.runs)
    story = Story(fine, acts, day, pace, str(report.absolute()), trace)
    if as_json:
        print(msgspec.json.encode(story).decode())
    else:
        _show(console, story)
    return 0 if fine else 1


def _acts(
    stage: Stage, requests: int, offline: Load, trace: Path, say: Callable[[str], None]
) -> tuple[list[Act], float, str]:
    """The acts in turn, several times: what else the machine does meanwhile should not meet one of them alone.

    In each round the training job also runs alone, for its own pace. The last round is the one that pictures are taken
    of, and under cotenant the trace.
    """
    played: dict[Mode, list[Performance]] = {mode: [] for mode, _ in ACTS}
    pictures: dict[Mode, Picture] = {}
    alone: list[Scene] = []
    written = ""
    for number in range(ROUNDS):
        say(f"demo: round {number + 1} of {ROUNDS}, the training job alone, for its own pace")
        alone.append(stage.perform("offline alone", None, offline, for_s=ALONE_S).scene)
        online = service(requests * (number + 1) // ROUNDS - requests * number // ROUNDS, number)
        for mode, name in ACTS:
            say(f"demo: round {number + 1} of {ROUNDS}, {name}: {online.requests} requests to the service")
            seen = Camera(stage, say)
            look = seen.look if number == ROUNDS - 1 else (lambda _online, _offline: None)
            performance = stage.perform(mode, online, None if mode == "alone" else offline, look=look)
            played[mode].append(performance)
            if seen.recording is not None:
                pictures[mode] = picture_of(seen.recording, seen.pids, _spans(performance))
                written = _write(seen.recording, trace, say) if mode == _COTENANT else ""
    acts = [act_of(name, played[mode], offline, pictures[mode]) for mode, name in ACTS]
    return acts, steps_per_s(alone, offline), written


def steps_per_s(scenes: Sequence[Scene], offline: Load) -> float:
    """The pace of the training job over several runs, by the kernel time that it completed."""
    steps = sum(scene.offline_done_ns for scene in scenes) / offline.kernels_ns
    return steps / (sum(scene.wall_ns for scene in scenes) / 1e9)


class Camera:
    """What the device and the programs remember, at the end of a run."""

    def __init__(self, stage: Stage, say: Callable[[str], None]) -> None:
        """Nothing yet."""
        self._stage = stage
        self._say = say
        self.pids = (0, 0)
        self.recording: Recording | None = None

    def look(self, online_pid: int, offline_pid: int) -> None:
        """Keep it."""
        self.pids = (online_pid, offline_pid)
        self.recording = record(self._stage.places, 0, Console(stderr=True), self._say)


def _spans(performance: Performance) -> list[Span]:
    return [(due, end) for due, _, end in performance.online["detail"]]


def act_of(name: str, performances: Sequence[Performance], offline: Load, picture: Picture) -> Act:
    """What the rounds of one act showed, together."""
    scenes = [one.scene for one in performances]
    latencies_ns = sorted(end - due for one in performances for due, _, end in one.online["detail"])
    wall_ns = sum(scene.wall_ns for scene in scenes)
    return Act(
        name=name,
        requests=len(latencies_ns),
        requests_per_s=len(latencies_ns) / (sum(one.online["completion_ns"] for one in performances) / 1e9),
        p50_ns=quantile(latencies_ns, 0.5),
        p99_ns=quantile(latencies_ns, 0.99),
        max_ns=latencies_ns[-1],
        latencies_ns=latencies_ns,
        steps_per_s=steps_per_s(scenes, offline),
        busy=sum(scene.busy_ns for scene in scenes) / wall_ns,
        sm_activity=sum(scene.sm_ns for scene in scenes) / (wall_ns * _V100_SMS),
        waited_ns=sum(scene.online_delayed_ns for scene in scenes),
        picture=picture,
    )


def picture_of(recording: Recording, pids: tuple[int, int], requests: Sequence[Span]) -> Picture:
    """The 20 ms, a little before a request was due, in which the service had the most of the device."""
    spans = {pid: ran_spans(recording, pid) for pid in pids}
    online, offline = spans[pids[0]], spans[pids[1]] if pids[1] else []
    if not online:
        raise WorldError("the device remembers nothing of the service; try again")
    begins = [due - _BEFORE_NS for due, end in requests if due - _BEFORE_NS >= online[0][0]] or [online[0][0]]
    begin_ns = max(begins, key=lambda begin: sum(end - start for start, end in cut(online, begin, begin + PICTURE_NS)))
    window = begin_ns, begin_ns + PICTURE_NS
    return Picture(*window, cut(requests, *window), cut(online, *window), cut(offline, *window))


def ran_spans(recording: Recording, pid: int) -> list[Span]:
    """When a program's kernels ran, in order, without the time they were switched out."""
    found: list[Span] = []
    for device in recording.devices:
        turns: dict[int, list[Turn]] = {}
        for turn in device.turns:
            turns.setdefault(turn.client, []).append(turn)
        for ran in device.ran:
            if ran.pid != pid or not ran.kind.on_sms:
                continue
            start_ns: int | None = ran.start_ns
            for turn in turns.get(ran.client, []):
                if not ran.start_ns < turn.at_ns < ran.end_ns:
                    continue
                if turn.is_on:
                    start_ns = turn.at_ns
                elif start_ns is not None:
                    found.append((start_ns, turn.at_ns))
                    start_ns = None
            if start_ns is not None:
                found.append((start_ns, ran.end_ns))
    return sorted(found)


def cut(spans: Sequence[Span], begin_ns: int, end_ns: int) -> list[Span]:
    """What of them lies within a window, whole."""
    return [(start, end) for start, end in spans if end > begin_ns and start < end_ns]


def _write(recording: Recording, path: Path, say: Callable[[str], None]) -> str:
    """The last second as Perfetto reads it; the file's name, or nothing and a word about it."""
    try:
        write(last_of(recording, _TRACE_NS), str(path))
    except CotenantError as error:
        say(f"demo: no trace: {error}")
        return ""
    say(f"demo: what ran when under cotenant is in {path}: open it at ui.perfetto.dev")
    return str(path.absolute())


def last_of(recording: Recording, span_ns: int) -> Recording:
    """Its end: a page of a browser should not have to hold the rest."""
    start_ns = max(recording.start_ns, recording.end_ns - span_ns)
    programs = tuple(
        msgspec.structs.replace(one, asked=[asked for asked in one.asked if asked.at_ns >= start_ns])
        for one in recording.programs
    )
    devices = tuple(
        msgspec.structs.replace(
            one,
            ran=[ran for ran in one.ran if ran.start_ns >= start_ns],
            turns=[turn for turn in one.turns if turn.at_ns >= start_ns],
        )
        for one in recording.devices
    )
    return msgspec.structs.replace(recording, start_ns=start_ns, programs=programs, devices=devices)


def _show(console: Console, story: Story) -> None:
    rows = []
    for act in story.acts:
        shared = act.steps_per_s > 0
        part = f" ({act.steps_per_s / story.offline_alone_steps_per_s:.0%})" if shared else ""
        rows.append(
            [
                act.name,
                duration(act.p50_ns),
                duration(act.p99_ns),
                f"{act.requests_per_s:.1f}/s",
                f"{act.steps_per_s:.1f}/s{part}" if shared else "-",
                f"{act.busy:.0%}",
                f"{act.sm_activity:.0%}",
                duration(act.waited_ns),
            ]
        )
    headers = ["SERVICE", "P50", "P99", "REQUESTS", "TRAINING", "BUSY", "SMS", "WAITED"]
    title = f"one software V100; the training job alone: {story.offline_alone_steps_per_s:.1f} steps/s"
    console.print()
    console.print(table(title, headers, rows))
    console.print("BUSY: of the time, the device ran anything; SMS: of them, at work", highlight=False)
    console.print("WAITED: device time that the service's kernels waited for the training job's", highlight=False)
    show_day(console, story.day)
    console.print(f"the report: {story.report}", highlight=False, soft_wrap=True)
