"""What all HTML reports have in common: a conclusion, where and when they were made, and tables that scroll."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

from cotenant import __version__
from cotenant.errors import ConfigError
from cotenant.runner.atomic_file import check_replaceable, replace_file
from cotenant.runner.clock import rfc3339
from cotenant.runner.machine import MachineState

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin-top: 2.2rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { padding: .3rem .6rem; text-align: left; } tr + tr { border-top: 1px solid var(--line); }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
.grid { stroke: var(--line); } .curve { fill: none; stroke-width: 2; } .value { fill: #8880; }
.value:hover { fill: currentColor; } .conclusion { font-weight: 600; } p.note { opacity: .75; }
.warning { border-left: 4px solid #c0563f; padding-left: .6rem; }
"""


def html_page(
    title: str,
    conclusion: str,
    machine: MachineState,
    body: Iterable[str],
    style: str = "",
    *,
    is_measured: bool = True,
) -> str:
    """Return a report: its conclusion in one sentence, then where it was made, then the rest.

    With `is_measured` the report depends on the speed of the machine, and says so if the machine was busy.
    """
    head = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style>",
        f"<h1>{escape(title)}</h1>",
        f"<p class=conclusion>{escape(conclusion)}</p>",
        f"<p class=note>{escape(origin(machine))}</p>",
    ]
    if is_measured and machine.is_busy:
        head.append(f"<p class=warning>{escape(busy_warning(machine))}</p>")
    return "\n".join([*head, *body, "</html>\n"])


def origin(machine: MachineState) -> str:
    """Return date, version, machine and load as a sentence."""
    date = rfc3339(machine.at_unix_ns)[:16].replace("T", " ")
    cores = f"{machine.cores} core{'' if machine.cores == 1 else 's'}"
    return (
        f"Made on {date} UTC by cotenant {__version__} on {cores} of {machine.processor}; "
        f"load average of the minute before: {machine.load:.1f}."
    )


def busy_warning(machine: MachineState) -> str:
    """Return the sentence about a machine that other programs used."""
    return (
        f"The machine was busy (load average {machine.load:.1f} on {machine.cores} cores before the run): "
        "the figures are unreliable. Repeat the run on an idle machine."
    )


def scrolling_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    """Yield a table of cells that are HTML already; one that is wider than the page scrolls."""
    yield "<div class=scroll tabindex=0><table><tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>"
    yield "</table></div>"


def hover_points(points: Iterable[tuple[float, float, str]]) -> str:
    """Return invisible points of a chart that show their value on hover."""
    return "".join(
        f"<circle class='value' cx='{x:.1f}' cy='{y:.1f}' r='5'><title>{escape(text)}</title></circle>"
        for x, y, text in points
    )


def check_report(flag: str, file: str) -> Path:
    """Return the path of a report; raise ConfigError, before the run, if it cannot be written."""
    try:
        check_replaceable(Path(file))
    except OSError as error:
        raise ConfigError(flag, file, f"cannot be written: {error.strerror}; choose another file") from None
    return Path(file)


def write_report(flag: str, path: Path, text: str) -> None:
    """Write a report; an interrupted command leaves an existing one as it was."""
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise ConfigError(flag, str(path), f"cannot be written: {error.strerror}; choose another file") from None
