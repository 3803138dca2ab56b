"""Bench `gate`: what the gate adds to a launch and to the start of a program, and how fast it reacts."""

from __future__ import annotations

import bisect
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.errors import WorldError
from cotenant.gate.grant import Grant, Kind
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.hook import probe, shim
from cotenant.runner.clock import pause
from cotenant.runner.process import run_and_capture, start_with_pipes
from cotenant.softgpu import manage
from cotenant_lab.bench.attach_server import AttachServer
from cotenant_lab.bench.run_start import measure_starts
from cotenant_lab.errors import RunFailedError

ONLINE: Final = 0
OFFLINE: Final = 1
BURSTS: Final = 150
CALLS: Final = 1_500
"""Short bursts: a burst of a tenth of a millisecond is rarely interrupted by another process."""
LAUNCHES: Final = 100_000
BATCH: Final = 32
KERNEL_NS: Final = 10_000
OFFLINE_KERNEL_NS: Final = 200_000
PAUSE_NS: Final = 200_000
REQUESTS: Final = 400
REQUEST: Final = 20
LONG_KERNEL_NS: Final = 100_000
LONG_PAUSE_NS: Final = 8_000_000
_LOOK_S: Final = 0.001
_ATTACH_TRIES: Final = 10_000
_ENDLESS: Final = 10**9
_SHARE_PPM: Final = 500_000
_QUOTA_BYTES: Final = 1 << 30
TARGETS: Final = {"online_added_vs_hook": 1.4, "limited_added_vs_hook": 2.8, "run_start_vs_python": 5.0}
"""The largest value of each ratio that is aimed for."""


def bench_gate(rounds: int, report: Callable[[str], None]) -> dict[str, object]:
    """Return medians of alternating bursts in one process, and counts and quantiles of two tenants."""
    rows: dict[str, list[list[float]]] = {"hook": [], "online": [], "offline": [], "limited": []}
    home = Path(tempfile.mkdtemp(prefix="cotenant-bench-"))
    try:
        for number in range(1, rounds + 1):
            report(f"round {number} of {rounds}: {len(rows)} times {BURSTS} bursts of {CALLS} launches")
            for mode, mode_rows in rows.items():
                mode_rows.extend(_compare(home / f"{mode}{number}", mode))
        report(f"{LAUNCHES} launches of an online tenant and a busy offline one, then {REQUESTS} requests with pauses")
        manage.create(home / "gpu", "v100", 1)
        try:
            reaction = {**_under_load(home / "load", home / "gpu"), **_idle_to_offline(home / "idle", home / "gpu")}
        finally:
            manage.destroy(home / "gpu")
        report("starts of a program by `cotenant run`")
        starts = measure_starts(rounds)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    added_ns = {mode: _added_ns(mode_rows) for mode, mode_rows in rows.items()}
    ratios = {
        "online_added_vs_hook": added_ns["online"] / added_ns["hook"],
        "limited_added_vs_hook": added_ns["limited"] / added_ns["hook"],
        "run_start_vs_python": statistics.median(run / bare for run, bare in starts),
    }
    return {
        "bench": "gate",
        "costs": "ideal",
        "rounds": rounds,
        "plain_ns": statistics.median(row[0] for mode_rows in rows.values() for row in mode_rows),
        **{f"{mode}_added_ns": mode_ns for mode, mode_ns in added_ns.items()},
        "run_start_ms": 1e3 * statistics.median(run for run, _ in starts),
        **ratios,
        **reaction,
        "met": {name: ratios[name] <= limit for name, limit in TARGETS.items()},
    }


def _added_ns(rows: Sequence[Sequence[float]]) -> float:
    return statistics.median(row[1] - row[0] for row in rows)


class GateSetup:
    """A device's gate with an online and an offline entry, and the programs that use them."""

    def __init__(
        self,
        home: Path,
        driver: Path,
        base: dict[str, str],
        delay_ppm: int = GateRules().delay_ppm,
        *,
        is_limited: bool = False,
    ) -> None:
        home.mkdir()
        self._home = home
        self._driver = driver
        self._base = base
        quota_bytes, share_ppm = (_QUOTA_BYTES, _SHARE_PPM) if is_limited else (0, 0)
        limited = GateEntry(OFFLINE, 1, 7, online=False, limit_ppm=share_ppm, static=is_limited)
        entries = (GateEntry(ONLINE, 1, 2, online=True), limited)
        grants = [
            Grant(ONLINE, 1, Kind.ONLINE, 2, 0, 0, 0, 0),
            Grant(OFFLINE, 1, Kind.OFFLINE, 7, 0, quota_bytes, 0, 0),
        ]
        self._server = AttachServer(grants, GateRules(delay_ppm=delay_ppm, entries=entries))
        self._running: list[subprocess.Popen[str]] = []

    def environ(self, slot: int | None) -> dict[str, str]:
        """Return the environment of a probe in a slot; without a slot only the hook is active."""
        home = self._home / str(slot)
        home.mkdir(exist_ok=True)
        environ = probe.environment(home, self._driver, self._base, measure=False, sample=64)
        return environ if slot is None else {**environ, **self._server.variables(slot)}

    def start(self, slot: int | None, *words: object) -> subprocess.Popen[str]:
        process = start_with_pipes(_command(*words), self.environ(slot))
        self._running.append(process)
        return process

    def page(self, slot: int) -> dict[str, Any]:
        for _ in range(_ATTACH_TRIES):
            if page := self._server.page(slot):
                return page
            pause(_LOOK_S)
        raise WorldError("the hook did not attach: nothing was measured")

    def launch_instants(self, slot: int, until: subprocess.Popen[str]) -> list[int]:
        """Return the instants at which a tenant was admitted, from the latest few in its page, while `until` runs."""
        last_sequence, instants = self.page(slot)["sequence"], []
        while until.poll() is None:
            pause(_LOOK_S)
            page = self.page(slot)
            recent: list[int] = page["recent_ns"]
            first = max(last_sequence, page["sequence"] - len(recent) + 2)
            instants += [recent[number % len(recent)] for number in range(first + 1, page["sequence"] + 1)]
            last_sequence = page["sequence"]
        return instants

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()
        self._server.close()


