"""Find the GPUs that a node may share: running software GPUs, else the GPUs that NVML lists."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from cotenant.errors import PeerError, WorldError
from cotenant.node.model.gpu import SOFT_PREFIX, UUID_PREFIX, Gpu
from cotenant.node.nvml import nvml, read_gpus
from cotenant.softgpu import manage


class GpuDiscovery:
    """Lists GPUs on request, since software GPUs come and go while a node runs."""

    def __init__(self, home: Path, environ: Mapping[str, str]) -> None:
        """Search the node's own directory of software GPUs, then the one that the environment names."""
        named = environ.get("COTENANT_SOFTGPU")
        self._homes = [home, *([Path(named)] if named else [])]

    def update(self, known: Sequence[Gpu]) -> tuple[Gpu, ...]:
        """Return the known GPUs at their indexes, updated if they are present, followed by new GPUs."""
        discovered = {gpu.names(index)[0]: gpu for index, gpu in enumerate(self._discover())}
        updated = [discovered.pop(gpu.names(index)[0], gpu) for index, gpu in enumerate(known)]
        return (*updated, *discovered.values())

    def _discover(self) -> list[Gpu]:
        for home in self._homes:
            soft = [gpu for gpu in manage.gpus(home) if gpu.alive and not gpu.is_lost]
            if soft:
                return [_software_gpu(home, gpu) for gpu in soft]
        try:
            with nvml(None):
                gpus = [gpu for gpu in read_gpus(None) if not gpu.is_lost]
        except WorldError:  # no driver, so no GPU
            return []
        return [Gpu(f"{gpu.index} {gpu.name}", gpu.memory_bytes, (gpu.uuid, str(gpu.index))) for gpu in gpus]


def _software_gpu(home: Path, gpu: manage.SoftwareGpu) -> Gpu:
    name = f"{SOFT_PREFIX}{gpu.ordinal}"
    try:
        names: tuple[str, ...] = (name, f"{UUID_PREFIX}{uuid.UUID(manage.inspect(home, gpu.ordinal)['uuid'])}")
    except (WorldError, PeerError):  # the software GPU was removed meanwhile
        names = (name,)
    return Gpu(f"{name} {gpu.name}", gpu.memory_bytes, names)
