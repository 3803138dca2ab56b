"""The devices that `--gpu` selects for a program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from cotenant.errors import ConfigError
from cotenant.node.directories import Directories
from cotenant.node.model.gpu import SOFT_PREFIX, UUID_PREFIXES
from cotenant.node.model.tenant import GPU_LIMIT, NAME_LIMIT

_NO_DEVICE: Final = "-1"
_NAME: Final = r"^[A-Za-z0-9:._/-]+\Z"
_SOFT: Final = "software"
_REAL: Final = "real"


def environment_of(gpu: str, directories: Directories, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what `cotenant run --gpu` adds: "soft:N" is a software GPU, "N" a real one, empty: CUDA's choice.

    Several are separated by commas.

    `base` is the environment of the program; None: that of this process.
    """
    if not gpu:
        return {}
    names = gpu.split(",")
    kinds = {_kind_of(gpu, name) for name in names}
    if len(kinds) > 1:
        raise ConfigError("--gpu", gpu, "a program uses software GPUs or real ones, not both; name GPUs of one kind")
    if len(names) > GPU_LIMIT or len(set(names)) < len(names):
        raise ConfigError("--gpu", gpu, f"name each GPU once, and at most {GPU_LIMIT}")
    visible = ",".join(name.removeprefix(SOFT_PREFIX) for name in names)
    if kinds == {_REAL}:
        return {"CUDA_VISIBLE_DEVICES": visible}
    from cotenant.softgpu.commands import environment, require_existing  # slow to import; other programs do without

    for name in names:
        require_existing(directories, int(name.removeprefix(SOFT_PREFIX)), "--gpu", name)
    return {**environment(directories, base), "CUDA_VISIBLE_DEVICES": visible}


def _kind_of(gpu: str, name: str) -> str:
    """Return whether a name is that of a software GPU or of a real one."""
    number = name.removeprefix(SOFT_PREFIX)
    if number.isascii() and number.isdecimal():
        return _SOFT if number != name else _REAL
    if name.startswith(UUID_PREFIXES):
        return _REAL
    remedy = 'write "soft:0" for a software GPU, "0" or a UUID for a real one, or several with commas: "soft:0,soft:1"'
    raise ConfigError("--gpu", gpu, remedy)


def selected_gpu(gpu: str, environ: Mapping[str, str]) -> str:
    """Return the devices that a program will use, by `--gpu` or by the environment; empty: unknown.

    With software GPUs in the environment, a number is one of them. As in CUDA, an invalid entry ends the list.
    """
    if gpu:
        return gpu
    named: list[str] = []
    for text in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[:GPU_LIMIT]:
        name = text.strip()
        if not re.match(_NAME, name) or len(name) > NAME_LIMIT or name == _NO_DEVICE:
            break
        named.append(f"{SOFT_PREFIX}{name}" if name.isdecimal() and environ.get("COTENANT_SOFTGPU") else name)
    return ",".join(named)
