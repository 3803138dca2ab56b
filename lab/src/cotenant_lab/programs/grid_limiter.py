"""A compute limiter by grid size against the driver's utilization: the baseline of `bench limit`.

The idea is that of the vcuda family (Tencent's vcuda-controller, HAMi-core), implemented independently from its public
description: a launch takes as many tokens as its grid has blocks and sleeps while there are none; a thread reads the
process's utilization from NVML a few times per second and grants more tokens per period while it is lower than the
limit, and fewer while it is higher, in steps that grow with the distance.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Final

from cotenant.runner.clock import pause

PERIOD_S: Final = 0.12
SLEEP_S: Final = 0.01
_RECENT_US: Final = 1_000_000
_ROOM: Final = 64
_LEAST_STEP: Final = 5
_SCALE: Final = 2560
_POOL: Final = 32
"""Maximum number of tokens, in grids that would fill every thread of the device."""


class _Sample(ctypes.Structure):
    """nvmlProcessUtilizationSample_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("stamp_us", ctypes.c_ulonglong),
        *((name, ctypes.c_uint) for name in ("sm", "memory", "encoder", "decoder")),
    )


class Tokens:
    """Token arithmetic of one process, in blocks; independent of where launches and utilization come from."""

    def __init__(self, percent: int, sms: int, threads_per_sm: int) -> None:
        """Start without tokens: the first utilization sample grants some."""
        self._percent = percent
        self._step = sms * sms * threads_per_sm
        self._max_tokens = sms * threads_per_sm * _POOL
        self._tokens = self._share = 0

    def take(self, blocks: int) -> bool:
        """Return whether a launch may start; a large one may take tokens that are not granted yet."""
        if self._tokens < 0:
            return False
        self._tokens -= blocks
        return True

    def update(self, used: int) -> None:
        """Grant more or fewer tokens per period by the used percentage of time."""
        distance = max(abs(self._percent - used), _LEAST_STEP)
        step = self._step * distance // _SCALE
        if distance > self._percent // 2:
            step = step * distance * 2 // (self._percent + 1)
        self._share += step if used <= self._percent else -step
        self._share = min(max(self._share, 0), self._max_tokens)
        self._tokens = min(self._tokens + self._share, self._max_tokens)


class GridLimiter:
    """Limits the launches of this process to a percentage."""

    def __init__(self, percent: int, sms: int, threads_per_sm: int) -> None:
        """Start the sampling thread."""
        self._tokens = Tokens(percent, sms, threads_per_sm)
        self._last_sample_us = 0
        self._lock = threading.Lock()
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._device = ctypes.c_void_p()
        self._nvml.nvmlInit_v2()
        self._nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._device))
        threading.Thread(target=self._watch, daemon=True).start()

    def limited(self, launch: Callable[[], int], blocks: int) -> Callable[[], int]:
        """Return a launch that waits for tokens."""

        def wait_and_launch() -> int:
            while not self._take(blocks):
                pause(SLEEP_S)
            return launch()

        return wait_and_launch

    def _take(self, blocks: int) -> bool:
        with self._lock:
            return self._tokens.take(blocks)

    def _watch(self) -> None:
        while True:
            pause(PERIOD_S)
            used = self._used()
            with self._lock:
                self._tokens.update(used)

    def _used(self) -> int:
        """Return the utilization of the last second, by the device's timestamps."""
        samples, count = (_Sample * _ROOM)(), ctypes.c_uint(_ROOM)
        since_us = ctypes.c_ulonglong(max(self._last_sample_us - _RECENT_US, 0))
        if self._nvml.nvmlDeviceGetProcessUtilization(self._device, samples, ctypes.byref(count), since_us):
            return 0
        self._last_sample_us = max((sample.stamp_us for sample in samples[: count.value]), default=0)
        return max((sample.sm for sample in samples[: count.value] if sample.pid == os.getpid()), default=0)
