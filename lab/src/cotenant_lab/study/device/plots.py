"""Plots of study `device`: SVG files and an HTML page."""

from __future__ import annotations

import contextlib
import html
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cotenant.cli.render.html.page import html_page
from cotenant.errors import ConfigError
from cotenant.runner.atomic_file import check_replaceable, replace_file
from cotenant.runner.machine import read_machine
from cotenant_lab.plots.hover import with_values
from cotenant_lab.plots.pyplot import drawn_with, need_matplotlib
from cotenant_lab.study.device.run import DeviceEvidence, DeviceReport
from cotenant_lab.study.device.shares import Curve
from cotenant_lab.study.error import relative

_MODEL, _MEASURED, _FITTED = "#1f6fb4", "#444444", "#d1495b"
INDEX: Final = "index.html"
_STYLE: Final = "figure { margin: 2rem 0; background: #fff; color: #000; } figure svg { max-width: 100%; width: auto; }"
_MARGIN_INCHES: Final = 0.1
_SERVER_COLOURS: Final = ("#1f6fb4", "#d1495b", "#3a9a5b")


def drawing(directory: Path) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Return a context manager that yields pyplot; raise ConfigError now if drawing is impossible."""
    need_matplotlib("--plots", str(directory))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        check_replaceable(directory / INDEX)
    except OSError as error:
        raise ConfigError("--plots", str(directory), f"cannot be written: {error.strerror}; choose another") from None
    return drawn_with


def plotter(directory: Path) -> Callable[[DeviceReport, DeviceEvidence], None]:
    """Return a function that draws the report into this directory."""
    begin = drawing(directory)

    def draw(report: DeviceReport, evidence: DeviceEvidence) -> None:
        with begin() as pyplot:
            captions = {
                "shares.svg": _draw_shares(pyplot, directory / "shares.svg", evidence.curves),
                "errors.svg": _draw_errors(pyplot, directory / "errors.svg", evidence),
                "together.svg": _draw_together(pyplot, directory / "together.svg", evidence),
            }
        _write_page(directory, report, captions)

    return draw


def save(pyplot: Any, figure: Any, path: Path) -> None:
    """Write the figure as a reproducible file with values on hover; an interrupted study changes no existing one."""
    figure.draw_without_rendering()  # the layout decides where the values are
    box = figure.get_tightbbox().padded(_MARGIN_INCHES)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None}, bbox_inches=box)
    text = with_values(drawn.getvalue(), figure, box)
    pyplot.close(figure)
    replace_file(path, text.encode())


def _draw_shares(pyplot: Any, path: Path, curves: Sequence[Curve]) -> str:
    """Draw a good curve, the median one and the worst, by median error of the held-out shares."""
    ranked = sorted(curves, key=lambda curve: (curve.median_error(), curve.name))
    shown = {
        "a tenth are better": ranked[len(ranked) // 10],
        "median": ranked[len(ranked) // 2],
        "worst": ranked[-1],
    }
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4))
    for axis, (title, curve) in zip(axes, shown.items(), strict=True):
        shares = sorted(curve.measured)
        held = [share for share in shares if share not in curve.fitted]
        axis.plot(shares, [curve.predicted[share] for share in shares], color=_MODEL, label="device model")
        axis.plot(
            held, [curve.measured[share] for share in held], "o", color=_MEASURED, ms=4, label="measured, held out"
        )
        fitted = [curve.measured[share] for share in curve.fitted]
        axis.plot(curve.fitted, fitted, "D", color=_FITTED, ms=6, label="measured, fitted")
        axis.set_title(f"{title}:\n{curve.name}\nmedian error {curve.median_error():.1%}")
        axis.set_xlabel("share of the SMs, %")
        axis.set_ylim(bottom=0)
    axes[0].set_ylabel("latency, ms")
    axes[0].legend()
    save(pyplot, figure, path)
    return "Latency against the share of the SMs (V100): fitted at the red points, evaluated at the grey ones."


def _draw_errors(pyplot: Any, path: Path, evidence: DeviceEvidence) -> str:
    groups = {
        "latency by share": [
            relative(curve.predicted[share], curve.measured[share])
            for curve in evidence.curves
            for share in curve.held_out()
        ],
        "processes in an instance": [
            relative(predicted, evidence.instances.measured[cell])
            for cell, predicted in evidence.instances.predicted.items()
        ],
        "clients of a server": [
            relative(predicted, outcome.measured[cell])
            for outcome in evidence.servers
            for cell, predicted in outcome.predicted.items()
        ],
    }
    figure, axis = pyplot.subplots(figsize=(7, 4.2))
    for name, errors in groups.items():
        ordered = sorted(errors)
        parts = [100 * (rank + 1) / len(ordered) for rank in range(len(ordered))]
        axis.step([100 * error for error in ordered], parts, where="post", label=f"{name} ({len(ordered):,})")
    axis.axvline(20, color=_MEASURED, ls=":", label="20 %")
    axis.set_xlim(0, 60)
    axis.set_ylim(0, 100)
    axis.set_xlabel("relative error, %")
    axis.set_ylabel("cases held out with at most this error, %")
    axis.legend(loc="lower right")
    save(pyplot, figure, path)
    return "Fraction of held-out cases by relative error of the prediction."


def _draw_together(pyplot: Any, path: Path, evidence: DeviceEvidence) -> str:
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5.4))
    cells = list(evidence.instances.predicted)
    measured = [evidence.instances.measured[cell] for cell in cells]
    predicted = [evidence.instances.predicted[cell] for cell in cells]
    left.plot(measured, predicted, ".", color=_MODEL, alpha=0.5)
    left.set_title("2 to 5 processes in an A100 instance")
    for outcome, colour in zip(evidence.servers, _SERVER_COLOURS, strict=False):
        cells_of_server = list(outcome.predicted)
        measured_of_server = [outcome.measured[cell] for cell in cells_of_server]
        right.plot(
            measured_of_server,
            [outcome.predicted[cell] for cell in cells_of_server],
            "o",
            color=colour,
            ms=5,
            label=outcome.server,
        )
    right.set_title("clients of a server on an RTX 3080")
    for axis in (left, right):
        axis.set_xscale("log")
        axis.set_yscale("log")
        low, high = axis.get_xlim()
        axis.plot([low, high], [low, high], color=_MEASURED, lw=1, label="equal")
        axis.fill_between(
            [low, high],
            [0.8 * low, 0.8 * high],
            [1.2 * low, 1.2 * high],
            color=_MEASURED,
            alpha=0.12,
            label="within 20 %",
        )
        axis.set_xlim(low, high)
        axis.set_ylim(low, high)
        axis.set_xlabel("measured latency together, ms")
        axis.set_ylabel("device model, ms")
        axis.legend(loc="upper left")
    save(pyplot, figure, path)
    return "Latency together, as measured and by the device model; held-out cases only."


def _write_page(directory: Path, report: DeviceReport, captions: dict[str, str]) -> None:
    rows = "".join(
        f"<tr><td>{html.escape(check.name)}<td>{check.errors.n:,}<td>{check.errors.median:.1%}<td>{check.errors.p90:.1%}"
        f"<td>{check.errors.worst:.1%}<td>{html.escape(check.errors.worst_case)}</tr>"
        for check in report.checks
    )
    head = "<tr><th>check<th>held out<th>median<th>p90<th>worst<th>case</tr>"
    text = f"cotenant-lab study device, seed {report.seed}; relative errors."
    title = "The device model against measurements"
    write_plots_page(directory, title, text, head, rows, captions, report.met)


def write_plots_page(
    directory: Path,
    title: str,
    text: str,
    head: str,
    rows: str,
    captions: Mapping[str, str],
    met: Mapping[str, bool],
) -> None:
    """Write the page of a study: which of its targets are met, a table, and the drawings.

    The drawings are part of the page, because a browser shows no values on hover in an image that a page refers to.
    """
    drawings = (
        f"<figure>{_inline(directory / name, caption)}"
        f'<figcaption>{html.escape(caption)} <a href="{name}">{name}</a></figcaption></figure>'
        for name, caption in captions.items()
    )
    table = f"<div class=scroll tabindex=0><table>{head}{rows}</table></div>"
    body = [f"<p>{html.escape(text)}</p>", table, *drawings]
    page = html_page(title, targets_sentence(met), read_machine(), body, _STYLE, is_measured=False)
    replace_file(directory / INDEX, page.encode())


def _inline(path: Path, caption: str) -> str:
    """Return the SVG element of a file, with a label for readers that do not see it."""
    element = path.read_text().partition("<svg ")[2]
    return f'<svg role=img aria-label="{html.escape(caption)}" {element}'


def targets_sentence(met: Mapping[str, bool]) -> str:
    """Return in one sentence how many targets of a study are met, and which are missed."""
    if not met:
        return "This run was too short to be compared with the targets of the study."
    missed = [name for name, is_met in met.items() if not is_met]
    names = f"; missed: {', '.join(missed)}" if missed else ""
    return f"{len(met) - len(missed)} of {len(met)} targets of this study are met{names}."
