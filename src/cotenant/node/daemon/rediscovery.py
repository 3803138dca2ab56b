"""Notices software GPUs that disappear, return or change while a node runs.

The device monitor queries NVML about devices that are in use. A device without tenants, and one that was created again
with other properties, would go unnoticed there. This timer asks the servers of the software GPUs instead, on a thread
of its own. Real GPUs do not come and go in this way; NVML alone decides on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from cotenant.node.daemon.discovery import GpuDiscovery
from cotenant.node.model.event import Event, GpuLost, GpuRecovered, GpusFound, SettingsChanged
from cotenant.node.model.gpu import SOFT_PREFIX, Gpu
from cotenant.node.model.protection import Block
from cotenant.node.state.node import NodeMachine
from cotenant.runner.background import BackgroundTasks, TaskResult
from cotenant.units.instant import SECOND_NS, Instant
from cotenant.units.text import format_size

PERIOD_NS: Final = 2 * SECOND_NS


def is_software(gpu: Gpu) -> bool:
    """Return whether a device is a software GPU that was discovered."""
    return any(name.startswith(SOFT_PREFIX) for name in gpu.called)


class Rediscovery:
    """A timer of the loop that compares the known software GPUs with those that run now."""

    def __init__(
        self, machine: NodeMachine, discovery: GpuDiscovery, tasks: BackgroundTasks, post: Callable[[Event], None]
    ) -> None:
        """Begin with the devices of the machine's settings."""
        self._machine = machine
        self._discovery = discovery
        self._tasks = tasks
        self._post = post
        self._due: Instant = 0
        self._is_searching = False
        self._lost: set[int] = set()  # devices that are lost because they were missing here; NVML decides on others

    def next_wakeup(self) -> Instant | None:
        """Return when to search again."""
        return None if self._is_searching else self._due

    def wake(self, now: Instant) -> None:
        """Search in the background."""
        self._due = now + PERIOD_NS
        self._is_searching = True
        self._tasks.submit(self._discovery.software_gpus, self._on_found)

    def _on_found(self, result: TaskResult[list[Gpu]]) -> None:
        self._is_searching = False
        if result.error is None:
            self.compare(result.result())

    def compare(self, present: Sequence[Gpu]) -> None:
        """Post what changed: devices that are missing, have returned, are others than before, or are new."""
        by_name = {gpu.called[0]: gpu for gpu in present}
        known = self._machine.settings.gpus
        for index, gpu in enumerate(known):
            if not is_software(gpu):
                continue
            now = by_name.pop(gpu.called[0], None)
            if now is None:
                self._lose(index, "its server does not answer")
            elif now != gpu:
                # Another device under the same name: nothing of what ran on the old one is left.
                self._lose(index, "it was created again")
                self._replace(index, now)
                self._recover(index)
            elif index in self._lost:
                self._recover(index)
        # A node of real GPUs does not begin to share software GPUs while it runs.
        if by_name and (not known or any(map(is_software, known))):
            self._post(GpusFound(tuple(by_name.values())))

    def _lose(self, index: int, why: str) -> None:
        if Block.DEVICE not in self._machine.watches()[index].blocked:
            self._lost.add(index)
            self._post(GpuLost(index, why))

    def _recover(self, index: int) -> None:
        self._lost.discard(index)
        self._post(GpuRecovered(index))

    def _replace(self, index: int, gpu: Gpu) -> None:
        settings = self._machine.settings
        gpus = (*settings.gpus[:index], gpu, *settings.gpus[index + 1 :])
        detail = f"GPU {index} is {gpu.name} with {format_size(gpu.memory_bytes)} now"
        self._post(SettingsChanged(msgspec.structs.replace(settings, gpus=gpus), detail))
