"""The device that `--gpu` selects for a program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from cotenant.errors import ConfigError
from cotenant.node.directories import Directories
from cotenant.node.model.gpu import SOFT_PREFIX
from cotenant.node.model.tenant import GPU_PATTERN, NAME_LIMIT

_NO_DEVICE: Final = "-1"


def environment_of(gpu: str, directories: Directories, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what `cotenant run --gpu` adds: "soft:N" is a software GPU, "N" a real one, empty: CUDA's choice.

    `base` is the environment of the program; None: that of this process.
    """
    if not gpu:
        return {}
    kind, colon, number = gpu.rpartition(":")
    is_valid = (kind, colon) in (("", ""), ("soft", ":"))
    if not is_valid or not (number.isascii() and number.isdigit()):
        raise ConfigError("--gpu", gpu, 'write "soft:0" for a software GPU, or "0" for a real one')
    if not colon:
        return {"CUDA_VISIBLE_DEVICES": number}
    from cotenant.softgpu.commands import environment, require_existing  # slow to import; other programs do without

    require_existing(directories, int(number), "--gpu", gpu)
    return {**environment(directories, base), "CUDA_VISIBLE_DEVICES": number}


def selected_gpu(gpu: str, environ: Mapping[str, str]) -> str:
    """Return the device that a program will use, by `--gpu` or by the environment; empty: unknown.

    A program that may use several devices counts for the first. With software GPUs in the environment, a number is
    one of them.
    """
    named = gpu or environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if not re.match(GPU_PATTERN, named) or len(named) > NAME_LIMIT or named == _NO_DEVICE:
        return ""
    return f"{SOFT_PREFIX}{named}" if named.isdigit() and environ.get("COTENANT_SOFTGPU") else named
