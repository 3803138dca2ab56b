"""Wires the plan of a server: from the profiles of its models, as it is or would be; or as a running server has it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.apps.serve import profiles_folder, wish_of
from cotenant.apps.serve_runtime import runtime_of
from cotenant.domain.runtimes import RunTimes
from cotenant.domain.serving import ModelSpec
from cotenant.domain.value import Value
from cotenant.errors import ConfigError
from cotenant.format.quantity import parse_duration
from cotenant.live.directory import Places
from cotenant.live.serve.ask import ask_plan
from cotenant.live.serve.model import LoadFailed
from cotenant.live.serve.profiles import ProfileCache, model_hash
from cotenant.live.serve.repository import Repository
from cotenant.live.serve.server import cores_to_use
from cotenant.live.serve.sessions import sweep
from cotenant.live.serve.solo import Solo
from cotenant.machine.lanes import QueueLane
from cotenant.policy.schedule.what_if import Foretold, foretell, usual_rates

_WHAT_IF: Final = "write MODEL.slo=50ms, MODEL.rate=200, units=4 or without=MODEL"


class PlanArguments(msgspec.Struct, frozen=True):
    """As on the command line."""

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


class Situation(Value, frozen=True):
    """What a plan is made for."""

    specs: tuple[ModelSpec, ...]
    times: dict[str, RunTimes]
    """Of those that have a profile."""
    rates: dict[str, float]
    all_units: int


class Planned(Value, frozen=True):
    """The plan as it is, and as it would be if something was asked."""

    now: Foretold
    then: Foretold | None
    assumed_rates: bool
    """Whether nobody said how much is asked for."""
    unprofiled: tuple[str, ...]
    refused: dict[str, str]
    percent: bool


def running_plan(url: str) -> dict[str, Any]:
    """What a server says that it intends."""
    return ask_plan(url)


def plan_models(given: PlanArguments, places: Places, own: Places, say: Callable[[str], None]) -> Planned:
    """The plan for models that were profiled; `places` are the node's, `own` are ours."""
    rates = rates_said(given.rate)
    cores = cores_to_use(sorted(os.sched_getaffinity(0)), given.cores)
    paths = [Path(one) for one in given.models]
    there = Repository(paths, cores).scan()
    if not there:
        raise ConfigError(
            "MODELS", ", ".join(given.models), "there are no models in it, so there is nothing to plan for"
        )
    cache = ProfileCache(profiles_folder(given.profiles, own), say)
    sweep()
    specs, times, refused = [], {}, {}
    runtime = runtime_of(wish_of(given), cores, places, say)
    solo = Solo(runtime, paths, cores)
    try:
        for name, found in there.items():
            try:
                model = solo.load(found)
            except LoadFailed as error:
                refused[name] = str(error)
                continue
            specs.append(model.spec)
            model.close()
            known = cache.find(model_hash(found.path, name), runtime.identity)
            if known is not None:
                times[name] = known.times
    finally:
        solo.close()
    known_specs = tuple(spec for spec in specs if spec.name in times)
    for name in rates:
        if name not in there:
            raise ConfigError("--rate", name, f"is none of the models: {', '.join(there)}")
    situation = Situation(known_specs, times, rates, runtime.all_units)
    if not rates:
        situation = msgspec.structs.replace(situation, rates=usual_rates(lanes_of(situation), runtime.all_units))
    changed = situation
    for text in given.what_if:
        changed = changed_by(changed, text)
    return Planned(
        now=foretold(situation),
        then=foretold(changed) if given.what_if else None,
        assumed_rates=not rates,
        unprofiled=tuple(spec.name for spec in specs if spec.name not in times),
        refused=refused,
        percent=not runtime.pinned,
    )


def lanes_of(situation: Situation) -> list[QueueLane]:
    """The models as a server would have them before anything came."""
    return [QueueLane(key, spec, situation.times.get(spec.name)) for key, spec in enumerate(situation.specs, start=1)]


def foretold(situation: Situation) -> Foretold:
    """The plan for a situation."""
    return foretell(lanes_of(situation), situation.rates, situation.all_units)


def rates_said(texts: Sequence[str]) -> dict[str, float]:
    """Rows a second by model, from NAME=RPS."""
    return {name: _rate("--rate", text, value) for text in texts for name, value in [_pair("--rate", text, "NAME=RPS")]}


def changed_by(situation: Situation, text: str) -> Situation:
    """The situation with one thing changed."""
    key, value = _pair("--what-if", text, _WHAT_IF.removeprefix("write "))
    if key == "units":
        if not value.isdecimal() or not 1 <= int(value) <= 1024:
            raise ConfigError("--what-if", text, "name 1 to 1024 units")
        return msgspec.structs.replace(situation, all_units=int(value))
    model, dot, field = (value, ".", "without") if key == "without" else key.rpartition(".")
    if not dot or field not in ("without", "slo", "rate"):
        raise ConfigError("--what-if", text, _WHAT_IF)
    names = [spec.name for spec in situation.specs]
    if model not in names:
        raise ConfigError("--what-if", text, f"there is no profile of {model!r}, only of {', '.join(names) or 'none'}")
    if field == "rate":
        rates = {**situation.rates, model: _rate("--what-if", text, value)}
        return msgspec.structs.replace(situation, rates=rates)
    if field == "without":
        rates = {name: rate for name, rate in situation.rates.items() if name != model}
        specs = tuple(spec for spec in situation.specs if spec.name != model)
        return msgspec.structs.replace(situation, specs=specs, rates=rates)
    slo_ns = parse_duration(value, field="--what-if")
    specs = tuple(
        msgspec.structs.replace(spec, slo_ns=slo_ns) if spec.name == model else spec for spec in situation.specs
    )
    return msgspec.structs.replace(situation, specs=specs)


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
        raise ConfigError(flag, text, "name rows a second, 0 or more")
    return rate
