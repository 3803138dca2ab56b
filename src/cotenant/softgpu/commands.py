"""Implementation of `cotenant softgpu` and `cotenant run --gpu`: parsing, and the directory of the software GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.errors import ConfigError
from cotenant.node.directories import Directories, make_directory
from cotenant.node.model.gpu import SOFT_PREFIX
from cotenant.softgpu import fault, manage
from cotenant.softgpu.costs import read_costs
from cotenant.softgpu.manage import SoftwareGpu
from cotenant.units.text import parse_duration, parse_size


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """Options of new software GPUs as written; None keeps the value of the model."""

    model: str
    count: str
    memory: str | None = None
    time_slice: str | None = None
    context_memory: str | None = None
    module_memory: bool = False
    compute_mode: str = "default"
    mps_deaths_harm: bool = True
    costs: str = "ideal"


def create(directories: Directories, options: CreateOptions) -> list[SoftwareGpu]:
    """Start software GPUs."""
    make_directory(directories.runtime, "directories.runtime")
    context_bytes = (
        None if options.context_memory is None else parse_size(options.context_memory, field="--context-memory")
    )
    costs = read_costs(options.costs)
    if options.time_slice is not None:
        costs = costs.with_slice(parse_duration(options.time_slice, field="--slice"))
    gpus = manage.create(
        home(directories),
        options.model,
        _number("--count", options.count),
        memory_bytes=None if options.memory is None else parse_size(options.memory, field="--memory"),
        compute_mode=options.compute_mode,
        context_bytes=context_bytes or 0,
        counts_code=options.module_memory,
        costs=costs,
    )
    for gpu in gpus:
        fault.set_mps_deaths(home(directories), gpu.ordinal, harm=options.mps_deaths_harm)
    return gpus


def find(directories: Directories) -> list[SoftwareGpu]:
    """Return the software GPUs."""
    return manage.gpus(home(directories))


def counters(directories: Directories, number: str) -> dict[str, Any]:
    """Return the counters of one software GPU."""
    return manage.inspect(home(directories), existing(directories, "N", number))


def destroy(directories: Directories) -> int:
    """End all software GPUs and return their number."""
    return manage.destroy(home(directories))


def environment(directories: Directories, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables with which a program finds them."""
    return manage.env(home(directories), base=None if base is None else dict(base))


def home(directories: Directories) -> Path:
    """Return the directory of the software GPUs."""
    return directories.runtime / "softgpu"


def existing(directories: Directories, field: str, number: str) -> int:
    """Return the number of an existing software GPU."""
    ordinal = _number(field, number)
    require_existing(directories, ordinal, field, number)
    return ordinal


def require_existing(directories: Directories, ordinal: int, field: str, value: str) -> None:
    """Raise ConfigError if there is no software GPU of this number."""
    ordinals = [gpu.ordinal for gpu in find(directories) if gpu.alive]
    if ordinal not in ordinals:
        named = ", ".join(f"{SOFT_PREFIX}{existing_ordinal}" for existing_ordinal in ordinals)
        existing_gpus = f"the existing ones are {named}" if ordinals else "there is none"
        raise ConfigError(
            field, value, f"no such software GPU, {existing_gpus}; create one with: cotenant softgpu create"
        )


def _number(field: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ConfigError(field, text, "write a whole number")
    return int(text)
