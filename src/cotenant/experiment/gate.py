"""What does the gate cost a launch, and how fast does it react? An idle driver, and processes on a software GPU."""

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

from cotenant.domain.gate import GateRules, GateSeat
from cotenant.errors import WorldError
from cotenant.live.clock import pause
from cotenant.live.gate import LiveGates, path_of
from cotenant.live.hook import door, probe
from cotenant.live.page import SLOT_VARIABLE
from cotenant.live.process import run_to_end, start_piped
from cotenant.live.softgpu import manage
from cotenant.policy.schedule import roster

ONLINE: Final = 0
OFFLINE: Final = 1
BURSTS: Final = 150
CALLS: Final = 1_500
"""Short bursts: one of a tenth of a millisecond is rarely interrupted by another process."""
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
_ENDLESS: Final = 10**9


def bench_gate(rounds: int, say: Callable[[str], None]) -> dict[str, object]:
    """Medians of bursts that alternate in one process; counts and quantiles of two tenants on one software GPU."""
    rows: dict[str, list[list[float]]] = {"hook": [], "online": [], "offline": []}
    home = Path(tempfile.mkdtemp(prefix="cotenant-bench-"))
    try:
        for number in range(1, rounds + 1):
            say(f"round {number} of {rounds}: {len(rows)} times {BURSTS} bursts of {CALLS} launches")
            for way, found in rows.items():
                found.extend(_compare(home / f"{way}{number}", way))
        say(f"{LAUNCHES} launches of an online tenant above a busy offline one, then {REQUESTS} requests with pauses")
        manage.create(home / "gpu", "v100", 1)
        try:
            reaction = {**_under_load(home / "load", home / "gpu"), **_idle_to_offline(home / "idle", home / "gpu")}
        finally:
            manage.destroy(home / "gpu")
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return {
        "bench": "gate",
        "rounds": rounds,
        "plain_ns": statistics.median(row[0] for found in rows.values() for row in found),
        "hook_added_ns": _added_ns(rows["hook"]),
        "online_added_ns": _added_ns(rows["online"]),
        "offline_added_ns": _added_ns(rows["offline"]),
        **reaction,
    }


def _added_ns(rows: Sequence[Sequence[float]]) -> float:
    return statistics.median(row[1] - row[0] for row in rows)


class _Stage:
    """A device's gate with an online and an offline seat, and programs in them."""

    def __init__(self, home: Path, driver: Path, base: dict[str, str], delay_ppm: int = GateRules().delay_ppm) -> None:
        home.mkdir()
        self._home = home
        self._driver = driver
        self._base = base
        self._gates = LiveGates(home / "gates", 2)
        seats = (GateSeat(ONLINE, 1, 2, online=True), GateSeat(OFFLINE, 1, 7, online=False))
        self._gates.seat(0, GateRules(delay_ppm=delay_ppm, seats=seats))
        self.file = path_of(home / "gates", 0)
        self._running: list[subprocess.Popen[str]] = []

    def environ(self, slot: int | None) -> dict[str, str]:
        """What a probe in a seat is started with; without a seat the hook alone is there."""
        home = self._home / str(slot)
        home.mkdir(exist_ok=True)
        environ = probe.environment(home, self._driver, self._base, measure=False, sample=64)
        if slot is None:
            return environ
        (home / "records" / "gate").symlink_to(self.file)
        return {**environ, SLOT_VARIABLE: f"{slot}/1"}

    def start(self, slot: int | None, *words: object) -> subprocess.Popen[str]:
        process = start_piped(_command(*words), self.environ(slot))
        self._running.append(process)
        return process

    def page(self, slot: int) -> dict[str, Any]:
        with self.file.open("rb") as file:
            file.seek(roster.page_offset(slot))
            return roster.read_page(file.read(roster.PAGE_BYTES))

    def launch_instants(self, slot: int, until: subprocess.Popen[str]) -> list[int]:
        """Every instant at which a tenant passed, read from the latest few in its page while another program runs."""
        seen, instants = self.page(slot)["sequence"], []
        while until.poll() is None:
            pause(_LOOK_S)
            page = self.page(slot)
            recent: list[int] = page["recent_ns"]
            first = max(seen, page["sequence"] - len(recent) + 2)
            instants += [recent[number % len(recent)] for number in range(first + 1, page["sequence"] + 1)]
            seen = page["sequence"]
        return instants

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()
        self._gates.close()


