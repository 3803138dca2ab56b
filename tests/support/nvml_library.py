"""Read software GPUs through NVIDIA's Python package, and start processes that work on command."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml as nv
import pytest

from cotenant.node.nvml import nvml
from cotenant.softgpu import manage
from tests.support.software_gpus import start


class Worker:
    """A process on the device that works on command."""

    def __init__(self, directory: Path) -> None:
        self.process = start(directory, "worker.py")
        self._wait()

    @property
    def pid(self) -> int:
        return self.process.pid

    def do(self, *words: object) -> None:
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)
        self._wait()

    def end(self) -> None:
        self.process.communicate()

    def _wait(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "done\n", self.process.communicate()


@contextmanager
def device_of(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the first device of a directory, with NVML initialised."""
    monkeypatch.setenv("COTENANT_SOFTGPU", str(directory))
    with nvml(directory):
        yield nv.nvmlDeviceGetHandleByIndex(0)


def refusal(call: Callable[..., Any], *arguments: Any) -> int:
    """Return the error code of a call that must fail."""
    with pytest.raises(nv.NVMLError) as error:
        call(*arguments)
    code: int = error.value.value
    return code


def until_next_sample(directory: Path) -> dict[str, Any]:
    """Return the counters after the next sample boundary; a complete sample then covers all earlier work."""
    at_ns = manage.inspect(directory, 0)["utilization"]["at_ns"]
    while True:
        counters = manage.inspect(directory, 0)
        if counters["utilization"]["at_ns"] > at_ns:
            return counters
        time.sleep(0.01)
