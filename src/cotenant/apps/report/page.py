"""What does the demo's page say? A table, the latencies, who had how much of the device, and 20 ms of each act."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

from cotenant.apps.report.act import Act
from cotenant.apps.report.day import Day, day_drawing, day_rows
from cotenant.apps.report.draw import bars, curves, timeline
from cotenant.apps.show_profile import duration
from cotenant.domain.load import Load

_COLOURS: Final = ("#4b8f5a", "#c0563f", "#8a6bb0", "#3d7ea6")
"""Of the acts, in their order."""
STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: right; padding: .3rem .6rem; }
th:first-child, td:first-child { text-align: left; } tr + tr { border-top: 1px solid var(--line); }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
.grid { stroke: var(--line); } .curve { fill: none; stroke-width: 2; }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin: 0 .3rem 0 1rem; }
.request { fill: #8888; } .online { fill: #3d7ea6; } .offline { fill: #c0563f; } p.note { opacity: .75; }
.objective { stroke: currentColor; stroke-dasharray: 5 4; } .part { opacity: .75; }
""" + "".join(
    f".curve.act{n} {{ stroke: {colour}; }} .bar.act{n}, .dot.act{n} {{ fill: {colour}; }} "
    f".key.act{n} {{ background: {colour}; }}\n"
    for n, colour in enumerate(_COLOURS)
)
_COLUMNS: Final = (
    "the service",
    "p50",
    "p99",
    "longest",
    "requests",
    "training steps",
    "device busy",
    "SM activity",
    "waited for others",
)


def report_page(acts: Sequence[Act], day: Day, online: Load, offline: Load, steps_per_s: float, trace: str) -> str:
    """The whole page; `steps_per_s` is the training job's pace alone."""
    return "\n".join(
        [
            "<!doctype html><html lang=en><meta charset=utf-8>",
            "<meta name=viewport content='width=device-width'>",
            f"<title>cotenant: a service and a training job on one GPU</title><style>{STYLE}</style>",
            "<h1>A service and a training job on one GPU</h1>",
            f"<p>{escape(_about(online, offline, steps_per_s))}</p>",
            *_table(acts, steps_per_s),
            "<h2>How long requests took</h2>",
            _keys(acts, range(len(acts))),
            curves(acts),
            "<h2>What became of the device</h2>",
            bars(_bars(acts, steps_per_s)),
            "<h2>A load that changes</h2>",
            f"<p>{escape(_about_day(day))}</p>",
            *_day_table(day),
            _keys([acts[run.number] for run in day.runs], [run.number for run in day.runs]),
            day_drawing(day),
            *_timelines(acts),
            f"<p class=note>{escape(_notes(trace))}</p>",
            "</html>",
        ]
    )


def _about(online: Load, offline: Load, steps_per_s: float) -> str:
    return (
        f"A software V100 and real processes. The service: {online.requests} requests at random instants, "
        f"{online.arrival.rate_per_s:g} a second, each {len(online.launches)} kernels that take "
        f"{duration(online.device_ns)} of the device and {duration(online.host_ns)} of its host. "
        f"The training job: steps of {len(offline.launches)} kernels and {duration(offline.device_ns)}, one after the "
        f"other; alone {steps_per_s:.1f} a second."
    )


def _table(acts: Sequence[Act], steps_per_s: float) -> Iterable[str]:
    yield "<table><tr>" + "".join(f"<th>{column}</th>" for column in _COLUMNS) + "</tr>"
    for act in acts:
        cells = (
            escape(act.name),
            duration(act.p50_ns),
            duration(act.p99_ns),
            duration(act.max_ns),
            f"{act.requests_per_s:.1f}/s",
            f"{act.steps_per_s:.1f}/s ({act.steps_per_s / steps_per_s:.0%})" if act.steps_per_s else "-",
            f"{act.busy:.0%}",
            f"{act.sm_activity:.0%}",
            duration(act.waited_ns),
        )
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    yield "</table>"


def _keys(acts: Sequence[Act], numbers: Iterable[int]) -> str:
    keys = (f"<span class='key act{n}'></span>{escape(act.name)}" for n, act in zip(numbers, acts, strict=True))
    return f"<p>{''.join(keys)}</p>"


def _about_day(day: Day) -> str:
    return (
        f"The same service with {len(day.runs[0].requests)} requests in {day.span_ns / 1e9:.0f} s, as many a second as "
        f"the first panel shows, and an objective of {duration(day.slo_ns)} for 99 of 100: under MPS, and under "
        "cotenant, which knows the objective, looks ten times a second at what requests took, and sets what online "
        "work keeps."
    )


def _day_table(day: Day) -> Iterable[str]:
    yield f"<table><tr><th>way</th><th>within {duration(day.slo_ns)}</th><th>p99</th><th>training, of alone</th></tr>"
    for row in day_rows(day):
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
    yield "</table>"


def _bars(acts: Sequence[Act], steps_per_s: float) -> list[tuple[str, str, float, int]]:
    rows = []
    for number, act in enumerate(acts):
        rows.append((f"device busy, {act.name}", f"{act.busy:.0%}", act.busy, number))
        rows.append((f"SM activity, {act.name}", f"{act.sm_activity:.0%}", act.sm_activity, number))
        part = act.steps_per_s / steps_per_s
        if act.steps_per_s:
            rows.append((f"training, of its pace alone, {act.name}", f"{part:.0%}", part, number))
    return rows


def _timelines(acts: Sequence[Act]) -> Iterable[str]:
    yield "<h2>20 milliseconds of each</h2>"
    yield (
        "<p class=note>Grey: a request, from when it was due until it was complete. Below: when kernels of the "
        "service and of the training job ran, by the device's own record.</p>"
    )
    for act in acts:
        yield f"<h3>{escape(act.name)}</h3>{timeline(act.picture)}"


def _notes(trace: str) -> str:
    file = Path(trace).name  # beside this page, which may be moved
    kept = (
        f" What ran in the last second under cotenant is in {file}, for ui.perfetto.dev."
        if trace
        else " No trace was written."
    )
    return (
        "Latencies are by the service's clock, from when a request was due. Busy time, SM activity and waiting are the "
        f"software GPU's books. This has only ever run on the software GPU.{kept}"
    )
