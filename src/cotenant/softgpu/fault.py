"""Injected faults of a software GPU, and the requests that inject them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from cotenant.errors import ConfigError, WorldError
from cotenant.softgpu import manage, wire

# From native/softgpu/wire.h and native/device/device.h.
_FAULT = 20
_CLOCK = 23
_RESET = 14
_MPS_DEATHS = 15
_OK, _INVALID, _STALE, _NOT_READY = 0, 1, 2, 6
_FULL_SPEED = 1 << 30
_MAX_NS = 3600 * 10**9
_MAX_LAUNCH = 2**32 - 1
_MAX_PID = 2**31 - 1
_MIN_FACTOR = 0.1


class Reach(enum.Enum):
    """Clients that a fault affects."""

    CLIENT = "the client, and its MPS group"
    GROUP = "every MPS client"
    DEVICE = "every client"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    `number` is that of the wire (enum sg_fault_kind; 0: the clock); programs see `code`, and NVML `xids`.
    """

    name: str
    number: int
    reach: Reach
    code: str
    xids: tuple[int, ...]
    about: str
    at_launch: bool = False
    lasting: bool = False


_KINDS = (
    Kind("illegal-address", 1, Reach.CLIENT, "CUDA_ERROR_ILLEGAL_ADDRESS", (31,), "invalid memory access", True),
    Kind("misaligned-address", 2, Reach.CLIENT, "CUDA_ERROR_MISALIGNED_ADDRESS", (13,), "misaligned access", True),
    Kind("illegal-instruction", 3, Reach.CLIENT, "CUDA_ERROR_ILLEGAL_INSTRUCTION", (13,), "illegal instruction", True),
    Kind("assert", 4, Reach.CLIENT, "CUDA_ERROR_ASSERT", (43,), "an assertion in a kernel fails", True),
    Kind("stack-error", 5, Reach.CLIENT, "CUDA_ERROR_HARDWARE_STACK_ERROR", (13,), "a kernel's stack overflows", True),
    Kind("launch-failed", 6, Reach.CLIENT, "CUDA_ERROR_LAUNCH_FAILED", (13,), "a kernel fails otherwise", True),
    Kind("launch-timeout", 7, Reach.CLIENT, "CUDA_ERROR_LAUNCH_TIMEOUT", (8,), "a kernel exceeds the time limit", True),
    Kind("ecc-contained", 8, Reach.CLIENT, "CUDA_ERROR_ECC_UNCORRECTABLE", (94,), "memory error, contained", True),
    Kind("mps-server-death", 9, Reach.GROUP, "CUDA_ERROR_MPS_RPC_FAILURE", (), "the MPS server dies"),
    Kind("ecc", 10, Reach.DEVICE, "CUDA_ERROR_ECC_UNCORRECTABLE", (48, 63, 95), "memory error, not contained"),
    Kind("device-lost", 11, Reach.DEVICE, "CUDA_ERROR_UNKNOWN", (79,), "the GPU falls off the bus until it is reset"),
    Kind("hang", 12, Reach.CLIENT, "CUDA_ERROR_LAUNCH_TIMEOUT", (8,), "a kernel does not end", True, lasting=True),
    Kind("clear", 13, Reach.CLIENT, "", (), "hangs end, and faults that wait for a launch are cancelled"),
    Kind("slow-clock", 0, Reach.DEVICE, "", (), "all kernels run slower", lasting=True),
)
KINDS = {kind.name: kind for kind in _KINDS}


def inject(directory: Path, ordinal: int, kind: Kind, *, client: int = 0, at_launch: int = 0, hang_ns: int = 0) -> int:
    """Inject a fault into one client by pid, or (0) into all in its reach; return the number of affected clients."""
    if client > _MAX_PID:
        raise ConfigError("--client", client, "no process has such a number")
    if at_launch > _MAX_LAUNCH or hang_ns > _MAX_NS:
        raise ConfigError("--at-launch or --for", max(at_launch, hang_ns), "write less: at most 2^32 - 1, or an hour")
    result, affected = wire.ask(
        manage.socket_of(directory, ordinal), _FAULT, kind.number, client | at_launch << 32, hang_ns
    )
    if result == _STALE:
        pids = [client_counters["pid"] for client_counters in manage.inspect(directory, ordinal)["clients"]]
        clients = f"its clients are {', '.join(map(str, pids))}" if pids else "it has none"
        raise ConfigError("--client", client, f"no client of software GPU {ordinal} has this pid; {clients}")
    if result == _INVALID:
        raise ConfigError("KIND", kind.name, "this GPU cannot contain memory errors; A100 and later can")
    if result != _OK:
        raise WorldError(f"software GPU {ordinal} rejected the fault: result {result}")
    return affected


def set_clock(directory: Path, ordinal: int, factor: float, *, for_ns: int = 0) -> None:
    """Run kernels at this fraction of full speed, for `for_ns` (0: until changed)."""
    if not _MIN_FACTOR <= factor <= 1:
        raise ConfigError("--factor", factor, f"write a number from {_MIN_FACTOR} to 1, which is full speed")
    if for_ns > _MAX_NS:
        raise ConfigError("--for", f"{for_ns} ns", "write at most an hour")
    wire.ask(manage.socket_of(directory, ordinal), _CLOCK, round(factor * _FULL_SPEED), for_ns)


def reset(directory: Path, ordinal: int) -> None:
    """Restore a lost device at full speed. As on real hardware, no client may be using it."""
    result, clients = wire.ask(manage.socket_of(directory, ordinal), _FAULT, _RESET)
    if result == _NOT_READY:
        raise WorldError(f"software GPU {ordinal} is in use by {clients} process(es): end them first")


def set_mps_deaths(directory: Path, ordinal: int, *, harm: bool) -> None:
    """Set whether an MPS client that dies with work in flight also ends its co-clients."""
    wire.ask(manage.socket_of(directory, ordinal), _FAULT, _MPS_DEATHS, 0, int(harm))
