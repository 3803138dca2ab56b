"""What is a player told to play? A load as files, and as the arguments of a player."""

from __future__ import annotations

from pathlib import Path

from cotenant.domain.load import Load
from cotenant.format.launches import image_text, script_text


class Scripts:
    """The files of loads, in one directory, written once."""

    def __init__(self, home: Path) -> None:
        """Nothing is written yet."""
        self._home = home
        self._files: dict[Load, tuple[Path, Path]] = {}
        self._instants: dict[Load, Path] = {}

    def arguments(self, load: Load) -> list[str]:
        """For an interpreter that is to play its launches."""
        if load not in self._files:
            number = len(self._files)
            script, image = self._home / f"script{number}", self._home / f"image{number}"
            script.write_text(script_text(load.name, load.launches), encoding="utf-8")
            image.write_text(image_text(load.launches), encoding="utf-8")
            self._files[load] = script, image
        script, image = self._files[load]
        graph = ["--graph"] if load.graph else []
        return ["-m", "cotenant.live.player", str(script), "--image", str(image), *graph]

    def arrival(self, load: Load) -> list[str]:
        """When its requests come, and how many."""
        if load.arrival.kind != "instants":
            return _arrival(load)
        if load not in self._instants:
            file = self._instants[load] = self._home / f"instants{len(self._instants)}"
            file.write_text("".join(f"{at_ns}\n" for at_ns in load.arrival.instants_ns), encoding="utf-8")
        return [*_arrival(load), "--instants", str(self._instants[load])]


def _arrival(load: Load) -> list[str]:
    how = load.arrival
    if how.kind == "training":
        return ["--arrival", "training"]
    words = ["--arrival", how.kind.replace("_", "-"), "--requests", str(load.requests), "--warm-up", "1"]
    if how.kind == "periodic":
        words += ["--period-us", str(how.period_ns / 1e3)]
    elif how.kind == "poisson":
        words += ["--period-us", str(1e6 / how.rate_per_s), "--seed", str(how.seed)]
    return words


def task(load: Load) -> str:
    """What its profile is kept under: the same kernels with other arrivals are the same task."""
    return load.name


def lesson(load: Load, scripts: Scripts, requests: int) -> list[str]:
    """As often as its kernels are to be timed, one after the other."""
    return [*scripts.arguments(load), "--arrival", "back-to-back", "--requests", str(requests)]
