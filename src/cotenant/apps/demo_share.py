"""Wires the demo's main story: a service and a training job on one GPU, alone, as it is usual, by cotenant."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from cotenant.apps.demo_loads import service, training
from cotenant.apps.report.act import Act, Bin, Picture
from cotenant.apps.report.page import report_page
from cotenant.apps.show import table
from cotenant.apps.show_profile import duration
from cotenant.domain.instant import MILLISECOND_NS
from cotenant.domain.load import Load
from cotenant.errors import ConfigError, WorldError
from cotenant.experiment.fill.scene import Mode, client_of
from cotenant.experiment.fill.stage import NodePolicy, Performance, Stage
from cotenant.live.clock import pause
from cotenant.live.player import quantile
from cotenant.live.process import start_piped

ACTS: Final[tuple[tuple[Mode, str], ...]] = (
    ("alone", "alone"),
    ("slices", "default sharing"),
    ("cotenant slices", "cotenant"),
)
ALONE_S: Final = 1.0
ROUNDS: Final = 3
PICTURE_NS: Final = 20 * MILLISECOND_NS
_PICTURE_REQUESTS: Final = 20
_LOOKS_NS: Final = 200 * MILLISECOND_NS
_TRACE_S: Final = 1
_V100_SMS: Final = 80


class Story(msgspec.Struct, frozen=True):
    """What the demo found, and where it is written."""

    fine: bool
    acts: list[Act]
    offline_alone_steps_per_s: float
    report: str
    trace: str
    """Empty: none was written, and why was said."""


def tell_share_story(
    console: Console, home: Path, report: Path, requests: int, say: Callable[[str], None], *, as_json: bool
) -> int:
    """Three acts, a table, a page; returns 0 when every act ended as it should."""
    online, offline = service(requests, 0), training()
    say(f"demo: a software V100 and a node of their own in {home}")
    with Stage(home, detail=True) as stage:
        stage.rule(NodePolicy())
        say("demo: cotenant times the kernels of the service and of the training job, each alone")
        for load in (online, offline):
            stage.record(load)
        say("demo: the training job alone, for its own pace")
        alone = stage.perform("offline alone", None, offline, for_s=ALONE_S).scene
        acts = _acts(stage, requests, offline, say)
        trace = _trace(stage, online, offline, report.with_name("demo-trace.json"), say)
    steps_per_s = alone.offline_done_ns / offline.kernels_ns / (alone.wall_ns / 1e9)
    try:
        report.write_text(report_page(acts, online, offline, steps_per_s, trace), encoding="utf-8")
    except OSError as error:
        raise ConfigError("--report", str(report), f"it cannot be written: {error.strerror}") from None
    fine = all(act.requests == requests for act in acts) and all(act.steps_per_s > 0 for act in acts[1:])
    story = Story(fine, acts, steps_per_s, str(report.absolute()), trace)
    if as_json:
        print(msgspec.json.encode(story).decode())
    else:
        _show(console, story)
    return 0 if fine else 1


def _acts(stage: Stage, requests: int, offline: Load, say: Callable[[str], None]) -> list[Act]:
    """The acts in turn, several times: what else the machine does meanwhile should not meet one of them alone."""
    played: dict[Mode, list[Performance]] = {mode: [] for mode, _ in ACTS}
    for number in range(ROUNDS):
        online = service(requests * (number + 1) // ROUNDS - requests * number // ROUNDS, number)
        for mode, name in ACTS:
            say(f"demo: round {number + 1} of {ROUNDS}, {name}: {online.requests} requests to the service")
            played[mode].append(stage.perform(mode, online, None if mode == "alone" else offline))
    say(f"demo: {PICTURE_NS // MILLISECOND_NS} ms of each act for a picture")
    few = service(min(_PICTURE_REQUESTS, requests), 0)
    pictures = {mode: _picture(stage, mode, few, None if mode == "alone" else offline) for mode, _ in ACTS}
    return [act_of(name, played[mode], offline, pictures[mode]) for mode, name in ACTS]


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
        steps_per_s=sum(scene.offline_done_ns for scene in scenes) / offline.kernels_ns / (wall_ns / 1e9),
        busy=sum(scene.busy_ns for scene in scenes) / wall_ns,
        sm_activity=sum(scene.sm_ns for scene in scenes) / (wall_ns * _V100_SMS),
        waited_ns=sum(scene.online_delayed_ns for scene in scenes),
        picture=picture,
    )


def _picture(stage: Stage, mode: Mode, online: Load, offline: Load | None) -> Picture:
    """A short run that is only looked at: asking for the books again and again would slow what is counted."""
    looks: list[tuple[int, int, int]] = []

    def look(online_pid: int, offline_pid: int) -> None:
        while not looks or looks[-1][0] - looks[0][0] < _LOOKS_NS:
            books = stage.books()
            clients = [client_of(books, pid)["counters"]["sm_ns"] if pid else 0 for pid in (online_pid, offline_pid)]
            looks.append((books["now_ns"], clients[0], clients[1]))
            pause(0.0001)

    performance = stage.perform(mode, online, offline, meanwhile=look)
    return picture_of(looks, [(due, end) for due, _, end in performance.online["detail"]])


def picture_of(looks: Sequence[tuple[int, int, int]], requests: Sequence[tuple[int, int]]) -> Picture:
    """The 20 ms in which the online program had the most of the device, as shares of its SMs from look to look."""
    bins = []
    for (begin, *before), (end, *after) in itertools.pairwise(looks):
        whole_ns = _V100_SMS * (end - begin)
        if whole_ns > 0:
            online, offline = ((last - first) / whole_ns for first, last in zip(before, after, strict=True))
            bins.append(Bin(begin, end, online, offline))
    if not bins:
        raise WorldError("the device was not looked at; try again")

    def online_ns(begin_ns: int) -> float:
        inside = (one for one in bins if begin_ns <= one.begin_ns < begin_ns + PICTURE_NS)
        return sum(one.online * (one.end_ns - one.begin_ns) for one in inside)

    begin_ns = max((one.begin_ns for one in bins), key=online_ns)
    end_ns = begin_ns + PICTURE_NS
    return Picture(
        begin_ns,
        end_ns,
        [one for one in bins if begin_ns <= one.begin_ns < end_ns],
        [(due, end) for due, end in requests if end > begin_ns and due < end_ns],
    )


def _trace(stage: Stage, online: Load, offline: Load, path: Path, say: Callable[[str], None]) -> str:
    """What ran when under cotenant, as Perfetto reads it; the file's name, or nothing and a word about it."""
    where = ["--runtime", str(stage.places.runtime), "--state", str(stage.places.state)]
    command = [
        sys.executable,
        "-m",
        "cotenant",
        "trace",
        "-o",
        str(path.absolute()),
        "--seconds",
        str(_TRACE_S),
        *where,
    ]
    process = None

    def start(_online: int, _offline: int) -> None:
        nonlocal process
        process = start_piped(command)

    few = msgspec.structs.replace(online, requests=max(1, round(_TRACE_S * online.arrival.rate_per_s)))
    stage.perform("cotenant slices", few, offline, meanwhile=start)
    if process is None:
        return ""
    _, complained = process.communicate()
    if process.returncode or not path.exists():
        why = (complained.strip().splitlines() or ["it was not written"])[-1]
        say(f"demo: no trace: {why}")
        return ""
    say(f"demo: what ran when is in {path}: open it at ui.perfetto.dev")
    return str(path.absolute())


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
    console.print("BUSY: the device ran anything; SMS: part of them at work; WAITED: its kernels, for others")
    console.print(f"the report: {story.report}", highlight=False, soft_wrap=True)
