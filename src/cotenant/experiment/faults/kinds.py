"""What can go wrong beside an online tenant, and whom does it strike on hardware? One entry per kind of fault."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Final

import msgspec

from cotenant.domain.instant import SECOND_NS
from cotenant.errors import CotenantError
from cotenant.experiment.faults.world import World, give_time
from cotenant.experiment.site import Program
from cotenant.live.clock import pause
from cotenant.live.softgpu import fault

_SHARED_FATE: Final = "MPS reports a client's fatal fault to all clients of its server"
_DEATH: Final = "MPS leaves undefined what becomes of the others when a client dies with work in flight"
_SERVER: Final = "all clients of an MPS server die with it"
_DEVICE: Final = "the device itself is lost or its memory is"
_SLOW_NS: Final = SECOND_NS
_SLOW: Final = 0.4
_STOPPED_TIMES: Final = 3


class FaultKind(msgspec.Struct, frozen=True):
    """A fault, how it is made, and what hardware would take from an online neighbour."""

    name: str
    about: str
    strike: Callable[[World], None]
    replaces: bool = True
    """Whether another process does the worker's work afterwards."""
    suspends: bool = False
    """Whether the worker is one that would rather be suspended."""
    slices_lose: str = ""
    mps_loses: str = ""
    """Why the online tenant loses requests whatever its neighbours do; empty: it must lose none."""
    mps_only: bool = False

    def excuse(self, *, mps: bool) -> str:
        """Why requests may be lost in this way to share."""
        return self.mps_loses if mps else self.slices_lose


def _ordered(word: str) -> Callable[[World], None]:
    return lambda world: world.order(word)


def _client_fault(kind: str) -> Callable[[World], None]:
    return lambda world: world.strike(kind, world.worker.pid)


def _kill_program(world: World) -> None:
    os.kill(world.worker.pid, signal.SIGKILL)


def _kill_resting(world: World) -> None:
    pid = world.worker.pid
    world.order("rest")
    give_time()
    os.kill(pid, signal.SIGKILL)


def _kill_run(world: World) -> None:
    world.worker.signal(signal.SIGKILL)
    world.worker.reap()
    _start_when_gone(world, world.worker)


def _end_run(world: World) -> None:
    world.worker.signal(signal.SIGTERM)
    world.worker.reap()
    world.worker.start()


def _evict(world: World) -> None:
    world.ask("evict", "worker")
    world.worker.reap()
    world.worker.start()


def _start_when_gone(world: World, program: Program) -> None:
    """Its name is free once the node has seen its connection close."""
    for _ in world.until("the node still has the tenant whose parent was killed"):
        with contextlib.suppress(CotenantError):
            if program.name not in [view.tenant.name for view in world.roll().tenants]:
                break
    program.start()


def _stop_and_go(world: World) -> None:
    """A process that stands still may hold whatever it held."""
    pid = world.worker.pid
    for _ in range(_STOPPED_TIMES):
        os.kill(pid, signal.SIGSTOP)
        give_time()
        os.kill(pid, signal.SIGCONT)


def _slow_clock(world: World) -> None:
    fault.set_clock(world.gpus, 0, _SLOW, for_ns=_SLOW_NS)
    pause(_SLOW_NS / SECOND_NS)


def _lose_device(world: World) -> None:
    world.strike("device-lost")
    for _ in world.until("the lost device is still in use"):
        with contextlib.suppress(CotenantError):
            fault.reset(world.gpus, 0)
            return


def _kill_node(world: World) -> None:
    world.stop_node(signal.SIGKILL)
    give_time()
    world.start_node()


def _stop_node(world: World) -> None:
    world.stop_node(signal.SIGTERM)
    give_time()
    world.start_node()


def _need_memory(world: World) -> None:
    """An online newcomer asks for what the worker has; it takes it, and goes."""
    world.ask("run", "--online", "--name", "newcomer", "--memory", "36GiB", "--gpu", "soft:0", "--", "true")


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
    FaultKind("mps-server-death", "the MPS server dies", lambda world: world.strike("mps-server-death"),
              mps_loses=_SERVER, mps_only=True),
    FaultKind("ecc", "Xid 48, 63, 95: every client loses the device", lambda world: world.strike("ecc"),
              slices_lose=_DEVICE, mps_loses=_DEVICE),
    FaultKind("device-lost", "Xid 79, then a reset", _lose_device, slices_lose=_DEVICE, mps_loses=_DEVICE),
    FaultKind("node-killed", "SIGKILL of the node, started again", _kill_node, replaces=False),
    FaultKind("node-stopped", "SIGTERM of the node, started again", _stop_node, replaces=False),
    FaultKind("pressure-evict", "an online newcomer needs its memory", _need_memory),
    FaultKind("pressure-suspend", "the same, and it would rather be suspended", _need_memory, replaces=False,
              suspends=True),
)  # fmt: skip
