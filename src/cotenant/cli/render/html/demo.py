"""The demo's HTML page: a table, latencies, device use, a changing load, and 20 ms of each phase."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

from cotenant.cli.render.html.changing_load import ChangingLoad, changing_load_chart, changing_load_rows
from cotenant.cli.render.html.charts import bars, curves, timeline_chart
from cotenant.cli.render.html.page import html_page, scrolling_table
from cotenant.cli.render.html.phase import PhaseResult
from cotenant.cli.render.profile import duration
from cotenant.runner.machine import MachineState
from cotenant.workload.load import Workload

_COLOURS: Final = ("#4b8f5a", "#c0563f", "#8a6bb0", "#b8892d", "#3d7ea6")
"""Colours of the phases in their order."""
STYLE: Final = """
th:not(:first-child), td:not(:first-child) { text-align: right; }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin: 0 .3rem 0 1rem; }
.request { fill: #8888; } .online { fill: #3d7ea6; } .offline { fill: #c0563f; }
.objective { stroke: currentColor; stroke-dasharray: 5 4; } .part { opacity: .75; }
""" + "".join(
    f".curve.series{n} {{ stroke: {colour}; }} .bar.series{n}, .dot.series{n} {{ fill: {colour}; }} "
    f".key.series{n} {{ background: {colour}; }}\n"
    for n, colour in enumerate(_COLOURS)
)
_COLUMNS: Final = (
    "mode",
    "p50",
    "p99",
    "max",
    "requests",
    "training steps",
    "device busy",
    "SM activity",
    "waited for training",
)


def report_page(
    phases: Sequence[PhaseResult],
    changing_load: ChangingLoad,
    online: Workload,
    offline: Workload,
    steps_per_s: float,
    trace: str,
    machine: MachineState,
) -> str:
    """Return the page; `steps_per_s` is the throughput of the training job alone."""
    return html_page(
        "A service and a training job on one GPU",
        conclusion(phases, steps_per_s),
        machine,
        [
            f"<p>{escape(_about(online, offline, steps_per_s))}</p>",
            *_table(phases, steps_per_s),
            "<h2>Request latency</h2>",
            _keys(phases, range(len(phases))),
            curves(phases),
            "<h2>Device use</h2>",
            bars(_bars(phases, steps_per_s)),
            "<h2>Changing load</h2>",
            f"<p>{escape(_about_changing_load(changing_load))}</p>",
            *_changing_load_table(changing_load),
            _keys([phases[run.number] for run in changing_load.runs], [run.number for run in changing_load.runs]),
            changing_load_chart(changing_load),
            *_timelines(phases),
            f"<p class=note>{escape(_notes(trace))}</p>",
        ],
        STYLE,
    )


def conclusion(phases: Sequence[PhaseResult], steps_per_s: float) -> str:
    """Return the result in one sentence: the first phase is the service alone, the last one is cotenant."""
    alone, *others, ours = phases
    return (
        f"Alone, the service's p99 latency was {duration(alone.p99_ns)}. With the training job next to it, the p99 "
        "latency and the training's part of its speed alone were "
        + "; ".join(
            f"{duration(phase.p99_ns)} and {phase.steps_per_s / steps_per_s:.0%} under {phase.name}"
            for phase in (*others, ours)
        )
        + "."
    )


def _about(online: Workload, offline: Workload, steps_per_s: float) -> str:
    return (
        f"A software V100 and real processes. The service: {online.requests} requests at random instants, "
        f"{online.arrival.rate_per_s:g} a second, each {len(online.launches)} kernels that take "
        f"{duration(online.device_ns)} of the device and {duration(online.host_ns)} of its host. "
        f"The training job: steps of {len(offline.launches)} kernels and {duration(offline.device_ns)}, one after the "
        f"other; alone {steps_per_s:.1f} a second."
    )


def _table(phases: Sequence[PhaseResult], steps_per_s: float) -> Iterable[str]:
    rows = []
    for phase in phases:
        cells = (
            escape(phase.name),
            duration(phase.p50_ns),
            duration(phase.p99_ns),
            duration(phase.max_ns),
            f"{phase.requests_per_s:.1f}/s",
            f"{phase.steps_per_s:.1f}/s ({phase.steps_per_s / steps_per_s:.0%})" if phase.steps_per_s else "-",
            f"{phase.busy:.0%}",
            f"{phase.sm_activity:.0%}",
            duration(phase.waited_ns),
        )
        rows.append(cells)
    yield from scrolling_table(_COLUMNS, rows)


def _keys(phases: Sequence[PhaseResult], numbers: Iterable[int]) -> str:
    keys = (
        f"<span class='key series{n}'></span>{escape(phase.name)}" for n, phase in zip(numbers, phases, strict=True)
    )
    return f"<p>{''.join(keys)}</p>"


def _about_changing_load(changing_load: ChangingLoad) -> str:
    requests, seconds = len(changing_load.runs[0].requests), changing_load.span_ns / 1e9
    return (
        f"The same service with {requests} requests in {seconds:.0f} s at the rates of the first panel, with an "
        f"objective of {duration(changing_load.slo_ns)} for 99 of 100 requests: alone, under MPS, under MPS with "
        "client priorities, and under cotenant, which reads the request latencies ten times a second and "
        "adjusts the online share."
    )


def _changing_load_table(changing_load: ChangingLoad) -> Iterable[str]:
    headings = ("mode", f"within {duration(changing_load.slo_ns)}", "p99", "training relative to alone")
    yield from scrolling_table(headings, ([escape(cell) for cell in row] for row in changing_load_rows(changing_load)))


def _bars(phases: Sequence[PhaseResult], steps_per_s: float) -> list[tuple[str, str, float, int]]:
    rows = []
    for number, phase in enumerate(phases):
        rows.append((f"device busy, {phase.name}", f"{phase.busy:.0%}", phase.busy, number))
        rows.append((f"SM activity, {phase.name}", f"{phase.sm_activity:.0%}", phase.sm_activity, number))
        part = phase.steps_per_s / steps_per_s
        if phase.steps_per_s:
            rows.append((f"training relative to alone, {phase.name}", f"{part:.0%}", part, number))
    return rows


def _timelines(phases: Sequence[PhaseResult]) -> Iterable[str]:
    yield "<h2>Timelines of 20 ms</h2>"
    yield (
        "<p class=note>Grey: a request, from when it was due until it was complete. Below: when kernels of the "
        "service and of the training job ran, from the device's records.</p>"
    )
    for phase in phases:
        yield f"<h3>{escape(phase.name)}</h3>{timeline_chart(phase.timeline)}"


def _notes(trace: str) -> str:
    file = Path(trace).name  # in the directory of the page, which may be moved
    trace_note = (
        f" The trace of the last second under cotenant is in {file}, for ui.perfetto.dev."
        if trace
        else " No trace was written."
    )
    return (
        "Latencies are by the service's clock, from when a request was due. Busy time, SM activity and waiting are the "
        f"software GPU's counters. All results are of the software GPU.{trace_note}"
    )
