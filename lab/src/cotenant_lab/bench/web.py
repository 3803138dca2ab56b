"""Bench `web`: what the web console costs a node with many tenants, and how soon its page shows them.

The console is a process of its own, which `cotenant node --web` starts: here it is started and stopped next to a node
that keeps running, so that each round compares the same node and tenants without it, with it but without a page, and
with one open page.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import msgspec
from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant.errors import WorldError
from cotenant.runner.clock import pause
from cotenant.runner.process import start_with_pipes
from cotenant.web.static import NOT_BUILT, StaticFiles
from cotenant_lab.bench.device import cpu_ns
from cotenant_lab.errors import RunFailedError
from cotenant_lab.programs.site import NodeSite, TenantProgram

PRESET: Final = "v100"
TARGETS: Final = {"node_cpu_pct": 5.0, "closed_cpu_pct": 0.5, "render_ms": 1000.0}
"""The largest value of each that is aimed for."""
_PERIOD_US: Final = 500_000
_KERNELS: Final = {"online": (4, 100_000), "offline": (8, 500_000)}
"""Number and duration of the kernels that a tenant launches in each period."""
_WARM_S: Final = 1.5
_RENDERS: Final = 5
WEB: Final = Path(__file__).resolve().parents[4] / "web"


class WebSize(msgspec.Struct, frozen=True):
    """The machine that is shown, and how long each phase of a round is."""

    gpus: int
    tenants: int
    phase_s: float


FULL: Final = WebSize(8, 64, 4.0)
QUICK: Final = WebSize(2, 4, 2.0)


class WebReport(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over rounds; processor time is in percent of one core."""

    bench: str
    gpus: int
    tenants: int
    rounds: int
    node_cpu_pct: float
    """The node's process while a page is open."""
    closed_cpu_pct: float
    """Node and console without a page, minus the node without a console."""
    render_ms: float | None
    """From opening the page in Chromium until all tenants are visible; None without a browser."""
    page_adds_cpu_pct: float
    """Node and console with an open page, minus the node without a console."""
    node_alone_cpu_pct: float
    """The node's process without a console."""
    console_cpu_pct: float
    """The console's process while a page is open."""
    page_bytes_per_s: float
    """What an open page receives."""
    met: dict[str, bool]
    """Targets of the full bench that were measured; empty in a quick run."""


class Phase(msgspec.Struct, frozen=True):
    """Processor time in one phase of a round, in percent of one core."""

    node_pct: float
    console_pct: float = 0.0
    bytes_per_s: float = 0.0


def bench_web(rounds: int, report: Callable[[str], None], *, quick: bool) -> WebReport:
    """Measure a node of software GPUs with tenants that launch a few kernels twice a second."""
    size = QUICK if quick else FULL
    home = Path(tempfile.mkdtemp(prefix="cotenant-bench-"))
    phases: dict[str, list[Phase]] = {"alone": [], "closed": [], "open": []}
    try:
        with NodeSite(home, PRESET, ("--slots", str(size.tenants)), size.gpus) as site:
            report(f"starting {size.tenants} tenants on {size.gpus} software GPUs")
            with _tenants(site, size):
                for number in range(1, rounds + 1):
                    report(f"round {number} of {rounds}: without a console, without a page, with a page")
                    for name, phase in _round(site, size, number).items():
                        phases[name].append(phase)
                report(f"opening the page {_RENDERS} times in Chromium")
                render_ms = _render_ms(site, size, report)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return summarize(size, phases, render_ms, has_targets=not quick)


def summarize(
    size: WebSize, phases: dict[str, list[Phase]], render_ms: float | None, *, has_targets: bool
) -> WebReport:
    """Return the medians; the cost without a page is compared within each round, because a machine's speed varies."""
    pairs = zip(phases["closed"], phases["alone"], strict=True)
    node_pct = statistics.median(phase.node_pct for phase in phases["open"])
    closed_pct = statistics.median(closed.node_pct + closed.console_pct - alone.node_pct for closed, alone in pairs)
    values = {"node_cpu_pct": node_pct, "closed_cpu_pct": closed_pct, "render_ms": render_ms}
    return WebReport(
        bench="web",
        gpus=size.gpus,
        tenants=size.tenants,
        rounds=len(phases["open"]),
        node_cpu_pct=node_pct,
        closed_cpu_pct=closed_pct,
        render_ms=render_ms,
        page_adds_cpu_pct=statistics.median(
            opened.node_pct + opened.console_pct - alone.node_pct
            for opened, alone in zip(phases["open"], phases["alone"], strict=True)
        ),
        node_alone_cpu_pct=statistics.median(phase.node_pct for phase in phases["alone"]),
        console_cpu_pct=statistics.median(phase.console_pct for phase in phases["open"]),
        page_bytes_per_s=statistics.median(phase.bytes_per_s for phase in phases["open"]),
        met={name: value <= TARGETS[name] for name, value in values.items() if value is not None}
        if has_targets
        else {},
    )


