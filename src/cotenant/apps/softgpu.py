"""Wires `cotenant softgpu` and `cotenant run --gpu`: text to numbers, and the directory the software GPUs live in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cotenant.domain.gpu import SOFT_PREFIX
from cotenant.domain.tenant import GPU_PATTERN, NAME_LIMIT
from cotenant.errors import ConfigError
from cotenant.format.quantity import parse_duration, parse_size
from cotenant.live.directory import Places, make_directory
from cotenant.live.softgpu import fault, manage
from cotenant.live.softgpu.manage import SoftGpu

_NO_DEVICE: Final = "-1"


@dataclass(frozen=True, slots=True)
class Wish:
    """What new software GPUs shall be like, as written; None keeps what the model has."""

    model: str
    count: str
    memory: str | None = None
    time_slice: str | None = None
    context_memory: str | None = None
    module_memory: bool = False
    compute_mode: str = "default"
    mps_deaths_harm: bool = True


def create(places: Places, wish: Wish) -> list[SoftGpu]:
    """Start software GPUs."""
    make_directory(places.runtime, "directories.runtime")
    context_bytes = None if wish.context_memory is None else parse_size(wish.context_memory, field="--context-memory")
    made = manage.create(
        home(places),
        wish.model,
        _number("--count", wish.count),
        memory_bytes=None if wish.memory is None else parse_size(wish.memory, field="--memory"),
        slice_ns=None if wish.time_slice is None else parse_duration(wish.time_slice, field="--slice"),
        compute_mode=wish.compute_mode,
        context_bytes=context_bytes or 0,
        counts_code=wish.module_memory,
    )
    for gpu in made:
        fault.set_mps_deaths(home(places), gpu.ordinal, harm=wish.mps_deaths_harm)
    return made


def find(places: Places) -> list[SoftGpu]:
    """Those that are there."""
    return manage.gpus(home(places))


def books(places: Places, number: str) -> dict[str, Any]:
    """What one of them counted."""
    return manage.inspect(home(places), existing(places, "N", number))


def destroy(places: Places) -> int:
    """End them all; returns how many there were."""
    return manage.destroy(home(places))


def environment(places: Places, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a program needs to find them, in addition to the environment that it has."""
    return manage.env(home(places), base=None if base is None else dict(base))


def environment_of(gpu: str, places: Places, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """What `cotenant run --gpu` adds: "soft:N" is a software GPU, "N" a real one, empty leaves the choice to CUDA.

    `base` is the environment that the program has otherwise; None: ours.
    """
    if not gpu:
        return {}
    kind, colon, number = gpu.rpartition(":")
    known = (kind, colon) in (("", ""), ("soft", ":"))
    if not known or not (number.isascii() and number.isdigit()):
        raise ConfigError("--gpu", gpu, 'write "soft:0" for a software GPU, or "0" for a real one')
    if not colon:
        return {"CUDA_VISIBLE_DEVICES": number}
    _existing(places, int(number), "--gpu", gpu)
    return {**environment(places, base), "CUDA_VISIBLE_DEVICES": number}


def wished_gpu(gpu: str, environ: Mapping[str, str]) -> str:
    """Which device a program was told to use, as a node calls it: by `--gpu`, or by the environment; empty: none.

    A program that may use several is where the first of them is. Among software GPUs a number is one of them.
    """
    named = gpu or environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if not re.match(GPU_PATTERN, named) or len(named) > NAME_LIMIT or named == _NO_DEVICE:
        return ""
    return f"{SOFT_PREFIX}{named}" if named.isdigit() and environ.get("COTENANT_SOFTGPU") else named


def home(places: Places) -> Path:
    """The directory of the software GPUs."""
    return places.runtime / "softgpu"


def existing(places: Places, field: str, number: str) -> int:
    """The number of a software GPU that is there."""
    ordinal = _number(field, number)
    _existing(places, ordinal, field, number)
    return ordinal


def _existing(places: Places, ordinal: int, field: str, value: str) -> None:
    there = [gpu.ordinal for gpu in find(places) if gpu.alive]
    if ordinal not in there:
        named = ", ".join(f"{SOFT_PREFIX}{one}" for one in there)
        known = f"here {'is' if len(there) == 1 else 'are'} {named}" if there else "there is none"
        raise ConfigError(field, value, f"no such software GPU, {known}; make some with: cotenant softgpu create")


def _number(field: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ConfigError(field, text, "write a whole number")
    return int(text)
