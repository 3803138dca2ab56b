"""Contenders of bench `goodput`: the servers on one device, and how each is started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from cotenant.serve.model.run_times import RunTimes
from cotenant_lab.bench.goodput.machine_speed import SpeedReference
from cotenant_lab.bench.goodput.models import BenchModel, make_models
from cotenant_lab.bench.goodput.servers import Server, default_command, serve_command
from cotenant_lab.bench.goodput.surface import profile
from cotenant_lab.serving.modes import mode_of

DEFAULT_ONNX: Final = "onnxruntime default"


class Contenders(Protocol):
    """A device, its models, and the servers that are compared on it."""

    @property
    def runtime(self) -> str:
        """Return its name in `cotenant serve run --runtime`."""
        ...

    @property
    def all_units(self) -> int:
        """Return the size of the device in units."""
        ...

    @property
    def models(self) -> Sequence[BenchModel]:
        """Return the models that are served."""
        ...

    @property
    def default(self) -> str:
        """Return the contender that the others are compared with."""
        ...

    @property
    def is_measured(self) -> bool:
        """Return whether loads are fractions of the plain servers' rate; otherwise they are fractions of the bound."""
        ...

    @property
    def at_once(self) -> bool:
        """Return whether the servers of all contenders can run at the same time."""
        ...

    def start_plain(self) -> list[Server]:
        """Start servers without objectives; single requests are timed at the first."""
        ...

    def profiled(self) -> dict[str, RunTimes]:
        """Profile the models and return their run times on this device."""
        ...

    def slower(self) -> float:
        """Return how many times as long runs take now as when they were profiled."""
        ...

    def set_slos(self, slos_ms: Mapping[str, float]) -> None:
        """Give servers that are started from now on these objectives."""
        ...

    def open(self, name: str) -> Server:
        """Start a contender's server."""
        ...

    def close(self) -> None:
        """Stop the device and its node, if any."""
        ...


class CpuContenders:
    """The cores of this machine."""

    runtime = "onnx-cpu"
    default = DEFAULT_ONNX
    is_measured = True
    at_once = True

    def __init__(self, home: Path, profile_time: str, *, small: bool) -> None:
        """Write the models into `home`, which the caller removes."""
        self._home = home
        self._time = profile_time
        self._blind = home / "blind"
        self._aware = home / "aware"
        self._profiles = home / "profiles"
        self._blind.mkdir()
        self.models = make_models(self._blind, small=small)
        self.all_units = len(os.sched_getaffinity(0))
        self._speed_reference: SpeedReference | None = None

    def start_plain(self) -> list[Server]:
        """Start ONNX Runtime behind FastAPI, and our server without admission control."""
        command = serve_command(self._blind, "fifo", "--admit", "accept-all")
        return [self.open(DEFAULT_ONNX), self._server("cotenant serve --policy fifo", command)]

    def profiled(self) -> dict[str, RunTimes]:
        """Profile the models on one core, two, and so on up to all."""
        times = profile(self._blind, self._profiles, "--budget", self._time)
        self._speed_reference = SpeedReference(self._blind)
        return times

    def slower(self) -> float:
        """Repeat the runs that were timed right after profiling."""
        return 1.0 if self._speed_reference is None else self._speed_reference.slower()

    def set_slos(self, slos_ms: Mapping[str, float]) -> None:
        """Write the models once more, each with its objective."""
        self._aware.mkdir()
        write_slos(self._blind, self._aware, slos_ms)

    def open(self, name: str) -> Server:
        """Start a policy as it was published, or the default."""
        if name == DEFAULT_ONNX:
            return self._server(name, default_command(self._blind))
        mode = mode_of(name)
        folder = self._aware if mode.knows_slo else self._blind
        flags = ("--admit", mode.admit, "--profiles", str(self._profiles))
        return self._server(name, serve_command(folder, mode.schedule, *flags))

    def _server(self, name: str, command: Sequence[str]) -> Server:
        return Server(name, command, self._home / f"{name.replace(' ', '-')}.log")

    def close(self) -> None:
        """Close the models that measure the machine's speed."""
        if self._speed_reference is not None:
            self._speed_reference.close()


def write_slos(source: Path, folder: Path, slos_ms: Mapping[str, float]) -> None:
    """Link every model of one folder into another and write its objective there."""
    for file in sorted(source.iterdir()):
        (folder / file.name).symlink_to(file)
    for name, slo_ms in slos_ms.items():
        (folder / f"{name}.toml").write_text(f'slo = "{slo_ms:.3f}ms"\n')


class ModelMetrics(msgspec.Struct, frozen=True):
    """One model of the bench."""

    name: str
    solo_p50_ms: float
    solo_p99_ms: float
    """Latency of single-row requests one after the other, as a client measures it."""
    slo_ms: float
    input_bytes: int
