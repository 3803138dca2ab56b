"""Which GPUs does this machine have, as a node may share them? Software GPUs where some live, else what NVML names."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from cotenant.domain.gpu import SOFT_PREFIX, UUID_PREFIX, Gpu
from cotenant.errors import PeerError, WorldError
from cotenant.live.gpu import nvml, read_gpus
from cotenant.live.softgpu import manage


class Search:
    """Looks whenever it is asked to: software GPUs are made and ended while a node runs."""

    def __init__(self, home: Path, environ: Mapping[str, str]) -> None:
        """Look into the directory of the node's own software GPUs, then into the one that the environment names."""
        named = environ.get("COTENANT_SOFTGPU")
        self._homes = [home, *([Path(named)] if named else [])]

    def merged(self, known: Sequence[Gpu]) -> tuple[Gpu, ...]:
        """The known ones in their places, as they are now if they are still there, and behind them the others."""
        found = {gpu.names(index)[0]: gpu for index, gpu in enumerate(self._look())}
        kept = [found.pop(gpu.names(index)[0], gpu) for index, gpu in enumerate(known)]
        return (*kept, *found.values())

    def _look(self) -> list[Gpu]:
        for home in self._homes:
            soft = [gpu for gpu in manage.gpus(home) if gpu.alive and not gpu.is_lost]
            if soft:
                return [_soft(home, gpu) for gpu in soft]
        try:
            with nvml(None):
                told = [gpu for gpu in read_gpus(None) if not gpu.is_lost]
        except WorldError:  # no driver, so no GPU
            return []
        return [Gpu(f"{gpu.index} {gpu.name}", gpu.memory_bytes, (gpu.uuid, str(gpu.index))) for gpu in told]


def _soft(home: Path, gpu: manage.SoftGpu) -> Gpu:
    name = f"{SOFT_PREFIX}{gpu.ordinal}"
    try:
        called: tuple[str, ...] = (name, f"{UUID_PREFIX}{uuid.UUID(manage.inspect(home, gpu.ordinal)['uuid'])}")
    except (WorldError, PeerError):  # it ended meanwhile
        called = (name,)
    return Gpu(f"{name} {gpu.name}", gpu.memory_bytes, called)
