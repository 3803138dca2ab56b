"""Resource names of HAMi and of NVIDIA's device plugin in the containers of a pod.

The meaning is HAMi's (pkg/device/nvidia/device.go of Project-HAMi/HAMi): a value in `limits` goes
before one in `requests`; `nvidia.com/gpumem` is MiB and `nvidia.com/gpucores` percent of each GPU; 0 means that it is
not set; without a number of GPUs it is 1; a container that states neither memory nor cores has its GPUs for itself.
`nvidia.com/priority` is 0 (high) or 1 (low, which is HAMi's default).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from cotenant.cluster.kubernetes.names import EXTENDED_RESOURCE
from cotenant.cluster.kubernetes.quantity import whole_quantity
from cotenant.cluster.kubernetes.webhook.objects import JsonObject, join_path, object_at
from cotenant.errors import ConfigError
from cotenant.units.text import format_share, format_size

GPU: Final = "nvidia.com/gpu"
MEMORY_MIB: Final = "nvidia.com/gpumem"
MEMORY_PERCENT: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"
PRIORITY: Final = "nvidia.com/priority"
HAMI_RESOURCES: Final = (MEMORY_MIB, MEMORY_PERCENT, CORES, PRIORITY)
TRANSLATED: Final = (GPU, *HAMI_RESOURCES, EXTENDED_RESOURCE)
"""Resource names that the webhook replaces by a claim."""

_NVIDIA: Final = "nvidia.com/"
_PPM_PER_PERCENT: Final = 10_000
_MIB: Final = 1 << 20
_LARGEST_MIB: Final = (1 << 31) - 1
"""The largest amount of HAMi, which stores MiB in 32 bits; it also detects bytes written by mistake."""
_GPUS_LIMIT: Final = 64


class ContainerResources(msgspec.Struct, frozen=True):
    """What the resource names of one container ask for."""

    gpus: int | None = None
    """Number of GPUs; None: not stated by these names."""
    memory: str = ""
    """Memory on each GPU as text, such as "3000MiB"; empty: not stated by these names."""
    share: str = ""
    """Guaranteed part of each GPU as text; empty: not stated by these names."""
    default_share: str = ""
    """The share that HAMi gives a container that states none; empty: the container uses no name of HAMi."""
    hami_priority: int | None = None
    """0 (high) or 1 (low); None: not stated by these names."""
    is_hami: bool = False
    """Whether a name of HAMi or NVIDIA was used, not only the extended resource of cotenant."""


def resource_names(container: JsonObject, path: str) -> list[str]:
    """Return the names of all resources of a container."""
    resources = object_at(container, "resources", path)
    return [*object_at(resources, "limits", path), *object_at(resources, "requests", path)]


def asks_for_gpu(container: JsonObject, path: str, *, plain: bool) -> bool:
    """Return whether a container asks for a GPU by a name that the webhook translates.

    `plain` says whether `nvidia.com/gpu` alone counts; it is otherwise left to NVIDIA's device plugin.
    """
    wanted = set(TRANSLATED if plain else (*HAMI_RESOURCES, EXTENDED_RESOURCE))
    found = [name for name in resource_names(container, path) if name in wanted]
    if set(found) <= {GPU, EXTENDED_RESOURCE}:  # 0 GPUs and nothing else is how a chart turns a GPU off
        return any(_stated(container, path, name) for name in found)
    return True


def read_resources(container: JsonObject, path: str, memory_sizes: Sequence[int]) -> ContainerResources:
    """Return what the resource names of a container ask for.

    `memory_sizes` are the different sizes of the GPUs of the cluster in bytes, which a percentage refers to.
    """
    for name in resource_names(container, path):
        if name.startswith(_NVIDIA) and name not in TRANSLATED:
            known = ", ".join(TRANSLATED)
            raise ConfigError(
                _field(container, path, name), _value(container, path, name), f"cannot be shared; use one of {known}"
            )
    _check_equal(container, path)
    gpus = _number_of_gpus(container, path)
    cores = _stated(container, path, CORES)
    if cores > 100:
        raise ConfigError(_field(container, path, CORES), cores, "write a percentage of the compute from 0 to 100")
    value = _value(container, path, PRIORITY)
    priority = None if value is None else _stated(container, path, PRIORITY)
    if priority not in (None, 0, 1):
        raise ConfigError(_field(container, path, PRIORITY), value, "write 0 (high) or 1 (low), as HAMi does")
    memory, is_whole = _memory(container, path, memory_sizes)
    is_hami = any(name in (GPU, *HAMI_RESOURCES) for name in resource_names(container, path))
    share = "" if _value(container, path, CORES) is None else format_share(cores * _PPM_PER_PERCENT)
    default_share = ("100%" if is_whole else "0%") if is_hami else ""
    return ContainerResources(gpus, memory, share, default_share, priority, is_hami)


def _check_equal(container: JsonObject, path: str) -> None:
    """Refuse a request that differs from its limit, as the API server does for the resources of devices."""
    resources = object_at(container, "resources", path)
    limits, requests = object_at(resources, "limits", path), object_at(resources, "requests", path)
    for name in TRANSLATED:
        limit, request = limits.get(name), requests.get(name)
        if limit is None or request is None:
            continue
        field = join_path(f"{path}.resources.requests", name)
        remedy = f"differs from the limit, which is {limit}; make them equal, or remove the request"
        if whole_quantity(request, field, remedy) != _stated(container, path, name):
            raise ConfigError(field, request, remedy)


def _number_of_gpus(container: JsonObject, path: str) -> int | None:
    stated = [name for name in (GPU, EXTENDED_RESOURCE) if _value(container, path, name) is not None]
    if len(stated) > 1:
        field = _field(container, path, GPU)
        raise ConfigError(field, _value(container, path, GPU), f"names the same GPUs as {EXTENDED_RESOURCE}; keep one")
    if not stated:
        return None
    gpus = _stated(container, path, stated[0])
    if not 1 <= gpus <= _GPUS_LIMIT:
        remedy = f"write a number from 1 to {_GPUS_LIMIT}, or remove the other GPU resources of the container"
        raise ConfigError(_field(container, path, stated[0]), gpus, remedy)
    return gpus


def _memory(container: JsonObject, path: str, memory_sizes: Sequence[int]) -> tuple[str, bool]:
    """Return the memory on each GPU as text, and whether that is all of it."""
    mib, percent = _stated(container, path, MEMORY_MIB), _stated(container, path, MEMORY_PERCENT)
    if mib and percent:
        field = _field(container, path, MEMORY_PERCENT)
        raise ConfigError(field, percent, f"states the memory a second time; keep it or {MEMORY_MIB}")
    if mib > _LARGEST_MIB:
        raise ConfigError(
            _field(container, path, MEMORY_MIB),
            _value(container, path, MEMORY_MIB),
            "is a number of MiB; write it without a unit, as in 3000",
        )
    if percent > 100:
        raise ConfigError(_field(container, path, MEMORY_PERCENT), percent, "write a percentage from 0 to 100")
    if mib:
        return format_size(mib * _MIB), False
    if percent in (0, 100):
        return "", True
    if len(memory_sizes) != 1:
        sizes = ", ".join(format_size(size) for size in sorted(memory_sizes))
        reason = f"the GPUs of this cluster have different sizes ({sizes})" if sizes else "no GPU has been reported yet"
        raise ConfigError(
            _field(container, path, MEMORY_PERCENT),
            percent,
            f"{reason}, so that the percentage is no amount; use {MEMORY_MIB}",
        )
    return format_size(max(memory_sizes[0] * percent // 100 // _MIB, 1) * _MIB), False


def _stated(container: JsonObject, path: str, name: str) -> int:
    """Return the amount of a resource; 0 if the container does not name it."""
    value = _value(container, path, name)
    remedy = "is a number of MiB; write it without a unit, as in 3000" if name == MEMORY_MIB else "write a whole number"
    return 0 if value is None else whole_quantity(value, _field(container, path, name), remedy)


def _value(container: JsonObject, path: str, name: str) -> Any:
    resources = object_at(container, "resources", path)
    value = object_at(resources, "limits", path).get(name)
    return object_at(resources, "requests", path).get(name) if value is None else value


def _field(container: JsonObject, path: str, name: str) -> str:
    kind = "limits" if name in object_at(object_at(container, "resources", path), "limits", path) else "requests"
    return join_path(f"{path}.resources.{kind}", name)
