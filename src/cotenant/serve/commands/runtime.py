"""Choice of the runtime: cores of this machine, or GPU workers as tenants or as plain processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.errors import ConfigError, CotenantError
from cotenant.node.client.connection import list_tenants
from cotenant.node.daemon.mps import MPS_DIRECTORY, PIPE, PIPE_VARIABLE, MpsControl
from cotenant.node.directories import Directories
from cotenant.predict.slowdown import share_interference
from cotenant.serve.runtime.gpu.launch import Launcher, ProcessLauncher, TenantLauncher
from cotenant.serve.runtime.gpu.runtime import GpuRuntime
from cotenant.serve.runtime.gpu.worker_pool import WorkerLimits
from cotenant.serve.runtime.runtime import ONNX_CPU, REPLAY, RUN_LIMIT_NS, CpuRuntime, ModelRuntime
from cotenant.softgpu.commands import home
from cotenant.softgpu.mps.directories import connect_to_daemon
from cotenant.softgpu.selection import environment_of
from cotenant.units.text import parse_duration

TENANTS: Final = ("auto", "yes", "no")
_WORKERS_LIMIT: Final = 48
_START_NS: Final = 120 * 10**9
_GPU_RUN_LIMIT_NS: Final = 30 * 10**9
_SOFT: Final = "soft:"


class RuntimeOptions(NamedTuple):
    """Options of the command line."""

    runtime: str
    gpu: str
    tenants: str
    workers: int
    run_limit: str
    at_once: int = 1
    """Concurrent runs of one model for which workers are kept ready; 0: as its spec says."""


def runtime_of(
    options: RuntimeOptions, cores: Sequence[int], directories: Directories, report: Callable[[str], None]
) -> ModelRuntime:
    """Create the requested runtime. Invalid options are reported even if this runtime does not use them."""
    if not 1 <= options.workers <= _WORKERS_LIMIT:
        raise ConfigError(
            "--workers", options.workers, f"choose 1 to {_WORKERS_LIMIT}, the number of clients that MPS supports"
        )
    if options.tenants not in TENANTS:
        raise ConfigError("--tenants", options.tenants, f"choose {' or '.join(TENANTS)}")
    run_limit_ns = parse_duration(options.run_limit, field="--run-limit") if options.run_limit else 0
    limits = WorkerLimits(options.workers, run_limit_ns or _GPU_RUN_LIMIT_NS, _START_NS)
    if options.runtime == ONNX_CPU:
        if options.gpu:
            raise ConfigError("--gpu", options.gpu, "requires --runtime onnx-cuda or replay")
        return CpuRuntime(cores, run_limit_ns or RUN_LIMIT_NS)
    gpu = options.gpu or (f"{_SOFT}0" if options.runtime == REPLAY else "")
    environ = {**os.environ, **environment_of(gpu, directories)}
    launcher = _launcher(options, gpu, environ, directories, report)
    return GpuRuntime(options.runtime, launcher, limits, report, options.at_once, share_interference())


def _launcher(
    options: RuntimeOptions, gpu: str, environ: dict[str, str], directories: Directories, report: Callable[[str], None]
) -> Launcher:
    if options.tenants != "no":
        try:
            list_tenants(directories)
        except CotenantError as error:
            if options.tenants == "yes":
                raise
            report(f"{error}; workers run as plain processes without a memory limit")
        else:
            flags = ["--runtime-dir", str(directories.runtime), "--state-dir", str(directories.state)]
            mps = {**environ, PIPE_VARIABLE: str(directories.runtime / MPS_DIRECTORY / PIPE)}
            return TenantLauncher(flags, gpu, os.environ, mps)
    if gpu.startswith(_SOFT) and not _is_mps_reachable():
        return _with_mps(environ, directories)
    return ProcessLauncher(environ)


def _is_mps_reachable() -> bool:
    connection = connect_to_daemon()
    if connection is None:
        return False
    connection.close()
    return True


def _with_mps(environ: dict[str, str], directories: Directories) -> Launcher:
    """Start an MPS daemon for the software GPU that only this server uses."""
    directory = Path(tempfile.mkdtemp(prefix="cotenant-mps-"))
    program = MpsControl(directory, environ, [home(directories)])

    def stop() -> None:
        program.quit()
        shutil.rmtree(directory, ignore_errors=True)

    try:
        program.start()
    except CotenantError:
        stop()
        raise
    return ProcessLauncher({**environ, **program.environment()}, stop)
