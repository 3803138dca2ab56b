"""Run the studies of papers or read their reports, and print all claims as a table or a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Final, Protocol

import msgspec
from rich.console import Console
from rich.text import Text

from cotenant.cli.render.html.page import html_page, scrolling_table
from cotenant.errors import ConfigError
from cotenant.runner.atomic_file import replace_file
from cotenant.runner.clock import monotonic_ns
from cotenant.runner.machine import read_machine
from cotenant.units.instant import SECOND_NS
from cotenant_lab.study.all.claims import LABS, AllReport, StudySummary, all_report, read_report
from cotenant_lab.study.arkgpu.report import run_arkgpu
from cotenant_lab.study.baselines.run import run_baselines
from cotenant_lab.study.claim import StudyClaim, show_claims
from cotenant_lab.study.data_files import measurement_bytes
from cotenant_lab.study.dstack.report import run_dstack
from cotenant_lab.study.fikit.report import run_fikit
from cotenant_lab.study.kept_results import keep_results
from cotenant_lab.study.muxflow.run import run_muxflow

_CASES: Final = "cases"
_STYLE: Final = "td { vertical-align: top; }"


class Lab(Protocol):
    """Runs a study and returns its report."""

    def __call__(
        self, directory: Path, seed: int, console: Console, report: Callable[[str], None], *, quick: bool
    ) -> object: ...


def _fikit(directory: Path, seed: int, console: Console, report: Callable[[str], None], *, quick: bool) -> object:
    return run_fikit(directory, "", seed, console, report, quick=quick)


def _arkgpu(directory: Path, seed: int, console: Console, report: Callable[[str], None], *, quick: bool) -> object:
    # Without real processes: their results are no part of the claims, and depend on the machine.
    result, _ = run_arkgpu(directory, seed, console, report, quick=quick, live=False)
    return result


RUNS: Final[Mapping[str, Lab]] = {
    "baselines": run_baselines,
    "fikit": _fikit,
    "arkgpu": _arkgpu,
    "dstack": run_dstack,
    "muxflow": run_muxflow,
}


def run_all(
    directory: Path,
    reuse: str,
    seed: int,
    console: Console,
    report: Callable[[str], None],
    *,
    quick: bool,
    runs: Mapping[str, Lab] = RUNS,
) -> AllReport:
    """Read each study's report from `reuse`/STUDY.json if it exists; otherwise run the study and write it there.

    The results of cases are kept in `reuse`/cases while their study runs, so that an interrupted run continues.
    """
    reuse_directory = Path(reuse) if reuse else None
    if reuse_directory is not None and not reuse_directory.is_dir():
        raise ConfigError("--reuse", reuse, "is not a directory; name one with STUDY.json files, or an empty one")
    studies: list[tuple[StudySummary, list[StudyClaim]]] = []
    for lab in LABS:
        path = None if reuse_directory is None else reuse_directory / f"{lab}.json"
        if path is not None and path.exists():
            report(f"{lab}: read from {path}")
            studies.append(read_report(lab, measurement_bytes(path), str(path)))
            continue
        report(f"{lab}: running")
        begin_ns = monotonic_ns()
        with keep_results(None if reuse_directory is None else reuse_directory / _CASES):
            content = msgspec.json.encode(runs[lab](directory, seed, console, report, quick=quick))
        report(f"{lab}: done after {(monotonic_ns() - begin_ns) / SECOND_NS:.0f} s")
        if path is not None:
            _write(path, content)
        studies.append(read_report(lab, content, lab))
    return all_report(studies)


def _write(path: Path, content: bytes) -> None:
    try:
        replace_file(path, content)
    except OSError as error:
        raise ConfigError("file", str(path), f"cannot be written: {error.strerror}; choose another place") from None


def show_all(console: Console, report: AllReport) -> None:
    """Print the report of `cotenant-lab study all`."""
    show_claims(console, report.claims)
    counts = f"{report.claims_reached} of {report.claims_total} claims reached, {report.claims_unexplained} unexplained"
    console.print(Text(counts))
    console.print()
    for study in report.labs:
        missed = [target for target, met in study.met.items() if not met]
        quick = ", quick: fewer and shorter cases" if study.quick else ""
        met = f"{len(study.met) - len(missed)} of {len(study.met)} own targets met"
        text = f"{study.lab} (seed {study.seed}{quick}): {met}"
        console.print(Text(text, style="green" if not missed else ""))
        for target in missed:
            console.print(Text(f"  missed: {target}", style="bold red"))


def write_page(path: Path, report: AllReport) -> None:
    """Write the same as an HTML page."""
    heads = ("paper", "claim", "result", "worst perturbed cell", "reached", "why, or what it does not show")
    rows = []
    for claim in report.claims:
        worst = f"{claim.perturbed_worst:g} ({claim.perturbed_worst_cell})"
        cells = (claim.paper, claim.claim, claim.result, worst, "yes" if claim.reached else "no", claim.reason)
        rows.append([escape(cell) for cell in cells])
    parts = list(scrolling_table(heads, rows))
    for study in report.labs:
        quick = "; quick: fewer and shorter cases" if study.quick else ""
        parts.append(f"<h2>{escape(study.lab)}</h2><p>seed {study.seed}{quick}</p><ul>")
        for target, met in study.met.items():
            parts.append(f"<li>{'met' if met else '<b>missed</b>'}: {escape(target)}")
        parts.append("</ul>")
    conclusion = (
        f"{report.claims_reached} of {report.claims_total} claims of the papers are reached, and "
        f"{report.claims_unexplained} of the others are not explained."
    )
    title = "Claims of the papers and results of cotenant"
    _write(path, html_page(title, conclusion, read_machine(), parts, _STYLE, is_measured=False).encode())