def _compare(home: Path, way: str) -> list[list[float]]:
    stage = _Stage(home, door.idle_driver(), {})
    try:
        slot = {"hook": None, "online": ONLINE, "offline": OFFLINE}[way]
        for other in {ONLINE, OFFLINE} - {slot}:  # beside who is not seen yet nothing is learned
            run_to_end(_command("compare", 1, 1), stage.environ(other))
        said = run_to_end(_command("compare", BURSTS, CALLS), stage.environ(slot))
        rows: list[list[float]] = msgspec.json.decode(said)
        if slot is not None and not stage.page(slot)["sequence"]:
            raise WorldError("the hook found no gate: nothing was measured")
    finally:
        stage.close()
    return rows


def _before_softgpu(home: Path, gpu: Path) -> _Stage:
    """Nothing is paid off: a gate that is closed for debt is meant to be, and says nothing of how fast one reacts."""
    return _Stage(home, manage.library(), {**manage.env(gpu, base={}), "CUDA_VISIBLE_DEVICES": "0"}, 1_000_000)


def _told(process: subprocess.Popen[str]) -> Any:
    said, complained = process.communicate()
    if process.returncode:
        raise WorldError(f"a probe ended with {process.returncode}: {(complained.strip().splitlines() or ['?'])[-1]}")
    return msgspec.json.decode(said)


def _under_load(home: Path, gpu: Path) -> dict[str, object]:
    """Admissions of the tenant below while the one above launches all the time."""
    stage = _before_softgpu(home, gpu)
    try:
        stage.start(OFFLINE, "requests", 1, _ENDLESS, OFFLINE_KERNEL_NS, 0)  # it always has another launch
        online = stage.start(ONLINE, "requests", LAUNCHES // BATCH, BATCH, KERNEL_NS, PAUSE_NS)
        _told(online)
        above, below = stage.page(ONLINE), stage.page(OFFLINE)
    finally:
        stage.close()
    return {
        "online_launches": above["launches"],
        "online_waits": above["waits"],
        "offline_admissions": below["admitted"],
        "stale_admissions": below["stale"],
        "late_submit_per_100k": 100_000 * below["late"] / above["launches"],
        "late_submit_us": below["late_ns"] / below["late"] / 1e3 if below["late"] else 0.0,
    }


def _idle_to_offline(home: Path, gpu: Path) -> dict[str, object]:
    """From the end of the wait of the tenant above to the next pass of the one that waits below."""
    stage = _before_softgpu(home, gpu)
    try:
        stage.start(OFFLINE, "requests", 1, _ENDLESS, OFFLINE_KERNEL_NS, 0)  # it always has another launch
        online = stage.start(ONLINE, "requests", REQUESTS, REQUEST, LONG_KERNEL_NS, LONG_PAUSE_NS)
        floor = stage.start(None, "floor", REQUESTS)
        passes = stage.launch_instants(OFFLINE, online)
        requests: list[tuple[int, int]] = _told(online)
        floor_ns: list[int] = _told(floor)
    finally:
        stage.close()
    late_ns, early = [], 0
    for launched_ns, drained_ns in requests[REQUESTS // 10 :]:  # what is new to the gate is learned by then
        if bisect.bisect(passes, drained_ns) > bisect.bisect(passes, launched_ns):
            early += 1  # the device was free before the host above knew
            late_ns.append(0)
        elif bisect.bisect(passes, drained_ns) < len(passes):
            late_ns.append(passes[bisect.bisect(passes, drained_ns)] - drained_ns)
    if not late_ns:
        raise WorldError("the tenant below never passed: nothing was measured")
    return {
        "idle_requests": len(late_ns),
        "idle_foreseen": early,
        "idle_to_offline_us_p50": _quantile(late_ns, 0.5) / 1e3,
        "idle_to_offline_us_p99": _quantile(late_ns, 0.99) / 1e3,
        "floor_us_p50": _quantile(floor_ns, 0.5) / 1e3,
        "floor_us_p99": _quantile(floor_ns, 0.99) / 1e3,
    }


def _quantile(values: Sequence[int], fraction: float) -> int:
    return sorted(values)[min(len(values) - 1, int(fraction * len(values)))]


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "cotenant.live.hook.probe", *map(str, words)]
