"""HTML page of a simulated cluster: metrics, time series, distributions, and a heat map of all GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

import numpy as np

from cotenant.cli.render.cluster_result import about, conclusion, metric_rows
from cotenant.cli.render.html.cluster_charts import Line, distribution, heat_map, series, slowdowns
from cotenant.cli.render.html.demo import STYLE
from cotenant.cli.render.html.page import html_page, scrolling_table
from cotenant.cluster.sim.jobs import SimJobState
from cotenant.runner.machine import MachineState
from cotenant.simulate.cluster import ClusterRun

_HOUR_NS: Final = 3.6e12
_SHARED, _BEFORE = 3, 0
"""Colours of the page's style."""


def cluster_page(cluster_run: ClusterRun, name: str, machine: MachineState) -> str:
    """Return the HTML page."""
    outcome, world = cluster_run.outcome, cluster_run.world
    at_h, values = world.measurements.series()

    def line(metric: str, title: str, colour: int) -> Line:
        return Line(title, colour, list(zip(at_h, values[metric], strict=True)))

    def pair(metric: str) -> list[Line]:
        return [line(metric, "shared", _SHARED), line(f"{metric}_before", "online only", _BEFORE)]

    slowest = max([1.05, *values["slowdown_p99"]])
    jobs = max([1.0, *values["running"], *values["waiting"]])
    return html_page(
        name,
        conclusion(outcome),
        machine,
        [
            f"<p>{escape(about(outcome))}</p>",
            *scrolling_table(
                ("", "shared", "online only"), ([escape(cell) for cell in row] for row in metric_rows(outcome))
            ),
            *_part(
                "GPU utilization", "the fraction of the time with work on a GPU, over all GPUs", pair("utilization")
            ),
            series(pair("utilization"), "utilization over time", _percent, max_value=1.0),
            *_part("SM activity", "the fraction of SM time with work", pair("sm_activity")),
            series(pair("sm_activity"), "SM activity over time", _percent, max_value=1.0),
            *_part("Memory", "the fraction of all GPU memory that is allocated", pair("memory")),
            series(pair("memory"), "memory over time", _percent, max_value=1.0),
            *_part("Jobs", "", lines := [line("running", "running", 3), line("waiting", "waiting", 1)]),
            series(lines, "jobs over time", lambda count: f"{count:,.0f}", max_value=jobs),
            *_part(
                "Job completion time",
                "cumulative fraction of the completed jobs",
                lines := [
                    Line("from submission to end", 3, _completion_times(cluster_run)),
                    Line("alone on whole GPUs", 0, _work_times(cluster_run)),
                ],
            ),
            distribution(lines, "distribution of job completion times", _hours),
            *_part(
                "Online slowdown over time",
                "latency including queueing, relative to the latency alone at the same load",
                lines := [line("slowdown", "mean, by load", 3), line("slowdown_p99", "the worst GPU of 100", 1)],
            ),
            series(lines, "online slowdown over time", lambda times: f"{times:.2f}", min_value=1.0, max_value=slowest),
            *_part(
                "Distribution of the online slowdown",
                "cumulative fraction of the online work",
                [slowdown := Line("shared", 3, world.measurements.slowdown_curve())],
            ),
            slowdowns(slowdown, "distribution of online slowdown"),
            *_part("All GPUs", "mean utilization of groups of neighbouring GPUs over time", []),
            heat_map(world.measurements.heatmap(), outcome.hours, outcome.gpus),
            f"<p class=note>{escape(_NOTES)}</p>",
        ],
        STYLE,
        is_measured=False,
    )


_NOTES: Final = (
    "Nothing here ran on a GPU. Speeds and slowdowns are those of the physics that "
    "docs/how-to/simulate-a-cluster.md names, not the predictions of the cluster's controller; the online load is "
    "generated or taken from a trace, as the scenario says."
)


def _part(title: str, note: str, lines: Sequence[Line]) -> Iterable[str]:
    yield f"<h2>{escape(title)}</h2>"
    keys = "".join(f"<span class='key series{line.colour}'></span>{escape(line.name)}" for line in lines)
    sentence = f"{note}." if note else ""
    yield f"<p class=note>{escape(sentence[:1].upper() + sentence[1:])}{keys}</p>"


def _completion_times(cluster_run: ClusterRun) -> list[tuple[float, float]]:
    sim_jobs = cluster_run.world.sim_jobs
    done = sim_jobs.state == SimJobState.DONE
    return _cumulative(np.sort((sim_jobs.end_ns - sim_jobs.submit_ns)[done] / _HOUR_NS).tolist())


def _work_times(cluster_run: ClusterRun) -> list[tuple[float, float]]:
    sim_jobs = cluster_run.world.sim_jobs
    return _cumulative(np.sort(sim_jobs.work[sim_jobs.state == SimJobState.DONE] / _HOUR_NS).tolist())


def _cumulative(values: Sequence[float]) -> list[tuple[float, float]]:
    return [(value, (index + 1) / len(values)) for index, value in enumerate(values)]


def _percent(part: float) -> str:
    return f"{part:.0%}"


def _hours(hours: float) -> str:
    return f"{hours:g} h" if hours >= 1 else f"{hours * 60:.3g} min"
