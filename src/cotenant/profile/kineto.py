"""Read PyTorch profiler traces (Kineto's Chrome JSON) as one timeline per device."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.workload.kernel import Extent, KernelIdentity, WorkKind
from cotenant.workload.timeline import Activity, Timeline, timeline_of

# Kineto renamed its categories around 2022; traces of both kinds are in use.
_WORK: Final = {
    "kernel": WorkKind.KERNEL,
    "gpu_memcpy": WorkKind.COPY,
    "memcpy": WorkKind.COPY,
    "gpu_memset": WorkKind.MEMSET,
    "memset": WorkKind.MEMSET,
}
_HOST: Final = ("cuda_runtime", "cuda_driver", "runtime", "driver")
_NS_PER_US: Final = 1000


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: Decimal = Decimal(0)
    dur: Decimal = Decimal(0)
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Device(msgspec.Struct):
    id: int = 0
    name: str = ""
    sms: int = msgspec.field(name="numSms", default=0)


class _Trace(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    devices: list[_Device] = msgspec.field(name="deviceProperties", default_factory=list)


class _Args(msgspec.Struct):
    device: int = 0
    stream: int = 0
    correlation: int | None = None
    grid: list[int] = msgspec.field(default_factory=list)
    block: list[int] = msgspec.field(default_factory=list)
    registers: int = msgspec.field(name="registers per thread", default=0)
    shared: int = msgspec.field(name="shared memory", default=0)
    bytes: int = 0


def read_kineto(data: bytes, task: str, where: str) -> list[Timeline]:
    """Return one timeline per active device, by device number; raise `ConfigError` if the data is no trace."""
    try:
        trace = msgspec.json.decode(data, type=_Trace, strict=False)
        launches = _launches(trace.events)
        by_device: dict[int, list[Activity]] = {}
        for event in trace.events:
            work = _WORK.get(event.cat.lower()) if event.ph == "X" else None
            if work is not None:
                device, activity = _activity(event, work, launches)
                by_device.setdefault(device, []).append(activity)
    except msgspec.DecodeError as error:
        _, _, location = str(error).partition(" - at ")
        problem = f"{location} is not as Kineto writes it" if location else "not JSON"
        raise ConfigError("trace", where, f"is no PyTorch profiler trace: {problem}") from None
    except (ArithmeticError, ValueError) as error:
        raise ConfigError("trace", where, f"is no PyTorch profiler trace: {error}") from None
    if not by_device:
        raise ConfigError("trace", where, "holds no device activity; record it with ProfilerActivity.CUDA")
    devices = {device.id: device for device in trace.devices}
    timelines = []
    for number, activities in sorted(by_device.items()):
        properties = devices.get(number, _Device())
        name = task if len(by_device) == 1 else f"{task} device {number}"
        timelines.append(timeline_of(name, properties.name, properties.sms, activities))
    return timelines


def _ns(microseconds: Decimal) -> int:
    """Convert to nanoseconds; decimals, because a float of microseconds since 1970 is off by a quarter of one."""
    value = microseconds * _NS_PER_US
    if not value.is_finite() or abs(value) >= 1 << 63:
        raise ValueError(f"{microseconds} is no valid time in microseconds")
    return int(value.to_integral_value())


def _launches(events: list[_Event]) -> dict[int, int]:
    """Return the instants of launches by correlation id: the first call of an id is the launch, later ones wait."""
    instants: dict[int, int] = {}
    for event in events:
        if event.ph == "X" and event.cat.lower() in _HOST:
            correlation = msgspec.json.decode(event.args, type=_Args, strict=False).correlation
            if correlation is not None:
                at_ns = _ns(event.ts)
                instants[correlation] = min(at_ns, instants.get(correlation, at_ns))
    return instants


def _extent(numbers: list[int]) -> Extent:
    x, y, z = (*numbers[:3], 1, 1, 1)[:3]
    if min(x, y, z) < 1:
        raise ValueError(f"a grid or block of {x} x {y} x {z}")
    return x, y, z


def _activity(event: _Event, work: WorkKind, launches: dict[int, int]) -> tuple[int, Activity]:
    args = msgspec.json.decode(event.args, type=_Args, strict=False)
    duration_ns = _ns(event.dur)
    if duration_ns < 0:
        raise ValueError(f"{event.name} lasts {event.dur} us")
    kernel = KernelIdentity(event.name, _extent(args.grid), _extent(args.block), max(args.shared, 0), work)
    launch_ns = None if args.correlation is None else launches.get(args.correlation)
    activity = Activity(
        kernel,
        args.stream,
        _ns(event.ts),
        duration_ns,
        launch_ns,
        max(args.registers, 0),
        max(args.bytes, 0),
    )
    return args.device, activity
