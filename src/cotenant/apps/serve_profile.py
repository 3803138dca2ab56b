"""Wires the measuring of models: which, on what, for how long, and where the answers are kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cotenant.apps.serve import profiles_folder, wish_of
from cotenant.apps.serve_runtime import runtime_of
from cotenant.domain.instant import Duration
from cotenant.domain.runtimes import RunTimes
from cotenant.domain.value import Value
from cotenant.errors import ConfigError, CotenantError
from cotenant.format.quantity import parse_duration
from cotenant.format.runtimes import Profiled
from cotenant.live.clock import unix_ns
from cotenant.live.directory import Places
from cotenant.live.serve.found import Found
from cotenant.live.serve.measure import (
    Bench,
    CpuBench,
    SoloBench,
    batches_to_measure,
    made_inputs,
    measure,
    shape_of_row,
    widths_to_measure,
)
from cotenant.live.serve.model import LoadFailed, Runnable
from cotenant.live.serve.profiles import ProfileCache, model_hash
from cotenant.live.serve.repository import Repository
from cotenant.live.serve.server import cores_to_use
from cotenant.live.serve.sessions import sweep
from cotenant.live.serve.solo import Solo
from cotenant.policy.predict.knee import Knees, knees

LEAST_BUDGET_NS: Final = 100_000_000


class ProfileArguments(msgspec.Struct, frozen=True):
    """As on the command line."""

    models: tuple[str, ...]
    cores: int
    runtime: str
    gpu: str
    tenants: str
    workers: int
    run_limit: str
    profiles: str
    budget: str
    shape: tuple[str, ...]
    again: bool


class ProfileOutcome(Value, frozen=True):
    """One model: its profile, or why there is none."""

    model: str
    profiled: Profiled | None
    knees: Knees | None
    cached: bool = False
    refused: str = ""


Progress = Callable[[str, float], None]
"""Called with a model's name and the part of its time that is spent."""


def profile_models(
    given: ProfileArguments, places: Places, own: Places, say: Callable[[str], None], progress: Progress
) -> list[ProfileOutcome]:
    """Measure every model that has no profile yet, or all if so asked; `places` are the node's, `own` are ours."""
    budget_ns = parse_duration(given.budget, field="--budget")
    if budget_ns < LEAST_BUDGET_NS:
        raise ConfigError("--budget", given.budget, "give at least 100ms for each model")
    said = shapes_said(given.shape)
    cores = cores_to_use(sorted(os.sched_getaffinity(0)), given.cores)
    paths = [Path(one) for one in given.models]
    there = Repository(paths, cores).scan()  # a path that is not there is refused before anything else
    cache = ProfileCache(profiles_folder(given.profiles, own), say)
    sweep()
    solo = Solo(runtime_of(wish_of(given), cores, places, say), paths, cores)
    try:
        one = _Measuring(solo, cores, cache, said, budget_ns, progress)
        return [one.outcome(found, again=given.again) for found in there.values()]
    finally:
        solo.close()


class _Measuring(NamedTuple):
    """All that the measuring of a model needs beside the model."""

    solo: Solo
    cores: Sequence[int]
    cache: ProfileCache
    said: dict[str, dict[str, tuple[int, ...]]]
    budget_ns: Duration
    progress: Progress

    def outcome(self, found: Found, *, again: bool) -> ProfileOutcome:
        """Its profile, from before or of now; whatever a model does, the others are measured."""
        try:
            return self._outcome(found, again=again)
        except CotenantError:
            raise
        except Exception as error:  # noqa: BLE001  as above
            why = str(error) if isinstance(error, LoadFailed) else f"{type(error).__name__}: {str(error)[:500]}"
            return ProfileOutcome(found.name, None, None, refused=why)

    def _outcome(self, found: Found, *, again: bool) -> ProfileOutcome:
        model = self.solo.load(found)
        try:
            # Only now: which device it is, a runtime may know by its first worker.
            device = self.solo.runtime.identity
            hashed = model_hash(found.path, found.name)
            kept = None if again else self.cache.find(hashed, device)
            profiled = self._measured(model, hashed, device) if kept is None else kept
        finally:
            model.close()
        if kept is None:
            self.cache.keep(profiled)
        self.progress(found.name, 1.0)
        knee = knees(profiled.alone, profiled.times.all_units)
        return ProfileOutcome(found.name, profiled, knee, cached=kept is not None)

    def _measured(self, model: Runnable, hashed: str, device: str) -> Profiled:
        spec, runtime = model.spec, self.solo.runtime
        if spec.decoupled:
            raise LoadFailed("a decoupled model answers any number of times: its runs have no usual length")
        self.progress(spec.name, 0.0)
        shapes = {**self.said.get("", {}), **self.said.get(spec.name, {})}
        widths = widths_to_measure(runtime.all_units) if runtime.pinned else runtime.widths(model)
        self.solo.prepare(model, widths)
        bench: Bench = CpuBench(model, self.cores) if runtime.pinned else SoloBench(model, self.solo)
        try:
            samples = measure(
                bench,
                lambda rows: made_inputs(spec, rows, shapes),
                widths,
                batches_to_measure(spec),
                self.budget_ns,
                lambda part: self.progress(spec.name, part),
            )
        finally:
            bench.close()
        knee = knees(samples.alone, runtime.all_units)
        inputs = tuple(
            (one.name, shape_of_row(one.name, one.shape, shapes, batched=bool(spec.max_batch))) for one in spec.inputs
        )
        return Profiled(
            model=spec.name,
            model_hash=hashed,
            device=device,
            times=RunTimes(runtime.all_units, samples.in_company, knee.curve_units),
            alone=samples.alone,
            percent=not runtime.pinned,
            inputs=inputs,
            runs=samples.runs,
            spent_ns=samples.spent_ns,
            made_unix_ns=unix_ns(),
            knee_by_model_units=knee.model_units,
            model_error=knee.model_error,
        )


def shapes_said(texts: Sequence[str]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Shapes of rows by model and input, from [MODEL=]INPUT:3,224,224; under no name, those for every model."""
    said: dict[str, dict[str, tuple[int, ...]]] = {}
    for text in texts:
        name, colon, sizes = text.rpartition(":")
        model, _, tensor = name.rpartition("=")
        words = sizes.split(",")
        if not colon or not tensor or not all(word.isdecimal() and int(word) > 0 for word in words):
            raise ConfigError("--shape", text, "write INPUT:3,224,224, or MODEL=INPUT:3,224,224")
        said.setdefault(model, {})[tensor] = tuple(int(word) for word in words)
    return said
