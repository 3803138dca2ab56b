"""How is a worker started? As a tenant of this machine's node, or as a plain process where there is none."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from cotenant.domain.instant import Duration
from cotenant.domain.tenant import NAME_LIMIT
from cotenant.live.mps import terminate_client

WHOLE: Final = 100
_PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_WORKER: Final = (sys.executable, "-m", "cotenant.live.serve.worker")


class Wish(NamedTuple):
    """What a worker is to be held to."""

    model: str
    width: int
    memory_bytes: int
    slo_ns: Duration


class Launcher(Protocol):
    """Where workers live."""

    def command(self, wish: Wish) -> tuple[Sequence[str], Mapping[str, str]]:
        """What to start, and in which environment."""
        ...

    def terminate(self, pid: int) -> None:
        """Take the device from a worker that hangs, so that its end harms no other; takes a while."""
        ...

    def close(self) -> None:
        """After the last worker has ended."""
        ...


def held_to(width: int) -> dict[str, str]:
    """What makes an MPS client keep to so many percent of the SMs."""
    return {_PERCENTAGE: str(width)} if width < WHOLE else {}


class Plain:
    """Processes of nobody: MPS holds them to their SMs if they are its clients, and nothing to their memory."""

    def __init__(self, environ: Mapping[str, str], afterwards: Callable[[], None] | None = None) -> None:
        """With what they need to find their GPU and their MPS, and what ends that."""
        self._environ = {name: value for name, value in environ.items() if name != _PERCENTAGE}
        self._afterwards = afterwards

    def command(self, wish: Wish) -> tuple[Sequence[str], Mapping[str, str]]:
        """The worker itself."""
        return _WORKER, {**self._environ, **held_to(wish.width)}

    def terminate(self, pid: int) -> None:
        """By the MPS that they are clients of."""
        terminate_client(self._environ, pid)

    def close(self) -> None:
        """An MPS that was started for them ends."""
        if self._afterwards is not None:
            self._afterwards()


class Tenants:
    """Tenants of a node: `cotenant run` sees to quota, gate and end; the percentage is that of MPS."""

    def __init__(self, flags: Sequence[str], gpu: str, environ: Mapping[str, str], mps: Mapping[str, str]) -> None:
        """`flags` name the node, `gpu` the device as `cotenant run --gpu` has it, `mps` is how to talk to its MPS."""
        self._mps = mps
        self._flags = flags
        self._gpu = gpu
        self._environ = {name: value for name, value in environ.items() if name != _PERCENTAGE}
        self._number = itertools.count(1)

    def command(self, wish: Wish) -> tuple[Sequence[str], Mapping[str, str]]:
        """`cotenant run`, online, with the model's objective."""
        name = f"{wish.model.lstrip('_')[: NAME_LIMIT - 16]}.{wish.width}.{next(self._number)}"
        run = [sys.executable, "-m", "cotenant", "run", *self._flags, "--online", "--name", name, "--measure", "never"]
        run += ["--task", f"cotenant serve {wish.model}", "--grace", "2s"]
        if self._gpu:
            run += ["--gpu", self._gpu]
        if wish.memory_bytes:
            run += ["--memory", f"{wish.memory_bytes}B"]
        if wish.slo_ns:
            run += ["--slo", f"{wish.slo_ns}ns"]
        return [*run, "--", *_WORKER], {**self._environ, **held_to(wish.width)}

    def terminate(self, pid: int) -> None:
        """By the node's MPS."""
        terminate_client(self._mps, pid)

    def close(self) -> None:
        """The node stays."""
