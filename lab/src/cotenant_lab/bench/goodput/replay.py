"""Models of bench `goodput` on a GPU: four synthetic models whose kernels are played on a software V100.

Each has kernels of three widths, such that runs of its largest batch stop getting faster at about 20, 30, 50 and 80
percent of the SMs. The sum exceeds the device, so the choice of which models run together, and with how many SMs,
decides the result. Narrower models run longer: a row of each uses about the same SM time, otherwise the number of
answers would mostly depend on which model was served. Runs take 20 to 80 ms, so that the cost of the processes around
the device on two cores is small in comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cotenant.serve.model.replay import ReplayKernel, ReplayModel
from cotenant.serve.model.run_times import RunTimes
from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.serve.replay_model_format import SUFFIX, encode_replay
from cotenant.units.instant import MILLISECOND_NS
from cotenant_lab.bench.goodput.contenders import write_slos
from cotenant_lab.bench.goodput.models import MAX_BATCH, BenchModel
from cotenant_lab.bench.goodput.servers import Server, serve_command
from cotenant_lab.bench.goodput.surface import profile
from cotenant_lab.programs.site import NodeSite
from cotenant_lab.serving.modes import mode_of

PRESET: Final = "v100"
_PER_SM: Final = 2
_SMS: Final = 80
_NODE_FLAGS: Final = ("--mps", "on", "--slots", "64")
KNEES: Final = {"slim": 0.2, "small": 0.3, "middle": 0.5, "broad": 0.8}
_ELEMENTS: Final = 256
_ROUNDS: Final = 14
_AREA_MS: Final = 16.0
"""SM time of a run of the largest batch at its knee, in milliseconds of the whole device."""


def run_ms_of(name: str) -> float:
    """Return the duration of a run at the knee; narrower models run longer."""
    return _AREA_MS / KNEES[name]


def replay_model(knee: float, run_ms: float) -> ReplayModel:
    """Return a model whose wide kernels fill `knee` of the SMs in one wave at the largest batch."""
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
    input_spec = TensorSpec("x", Datatype.FP32, (-1, _ELEMENTS))
    output_spec = TensorSpec("y", Datatype.FP32, (-1, 16))
    return ReplayModel(
        inputs=(input_spec,),
        outputs=(output_spec,),
        kernels=kernels,
        rounds=_ROUNDS,
        max_batch=MAX_BATCH,
        weights_bytes=64 << 20,
        copy_in_bytes=4 * _ELEMENTS,
        copy_out_bytes=64,
    )


class ReplayContenders:
    """One software V100 with a node; every contender's workers are its tenants, one contender at a time."""

    runtime = "replay"
    default = "triton"
    is_measured = False
    at_once = False
    all_units = 100

    def __init__(self, home: Path, profile_time: str, *, small: bool) -> None:
        """Write the models and start the device and its node."""
        self._home = home
        self._time = profile_time
        self._blind = home / "blind"
        self._aware = home / "aware"
        self._profiles = home / "profiles"
        self._blind.mkdir()
        input_spec = TensorSpec("x", Datatype.FP32, (1, _ELEMENTS))
        self.models = tuple(BenchModel(name, (input_spec,), ("y",)) for name in KNEES)
        for name, knee in KNEES.items():
            text = encode_replay(
                replay_model(knee, run_ms_of(name) * (0.2 if small else 1.0)), f"synthetic; fills {knee:.0%} of a V100"
            )
            (self._blind / f"{name}{SUFFIX}").write_text(text)
        (home / "site").mkdir()
        self._site = NodeSite(home / "site", PRESET, _NODE_FLAGS)
        self._site.__enter__()

    def start_plain(self) -> list[Server]:
        """Start a FIFO server on the whole device without admission control."""
        return [self._server("fifo", self._blind, "fifo", "--admit", "accept-all")]

    def profiled(self) -> dict[str, RunTimes]:
        """Profile the models at every width that runs may have."""
        return profile(self._blind, self._profiles, "--budget", self._time, *self._flags())

    def slower(self) -> float:
        """Return 1: a software GPU has its own clock."""
        return 1.0

    def set_slos(self, slos_ms: Mapping[str, float]) -> None:
        """Write the models once more, each with its objective."""
        self._aware.mkdir()
        write_slos(self._blind, self._aware, slos_ms)

    def open(self, name: str) -> Server:
        """Start a policy as it was published."""
        mode = mode_of(name)
        folder = self._aware if mode.knows_slo else self._blind
        return self._server(name, folder, mode.schedule, "--admit", mode.admit, "--profiles", str(self._profiles))

    def _server(self, name: str, folder: Path, policy: str, *more: str) -> Server:
        command: Sequence[str] = serve_command(folder, policy, *more, *self._flags())
        return Server(name, command, self._home / f"{name.replace(' ', '-')}.log")

    def _flags(self) -> list[str]:
        flags = (
            "--runtime-dir",
            str(self._site.directories.runtime),
            "--state-dir",
            str(self._site.directories.state),
        )
        return ["--runtime", "replay", "--gpu", "soft:0", "--tenants", "yes", *flags]

    def close(self) -> None:
        """Stop the node and the device."""
        self._site.__exit__(None, None, None)
