"""Serve while models are loaded, unloaded and replaced and workers are killed: no admitted request may be lost.

The models run in worker processes on a software V100. Clients send requests one after the other. Meanwhile one thread
loads and unloads a model, replaces another one by a changed file, and kills one worker at a time.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console

from cotenant.runner.clock import monotonic_ns, pause
from cotenant.serve.replay_model_format import SUFFIX, encode_replay
from cotenant.units.instant import SECOND_NS, Duration
from cotenant_lab.bench.goodput.replay import PRESET, replay_model
from cotenant_lab.errors import RunFailedError
from cotenant_lab.programs.site import NodeSite

FULL_NS: Final = 600 * SECOND_NS
QUICK_NS: Final = 20 * SECOND_NS
MAX_GROWTH: Final = 1.05
"""Memory of the last third of the run over that of the second third."""
_CLIENTS: Final = 4
_ELEMENTS: Final = 256
_PERIOD_S: Final = 1.0
"""Time between two changes. Our choice: longer than the restart of a worker, so that a run loses one worker at most."""
_TOKEN: Final = "soak-0123456789abcdef"  # noqa: S105  of a server that exists during the bench only
_STEADY, _REPLACED, _CYCLED = "steady", "replaced", "cycled"
_REFUSALS: Final = (404, 429)


class SoakReport(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of requests and changes, and the growth of memory."""

    seconds: float
    answered: int
    refused: int
    """Not admitted: their model was unloaded, its queue was full, or its workers were being restarted."""
    lost: int
    """Admitted and not answered."""
    lost_reasons: dict[str, int]
    loads: int
    unloads: int
    replacements: int
    workers_killed: int
    memory_mib: list[float]
    """Resident memory of the server in the second and in the last third."""
    memory_growth: float
    met: dict[str, bool]


class _Run:
    """The state that all threads share."""

    def __init__(self, ports: dict[str, Any], process: subprocess.Popen[bytes], folder: Path) -> None:
        self.ports = ports
        self.process = process
        self.folder = folder
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.memory: list[tuple[int, float]] = []

    def count(self, name: str, reason: str = "") -> None:
        with self.lock:
            self.counts[name] += 1
            if reason:
                self.reasons[reason[:120]] += 1

    def send_requests(self, names: tuple[str, ...]) -> None:
        """Send requests one after the other until the end, on one connection."""
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, _ELEMENTS], "data": [0.0] * _ELEMENTS}
        body = json.dumps({"inputs": [tensor]})
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["http"], timeout=120)
        for name in itertools.cycle(names):
            if self.stop.is_set():
                break
            try:
                connection.request("POST", f"/v2/models/{name}/infer", body)
                answer = connection.getresponse()
                text = answer.read().decode()
            except (OSError, http.client.HTTPException) as error:
                self.count("lost", f"{name}: {type(error).__name__}: {error}")
                connection.close()
                continue
            if answer.status == 200:
                self.count("answered")
            elif answer.status in _REFUSALS or (answer.status == 503 and " failed: " not in text):
                self.count("refused")
            else:
                self.count("lost", f"{name}: {answer.status}: {text}")
        connection.close()

    def control(self, action: str, name: str) -> None:
        """Load or unload a model."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["admin"], timeout=120)
        try:
            path = f"/v2/repository/models/{name}/{action}"
            connection.request("POST", path, "{}", {"Authorization": f"Bearer {_TOKEN}"})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise RunFailedError(f"the server cannot {action} {name!r}: {text}")

    def change(self) -> None:
        """Change models and kill workers in turn until the end."""
        for number in itertools.count():
            if self.stop.wait(_PERIOD_S):
                return
            step = number % 4
            if step == 0:
                self.control("unload", _CYCLED)
                self.count("unloads")
            elif step == 1:
                self.control("load", _CYCLED)
                self.count("loads")
            elif step == 2:
                write_model(self.folder, _REPLACED, number)
                self.control("load", _REPLACED)
                self.count("replacements")
            elif workers := _children(self.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(workers[number % len(workers)], signal.SIGKILL)
                    self.count("workers killed")
            self.memory.append((monotonic_ns(), _resident_mib(self.process.pid)))


def write_model(folder: Path, name: str, version: int) -> None:
    """Write a model; each version has another duration."""
    model = replay_model(0.3, 2.0 + 0.1 * (version % 5))
    temporary = folder / f".{name}"
    temporary.write_text(encode_replay(model, f"version {version}"))
    temporary.rename(folder / f"{name}{SUFFIX}")


def _children(pid: int) -> list[int]:
    """Return the worker processes of the server."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            children += map(int, (task / "children").read_text().split())
    return sorted(child for child in children if _is_worker(child))


