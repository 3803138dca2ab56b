"""On what do the contenders of the bench of goodput serve? What each is started with, and what it is compared with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from cotenant.domain.runtimes import RunTimes
from cotenant.experiment.goodput.models import Served, make_models
from cotenant.experiment.goodput.stage import Server, default_command, serve_command
from cotenant.experiment.goodput.surface import profile
from cotenant.experiment.goodput.yardstick import Yardstick
from cotenant.experiment.serve.ways import way_of

DEFAULT_ONNX: Final = "onnxruntime default"


class Arena(Protocol):
    """A device, its models, and everything that serves from it."""

    @property
    def runtime(self) -> str:
        """By its name in `cotenant serve --runtime`."""
        ...

    @property
    def all_units(self) -> int:
        """Of the device."""
        ...

    @property
    def models(self) -> Sequence[Served]:
        """What is served."""
        ...

    @property
    def default(self) -> str:
        """The contender that others are compared with."""
        ...

    @property
    def is_measured(self) -> bool:
        """Whether loads are parts of what its plain servers answer at most; else, of the bound."""
        ...

    @property
    def at_once(self) -> bool:
        """Whether all contenders' servers can be there at the same time."""
        ...

    def plain(self) -> list[Server]:
        """Servers without objectives, the first being the one that single requests are timed at."""
        ...

    def profiled(self) -> dict[str, RunTimes]:
        """What runs take here."""
        ...

    def slower(self) -> float:
        """How many times as long runs take now as when they were profiled."""
        ...

    def set_slos(self, slos_ms: Mapping[str, float]) -> None:
        """From now on servers may know these."""
        ...

    def open(self, name: str) -> Server:
        """A contender's server."""
        ...

    def close(self) -> None:
        """Undo what was done to the machine."""
        ...


class CpuArena:
    """This machine's cores."""

    runtime = "onnx-cpu"
    default = DEFAULT_ONNX
    is_measured = True
    at_once = True

    def __init__(self, home: Path, profile_time: str, *, small: bool) -> None:
        """Everything is kept in a folder that its owner removes."""
        self._home = home
        self._time = profile_time
        self._blind = home / "blind"
        self._aware = home / "aware"
        self._kept = home / "profiles"
        self._blind.mkdir()
        self.models = make_models(self._blind, small=small)
        self.all_units = len(os.sched_getaffinity(0))
        self._yardstick: Yardstick | None = None

    def plain(self) -> list[Server]:
        """ONNX Runtime as it comes, and ours taking anyone."""
        command = serve_command(self._blind, "fifo", "--admit", "anyone")
        return [self.open(DEFAULT_ONNX), self._server("cotenant serve --policy fifo", command)]

    def profiled(self) -> dict[str, RunTimes]:
        """On one core, two, and so on up to all."""
        found = profile(self._blind, self._kept, "--budget", self._time)
        self._yardstick = Yardstick(self._blind)
        return found

    def slower(self) -> float:
        """By the same runs as right after the profile."""
        return 1.0 if self._yardstick is None else self._yardstick.slower()

    def set_slos(self, slos_ms: Mapping[str, float]) -> None:
        """The same models once more, each with its objective beside it."""
        self._aware.mkdir()
        write_slos(self._blind, self._aware, slos_ms)

    def open(self, name: str) -> Server:
        """A policy as it was published, or the default."""
        if name == DEFAULT_ONNX:
            return self._server(name, default_command(self._blind))
        way = way_of(name)
        folder = self._aware if way.knows_slo else self._blind
        more = ("--admit", way.admit, "--profiles", str(self._kept))
        return self._server(name, serve_command(folder, way.schedule, *more))

    def _server(self, name: str, command: Sequence[str]) -> Server:
        return Server(name, command, self._home / f"{name.replace(' ', '-')}.log")

    def close(self) -> None:
        """Nothing was done to the machine."""
        if self._yardstick is not None:
            self._yardstick.close()


def write_slos(source: Path, folder: Path, slos_ms: Mapping[str, float]) -> None:
    """Link every model of one folder into another, with its objective."""
    for file in sorted(source.iterdir()):
        (folder / file.name).symlink_to(file)
    for name, slo_ms in slos_ms.items():
        (folder / f"{name}.toml").write_text(f'slo = "{slo_ms:.3f}ms"\n')


class ModelFigures(msgspec.Struct, frozen=True):
    """One model of the bench."""

    name: str
    solo_p50_ms: float
    solo_p99_ms: float
    """Of requests of one row, one after the other, as a client sees them."""
    slo_ms: float
    input_bytes: int
