"""Kinds of faults that bench `faults` injects, and what each costs an online tenant on hardware."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Final

import msgspec

from cotenant.errors import CotenantError
from cotenant.runner.clock import pause
from cotenant.softgpu import fault
from cotenant.units.instant import SECOND_NS
from cotenant_lab.bench.faults.setup import FaultsSetup, give_time
from cotenant_lab.programs.site import TenantProgram

_SHARED_FATE: Final = "MPS reports a client's fatal fault to all clients of its server"
_DEATH: Final = "MPS leaves undefined what becomes of the others when a client dies with work in flight"
_SERVER: Final = "all clients of an MPS server die with it"
_DEVICE: Final = "the device itself is lost or its memory is"
_SLOW_NS: Final = SECOND_NS
_SLOW: Final = 0.4
_STOPPED_TIMES: Final = 3


class FaultKind(msgspec.Struct, frozen=True):
    """A fault, how it is injected, and what hardware would cost an online neighbour."""

    name: str
    about: str
    strike: Callable[[FaultsSetup], None]
    replaces: bool = True
    """Whether another process takes over the worker's task."""
    suspends: bool = False
    """Whether the worker prefers suspension to eviction."""
    slices_lose: str = ""
    mps_loses: str = ""
    """Why the online tenant loses requests whatever its neighbours do; empty: it must lose none."""
    mps_only: bool = False

    def excuse(self, *, mps: bool) -> str:
        """Return why requests may be lost under this sharing mode."""
        return self.mps_loses if mps else self.slices_lose


def _ordered(word: str) -> Callable[[FaultsSetup], None]:
    return lambda setup: setup.order(word)


def _client_fault(kind: str) -> Callable[[FaultsSetup], None]:
    return lambda setup: setup.strike(kind, setup.worker.pid)


def _kill_program(setup: FaultsSetup) -> None:
    os.kill(setup.worker.pid, signal.SIGKILL)


def _kill_resting(setup: FaultsSetup) -> None:
    pid = setup.worker.pid
    setup.order("rest")
    give_time()
    os.kill(pid, signal.SIGKILL)


def _kill_run(setup: FaultsSetup) -> None:
    setup.worker.signal(signal.SIGKILL)
    setup.worker.reap()
    _start_when_gone(setup, setup.worker)


def _end_run(setup: FaultsSetup) -> None:
    setup.worker.signal(signal.SIGTERM)
    setup.worker.reap()
    setup.worker.start()


def _evict(setup: FaultsSetup) -> None:
    setup.run_command("evict", "worker")
    setup.worker.reap()
    setup.worker.start()


def _start_when_gone(setup: FaultsSetup, program: TenantProgram) -> None:
    """Wait until the node has released the tenant's name, then start it again."""
    for _ in setup.until("the node still has the tenant whose parent was killed"):
        with contextlib.suppress(CotenantError):
            if program.name not in [view.tenant.name for view in setup.tenants().tenants]:
                break
    program.start()


def _stop_and_go(setup: FaultsSetup) -> None:
    """Stop and continue the process; a stopped process may hold locks."""
    pid = setup.worker.pid
    for _ in range(_STOPPED_TIMES):
        os.kill(pid, signal.SIGSTOP)
        give_time()
        os.kill(pid, signal.SIGCONT)


def _slow_clock(setup: FaultsSetup) -> None:
    fault.set_clock(setup.gpus, 0, _SLOW, for_ns=_SLOW_NS)
    pause(_SLOW_NS / SECOND_NS)


def _lose_device(setup: FaultsSetup) -> None:
    setup.strike("device-lost")
    for _ in setup.until("the lost device is still in use"):
        with contextlib.suppress(CotenantError):
            fault.reset(setup.gpus, 0)
            return


def _kill_node(setup: FaultsSetup) -> None:
    setup.stop_node(signal.SIGKILL)
    give_time()
    setup.start_node()


def _stop_node(setup: FaultsSetup) -> None:
    setup.stop_node(signal.SIGTERM)
    give_time()
    setup.start_node()


def _need_memory(setup: FaultsSetup) -> None:
    """Start an online tenant that needs the worker's memory and ends at once."""
    setup.run_command("run", "--online", "--name", "newcomer", "--memory", "36GiB", "--gpu", "soft:0", "--", "true")


KINDS: Final[tuple[FaultKind, ...]] = (
    FaultKind("exit", "the program fails, with work in flight", _ordered("exit")),
    FaultKind("segv", "it crashes, with work in flight", _ordered("segv"), mps_loses=_DEATH),
    FaultKind("abort", "it aborts, with work in flight", _ordered("abort"), mps_loses=_DEATH),
    FaultKind("kill-idle", "SIGKILL while it has no work", _kill_resting),
    FaultKind("kill-busy", "SIGKILL with work in flight, as by a host out of memory", _kill_program, mps_loses=_DEATH),
    FaultKind("kill-run", "SIGKILL of its `cotenant run`", _kill_run, mps_loses=_DEATH),
    FaultKind("terminate", "SIGTERM to its `cotenant run`", _end_run),
    FaultKind("evict", "`cotenant evict`", _evict),
    FaultKind("leak", "it allocates for ever", _ordered("leak")),
    FaultKind("flood", "it launches without ever waiting", _ordered("flood"), replaces=False),
    FaultKind("children", "its children are killed while they hold memory and launch", _ordered("children"),
              replaces=False, mps_loses=_DEATH),
    FaultKind("stop", "SIGSTOP and SIGCONT, again and again", _stop_and_go, replaces=False),
    FaultKind("illegal-address", "Xid 31", _client_fault("illegal-address"), mps_loses=_SHARED_FATE),
    FaultKind("illegal-instruction", "Xid 13", _client_fault("illegal-instruction"), mps_loses=_SHARED_FATE),
    FaultKind("assert", "Xid 43", _client_fault("assert"), mps_loses=_SHARED_FATE),
    FaultKind("launch-timeout", "Xid 8", _client_fault("launch-timeout"), mps_loses=_SHARED_FATE),
    FaultKind("ecc-contained", "Xid 94", _client_fault("ecc-contained"), mps_loses=_SHARED_FATE),
    FaultKind("hang", "a kernel of it does not end", _client_fault("hang"), mps_loses=_DEATH),
    FaultKind("slow-clock", "the device runs at 40 % for a second", _slow_clock, replaces=False),
    FaultKind("mps-server-death", "the MPS server dies", lambda setup: setup.strike("mps-server-death"),
              mps_loses=_SERVER, mps_only=True),
    FaultKind("ecc", "Xid 48, 63, 95: every client loses the device", lambda setup: setup.strike("ecc"),
              slices_lose=_DEVICE, mps_loses=_DEVICE),
    FaultKind("device-lost", "Xid 79, then a reset", _lose_device, slices_lose=_DEVICE, mps_loses=_DEVICE),
    FaultKind("node-killed", "SIGKILL of the node, started again", _kill_node, replaces=False),
    FaultKind("node-stopped", "SIGTERM of the node, started again", _stop_node, replaces=False),
    FaultKind("pressure-evict", "a new online tenant needs its memory", _need_memory),
    FaultKind("pressure-suspend", "the same, and it prefers suspension", _need_memory, replaces=False,
              suspends=True),
)  # fmt: skip
