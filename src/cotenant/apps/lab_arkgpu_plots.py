"""How does the lab's judgement of control look drawn? SVG files and a page that shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from cotenant.apps.lab_plots import drawing, figures_page, save
from cotenant.experiment.lab.arkgpu import AGAINST, WAYS, Course
from cotenant.experiment.lab.arkgpu_report import Evidence, Published, Report
from cotenant.experiment.lab.arkgpu_steps import StepCourse

_COLOURS: Final = {"cotenant": "#1f6fb4", "mps": "#d1495b", "exclusive": "#9aa5b1", "mps-priority": "#e8a33d"}
_COURSES_MOST: Final = 4
_PAPER: Final = "#444444"


def plotter(directory: Path) -> Callable[[Report, Evidence], None]:
    """What draws into this directory; ConfigError now, rather than after the work, where it cannot be done."""
    draw = drawing(directory)

    def into_files(report: Report, evidence: Evidence) -> None:
        captions = {}
        with draw() as pyplot:
            for place, course in enumerate(evidence.courses[::2][:_COURSES_MOST], start=1):
                name = f"course{place}.svg"
                captions[name] = _draw_course(pyplot, directory / name, course)
            captions["goodput.svg"] = _draw_goodput(pyplot, directory / "goodput.svg", report)
            captions["ways.svg"] = _draw_ways(pyplot, directory / "ways.svg", report)
            captions["rising.svg"] = _draw_rising(pyplot, directory / "rising.svg", report)
            captions["settle.svg"] = _draw_settle(pyplot, directory / "settle.svg", evidence.steps)
        rows = "".join(
            f"<tr><td>{name}<td>{one.min:.2f}<td>{one.median:.2f}<td>{one.p90:.2f}<td>{one.max:.2f}<td>{one.mean:.2f}</tr>"
            for name, one in report.simulated.against.items()
        )
        head = "<tr><th>cotenant against others, percent above<th>min<th>median<th>p90<th>max<th>mean</tr>"
        said = f"cotenant lab arkgpu, seed {report.seed}; beside {report.paper.source}'s published figures"
        page = figures_page("What control does", said, head, rows, captions)
        (directory / "index.html").write_text(page, encoding="utf-8")

    return into_files


def _draw_course(pyplot: Any, path: Path, course: Course) -> str:
    """Above the share, in the middle latencies, below the training."""
    figure, axes = pyplot.subplots(3, 1, figsize=(9, 7.5), sharex=True)
    begin, end = -course.begin_ns / 1e9, (course.end_ns - course.begin_ns) / 1e9
    times = [begin, *((turn.at_ns - course.begin_ns) / 1e9 for turn in course.turns), end]
    shares = [98.0, *(turn.online_ppm / 1e4 for turn in course.turns)]
    axes[0].step(times, [*shares, shares[-1]], where="post", color=_COLOURS["cotenant"])
    axes[0].set_ylim(0, 102)
    axes[0].set_ylabel("online keeps, %")
    for way in ("mps", "cotenant"):
        points = course.latencies[way]
        axes[1].plot(
            [due / 1e9 for due, _ in points],
            [took / 1e6 for _, took in points],
            ".",
            ms=3,
            color=_COLOURS[way],
            label=way,
        )
    axes[1].axhline(course.slo_ms, color=_PAPER, ls=":", label="objective")
    axes[1].set_yscale("log")
    axes[1].yaxis.set_major_formatter("{x:g}")
    axes[1].yaxis.set_minor_formatter("")
    for axis in axes:
        axis.axvline(0, color=_PAPER, lw=0.8)
    axes[1].set_ylabel("latency, ms")
    axes[1].legend(loc="upper left", ncols=3)
    for way, done in course.offline.items():
        axes[2].plot([at / 1e9 for at, _ in done], [one / 1e9 for _, one in done], color=_COLOURS[way], label=way)
    axes[2].set_ylabel("training, kernel s")
    axes[2].set_xlabel("simulated s, from the beginning of what counts")
    axes[2].legend(loc="upper left", ncols=3)
    axes[0].set_title(f"{course.name}, objective {course.objective}x")
    save(pyplot, figure, path)
    return f"{course.name}, objective {course.objective} times the p99 alone: the share, every request, the training."


def _draw_goodput(pyplot: Any, path: Path, report: Report) -> str:
    """How the ratios are distributed over the cases."""
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.4))
    paper, cases = Published(), report.simulated.cases
    drawn = {
        "goodput_vs_exclusive_pct": (axes[0], "goodput over exclusive", _COLOURS["exclusive"]),
        "goodput_vs_mps_pct": (axes[0], "goodput over MPS", _COLOURS["mps"]),
        "throughput_vs_mps_pct": (axes[1], "throughput at the objective over MPS", _COLOURS["cotenant"]),
    }
    parts = [100 * (rank + 1) / len(cases) for rank in range(len(cases))]
    for name, (axis, label, colour) in drawn.items():
        axis.step(sorted(AGAINST[name](one) for one in cases), parts, where="post", color=colour, label=label)
        published = getattr(paper, name)
        axis.axvline(published, color=colour, ls=":", label=f"{paper.source} +{published:.0f} % in the mean")
    axes[1].set_xscale("symlog", linthresh=10)
    for axis in axes:
        axis.set_xlabel("percent above")
        axis.legend(loc="upper left", fontsize=8)
    axes[0].set_ylabel("cases with at most this, %")
    save(pyplot, figure, path)
    return f"cotenant against others, {len(cases)} simulated cases; dotted: the paper's means, on real GPUs."


def _draw_ways(pyplot: Any, path: Path, report: Report) -> str:
    """Every way: how many objectives it keeps, and what is left for the training."""
    figure, axis = pyplot.subplots(figsize=(8, 4.8))
    simulated = report.simulated
    for way in WAYS:
        kept = 100 * simulated.attained[way] / max(simulated.attainable, 1)
        offline = simulated.ways[way]["offline"].median
        ours = way.startswith("cotenant")
        axis.plot(
            [kept], [offline], "o", ms=9 if ours else 6, color=_COLOURS.get(way, "#3a9a5b" if ours else "#777777")
        )
        axis.annotate(way, (kept, offline), xytext=(6, 5), textcoords="offset points", fontsize=9)
    axis.set_xlabel("objectives kept where a device of its own keeps them, % of cases")
    axis.set_ylabel("training, of its speed alone (median)")
    axis.set_xlim(-4, 118)
    axis.set_ylim(0, 1.08)
    save(pyplot, figure, path)
    return "Every way to share: to the right more objectives are kept, above more is left for the training."


def _draw_rising(pyplot: Any, path: Path, report: Report) -> str:
    peaks = report.peaks.cases
    shown = sorted({one.name for one in peaks})[:6]
    figure, axes = pyplot.subplots(2, 3, figsize=(12, 6.4), sharex=True, sharey=True, squeeze=False)
    for axis, name in zip(axes.flat, shown, strict=False):
        one = next(peak for peak in peaks if peak.name == name)
        for way, within in one.within.items():
            axis.plot(one.levels, within, "-o", ms=3, color=_COLOURS[way], label=way)
        axis.set_title(name.replace("train ", ""), fontsize=9)
    for axis in list(axes.flat)[len(shown) :]:
        axis.set_visible(False)
    axes[0][0].legend(fontsize=8)
    figure.supxlabel("requests offered, over what the service answers alone one after the other", fontsize=10)
    axes[0][0].set_ylabel("answered within 3x")
    save(pyplot, figure, path)
    return "Requests answered within three times the p99 alone, as the load rises."


def _draw_settle(pyplot: Any, path: Path, courses: Sequence[StepCourse]) -> str:
    figure, axis = pyplot.subplots(figsize=(10, 4.6))
    for course in courses:
        begin_ns = course.steps_ns[0]
        times = [-begin_ns / 1e9, *((at_ns - begin_ns) / 1e9 for at_ns, _ in course.shares)]
        shares = [98.0, *(ppm / 1e4 for _, ppm in course.shares)]
        end = (2 * course.steps_ns[-1] - course.steps_ns[0] - begin_ns) / 1e9
        axis.step([*times, end], [*shares, shares[-1]], where="post", lw=1, alpha=0.6)
    for step_ns in courses[0].steps_ns if courses else ():
        axis.axvline((step_ns - courses[0].steps_ns[0]) / 1e9, color=_PAPER, ls=":")
    axis.set_ylim(0, 102)
    axis.set_xlabel("s from the step up; dotted: the load steps up, and down again")
    axis.set_ylabel("online keeps, %")
    save(pyplot, figure, path)
    return f"The share around steps of the load, {len(courses)} runs."
