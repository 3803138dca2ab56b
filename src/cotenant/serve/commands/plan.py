"""`cotenant serve plan`: the plan for profiled models, with optional changes, or the plan of a running server."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.errors import ConfigError, WorldError
from cotenant.node.directories import Directories
from cotenant.serve.commands.run import profiles_folder, runtime_options
from cotenant.serve.commands.runtime import runtime_of
from cotenant.serve.frontend.server import cores_to_use
from cotenant.serve.model.event import ModelSpec
from cotenant.serve.model.run_times import RunTimes, next_to_others
from cotenant.serve.plan_format import plan_from_tree
from cotenant.serve.policy.what_if import PlanForecast, default_rates, forecast_plan
from cotenant.serve.runtime.model import ModelLoadError
from cotenant.serve.runtime.onnx_files import remove_stale_weights
from cotenant.serve.runtime.profiles import ProfileCache, model_hash
from cotenant.serve.runtime.repository import Repository
from cotenant.serve.runtime.standalone import StandaloneRuntime
from cotenant.serve.state.model_queue import ModelQueueState
from cotenant.units.text import parse_duration
from cotenant.units.value import Value

_PATIENCE_S: Final = 10.0
_ANSWER_LIMIT: Final = 16 << 20
_WHAT_IF: Final = "write MODEL.slo=50ms, MODEL.rate=200, units=4 or without=MODEL"


class PlanArguments(msgspec.Struct, frozen=True):
    """Options of the command line."""

    models: tuple[str, ...]
    url: str
    cores: int
    runtime: str
    gpu: str
    tenants: str
    workers: int
    run_limit: str
    profiles: str
    rate: tuple[str, ...]
    what_if: tuple[str, ...]


class PlanInputs(Value, frozen=True):
    """Input of a plan."""

    specs: tuple[ModelSpec, ...]
    times: dict[str, RunTimes]
    """Run times of the models that have a profile."""
    rates: dict[str, float]
    all_units: int


class PlanResult(Value, frozen=True):
    """The plan, and the plan after the changes of `--what-if`."""

    now: PlanForecast
    then: PlanForecast | None
    assumed_rates: bool
    """Whether the rates are defaults because no `--rate` was given."""
    unprofiled: tuple[str, ...]
    refused: dict[str, str]
    percent: bool


def running_plan(url: str) -> dict[str, Any]:
    """Fetch the plan of a running server."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError("--url", url, "write http://HOST:PORT")
    plan_url = f"{url.rstrip('/')}/v2/cotenant/plan"
    try:
        with urllib.request.urlopen(plan_url, timeout=_PATIENCE_S) as answer:  # noqa: S310  the scheme was checked above
            body: bytes = answer.read(_ANSWER_LIMIT)
        answer_tree = msgspec.json.decode(body, type=dict[str, Any])
        plan_from_tree(answer_tree["plan"])
        return answer_tree
    except (OSError, ValueError, KeyError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", None) or error
        raise WorldError(
            f"cannot fetch the plan from {plan_url}: {reason}; name the HTTP port of a running `cotenant serve run`"
        ) from None


def plan_models(
    arguments: PlanArguments, directories: Directories, user_directories: Directories, report: Callable[[str], None]
) -> PlanResult:
    """Plan for the models that have a profile. `directories` are the node's, `user_directories` are the user's."""
    rates = parse_rates(arguments.rate)
    cores = cores_to_use(sorted(os.sched_getaffinity(0)), arguments.cores)
    paths = [Path(model_path) for model_path in arguments.models]
    sources = Repository(paths, cores).scan(run_code=True)
    if not sources:
        raise ConfigError(
            "MODELS", ", ".join(arguments.models), "contains no models; name a file or directory with models"
        )
    cache = ProfileCache(profiles_folder(arguments.profiles, user_directories), report)
    remove_stale_weights()
    specs, times, refused = [], {}, {}
    runtime = runtime_of(runtime_options(arguments), cores, directories, report)
    standalone = StandaloneRuntime(runtime, paths, cores)
    try:
        for name, source in sources.items():
            try:
                model = standalone.load(source)
            except ModelLoadError as error:
                refused[name] = str(error)
                continue
            specs.append(model.spec)
            model.close()
            profile = cache.find(model_hash(source.path, name), runtime.identity)
            if profile is not None:
                times[name] = profile.times
    finally:
        standalone.close()
    profiled_specs = tuple(spec for spec in specs if spec.name in times)
    for name in rates:
        if name not in sources:
            raise ConfigError("--rate", name, f"is not one of the models: {', '.join(sources)}")
    times = {name: next_to_others(model_times, runtime.interference) for name, model_times in times.items()}
    inputs = PlanInputs(profiled_specs, times, rates, runtime.all_units)
    if not rates:
        inputs = msgspec.structs.replace(inputs, rates=default_rates(queues_of(inputs), runtime.all_units))
    changed = inputs
    for text in arguments.what_if:
        changed = apply_change(changed, text)
    return PlanResult(
        now=plan_forecast(inputs),
        then=plan_forecast(changed) if arguments.what_if else None,
        assumed_rates=not rates,
        unprofiled=tuple(spec.name for spec in specs if spec.name not in times),
        refused=refused,
        percent=not runtime.pinned,
    )


def queues_of(inputs: PlanInputs) -> list[ModelQueueState]:
    """Return the empty queues that a server would have for these models."""
    return [ModelQueueState(key, spec, inputs.times.get(spec.name)) for key, spec in enumerate(inputs.specs, start=1)]


def plan_forecast(inputs: PlanInputs) -> PlanForecast:
    """Return the plan for these inputs."""
    return forecast_plan(queues_of(inputs), inputs.rates, inputs.all_units)


def parse_rates(texts: Sequence[str]) -> dict[str, float]:
    """Parse NAME=RPS; return the rows per second by model."""
    return {name: _rate("--rate", text, value) for text in texts for name, value in [_pair("--rate", text, "NAME=RPS")]}


def apply_change(inputs: PlanInputs, text: str) -> PlanInputs:
    """Return the inputs after one change of `--what-if`."""
    key, value = _pair("--what-if", text, _WHAT_IF.removeprefix("write "))
    if key == "units":
        if not value.isdecimal() or not 1 <= int(value) <= 1024:
            raise ConfigError("--what-if", text, "choose 1 to 1024 units")
        return msgspec.structs.replace(inputs, all_units=int(value))
    model, dot, field = (value, ".", "without") if key == "without" else key.rpartition(".")
    if not dot or field not in ("without", "slo", "rate"):
        raise ConfigError("--what-if", text, _WHAT_IF)
    names = [spec.name for spec in inputs.specs]
    if model not in names:
        raise ConfigError("--what-if", text, f"there is no profile of {model!r}, only of {', '.join(names) or 'none'}")
    if field == "rate":
        rates = {**inputs.rates, model: _rate("--what-if", text, value)}
        return msgspec.structs.replace(inputs, rates=rates)
    if field == "without":
        rates = {name: rate for name, rate in inputs.rates.items() if name != model}
        specs = tuple(spec for spec in inputs.specs if spec.name != model)
        return msgspec.structs.replace(inputs, specs=specs, rates=rates)
    slo_ns = parse_duration(value, field="--what-if")
    specs = tuple(msgspec.structs.replace(spec, slo_ns=slo_ns) if spec.name == model else spec for spec in inputs.specs)
    return msgspec.structs.replace(inputs, specs=specs)


def _pair(flag: str, text: str, form: str) -> tuple[str, str]:
    key, equals, value = text.rpartition("=")
    if not equals or not key or not value:
        raise ConfigError(flag, text, f"write {form}")
    return key, value


def _rate(flag: str, text: str, value: str) -> float:
    try:
        rate = float(value)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1e9:
        raise ConfigError(flag, text, "give rows per second, 0 or more")
    return rate