@contextlib.contextmanager
def _tenants(site: NodeSite, size: WebSize) -> Iterator[None]:
    """Run the tenants, half of them online and half offline on every GPU, once all of them have launched."""
    origin_ns = site.clock.now()
    programs = []
    for number in range(size.tenants):
        kind = ("online", "offline")[number // size.gpus % 2]
        flags = ["--gpu", f"soft:{number % size.gpus}", f"--{kind}", "--memory", "1GiB"]
        flags += ["--slo", "50ms"] if kind == "online" else []
        name = f"{kind}{number}"
        shift_ns = origin_ns + number * _PERIOD_US * 1000 // size.tenants  # they do not all launch at the same time
        service = ["cotenant_lab.programs.service", str(site.home / f"{name}.log"), str(_PERIOD_US), str(shift_ns)]
        programs.append(TenantProgram(site, name, flags, [*service, *map(str, _KERNELS[kind])]))
    try:
        for program in programs:
            program.start()
        for _ in site.until("not all tenants have launched"):
            if all(program.last_line() for program in programs):
                break
        yield
    finally:
        for program in programs:
            program.end()


def _round(site: NodeSite, size: WebSize, number: int) -> dict[str, Phase]:
    """Measure the phases of one round; the order alternates, so that a drift of the machine affects all of them."""
    found = {}
    for name in ("alone", "closed", "open") if number % 2 else ("open", "closed", "alone"):
        found[name] = _measure_phase(site, size, name)
    return found


def _measure_phase(site: NodeSite, size: WebSize, name: str) -> Phase:
    node = site.tenants().pid
    if name == "alone":
        pause(_WARM_S)
        (node_pct,) = _cpu_pct(site, (node,), size.phase_s)
        return Phase(node_pct)
    with (
        _console(site) as (process, authority),
        _Page(authority) if name == "open" else contextlib.nullcontext() as page,
    ):
        pause(_WARM_S)
        before = 0 if page is None else page.received_bytes
        node_pct, console_pct = _cpu_pct(site, (node, process.pid), size.phase_s)
        after = 0 if page is None else page.received_bytes
        if page is not None and after == before:
            raise RunFailedError("the open page received nothing: nothing was measured")
        return Phase(node_pct, console_pct, (after - before) / size.phase_s)


def _cpu_pct(site: NodeSite, pids: Sequence[int], seconds: float) -> list[float]:
    """Return the processor time of these processes during some seconds, in percent of one core."""
    begin_ns, before = site.clock.now(), [cpu_ns(pid) for pid in pids]
    pause(seconds)
    elapsed_ns, after = site.clock.now() - begin_ns, [cpu_ns(pid) for pid in pids]
    return [100 * (end - begin) / elapsed_ns for begin, end in zip(before, after, strict=True)]


@contextlib.contextmanager
def _console(site: NodeSite) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a console of the node; give its process and its host and port."""
    command = [sys.executable, "-m", "cotenant", "web", *site.directory_flags(), "--listen", "127.0.0.1:0"]
    process = start_with_pipes(command)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        if "web console: http://" not in line:
            raise RunFailedError(f"the web console did not start: {line.strip()}")
        yield process, line.split()[-1].removeprefix("http://").partition("/")[0]
    finally:
        process.terminate()
        process.communicate()


class _Page:
    """Receives what an open page of the GPUs receives: the page itself follows the same stream."""

    def __init__(self, authority: str) -> None:
        self.received_bytes = 0
        self._connection = http.client.HTTPConnection(authority, timeout=60)
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def __enter__(self) -> Self:
        self._connection.request("GET", "/api/stream?topics=node")
        self._socket = self._connection.sock  # the connection forgets it, because the response has no end
        self._response = self._connection.getresponse()
        if self._response.status != 200:
            raise RunFailedError(f"the web console answered {self._response.status}")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # the console may have ended
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()

    def _receive(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._response.read1(1 << 16):
                self.received_bytes += len(data)


def _render_ms(site: NodeSite, size: WebSize, report: Callable[[str], None]) -> float | None:
    node, chromium = shutil.which("node"), shutil.which("chromium")
    missing = _missing(node, chromium)
    if missing or node is None or chromium is None:
        report(f"render_ms is not measured: {missing}")
        return None
    with _console(site) as (_, authority):
        words = [node, "render.mjs", f"http://{authority}/", str(size.tenants), str(_RENDERS)]
        environ = {**os.environ, "COTENANT_CHROMIUM": chromium}
        done = subprocess.run(words, cwd=WEB / "tests", env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise WorldError(f"Chromium did not show the tenants: {last}")
    return statistics.median(msgspec.json.decode(done.stdout, type=list[float]))


def _missing(node: str | None, chromium: str | None) -> str:
    """Return what is needed to open the page and is not there, with the remedy; empty: everything is there."""
    if not StaticFiles().is_built:
        return NOT_BUILT
    if chromium is None:
        return "no browser is installed: apt-get install chromium"
    if node is None or not (WEB / "node_modules" / "playwright-core").is_dir():
        return "Playwright is not installed: run `make web` in a checkout of the project (needs Node 20)"
    return ""


def show_web(console: Console, report: WebReport) -> None:
    """Print the measurements with their targets."""
    render = "not measured" if report.render_ms is None else f"{report.render_ms:.0f} ms"
    rows = [
        ("node with an open page", f"{report.node_cpu_pct:.2f} %", _target("node_cpu_pct", report)),
        ("added without a page", f"{report.closed_cpu_pct:.2f} %", _target("closed_cpu_pct", report)),
        ("time until the page shows the tenants", render, _target("render_ms", report)),
        ("added by an open page", f"{report.page_adds_cpu_pct:.2f} %", ""),
        ("node without a console", f"{report.node_alone_cpu_pct:.2f} %", ""),
        ("console with an open page", f"{report.console_cpu_pct:.2f} %", ""),
        ("data of an open page", f"{report.page_bytes_per_s / 1000:.0f} kB/s", ""),
    ]
    title = f"web console: {report.gpus} GPUs, {report.tenants} tenants, processor time in percent of one core"
    console.print(table(title, ("MEASURED", "VALUE", "TARGET"), rows))


def _target(name: str, report: WebReport) -> str:
    if name not in report.met:
        return ""
    return f"{TARGETS[name]:g}: {'met' if report.met[name] else 'MISSED'}"
