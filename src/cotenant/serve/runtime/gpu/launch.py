"""Start of workers: as tenants of this machine's node, or as plain processes."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from cotenant.node.daemon.mps import terminate_client
from cotenant.node.model.tenant import NAME_LIMIT
from cotenant.units.instant import Duration

WHOLE: Final = 100
_PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_WORKER: Final = (sys.executable, "-m", "cotenant.serve.runtime.gpu.worker")


class WorkerOptions(NamedTuple):
    """Limits of a worker."""

    model: str
    width: int
    memory_bytes: int
    slo_ns: Duration


class Launcher(Protocol):
    """Starts and terminates workers."""

    def command(self, options: WorkerOptions) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return the command and its environment."""
        ...

    def terminate(self, pid: int) -> None:
        """Terminate a hung worker's MPS client, so that its end does not affect other clients; takes a while."""
        ...

    def close(self) -> None:
        """Clean up after the last worker has ended."""
        ...


def mps_limit(width: int) -> dict[str, str]:
    """Return the environment that limits an MPS client to a percentage of the SMs."""
    return {_PERCENTAGE: str(width)} if width < WHOLE else {}


class ProcessLauncher:
    """Workers as plain processes: MPS limits their SMs if they are its clients; their memory is not limited."""

    def __init__(self, environ: Mapping[str, str], on_close: Callable[[], None] | None = None) -> None:
        """`environ` locates the GPU and MPS; `on_close` stops an MPS daemon that was started for them."""
        self._environ = {name: value for name, value in environ.items() if name != _PERCENTAGE}
        self._on_close = on_close

    def command(self, options: WorkerOptions) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return the worker's command."""
        return _WORKER, {**self._environ, **mps_limit(options.width)}

    def terminate(self, pid: int) -> None:
        """Terminate through the MPS of the environment."""
        terminate_client(self._environ, pid)

    def close(self) -> None:
        """Stop the MPS daemon that was started for the workers."""
        if self._on_close is not None:
            self._on_close()


class TenantLauncher:
    """Workers as tenants: `cotenant run` applies quota and gate; the SM percentage is that of MPS."""

    def __init__(self, flags: Sequence[str], gpu: str, environ: Mapping[str, str], mps: Mapping[str, str]) -> None:
        """`flags` select the node, `gpu` is for `cotenant run --gpu`, `mps` is the node's MPS environment."""
        self._mps = mps
        self._flags = flags
        self._gpu = gpu
        self._environ = {name: value for name, value in environ.items() if name != _PERCENTAGE}
        self._number = itertools.count(1)

    def command(self, options: WorkerOptions) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return a `cotenant run` command for an online tenant with the model's objective."""
        name = f"{options.model.lstrip('_')[: NAME_LIMIT - 16]}.{options.width}.{next(self._number)}"
        run = [sys.executable, "-m", "cotenant", "run", *self._flags, "--online", "--name", name, "--measure", "never"]
        run += ["--task", f"cotenant serve {options.model}", "--grace", "2s"]
        if self._gpu:
            run += ["--gpu", self._gpu]
        if options.memory_bytes:
            run += ["--memory", f"{options.memory_bytes}B"]
        if options.slo_ns:
            run += ["--slo", f"{options.slo_ns}ns"]
        return [*run, "--", *_WORKER], {**self._environ, **mps_limit(options.width)}

    def terminate(self, pid: int) -> None:
        """Terminate through the node's MPS."""
        terminate_client(self._mps, pid)

    def close(self) -> None:
        """Do nothing; the node goes on."""