def _compare(home: Path, mode: str) -> list[list[float]]:
    setup = GateSetup(home, shim.null_driver(), {}, is_limited=mode == "limited")
    try:
        slot = {"hook": None, "online": ONLINE, "offline": OFFLINE, "limited": OFFLINE}[mode]
        for neighbour in {ONLINE, OFFLINE} - {slot}:  # the gate learns nothing about a tenant without a known neighbour
            run_and_capture(_command("compare", 1, 1), setup.environ(neighbour))
        output = run_and_capture(_command("compare", BURSTS, CALLS), setup.environ(slot))
        rows: list[list[float]] = msgspec.json.decode(output)
        if slot is not None and not setup.page(slot)["sequence"]:
            raise WorldError("the hook found no gate: nothing was measured")
    finally:
        setup.close()
    return rows


def _setup_on_softgpu(home: Path, gpu: Path) -> GateSetup:
    """Set up a gate without a debt limit: a gate that is closed because of debt does not show how fast it reacts."""
    return GateSetup(home, manage.library(), {**manage.env(gpu, base={}), "CUDA_VISIBLE_DEVICES": "0"}, 1_000_000)


def _read_output(process: subprocess.Popen[str]) -> Any:
    output, errors = process.communicate()
    if process.returncode:
        raise WorldError(f"a probe ended with {process.returncode}: {(errors.strip().splitlines() or ['?'])[-1]}")
    return msgspec.json.decode(output)


def _under_load(home: Path, gpu: Path) -> dict[str, object]:
    """Count admissions of the offline tenant while the online tenant launches all the time."""
    setup = _setup_on_softgpu(home, gpu)
    try:
        setup.start(OFFLINE, "requests", 1, _ENDLESS, OFFLINE_KERNEL_NS, 0)  # it always has another launch waiting
        online = setup.start(ONLINE, "requests", LAUNCHES // BATCH, BATCH, KERNEL_NS, PAUSE_NS)
        _read_output(online)
        online_page, offline_page = setup.page(ONLINE), setup.page(OFFLINE)
    finally:
        setup.close()
    return {
        "online_launches": online_page["launches"],
        "online_waits": online_page["waits"],
        "offline_admissions": offline_page["admitted"],
        "stale_admissions": offline_page["stale"],
        "late_submit_per_100k": 100_000 * offline_page["late"] / online_page["launches"],
        "late_submit_us": offline_page["late_ns"] / offline_page["late"] / 1e3 if offline_page["late"] else 0.0,
    }


def _idle_to_offline(home: Path, gpu: Path) -> dict[str, object]:
    """Measure the time from the end of an online request to the next admission of the waiting offline tenant."""
    setup = _setup_on_softgpu(home, gpu)
    try:
        setup.start(OFFLINE, "requests", 1, _ENDLESS, OFFLINE_KERNEL_NS, 0)  # it always has another launch waiting
        online = setup.start(ONLINE, "requests", REQUESTS, REQUEST, LONG_KERNEL_NS, LONG_PAUSE_NS)
        floor = setup.start(None, "floor", REQUESTS)
        passes = setup.launch_instants(OFFLINE, online)
        requests: list[tuple[int, int]] = _read_output(online)
        floor_ns: list[int] = _read_output(floor)
    finally:
        setup.close()
    late_ns, early = [], 0
    for launched_ns, drained_ns in requests[REQUESTS // 10 :]:  # the gate has learned the request by then
        if bisect.bisect(passes, drained_ns) > bisect.bisect(passes, launched_ns):
            early += 1  # the gate admitted before the online host noticed completion
            late_ns.append(0)
        elif bisect.bisect(passes, drained_ns) < len(passes):
            late_ns.append(passes[bisect.bisect(passes, drained_ns)] - drained_ns)
    if not late_ns:
        raise RunFailedError("the offline tenant was never admitted: nothing was measured")
    return {
        "idle_requests": len(late_ns),
        "idle_forecast": early,
        "idle_to_offline_us_p50": _quantile(late_ns, 0.5) / 1e3,
        "idle_to_offline_us_p99": _quantile(late_ns, 0.99) / 1e3,
        "floor_us_p50": _quantile(floor_ns, 0.5) / 1e3,
        "floor_us_p99": _quantile(floor_ns, 0.99) / 1e3,
    }


def _quantile(values: Sequence[int], fraction: float) -> int:
    return sorted(values)[min(len(values) - 1, int(fraction * len(values)))]


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "cotenant.hook.probe", *map(str, words)]
