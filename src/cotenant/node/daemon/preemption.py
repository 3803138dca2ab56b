"""Preemption by the driver on real devices, through nvidia-smi, and on software GPUs, through their device servers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from cotenant.errors import CotenantError, WorldError
from cotenant.node.model.gpu import SOFT_PREFIX, Gpu
from cotenant.node.model.preemption import PreemptionLevel, TimeSlice
from cotenant.node.ports import Preemption
from cotenant.runner.process import run_and_capture
from cotenant.softgpu import manage, wire
from cotenant.softgpu.time_slices import length_of, nearest

_PROGRAM: Final = "nvidia-smi"
_LISTED: Final = re.compile(r"timeslice\D*(default|short|medium|long)", re.IGNORECASE)


class SoftwarePreemption:
    """The time slices of a software GPU."""

    def __init__(self, home: Path, ordinal: int) -> None:
        """Take the directory of the software GPUs."""
        self._socket = manage.socket_of(home, ordinal)

    def level(self) -> PreemptionLevel:
        """Return the level; a device that does not answer offers none."""
        try:
            wire.time_slice(self._socket)
        except CotenantError:
            return PreemptionLevel.LAUNCHES
        return PreemptionLevel.TIME_SLICES

    def time_slice(self) -> TimeSlice:
        """Return the named length that is nearest to the device's."""
        return nearest(wire.time_slice(self._socket))

    def set_time_slice(self, time_slice: TimeSlice) -> None:
        """Set the length."""
        wire.time_slice(self._socket, length_of(time_slice))


class NvidiaPreemption:
    """The time slices of a real device, by `nvidia-smi compute-policy`. It has never run with NVIDIA's program."""

    def __init__(self, uuid: str, run: Callable[[Sequence[str]], str] = run_and_capture) -> None:
        """Take the device's UUID, and the function that runs a command and returns its output."""
        self._command = [_PROGRAM, "compute-policy", "-i", uuid]
        self._run = run

    def level(self) -> PreemptionLevel:
        """Return the level; where the program is missing or refuses, the node can change nothing."""
        try:
            self.time_slice()
        except CotenantError:
            return PreemptionLevel.LAUNCHES
        return PreemptionLevel.TIME_SLICES

    def time_slice(self) -> TimeSlice:
        """Return the length that the program lists."""
        output = self._run([*self._command, "--list"])
        found = _LISTED.search(output)
        if found is None:
            raise WorldError(f"{_PROGRAM} compute-policy --list names no time slice; update the driver")
        return TimeSlice[found.group(1).upper()]

    def set_time_slice(self, time_slice: TimeSlice) -> None:
        """Set the length, which needs root."""
        self._run([*self._command, f"--set-timeslice={time_slice.value}"])


def preemption_of(gpu: Gpu, index: int, homes: Sequence[Path], environ: Mapping[str, str]) -> Preemption | None:
    """Return the port to a device of the node; None: its software GPU or the program does not exist."""
    name = gpu.names(index)[0]
    if not name.startswith(SOFT_PREFIX) and shutil.which(_PROGRAM, path=environ.get("PATH")) is not None:
        return NvidiaPreemption(name)
    ordinal = int(name.removeprefix(SOFT_PREFIX)) if name.removeprefix(SOFT_PREFIX).isdecimal() else index
    home = next((home for home in homes if manage.socket_of(home, ordinal).exists()), None)
    return None if home is None else SoftwarePreemption(home, ordinal)


class TimeSlicePolicy:
    """Sets the time slices of the node's devices when it starts, and the default again when it ends."""

    def __init__(
        self, time_slice: TimeSlice, find: Callable[[Gpu, int], Preemption | None], report: Callable[[str], None]
    ) -> None:
        """Take the length, the function that finds the port to a device, and the one that logs."""
        self._time_slice = time_slice
        self._find = find
        self._report = report
        self._changed: list[tuple[Gpu, Preemption]] = []

    def begin(self, gpus: Sequence[Gpu]) -> None:
        """Set the length; a device that does not offer it is reported and used as it is."""
        if self._time_slice is TimeSlice.DEFAULT:
            return
        for index, gpu in enumerate(gpus):
            port = self._find(gpu, index)
            if port is None or port.level() < PreemptionLevel.TIME_SLICES:
                self._report(f"{gpu.name}: the length of its time slices cannot be set")
                continue
            if self._set(gpu, port, self._time_slice):
                self._changed.append((gpu, port))

    def close(self) -> None:
        """Set the default on every device that was changed."""
        for gpu, port in self._changed:
            self._set(gpu, port, TimeSlice.DEFAULT)
        self._changed.clear()

    def _set(self, gpu: Gpu, port: Preemption, time_slice: TimeSlice) -> bool:
        try:
            port.set_time_slice(time_slice)
        except CotenantError as error:
            self._report(f"{gpu.name}: time slices could not be set to {time_slice.name.lower()}: {error}")
            return False
        self._report(f"{gpu.name}: time slices are {time_slice.name.lower()}")
        return True
