"""Wires the demo's second act: an online service and a training job on one software GPU, by default sharing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console

from cotenant.apps import softgpu
from cotenant.apps.show import table
from cotenant.errors import WorldError
from cotenant.format.quantity import round_duration
from cotenant.live.directory import Places
from cotenant.live.process import run_to_end, start_piped

_SECONDS: Final = "2"
_ONLINE: Final = ["--mode", "online", "--rate", "100", "--seconds", _SECONDS]
_TRAINING: Final = ["--mode", "training", "--kernel-us", "300", "--seconds", "4"]


class GpuAct(msgspec.Struct, frozen=True):
    """What the service felt alone and beside a neighbour, by its own clock and by the device's books."""

    alone: dict[str, Any]
    beside: dict[str, Any]
    waited_ns: int


def play_gpu_act(places: Places, program: Path, say: Callable[[str], None], console: Console | None) -> GpuAct:
    """Create a software V100 and replay kernel streams on it, alone and together."""
    say("demo: a software V100; an online service alone, then beside a training job that time-slices with it")
    softgpu.create(places, "v100", "1", None, None)
    try:
        online = _tenant(places, program, "--online", _ONLINE)
        alone = _summary(run_to_end(online))
        training = start_piped(_tenant(places, program, "--offline", _TRAINING))
        try:
            _await_client(places)
            before_ns = _waited_ns(places)
            beside = _summary(run_to_end(online))
            waited_ns = _waited_ns(places) - before_ns
        finally:
            training.kill()
            training.communicate()
    finally:
        softgpu.destroy(places)
    act = GpuAct(alone, beside, waited_ns)
    if console is not None:
        _show(console, act)
    return act


def _tenant(places: Places, program: Path, kind: str, arguments: list[str]) -> list[str]:
    where = ["--runtime", str(places.runtime), "--state", str(places.state), "--gpu", "soft:0"]
    command = ["--", sys.executable, str(program), *arguments, "--json"]
    return [sys.executable, "-m", "cotenant", "run", kind, *where, *command]


def _summary(said: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = msgspec.json.decode(said.strip().splitlines()[-1])
    except (IndexError, msgspec.DecodeError):
        raise WorldError(f"the replay said what is no summary: {said.strip()[-200:]!r}") from None
    return found


def _await_client(places: Places) -> None:
    """Until the training job has launched something; asking the device is what takes the time."""
    for _ in range(20_000):
        if any(client["counters"]["kernels"] for client in softgpu.books(places, "0")["clients"]):
            return
    raise WorldError("the training job never reached the software GPU; run examples/replay.py by hand to see why")


def _waited_ns(places: Places) -> int:
    waited: int = softgpu.books(places, "0")["counters"]["delayed_ns"]
    return waited


def _show(console: Console, act: GpuAct) -> None:
    rows = []
    for what, seen in (("alone", act.alone), ("beside training", act.beside)):
        times = [round_duration(int(seen[name] * 1000)) for name in ("p50_us", "p99_us")]
        rows.append([what, str(seen["count"]), *times])
    console.print(table("a service on one software V100", ["THE SERVICE", "REQUESTS", "P50", "P99"], rows))
