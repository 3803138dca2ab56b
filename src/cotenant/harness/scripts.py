"""Loads as script files and arguments for a player process."""

from __future__ import annotations

from pathlib import Path

from cotenant.workload.launch_files import image_text, script_text
from cotenant.workload.load import Workload


class Scripts:
    """Script files of loads in one directory, each written once."""

    def __init__(self, home: Path) -> None:
        """Begin without files."""
        self._home = home
        self._files: dict[Workload, tuple[Path, Path]] = {}
        self._instants: dict[Workload, Path] = {}

    def arguments(self, load: Workload) -> list[str]:
        """Return the interpreter arguments that play the launches of a load."""
        if load not in self._files:
            number = len(self._files)
            script, image = self._home / f"script{number}", self._home / f"image{number}"
            script.write_text(script_text(load.name, load.launches), encoding="utf-8")
            image.write_text(image_text(load.launches), encoding="utf-8")
            self._files[load] = script, image
        script, image = self._files[load]
        graph = ["--graph"] if load.graph else []
        return ["-m", "cotenant.workload.player", str(script), "--image", str(image), *graph]

    def arrival(self, load: Workload) -> list[str]:
        """Return the arguments for its arrival process and number of requests."""
        if load.arrival.kind != "instants":
            return _arrival(load)
        if load not in self._instants:
            file = self._instants[load] = self._home / f"instants{len(self._instants)}"
            file.write_text("".join(f"{at_ns}\n" for at_ns in load.arrival.instants_ns), encoding="utf-8")
        return [*_arrival(load), "--instants", str(self._instants[load])]


def _arrival(load: Workload) -> list[str]:
    arrival = load.arrival
    if arrival.kind == "training":
        return ["--arrival", "training"]
    words = ["--arrival", arrival.kind.replace("_", "-"), "--requests", str(load.requests), "--warm-up", "1"]
    if arrival.kind == "periodic":
        words += ["--period-us", str(arrival.period_ns / 1e3)]
    elif arrival.kind == "poisson":
        words += ["--period-us", str(1e6 / arrival.rate_per_s), "--seed", str(arrival.seed)]
    return words


def task(load: Workload) -> str:
    """Return the task name of its profile: the same kernels with other arrivals are the same task."""
    return load.name


def recording_arguments(load: Workload, scripts: Scripts, requests: int) -> list[str]:
    """Return the arguments that play a load back to back, to record its kernels."""
    return [*scripts.arguments(load), "--arrival", "back-to-back", "--requests", str(requests)]
