"""Plots of study `arkgpu`: SVG files and an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from cotenant_lab.study.arkgpu.report import ArkgpuEvidence, ArkgpuPaper, ArkgpuReport
from cotenant_lab.study.arkgpu.run import AGAINST, MODES, CaseTimeline
from cotenant_lab.study.arkgpu.steps import StepTimeline
from cotenant_lab.study.device.plots import drawing, save, write_plots_page

_COLOURS: Final = {"cotenant": "#1f6fb4", "mps": "#d1495b", "exclusive": "#9aa5b1", "mps-priority": "#e8a33d"}
_TIMELINES_MAX: Final = 4
_PAPER: Final = "#444444"


def plotter(directory: Path) -> Callable[[ArkgpuReport, ArkgpuEvidence], None]:
    """Return a function that draws into this directory; raise ConfigError now if drawing is impossible."""
    draw = drawing(directory)

    def into_files(report: ArkgpuReport, evidence: ArkgpuEvidence) -> None:
        captions = {}
        with draw() as pyplot:
            for index, timeline in enumerate(evidence.timelines[::2][:_TIMELINES_MAX], start=1):
                name = f"course{index}.svg"
                captions[name] = _draw_timeline(pyplot, directory / name, timeline)
            captions["goodput.svg"] = _draw_goodput(pyplot, directory / "goodput.svg", report)
            captions["ways.svg"] = _draw_modes(pyplot, directory / "ways.svg", report)
            captions["rising.svg"] = _draw_rising(pyplot, directory / "rising.svg", report)
            captions["settle.svg"] = _draw_settle(pyplot, directory / "settle.svg", evidence.steps)
        rows = "".join(
            f"<tr><td>{name}<td>{distribution.min:.2f}<td>{distribution.median:.2f}<td>{distribution.p90:.2f}<td>{distribution.max:.2f}</tr>"
            for name, distribution in report.simulated.against.items()
        )
        head = "<tr><th>cotenant against others, % increase<th>min<th>median<th>p90<th>max</tr>"
        text = f"cotenant-lab study arkgpu, seed {report.seed}, with the published results of {report.paper.source}"
        write_plots_page(directory, "Control of the online share", text, head, rows, captions, report.met)

    return into_files


def _draw_timeline(pyplot: Any, path: Path, timeline: CaseTimeline) -> str:
    """Draw share, latencies and training progress over time."""
    figure, axes = pyplot.subplots(3, 1, figsize=(9, 7.5), sharex=True)
    begin, end = -timeline.begin_ns / 1e9, (timeline.end_ns - timeline.begin_ns) / 1e9
    times = [begin, *((turn.at_ns - timeline.begin_ns) / 1e9 for turn in timeline.turns), end]
    shares = [98.0, *(turn.online_ppm / 1e4 for turn in timeline.turns)]
    axes[0].step(times, [*shares, shares[-1]], where="post", color=_COLOURS["cotenant"])
    axes[0].set_ylim(0, 102)
    axes[0].set_ylabel("online share, %")
    for mode in ("mps", "cotenant"):
        points = timeline.latencies[mode]
        axes[1].plot(
            [due / 1e9 for due, _ in points],
            [took / 1e6 for _, took in points],
            ".",
            ms=3,
            color=_COLOURS[mode],
            label=mode,
        )
    axes[1].axhline(timeline.slo_ms, color=_PAPER, ls=":", label="objective")
    axes[1].set_yscale("log")
    axes[1].yaxis.set_major_formatter("{x:g}")
    axes[1].yaxis.set_minor_formatter("")
    for axis in axes:
        axis.axvline(0, color=_PAPER, lw=0.8)
    axes[1].set_ylabel("latency, ms")
    axes[1].legend(loc="upper left", ncols=3)
    for mode, progress in timeline.offline.items():
        axes[2].plot(
            [instant / 1e9 for instant, _ in progress],
            [done / 1e9 for _, done in progress],
            color=_COLOURS[mode],
            label=mode,
        )
    axes[2].set_ylabel("training, kernel s")
    axes[2].set_xlabel("simulated s, from the start of the measured window")
    axes[2].legend(loc="upper left", ncols=3)
    axes[0].set_title(f"{timeline.name}, objective {timeline.objective}x")
    save(pyplot, figure, path)
    return (
        f"{timeline.name}, objective {timeline.objective} times the p99 alone: the share, every request, the training."
    )


def _draw_goodput(pyplot: Any, path: Path, report: ArkgpuReport) -> str:
    """Draw the distribution of the ratios over the cases."""
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.4))
    paper, cases = ArkgpuPaper(), report.simulated.cases
    lines = {
        "goodput_vs_exclusive_pct": (axes[0], "goodput over exclusive", _COLOURS["exclusive"]),
        "goodput_vs_mps_pct": (axes[0], "goodput over MPS", _COLOURS["mps"]),
        "throughput_vs_mps_pct": (axes[1], "throughput at the objective over MPS", _COLOURS["cotenant"]),
    }
    parts = [100 * (rank + 1) / len(cases) for rank in range(len(cases))]
    for name, (axis, label, colour) in lines.items():
        axis.step(sorted(AGAINST[name](case) for case in cases), parts, where="post", color=colour, label=label)
        published = getattr(paper, name)
        axis.axvline(published, color=colour, ls=":", label=f"{paper.source} +{published:.0f} % in the mean")
    axes[1].set_xscale("symlog", linthresh=10)
    for axis in axes:
        axis.set_xlabel("increase, %")
        axis.legend(loc="upper left", fontsize=8)
    axes[0].set_ylabel("cases with at most this, %")
    save(pyplot, figure, path)
    return f"cotenant against others, {len(cases)} simulated cases; dotted: the paper's means, on real GPUs."


def _draw_modes(pyplot: Any, path: Path, report: ArkgpuReport) -> str:
    """Draw objectives kept against training speed for every mode."""
    figure, axis = pyplot.subplots(figsize=(8, 4.8))
    simulated = report.simulated
    for mode in MODES:
        kept = 100 * simulated.attained[mode] / max(simulated.attainable, 1)
        offline = simulated.modes[mode]["offline"].median
        ours = mode.startswith("cotenant")
        axis.plot(
            [kept], [offline], "o", ms=9 if ours else 6, color=_COLOURS.get(mode, "#3a9a5b" if ours else "#777777")
        )
        axis.annotate(mode, (kept, offline), xytext=(6, 5), textcoords="offset points", fontsize=9)
    axis.set_xlabel("objectives kept where a dedicated device keeps them, % of cases")
    axis.set_ylabel("training speed, fraction of alone (median)")
    axis.set_xlim(-4, 118)
    axis.set_ylim(0, 1.08)
    save(pyplot, figure, path)
    return "Sharing modes: objectives kept (horizontal) and training speed (vertical)."


def _draw_rising(pyplot: Any, path: Path, report: ArkgpuReport) -> str:
    peaks = report.peaks.cases
    shown = sorted({peak.name for peak in peaks})[:6]
    figure, axes = pyplot.subplots(2, 3, figsize=(12, 6.4), sharex=True, sharey=True, squeeze=False)
    for axis, name in zip(axes.flat, shown, strict=False):
        peak_case = next(peak for peak in peaks if peak.name == name)
        for mode, within in peak_case.within.items():
            axis.plot(peak_case.levels, within, "-o", ms=3, color=_COLOURS[mode], label=mode)
        axis.set_title(name.replace("train ", ""), fontsize=9)
    for axis in list(axes.flat)[len(shown) :]:
        axis.set_visible(False)
    axes[0][0].legend(fontsize=8)
    figure.supxlabel("requests offered, over what the service answers alone one after the other", fontsize=10)
    axes[0][0].set_ylabel("answered within 3x")
    save(pyplot, figure, path)
    return "Requests answered within three times the p99 alone, as the load rises."


def _draw_settle(pyplot: Any, path: Path, timelines: Sequence[StepTimeline]) -> str:
    figure, axis = pyplot.subplots(figsize=(10, 4.6))
    for timeline in timelines:
        begin_ns = timeline.steps_ns[0]
        times = [-begin_ns / 1e9, *((at_ns - begin_ns) / 1e9 for at_ns, _ in timeline.shares)]
        shares = [98.0, *(ppm / 1e4 for _, ppm in timeline.shares)]
        end = (2 * timeline.steps_ns[-1] - timeline.steps_ns[0] - begin_ns) / 1e9
        axis.step([*times, end], [*shares, shares[-1]], where="post", lw=1, alpha=0.6)
    for step_ns in timelines[0].steps_ns if timelines else ():
        axis.axvline((step_ns - timelines[0].steps_ns[0]) / 1e9, color=_PAPER, ls=":")
    axis.set_ylim(0, 102)
    axis.set_xlabel("s after the increase; dotted: the load increases, and decreases again")
    axis.set_ylabel("online share, %")
    save(pyplot, figure, path)
    return f"The share around steps of the load, {len(timelines)} runs."
