"""Find the GPUs that a node may share: running software GPUs, else the GPUs that NVML lists."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from cotenant.errors import PeerError, WorldError
from cotenant.node.model.gpu import SOFT_PREFIX, UUID_PREFIX, Gpu
from cotenant.node.nvml import nvml, read_gpus, read_mig_devices
from cotenant.softgpu import manage


class GpuDiscovery:
    """Lists GPUs on request, since software GPUs come and go while a node runs."""

    def __init__(self, home: Path, environ: Mapping[str, str]) -> None:
        """Search the node's own directory of software GPUs, then the one that the environment names."""
        named = environ.get("COTENANT_SOFTGPU")
        self._homes = [home, *([Path(named)] if named else [])]
        self._soft_home: Path | None = None
        """The directory in which software GPUs were found first; those of another one may have the same names."""

    def update(self, known: Sequence[Gpu]) -> tuple[Gpu, ...]:
        """Return the known GPUs at their indexes, updated if they are present, followed by new GPUs."""
        discovered = {gpu.names(index)[0]: gpu for index, gpu in enumerate(self._discover())}
        updated = [discovered.pop(gpu.names(index)[0], gpu) for index, gpu in enumerate(known)]
        return (*updated, *discovered.values())

    def software_gpus(self) -> list[Gpu]:
        """Return the software GPUs that answer and are not lost."""
        for home in self._homes if self._soft_home is None else [self._soft_home]:
            gpus = [gpu for ordinal in range(manage.MAX_GPUS) if (gpu := _software_gpu(home, ordinal)) is not None]
            if gpus:
                self._soft_home = home
                return gpus
        return []

    def _discover(self) -> list[Gpu]:
        if soft := self.software_gpus():
            return soft
        try:
            with nvml(None):
                gpus = [gpu for gpu in read_gpus(None) if not gpu.is_lost]
                parts = read_mig_devices()
        except WorldError:  # no driver, so no GPU
            return []
        divided = {index for index, *_ in parts}
        whole = [gpu for gpu in gpus if gpu.index not in divided]
        return [
            *(Gpu(f"{gpu.index} {gpu.name}", gpu.memory_bytes, (gpu.uuid, str(gpu.index))) for gpu in whole),
            *(Gpu(f"{index} {name}", memory_bytes, (uuid_,)) for index, name, uuid_, memory_bytes in parts),
        ]


def _software_gpu(home: Path, ordinal: int) -> Gpu | None:
    """Return a software GPU; None if there is none, it does not answer, or a fault removed the device."""
    if not manage.socket_of(home, ordinal).exists():
        return None
    try:
        counters = manage.inspect(home, ordinal)
    except (WorldError, PeerError):
        return None
    if counters["lost"]:
        return None
    name = f"{SOFT_PREFIX}{ordinal}"
    return Gpu(
        f"{name} {counters['name']}", counters["memory_bytes"], (name, f"{UUID_PREFIX}{uuid.UUID(counters['uuid'])}")
    )
