"""Wires the measuring of models: which, on what, for how long, and where the answers are kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.apps.serve import profiles_folder
from cotenant.domain.instant import Duration
from cotenant.domain.runtimes import RunTimes
from cotenant.domain.value import Value
from cotenant.errors import ConfigError, CotenantError
from cotenant.format.quantity import parse_duration
from cotenant.format.runtimes import Profiled
from cotenant.live.clock import unix_ns
from cotenant.live.serve.measure import (
    CpuBench,
    batches_to_measure,
    made_inputs,
    measure,
    shape_of_row,
    widths_to_measure,
)
from cotenant.live.serve.model import LoadFailed, Runnable
from cotenant.live.serve.profiles import ProfileCache, cpu_identity, model_hash
from cotenant.live.serve.repository import Found, Repository
from cotenant.live.serve.server import cores_to_use
from cotenant.live.serve.sessions import sweep
from cotenant.policy.predict.knee import Knees, knees

LEAST_BUDGET_NS: Final = 100_000_000


class ProfileArguments(msgspec.Struct, frozen=True):
    """As on the command line."""

    models: tuple[str, ...]
    cores: int
    budget: str
    shape: tuple[str, ...]
    again: bool
    profiles: str


class ProfileOutcome(Value, frozen=True):
    """One model: its profile, or why there is none."""

    model: str
    profiled: Profiled | None
    knees: Knees | None
    cached: bool = False
    refused: str = ""


Progress = Callable[[str, float], None]
"""Called with a model's name and the part of its time that is spent."""


def profile_models(given: ProfileArguments, say: Callable[[str], None], progress: Progress) -> list[ProfileOutcome]:
    """Measure every model that has no profile yet, or all of them if so asked."""
    budget_ns = parse_duration(given.budget, field="--budget")
    if budget_ns < LEAST_BUDGET_NS:
        raise ConfigError("--budget", given.budget, "give at least 100ms for each model")
    cores = cores_to_use(sorted(os.sched_getaffinity(0)), given.cores)
    repository = Repository([Path(one) for one in given.models], cores)
    cache = ProfileCache(profiles_folder(given.profiles), say)
    device = cpu_identity(len(cores))
    said = shapes_said(given.shape)
    sweep()
    outcomes = []
    for name, found in repository.scan().items():
        try:
            hashed = "" if found.broken else model_hash(found.path, name)
            kept = None if given.again or not hashed else cache.find(hashed, device)
            if kept is not None:
                progress(name, 1.0)
                outcomes.append(ProfileOutcome(name, kept, knees(kept.alone, kept.times.all_units), cached=True))
                continue
            profiled = _measured(repository, found, (hashed, device), cores, said, budget_ns, progress)
            cache.keep(profiled)
            outcomes.append(ProfileOutcome(name, profiled, knees(profiled.alone, len(cores))))
        except CotenantError:
            raise
        except Exception as error:  # noqa: BLE001  whatever a model does, the others are measured
            why = str(error) if isinstance(error, LoadFailed) else f"{type(error).__name__}: {str(error)[:500]}"
            outcomes.append(ProfileOutcome(name, None, None, refused=why))
    return outcomes


def shapes_said(texts: Sequence[str]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Shapes of rows by model and input, from MODEL.INPUT=3x224x224; every model where none is named."""
    said: dict[str, dict[str, tuple[int, ...]]] = {}
    for text in texts:
        name, equals, sizes = text.partition("=")
        model, colon, tensor = name.partition(":")
        words = sizes.split("x")
        if not equals or not all(word.isdigit() and int(word) > 0 for word in words):
            raise ConfigError("--shape", text, "write INPUT=3x224x224, or MODEL:INPUT=3x224x224")
        key, one = (model, tensor) if colon else ("", model)
        said.setdefault(key, {})[one] = tuple(int(word) for word in words)
    return said


def _measured(
    repository: Repository,
    found: Found,
    key: tuple[str, str],
    cores: Sequence[int],
    said: dict[str, dict[str, tuple[int, ...]]],
    budget_ns: Duration,
    progress: Progress,
) -> Profiled:
    progress(found.name, 0.0)
    model: Runnable = repository.load(found)
    spec = model.spec
    if spec.decoupled:
        model.close()
        raise LoadFailed("a decoupled model answers any number of times: its runs have no usual length")
    shapes = {**said.get("", {}), **said.get(found.name, {})}
    bench = CpuBench(model, cores)
    try:
        widths = widths_to_measure(len(cores))
        model.prepare(widths)
        samples = measure(
            bench,
            lambda rows: made_inputs(spec, rows, shapes),
            widths,
            batches_to_measure(spec),
            budget_ns,
            lambda part: progress(found.name, part),
        )
    finally:
        bench.close()
        model.close()
    knee = knees(samples.alone, len(cores))
    inputs = tuple(
        (one.name, shape_of_row(one.name, one.shape, shapes, batched=bool(spec.max_batch))) for one in spec.inputs
    )
    times = RunTimes(len(cores), samples.in_company, knee.curve_units)
    hashed, device = key
    return Profiled(
        model=found.name,
        model_hash=hashed,
        device=device,
        times=times,
        alone=samples.alone,
        inputs=inputs,
        runs=samples.runs,
        spent_ns=samples.spent_ns,
        made_unix_ns=unix_ns(),
        knee_by_model_units=knee.model_units,
        model_error=knee.model_error,
    )
