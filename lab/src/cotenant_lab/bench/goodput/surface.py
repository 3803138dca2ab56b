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
from cotenant_lab.serving.schedule_bound import most_in_schedule, normal_outcomes
from cotenant_lab.serving.simulated import HIGH, ServedModel, ServingOutcome, Setting, play

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
        setting = Setting(self.all_units, for_ns, warm_ns, contention=1.0)  # the profile was measured on a full device
        return play(self._models(instants_ns), instants_ns, mode_of(name), setting)

    def _models(self, instants_ns: Mapping[str, Sequence[Duration]], factor: float = 1.0) -> list[ServedModel]:
        return [
            ServedModel(model, scaled(self.times[model], factor), self.slos_ns[model], max_batch=MAX_BATCH)
            for model in instants_ns
        ]

    def most_rps(
        self,
        instants_ns: Mapping[str, Sequence[Duration]],
        setting: Setting,
        *,
        slower: float = 1.0,
        taken_units: float = 0.0,
        min_fairness: float = 0.0,
    ) -> float:
        """Return the most requests per second that any schedule answers in time on the units that are not taken."""
        models = self._models(instants_ns, slower)
        return most_in_schedule(
            models,
            instants_ns,
            setting,
            units=max(self.all_units - taken_units, 0.01),
            min_fairness=min_fairness,
            outcomes={model.name: normal_outcomes(self._deviation(model.name)) for model in models},
        )

    def _deviation(self, model: str) -> float:
        """Return the relative standard deviation of run times that their 99th percentiles correspond to, the median."""
        ratios = sorted(time.high_ns / time.typical_ns - 1 for time in self.times[model].times)
        return max(ratios[len(ratios) // 2], 0.0) / HIGH

    def waterfall(
        self,
        instants_ns: Mapping[str, Sequence[Duration]],
        setting: Setting,
        *,
        slower: float,
        taken_units: float,
        min_fairness: float,
    ) -> dict[str, float]:
        """Return the goodput after each part of our server is added to the bound for all schedules."""
        factor = slower * self.all_units / max(self.all_units - taken_units, 0.01)
        models = self._models(instants_ns, factor)
        exact = [msgspec.structs.replace(model, times=without_spread(model.times)) for model in models]
        mode = mode_of(OURS)
        quiet = msgspec.structs.replace(setting, noise=0.0)
        noisy = msgspec.structs.replace(setting, noise=max(self._deviation(model.name) for model in models))
        queueing = play(exact, instants_ns, mode, quiet).goodput_per_s
        known = clairvoyant_goodput(models, instants_ns, setting, min_fairness=min_fairness)
        return {
            "device": self.most_rps(instants_ns, setting, slower=slower, min_fairness=min_fairness),
            "front end": self.most_rps(
                instants_ns, setting, slower=slower, taken_units=taken_units, min_fairness=min_fairness
            ),
            "batch formation": max(known, queueing),
            "queueing": queueing,
            "forecasts": play(exact, instants_ns, mode, noisy).goodput_per_s,
            "admission margins": play(models, instants_ns, mode, noisy).goodput_per_s,
        }
