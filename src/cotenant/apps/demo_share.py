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
from cotenant.live.process import start_piped

ACTS: Final[tuple[tuple[Mode, str], ...]] = (
    ("alone", "alone"),
    ("slices", "default sharing"),
    ("cotenant slices", "cotenant"),
)
ALONE_S: Final = 1.5
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
    online, offline = service(requests), training()
    say(f"demo: a software V100 and a node of their own in {home}")
    with Stage(home, detail=True) as stage:
        stage.rule(NodePolicy())
        say("demo: cotenant times the kernels of the service and of the training job, each alone")
        for load in (online, offline):
            stage.record(load)
        say("demo: the training job alone, for its own pace")
        alone = stage.perform("offline alone", None, offline, for_s=ALONE_S).scene
        acts = [_act(stage, mode, name, online, offline, say) for mode, name in ACTS]
        trace = _trace(stage, online, offline, report.with_name("demo-trace.json"), say)
    steps_per_s = alone.offline_done_ns / offline.kernels_ns / (alone.wall_ns / 1e9)
    try:
        report.write_text(report_page(acts, online, offline, steps_per_s, trace), encoding="utf-8")
    except OSError as error:
        raise ConfigError("--report", str(report), f"it cannot be written: {error.strerror}") from None
    fine = all(act.requests == online.requests for act in acts) and all(act.steps_per_s > 0 for act in acts[1:])
    story = Story(fine, acts, steps_per_s, str(report.absolute()), trace)
    if as_json:
        print(msgspec.json.encode(story).decode())
    else:
        _show(console, story)
    return 0 if fine else 1


def _act(stage: Stage, mode: Mode, name: str, online: Load, offline: Load, say: Callable[[str], None]) -> Act:
    beside = None if mode == "alone" else offline
    with_whom = "" if beside is None else ", beside the training job"
    rate = online.arrival.rate_per_s
    say(f"demo: {name}: {online.requests} requests to the service, {rate:g} a second at random instants{with_whom}")
    performance = stage.perform(mode, online, beside)
    return act_of(name, performance, offline, _picture(stage, mode, online, beside))


def act_of(name: str, performance: Performance, offline: Load, picture: Picture) -> Act:
    """What one act showed."""
    scene, said = performance.scene, performance.online
    wall_s = scene.wall_ns / 1e9
    return Act(
        name=name,
        requests=said["requests"],
        requests_per_s=said["requests_per_s"],
        p50_ns=scene.latency_p50_ns,
        p99_ns=scene.latency_p99_ns,
        max_ns=said["latency_ns"]["max"],
        latencies_ns=sorted(end - due for due, _, end in said["detail"]),
        steps_per_s=scene.offline_done_ns / offline.kernels_ns / wall_s,
        busy=scene.busy_ns / scene.wall_ns,
        sm_activity=scene.sm_ns / (scene.wall_ns * _V100_SMS),
        waited_ns=scene.online_delayed_ns,
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

    few = msgspec.structs.replace(online, requests=min(_PICTURE_REQUESTS, online.requests))
    performance = stage.perform(mode, few, offline, meanwhile=look)
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
        say(f"demo: no trace: {(complained.strip().splitlines() or ['it was not written'])[-1]}")
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
    console.print(
        "BUSY: part of the time the device ran anything; SMS: part of its SMs; WAITED: its kernels, for others"
    )
    console.print(f"the report: {story.report}", highlight=False, soft_wrap=True)
