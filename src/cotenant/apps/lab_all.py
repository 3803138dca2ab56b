"""Wires all labs of papers into one report: runs what was not kept from before, and shows it as a table or a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Final, Protocol

import msgspec
from rich.console import Console
from rich.text import Text

from cotenant.apps.lab import measurement_bytes
from cotenant.apps.lab_arkgpu import run_arkgpu
from cotenant.apps.lab_dstack import run_dstack
from cotenant.apps.lab_fikit import run_fikit
from cotenant.apps.lab_muxflow_cluster import run_muxflow_cluster
from cotenant.apps.report.page import STYLE
from cotenant.apps.show import table
from cotenant.errors import ConfigError
from cotenant.experiment.lab.all_claims import LABS, Report, Told, told_of


class Lab(Protocol):
    """Runs a lab, and returns its report."""

    def __call__(
        self, directory: Path, seed: int, console: Console, say: Callable[[str], None], *, quick: bool
    ) -> object: ...


def _fikit(directory: Path, seed: int, console: Console, say: Callable[[str], None], *, quick: bool) -> object:
    return run_fikit(directory, "", seed, console, say, quick=quick)


def _arkgpu(directory: Path, seed: int, console: Console, say: Callable[[str], None], *, quick: bool) -> object:
    report, _ = run_arkgpu(directory, seed, console, say, quick=quick, live=not quick)
    return report


RUNS: Final[Mapping[str, Lab]] = {
    "fikit": _fikit,
    "arkgpu": _arkgpu,
    "dstack": run_dstack,
    "muxflow": run_muxflow_cluster,
}


def run_all(
    directory: Path,
    reuse: str,
    seed: int,
    console: Console,
    say: Callable[[str], None],
    *,
    quick: bool,
    runs: Mapping[str, Lab] = RUNS,
) -> Report:
    """Each lab's own report, from `reuse`/LAB.json if it is there; else it is run, and kept there if that was named."""
    kept = Path(reuse) if reuse else None
    if kept is not None and not kept.is_dir():
        raise ConfigError("--reuse", reuse, "no such directory; name one with LAB.json files, or an empty one")
    labs: list[Told] = []
    for lab in LABS:
        path = None if kept is None else kept / f"{lab}.json"
        if path is not None and path.exists():
            say(f"{lab}: as {path} has it")
            labs.append(told_of(lab, measurement_bytes(path), str(path)))
            continue
        say(f"{lab}: running")
        content = msgspec.json.encode(runs[lab](directory, seed, console, say, quick=quick))
        if path is not None:
            _write(path, content)
        labs.append(told_of(lab, content, lab))
    return Report(labs=labs)


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError("file", str(path), f"cannot be written: {error.strerror}; choose another place") from None


def show_all(console: Console, report: Report) -> None:
    """`cotenant lab all`."""
    rows: list[list[str | Text]] = [
        [one.lab, one.claim, one.ours, one.measured, one.does_not_show] for told in report.labs for one in told.claims
    ]
    columns = ["LAB", "CLAIM, AS PUBLISHED", "OUR FIGURE", "HOW MEASURED", "WHAT IT DOES NOT SHOW"]
    console.print(table("what the papers claim, and what our labs find", columns, rows, fold=True))
    console.print()
    for told in report.labs:
        missed = [target for target, met in told.met.items() if not met]
        quick = ", quick: fewer and shorter cases" if told.quick else ""
        said = f"{told.lab} (seed {told.seed}{quick}): {len(told.met) - len(missed)} of {len(told.met)} own targets met"
        console.print(Text(said, style="green" if not missed else ""))
        for target in missed:
            console.print(Text(f"  missed: {target}", style="bold red"))


def write_page(path: Path, report: Report) -> None:
    """The same as a page of its own."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>cotenant: all labs</title><style>{STYLE}td, th {{ text-align: left; vertical-align: top; }}</style>",
        "<h1>What the papers claim, and what cotenant's labs find</h1>",
    ]
    for told in report.labs:
        quick = "; quick: fewer and shorter cases" if told.quick else ""
        parts.append(f"<h2>{escape(told.lab)}</h2><p>{escape(told.paper)}; seed {told.seed}{quick}</p>")
        heads = "".join(f"<th>{name}" for name in ("claim", "our figure", "how measured", "what it does not show"))
        parts.append(f"<table><tr>{heads}</tr>")
        for one in told.claims:
            cells = (one.claim, one.ours, one.measured, one.does_not_show)
            parts.append("<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells) + "</tr>")
        parts.append("</table><ul>")
        for target, met in told.met.items():
            parts.append(f"<li>{'met' if met else '<b>missed</b>'}: {escape(target)}")
        parts.append("</ul>")
    _write(path, "\n".join([*parts, "</html>"]).encode())
