"""What is served in the bench of goodput on a GPU? Four made-up models whose kernels are played on a software V100.

Each has kernels of three widths, such that runs of its largest batch stop getting faster at about 20, 30, 50 and 80
percent of the SMs: together more than there is, so that who runs beside whom, on how much, is what decides. The
narrower, the longer: a row of each takes about the same space-time, or the count of answers would mostly say which of
the models was served. Runs take 20 to 80 ms, so that what the processes around the device cost on two cores is little
beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cotenant.domain.instant import MILLISECOND_NS
from cotenant.domain.replay import ReplayKernel, ReplayModel
from cotenant.domain.runtimes import RunTimes
from cotenant.domain.tensor import Datatype, TensorSpec
from cotenant.experiment.goodput.arena import write_slos
from cotenant.experiment.goodput.models import MAX_BATCH, Served
from cotenant.experiment.goodput.stage import Server, serve_command
from cotenant.experiment.goodput.surface import profile
from cotenant.experiment.serve.ways import way_of
from cotenant.experiment.site import Site
from cotenant.format.replay import SUFFIX, encode_replay

PRESET: Final = "v100"
_PER_SM: Final = 2
_SMS: Final = 80
_NODE_FLAGS: Final = ("--mps", "on", "--slots", "64")
KNEES: Final = {"slim": 0.2, "small": 0.3, "middle": 0.5, "broad": 0.8}
_ELEMENTS: Final = 256
_ROUNDS: Final = 14
_AREA_MS: Final = 16.0
"""Of a run of the largest batch at its knee: that many milliseconds of the whole device."""


def run_ms_of(name: str) -> float:
    """The narrower, the longer."""
    return _AREA_MS / KNEES[name]


def replay_model(knee: float, run_ms: float) -> ReplayModel:
    """Wide kernels fill this part of the SMs in one wave at the largest batch; others a half and a quarter of it."""
    blocks = knee * _SMS * _PER_SM / MAX_BATCH

    def kernel(name: str, part: float, time: float) -> ReplayKernel:
        block_ns = round(time * run_ms * MILLISECOND_NS / _ROUNDS)
        return ReplayKernel(name, block_ns, blocks_per_row=blocks * part, per_sm=_PER_SM)

    kernels = (
        kernel("wide", 1.0, 0.35),
        kernel("half", 0.5, 0.15),
        kernel("wide_again", 1.0, 0.35),
        kernel("thin", 0.25, 0.15),
    )
    taken = TensorSpec("x", Datatype.FP32, (-1, _ELEMENTS))
    given = TensorSpec("y", Datatype.FP32, (-1, 16))
    return ReplayModel(
        inputs=(taken,),
        outputs=(given,),
        kernels=kernels,
        rounds=_ROUNDS,
        max_batch=MAX_BATCH,
        weights_bytes=64 << 20,
        copy_in_bytes=4 * _ELEMENTS,
        copy_out_bytes=64,
    )


class ReplayArena:
    """One software V100 with a node; every contender's workers are tenants of it, one contender at a time."""

    runtime = "replay"
    default = "triton"
    is_measured = False
    at_once = False
    all_units = 100

    def __init__(self, home: Path, profile_time: str, *, small: bool) -> None:
        """Starts the device and its node."""
        self._home = home
        self._time = profile_time
        self._blind = home / "blind"
        self._aware = home / "aware"
        self._kept = home / "profiles"
        self._blind.mkdir()
        taken = TensorSpec("x", Datatype.FP32, (1, _ELEMENTS))
        self.models = tuple(Served(name, (taken,), ("y",)) for name in KNEES)
        for name, knee in KNEES.items():
            text = encode_replay(
                replay_model(knee, run_ms_of(name) * (0.2 if small else 1.0)), f"made up; fills {knee:.0%} of a V100"
            )
            (self._blind / f"{name}{SUFFIX}").write_text(text)
        (home / "site").mkdir()
        self._site = Site(home / "site", PRESET, _NODE_FLAGS)
        self._site.__enter__()

    def plain(self) -> list[Server]:
        """Fifo on the whole device, taking anyone."""
        return [self._server("fifo", self._blind, "fifo", "--admit", "anyone")]

    def profiled(self) -> dict[str, RunTimes]:
        """At every width that runs may have."""
        return profile(self._blind, self._kept, "--budget", self._time, *self._where())

    def slower(self) -> float:
        """A software GPU keeps its own time."""
        return 1.0

    def set_slos(self, slos_ms: Mapping[str, float]) -> None:
        """The same models once more, each with its objective beside it."""
        self._aware.mkdir()
        write_slos(self._blind, self._aware, slos_ms)

    def open(self, name: str) -> Server:
        """A policy as it was published."""
        way = way_of(name)
        folder = self._aware if way.knows_slo else self._blind
        return self._server(name, folder, way.schedule, "--admit", way.admit, "--profiles", str(self._kept))

    def _server(self, name: str, folder: Path, policy: str, *more: str) -> Server:
        command: Sequence[str] = serve_command(folder, policy, *more, *self._where())
        return Server(name, command, self._home / f"{name.replace(' ', '-')}.log")

    def _where(self) -> list[str]:
        places = self._site.places
        directories = ("--directories-runtime", str(places.runtime), "--directories-state", str(places.state))
        return ["--runtime", "replay", "--gpu", "soft:0", "--tenants", "yes", *directories]

    def close(self) -> None:
        """End the node and the device."""
        self._site.__exit__(None, None, None)
