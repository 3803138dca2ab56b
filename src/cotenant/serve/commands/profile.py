"""`cotenant serve profile`: options, measurement of each model, and the profile cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cotenant.errors import ConfigError, CotenantError
from cotenant.node.directories import Directories
from cotenant.predict.knee import Knees, knees
from cotenant.runner.clock import unix_ns
from cotenant.serve.commands.run import profiles_folder, runtime_options
from cotenant.serve.commands.runtime import runtime_of
from cotenant.serve.frontend.server import cores_to_use
from cotenant.serve.model.run_times import RunTimes
from cotenant.serve.model_profile_format import ModelProfile
from cotenant.serve.runtime.measure import (
    CpuRunTimer,
    RunTimer,
    StandaloneRunTimer,
    batches_to_measure,
    measure,
    shape_of_row,
    synthetic_inputs,
    widths_to_measure,
)
from cotenant.serve.runtime.model import LoadedModel, ModelLoadError, ModelSource
from cotenant.serve.runtime.onnx_files import remove_stale_weights
from cotenant.serve.runtime.profiles import ProfileCache, model_hash
from cotenant.serve.runtime.repository import Repository
from cotenant.serve.runtime.standalone import StandaloneRuntime
from cotenant.units.instant import Duration
from cotenant.units.text import parse_duration
from cotenant.units.value import Value

MIN_BUDGET_NS: Final = 100_000_000


class ProfileArguments(msgspec.Struct, frozen=True):
    """Options of the command line."""

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
    """The profile of one model, or the reason why it has none."""

    model: str
    profiled: ModelProfile | None
    knees: Knees | None
    cached: bool = False
    refused: str = ""


Progress = Callable[[str, float], None]
"""Called with a model's name and the fraction of its time budget that was used."""


def profile_models(
    arguments: ProfileArguments,
    directories: Directories,
    user_directories: Directories,
    report: Callable[[str], None],
    progress: Progress,
) -> list[ProfileOutcome]:
    """Measure every model that has no profile yet, or all with `--force`.

    `directories` are the node's, `user_directories` are the user's.
    """
    budget_ns = parse_duration(arguments.budget, field="--budget")
    if budget_ns < MIN_BUDGET_NS:
        raise ConfigError("--budget", arguments.budget, "give at least 100ms for each model")
    shapes = parse_shapes(arguments.shape)
    cores = cores_to_use(sorted(os.sched_getaffinity(0)), arguments.cores)
    paths = [Path(model_path) for model_path in arguments.models]
    sources = Repository(paths, cores).scan(run_code=True)  # reject a missing path before anything else
    cache = ProfileCache(profiles_folder(arguments.profiles, user_directories), report)
    remove_stale_weights()
    standalone = StandaloneRuntime(runtime_of(runtime_options(arguments), cores, directories, report), paths, cores)
    try:
        measurement = _Measurement(standalone, cores, cache, shapes, budget_ns, progress)
        return [measurement.outcome(source, again=arguments.again) for source in sources.values()]
    finally:
        standalone.close()


class _Measurement(NamedTuple):
    """Measurement of models: the runtime, the cache and the options that all models share."""

    standalone: StandaloneRuntime
    cores: Sequence[int]
    cache: ProfileCache
    shapes_by_model: dict[str, dict[str, tuple[int, ...]]]
    budget_ns: Duration
    progress: Progress

    def outcome(self, source: ModelSource, *, again: bool) -> ProfileOutcome:
        """Return a model's profile from the cache or from a measurement; a failing model does not stop the others."""
        try:
            return self._outcome(source, again=again)
        except CotenantError:
            raise
        except Exception as error:  # noqa: BLE001  a failing model does not stop the others
            reason = str(error) if isinstance(error, ModelLoadError) else f"{type(error).__name__}: {str(error)[:500]}"
            return ProfileOutcome(source.name, None, None, refused=reason)

    def _outcome(self, source: ModelSource, *, again: bool) -> ProfileOutcome:
        model = self.standalone.load(source)
        try:
            # Only now: a runtime may learn its device from the first worker.
            device = self.standalone.runtime.identity
            file_hash = model_hash(source.path, source.name)
            cached = None if again else self.cache.find(file_hash, device)
            profile = self._measure_model(model, file_hash, device) if cached is None else cached
        finally:
            model.close()
        if cached is None:
            self.cache.keep(profile)
        self.progress(source.name, 1.0)
        knee = knees(profile.alone, profile.times.all_units)
        return ProfileOutcome(source.name, profile, knee, cached=cached is not None)

    def _measure_model(self, model: LoadedModel, file_hash: str, device: str) -> ModelProfile:
        spec, runtime = model.spec, self.standalone.runtime
        if spec.decoupled:
            raise ModelLoadError("a decoupled model cannot be profiled, because its runs have any number of responses")
        self.progress(spec.name, 0.0)
        shapes = {**self.shapes_by_model.get("", {}), **self.shapes_by_model.get(spec.name, {})}
        widths = widths_to_measure(runtime.all_units) if runtime.pinned else runtime.widths(model)
        self.standalone.prepare(model, widths)
        timer: RunTimer = (
            CpuRunTimer(model, self.cores) if runtime.pinned else StandaloneRunTimer(model, self.standalone)
        )
        try:
            samples = measure(
                timer,
                lambda rows: synthetic_inputs(spec, rows, shapes),
                widths,
                batches_to_measure(spec),
                self.budget_ns,
                lambda part: self.progress(spec.name, part),
            )
        finally:
            timer.close()
        knee = knees(samples.alone, runtime.all_units)
        inputs = tuple(
            (tensor.name, shape_of_row(tensor.name, tensor.shape, shapes, batched=bool(spec.max_batch)))
            for tensor in spec.inputs
        )
        return ModelProfile(
            model=spec.name,
            model_hash=file_hash,
            device=device,
            times=RunTimes(runtime.all_units, samples.loaded, knee.curve_units),
            alone=samples.alone,
            percent=not runtime.pinned,
            inputs=inputs,
            runs=samples.runs,
            spent_ns=samples.spent_ns,
            made_unix_ns=unix_ns(),
            knee_by_model_units=knee.model_units,
            model_error=knee.model_error,
        )


def parse_shapes(texts: Sequence[str]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Parse [MODEL=]INPUT:3,224,224; return shapes of rows by model and input. The empty name holds for every model."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for text in texts:
        name, colon, sizes = text.rpartition(":")
        model, _, tensor = name.rpartition("=")
        words = sizes.split(",")
        if not colon or not tensor or not all(word.isdecimal() and int(word) > 0 for word in words):
            raise ConfigError("--shape", text, "write INPUT:3,224,224, or MODEL=INPUT:3,224,224")
        shapes.setdefault(model, {})[tensor] = tuple(int(word) for word in words)
    return shapes