def _is_worker(pid: int) -> bool:
    try:
        return b"gpu.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@contextlib.contextmanager
def _server(home: Path) -> Iterator[_Run]:
    folder = home / "models"
    folder.mkdir()
    for name in (_STEADY, _REPLACED, _CYCLED):
        write_model(folder, name, 0)
    (home / "token").write_text(_TOKEN)
    (home / "site").mkdir()
    with NodeSite(home / "site", PRESET, ("--mps", "on")) as site, (home / "log").open("wb") as log:
        command = [
            *(sys.executable, "-m", "cotenant", "serve", "run", str(folder), "--json"),
            *("--http-port", "0", "--grpc-port", "-1", "--metrics-port", "-1", "--admin-port", "0"),
            *("--model-control", "explicit", "--admin-token-file", str(home / "token")),
            *("--runtime", "replay", "--gpu", "soft:0", "--tenants", "no", "--workers", "12"),
            *("--runtime-dir", str(site.directories.runtime), "--state-dir", str(site.directories.state)),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RunFailedError(f"the server does not start: {(home / 'log').read_text()[-500:]}")
            yield _Run(json.loads(line), process, folder)
        finally:
            process.terminate()
            process.communicate(timeout=60)  # also closes its standard output


def bench_soak(for_ns: Duration, report: Callable[[str], None]) -> SoakReport:
    """Run for this time; print the counts every ten seconds."""
    with tempfile.TemporaryDirectory() as home, _server(Path(home)) as run:
        clients = [
            threading.Thread(target=run.send_requests, args=(names,), daemon=True)
            for names in itertools.islice(itertools.cycle(((_STEADY, _REPLACED), (_REPLACED, _CYCLED))), _CLIENTS)
        ]
        failure: list[Exception] = []

        def change() -> None:
            try:
                run.change()
            except Exception as error:  # noqa: BLE001  reported below; the clients must end first
                failure.append(error)

        changer = threading.Thread(target=change, daemon=True)
        began = monotonic_ns()
        for thread in (*clients, changer):
            thread.start()
        shown = 0
        while (elapsed_ns := monotonic_ns() - began) < for_ns and not failure and run.process.poll() is None:
            pause(0.2)
            if elapsed_ns // (10 * SECOND_NS) > shown:
                shown = elapsed_ns // (10 * SECOND_NS)
                report(f"{elapsed_ns // SECOND_NS} s of {for_ns // SECOND_NS} s: {dict(run.counts)}")
        ended_ns = monotonic_ns() - began
        run.stop.set()
        for thread in (*clients, changer):
            thread.join(120)
        if failure:
            raise failure[0]
        if run.process.poll() is not None:
            raise RunFailedError(f"the server ended with {run.process.returncode}: {dict(run.reasons)}")
        return _report(run, began, ended_ns)


def _report(run: _Run, began: int, ended_ns: Duration) -> SoakReport:
    counts = run.counts
    parts = ((1 / 3, 2 / 3), (2 / 3, 9.0))
    thirds = [[mib for at, mib in run.memory if first <= (at - began) / ended_ns < last] for first, last in parts]
    medians = [round(statistics.median(third), 1) if third else 0.0 for third in thirds]
    growth = round(medians[1] / medians[0], 3) if medians[0] else 1.0
    return SoakReport(
        seconds=round(ended_ns / SECOND_NS, 1),
        answered=counts["answered"],
        refused=counts["refused"],
        lost=counts["lost"],
        lost_reasons=dict(run.reasons),
        loads=counts["loads"],
        unloads=counts["unloads"],
        replacements=counts["replacements"],
        workers_killed=counts["workers killed"],
        memory_mib=medians,
        memory_growth=growth,
        met={
            "no admitted request is lost": not counts["lost"],
            f"memory grows by at most {MAX_GROWTH - 1:.0%}": growth <= MAX_GROWTH,
        },
    )


def show_soak(console: Console, report: SoakReport) -> None:
    """Print the counts and targets."""
    console.print(f"{report.seconds:g} s: {report.answered} answered, {report.refused} refused, {report.lost} lost")
    changes = f"{report.loads} loads, {report.unloads} unloads, {report.replacements} replacements"
    console.print(f"{changes}, {report.workers_killed} workers killed")
    console.print(f"memory of the server: {report.memory_mib[0]} MiB, later {report.memory_mib[1]} MiB")
    for reason, count in report.lost_reasons.items():
        console.print(f"  {count} x {reason}")
    for target, met in report.met.items():
        console.print(f"{target}: {'met' if met else 'missed'}")
