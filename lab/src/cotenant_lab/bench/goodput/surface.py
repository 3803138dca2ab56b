"""Run times of the bench's models, and the bounds and simulations computed from them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.serve.model.run_times import RunTimes
from cotenant.serve.model_profile_format import decode_model_profile
from cotenant.units.instant import Duration
from cotenant_lab.bench.goodput.models import MAX_BATCH
from cotenant_lab.errors import RunFailedError
from cotenant_lab.serving.bound import bound, fair_bound, least_area
from cotenant_lab.serving.clairvoyant import clairvoyant_goodput, scaled, without_spread
from cotenant_lab.serving.modes import OURS, mode_of
from cotenant_lab.serving.simulated import ServedModel, ServingOutcome, Setting, play

_PLENTY_RPS: Final = 1e9


def profile(folder: Path, profiles: Path, *flags: str) -> dict[str, RunTimes]:
    """Profile all models of a folder with `cotenant serve profile`; return run times by model."""
    command = [sys.executable, "-m", "cotenant", "serve", "profile", str(folder), "--profiles", str(profiles), *flags]
    if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:  # its messages go to stderr
        raise RunFailedError("`cotenant serve profile` failed; see its message")
    files = sorted(profiles.glob("*.json"))
    return {
        model_profile.model: model_profile.times
        for model_profile in (decode_model_profile(file.read_bytes(), str(file)) for file in files)
    }


class Bounds(msgspec.Struct, frozen=True):
    """Upper bounds of goodput in requests per second."""

    fair_rps: float
    """With the same fraction of every model's requests."""
    greedy_rps: float


class Surface(msgspec.Struct, frozen=True):
    """Run times of the models, with their objectives."""

    times: Mapping[str, RunTimes]
    slos_ns: Mapping[str, Duration]
    all_units: int

    def bounds(self, offered_rps: Mapping[str, float], taken_units: float = 0.0, slower: float = 1.0) -> Bounds:
        """Return bounds for the offered rates without `taken_units`, if runs take `slower` times as long."""
        areas = {name: least_area(self.times[name], self.slos_ns[name], MAX_BATCH) for name in offered_rps}
        rates = (
            method(areas, offered_rps, max(self.all_units - taken_units, 0.0) / slower)
            for method in (fair_bound, bound)
        )
        fair_rps, greedy_rps = (sum(by_model.values()) for by_model in rates)
        return Bounds(fair_rps, greedy_rps)

    def full_rps(self) -> float:
        """Return the bound at equal rates of all models, far beyond capacity."""
        return round(self.bounds(dict.fromkeys(self.slos_ns, _PLENTY_RPS)).fair_rps, 3)

    def simulated(
        self, name: str, instants_ns: Mapping[str, Sequence[Duration]], warm_ns: Duration, for_ns: Duration
    ) -> ServingOutcome:
        """Simulate a policy at the same instants with measured run times."""
        return play(self._models(instants_ns), instants_ns, mode_of(name), Setting(self.all_units, for_ns, warm_ns))

    def _models(self, instants_ns: Mapping[str, Sequence[Duration]], factor: float = 1.0) -> list[ServedModel]:
        return [
            ServedModel(model, scaled(self.times[model], factor), self.slos_ns[model], max_batch=MAX_BATCH)
            for model in instants_ns
        ]

    def known_rps(
        self, instants_ns: Mapping[str, Sequence[Duration]], setting: Setting, factor: float, min_fairness: float
    ) -> float:
        """Return the goodput of a scheduler that knows all arrivals, if runs take `factor` times as long."""
        models = self._models(instants_ns, factor)
        return clairvoyant_goodput(models, instants_ns, setting, min_fairness=min_fairness)

    def waterfall(
        self, instants_ns: Mapping[str, Sequence[Duration]], setting: Setting, factor: float, min_fairness: float
    ) -> dict[str, float]:
        """Return the goodput after each part of our server is added to the scheduler that knows all arrivals."""
        models = self._models(instants_ns, factor)
        exact = [msgspec.structs.replace(model, times=without_spread(model.times)) for model in models]
        mode = mode_of(OURS)
        quiet = msgspec.structs.replace(setting, noise=0.0)
        return {
            "device": self.known_rps(instants_ns, setting, 1.0, min_fairness),
            "front end": self.known_rps(instants_ns, setting, factor, min_fairness),
            "batch formation": clairvoyant_goodput(
                models, instants_ns, setting, min_fairness=min_fairness, waits=False
            ),
            "queueing": play(exact, instants_ns, mode, quiet).goodput_per_s,
            "forecasts": play(exact, instants_ns, mode, setting).goodput_per_s,
            "admission margins": play(models, instants_ns, mode, setting).goodput_per_s,
        }
