"""What do runs of the models take on this device? Profiled at the start of the bench, for the servers and the bound."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.domain.instant import Duration
from cotenant.domain.runtimes import RunTimes
from cotenant.errors import WorldError
from cotenant.experiment.goodput.models import MAX_BATCH
from cotenant.experiment.serve.bound import bound, fair_bound, least_area
from cotenant.experiment.serve.simulated import Outcome, ServedModel, Setting, play
from cotenant.experiment.serve.ways import way_of
from cotenant.format.runtimes import decode_profiled

_PLENTY_RPS: Final = 1e9


def profile(folder: Path, kept: Path, *more: str) -> dict[str, RunTimes]:
    """Have all models of a folder profiled by the command that everybody uses; by their names."""
    command = [sys.executable, "-m", "cotenant", "serve", "profile", str(folder), "--profiles", str(kept), *more]
    if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:  # what it says on the way is shown
        raise WorldError("the models cannot be profiled, for the reason above")
    files = sorted(kept.glob("*.json"))
    return {one.model: one.times for one in (decode_profiled(file.read_bytes(), str(file)) for file in files)}


class Bounds(msgspec.Struct, frozen=True):
    """Requests a second that nobody can exceed."""

    fair_rps: float
    """With the same part of every model's requests."""
    greedy_rps: float


class Surface(msgspec.Struct, frozen=True):
    """The measured models with their objectives."""

    times: Mapping[str, RunTimes]
    slos_ns: Mapping[str, Duration]
    all_units: int

    def bounds(self, offered_rps: Mapping[str, float], taken_units: float = 0.0, slower: float = 1.0) -> Bounds:
        """For what is offered, on what is left of the device, where runs take so many times as long as measured."""
        areas = {name: least_area(self.times[name], self.slos_ns[name], MAX_BATCH) for name in offered_rps}
        found = (
            method(areas, offered_rps, max(self.all_units - taken_units, 0.0) / slower)
            for method in (fair_bound, bound)
        )
        fair_rps, greedy_rps = (sum(one.values()) for one in found)
        return Bounds(fair_rps, greedy_rps)

    def full_rps(self) -> float:
        """Where every model is asked for as often as the others, and far more than can be answered."""
        return round(self.bounds(dict.fromkeys(self.slos_ns, _PLENTY_RPS)).fair_rps, 3)

    def simulated(
        self, name: str, instants_ns: Mapping[str, Sequence[Duration]], warm_ns: Duration, for_ns: Duration
    ) -> Outcome:
        """The same instants on a device that takes what was measured, under the same policy."""
        models = [
            ServedModel(model, self.times[model], self.slos_ns[model], max_batch=MAX_BATCH) for model in instants_ns
        ]
        return play(models, instants_ns, way_of(name), Setting(self.all_units, for_ns, warm_ns))
