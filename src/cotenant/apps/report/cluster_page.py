"""What does the page of a cluster say? Its figures, then courses through the time, distributions, and all GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

import numpy as np

from cotenant.apps.report.cluster_draw import Line, courses, distribution, heat_map, slowdowns
from cotenant.apps.report.page import STYLE
from cotenant.apps.show_cluster_outcome import about, figure_rows
from cotenant.experiment.cluster import Played
from cotenant.sim.cluster_jobs import Fate

_HOUR_NS: Final = 3.6e12
_SHARED, _BEFORE = 3, 0
"""Colours of the page's style."""


def cluster_page(played: Played, name: str) -> str:
    """The whole page, with nothing outside of it."""
    outcome, world = played.outcome, played.world
    at_h, seen = world.seen.courses()

    def line(course: str, title: str, colour: int) -> Line:
        return Line(title, colour, list(zip(at_h, seen[course], strict=True)))

    def pair(course: str) -> list[Line]:
        return [line(course, "shared", _SHARED), line(f"{course}_before", "online work alone", _BEFORE)]

    slowest = max([1.05, *seen["slowdown_p99"]])
    jobs = max([1.0, *seen["running"], *seen["waiting"]])
    return "\n".join(
        [
            "<!doctype html><html lang=en><meta charset=utf-8>",
            "<meta name=viewport content='width=device-width'>",
            f"<title>cotenant: {escape(name)}</title><style>{STYLE}</style>",
            f"<h1>{escape(name)}</h1><p>{escape(about(outcome))}</p>",
            *_table(figure_rows(outcome)),
            *_part("GPU utilization", "the part of the time with work on a GPU, over all GPUs", pair("utilization")),
            courses(pair("utilization"), "utilization over time", _percent, most=1.0),
            *_part("SM activity", "of SMs times time, the part with work", pair("sm_activity")),
            courses(pair("sm_activity"), "SM activity over time", _percent, most=1.0),
            *_part("Memory", "the part of all GPU memory that is held", pair("memory")),
            courses(pair("memory"), "memory over time", _percent, most=1.0),
            *_part("Jobs", "", lines := [line("running", "running", 3), line("waiting", "waiting", 1)]),
            courses(lines, "jobs over time", lambda count: f"{count:,.0f}", most=jobs),
            *_part(
                "How long jobs took",
                "the part of the jobs that are done within so long",
                lines := [
                    Line("from submission to end", 3, _completions(played)),
                    Line("alone on whole GPUs", 0, _works(played)),
                ],
            ),
            distribution(lines, "distribution of job completion times", _hours),
            *_part(
                "Online slowdown over time",
                "latency, with its queue, over that alone at the same load",
                lines := [line("slowdown", "mean, by load", 3), line("slowdown_p99", "the worst GPU of 100", 1)],
            ),
            courses(lines, "online slowdown over time", lambda times: f"{times:.2f}", least=1.0, most=slowest),
            *_part(
                "Online slowdown, how much of it",
                "the part of the online work that is slowed by no more than so much",
                [slowed := Line("shared", 3, world.seen.slowdown_curve())],
            ),
            slowdowns(slowed, "distribution of online slowdown"),
            *_part("All GPUs", "utilization of neighbouring GPUs, together, over the time", []),
            heat_map(world.seen.heat(), outcome.hours, outcome.gpus),
            f"<p class=note>{escape(_NOTES)}</p></html>",
        ]
    )


_NOTES: Final = (
    "Nothing here ran on a GPU. Speeds and slowdowns are those of the physics that docs/simulate-cluster.md names, not "
    "what the cluster's brain predicted; online load is made up or taken from a trace as the scenario says."
)


def _part(title: str, note: str, lines: Sequence[Line]) -> Iterable[str]:
    yield f"<h2>{escape(title)}</h2>"
    keys = "".join(f"<span class='key act{one.colour}'></span>{escape(one.name)}" for one in lines)
    said = f"{note}." if note else ""
    yield f"<p class=note>{escape(said[:1].upper() + said[1:])}{keys}</p>"


def _table(rows: Sequence[tuple[str, str, str]]) -> Iterable[str]:
    yield "<table><tr><th></th><th>shared</th><th>online work alone</th></tr>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
    yield "</table>"


def _completions(played: Played) -> list[tuple[float, float]]:
    book = played.world.book
    done = book.fate == Fate.DONE
    return _ranked(np.sort((book.end_ns - book.submit_ns)[done] / _HOUR_NS).tolist())


def _works(played: Played) -> list[tuple[float, float]]:
    book = played.world.book
    return _ranked(np.sort(book.work[book.fate == Fate.DONE] / _HOUR_NS).tolist())


def _ranked(values: Sequence[float]) -> list[tuple[float, float]]:
    return [(value, (place + 1) / len(values)) for place, value in enumerate(values)]


def _percent(part: float) -> str:
    return f"{part:.0%}"


def _hours(hours: float) -> str:
    return f"{hours:g} h" if hours >= 1 else f"{hours * 60:.3g} min"
