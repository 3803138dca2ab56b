"""Delays that a software GPU measures between its clients, as a matrix of tenants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cotenant.errors import CotenantError
from cotenant.node.directories import Directories
from cotenant.softgpu import commands as softgpu
from cotenant.softgpu import wire
from cotenant.units.share import WHOLE_PPM

SOFT_PREFIX: Final = "soft:"


class DeviceDelays:
    """Reads the counters of the software GPUs of a node; real GPUs have no such counters."""

    def __init__(self, directories: Directories) -> None:
        self._directories = directories
        self._before: dict[int, tuple[int, dict[tuple[int, int], int]]] = {}

    def reset(self) -> None:
        """Forget earlier readings."""
        self._before.clear()

    def read(self, view: Mapping[str, Any]) -> dict[str, Any]:
        """Return the delays since the previous reading, between the tenants of this view of the node."""
        measured, delays = [], []
        paths = {gpu.ordinal: gpu.path for gpu in softgpu.find(self._directories) if gpu.alive}
        for gpu in view["gpus"]:
            ordinal = next((int(name[len(SOFT_PREFIX) :]) for name in gpu["called"] if _is_soft(name)), -1)
            if ordinal not in paths:
                continue
            try:
                report = wire.report(paths[ordinal])
            except CotenantError:
                continue
            names = {pid: tenant["name"] for tenant in view["tenants"] for pid in tenant["pids"]}
            measured.append(gpu["index"])
            delays += self._delays_of(gpu["index"], report, names)
        return {"measured": measured, "delays": delays}

    def _delays_of(self, index: int, report: Mapping[str, Any], names: Mapping[int, str]) -> list[dict[str, Any]]:
        totals = {
            (client["pid"], other["pid"]): other["delay_ns"]
            for client in report["clients"]
            for other in client["delayed_by"]
        }
        at_ns, before = self._before.get(index, (report["now_ns"], totals))
        self._before[index] = report["now_ns"], totals
        elapsed_ns = max(1, report["now_ns"] - at_ns)
        delays = []
        for (delayed, by), total_ns in totals.items():
            ppm = max(0, total_ns - before.get((delayed, by), 0)) * WHOLE_PPM // elapsed_ns
            if ppm and delayed in names and by in names:
                delays.append({"gpu": index, "delayed": names[delayed], "by": names[by], "ppm": ppm})
        return delays


def _is_soft(name: str) -> bool:
    return name.startswith(SOFT_PREFIX) and name[len(SOFT_PREFIX) :].isdecimal()
