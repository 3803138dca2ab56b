"""Wires what a server's models run on: cores of this machine, or a GPU's workers as tenants or as plain processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.apps.softgpu import environment_of, home
from cotenant.errors import ConfigError, CotenantError
from cotenant.format.quantity import parse_duration
from cotenant.live.client import tenants_of
from cotenant.live.directory import Places
from cotenant.live.mps import MPS_DIRECTORY, PIPE, PIPE_VARIABLE, Program
from cotenant.live.serve.crew import Limits
from cotenant.live.serve.launch import Launcher, Plain, Tenants
from cotenant.live.serve.runtime import ONNX_CPU, REPLAY, CpuRuntime, ModelRuntime
from cotenant.live.serve.runtime_gpu import GpuRuntime
from cotenant.live.softgpu.mps.places import reach

TENANTS: Final = ("auto", "yes", "no")
_WORKERS_LIMIT: Final = 48
_START_NS: Final = 120 * 10**9
_SOFT: Final = "soft:"


class RuntimeWish(NamedTuple):
    """As on the command line."""

    runtime: str
    gpu: str
    tenants: str
    workers: int
    run_limit: str
    at_once: int = 1
    """Runs of one model at one time, for which workers are ready; 0: as its spec says."""


def runtime_of(wish: RuntimeWish, cores: Sequence[int], places: Places, say: Callable[[str], None]) -> ModelRuntime:
    """The runtime that was asked for; what is wrong is said also where the runtime does not use it."""
    if not 1 <= wish.workers <= _WORKERS_LIMIT:
        raise ConfigError("--workers", wish.workers, f"choose 1 to {_WORKERS_LIMIT}, as many clients as MPS takes")
    if wish.tenants not in TENANTS:
        raise ConfigError("--tenants", wish.tenants, f"choose {' or '.join(TENANTS)}")
    limits = Limits(wish.workers, parse_duration(wish.run_limit, field="--run-limit"), _START_NS)
    if wish.runtime == ONNX_CPU:
        if wish.gpu:
            raise ConfigError("--gpu", wish.gpu, "is for --runtime onnx-cuda or replay")
        return CpuRuntime(cores)
    gpu = wish.gpu or (f"{_SOFT}0" if wish.runtime == REPLAY else "")
    environ = {**os.environ, **environment_of(gpu, places)}
    return GpuRuntime(wish.runtime, _launcher(wish, gpu, environ, places, say), limits, say, wish.at_once)


def _launcher(
    wish: RuntimeWish, gpu: str, environ: dict[str, str], places: Places, say: Callable[[str], None]
) -> Launcher:
    if wish.tenants != "no":
        try:
            tenants_of(places.socket)
        except CotenantError as error:
            if wish.tenants == "yes":
                raise
            say(f"{error}; workers are plain processes, which nothing holds to their memory")
        else:
            flags = ["--runtime", str(places.runtime), "--state", str(places.state)]
            mps = {**environ, PIPE_VARIABLE: str(places.runtime / MPS_DIRECTORY / PIPE)}
            return Tenants(flags, gpu, os.environ, mps)
    if gpu.startswith(_SOFT) and not _is_mps_there():
        return _with_mps(environ, places)
    return Plain(environ)


def _is_mps_there() -> bool:
    line = reach()
    if line is None:
        return False
    line.close()
    return True


def _with_mps(environ: dict[str, str], places: Places) -> Launcher:
    """A software GPU's MPS of our own: nobody else's programs are changed by it."""
    directory = Path(tempfile.mkdtemp(prefix="cotenant-mps-"))
    program = Program(directory, environ, [home(places)])

    def afterwards() -> None:
        program.quit()
        shutil.rmtree(directory, ignore_errors=True)

    try:
        program.start()
    except CotenantError:
        afterwards()
        raise
    return Plain({**environ, **program.environment()}, afterwards)
