"""Measure what sharing a device costs: `python -m cotenant.node.daemon.monitor.calibration_program`.

Runs on the first visible device and prints one line of JSON, in nanoseconds: the duration of driver calls, the
resolution of events, the cost of a switch to another process, and for how long another process that has work keeps the
device; with the argument `mps` also the effect of MPS priorities. It starts itself again as that other process. A
process that loads a driver becomes a program on the device, so the node itself does not load it.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from statistics import fmean, median
from typing import Any, Final

from cotenant.runner.clock import monotonic_ns, pause

_KERNEL: Final = b"cotenant_calibration"
_PTX: Final = """
.version 6.0
.target sm_50
.address_size 64
.visible .entry cotenant_calibration()
{
    ret;
}
"""
_CALLS: Final = 100
_TURNS: Final = 40
_WARM_TURNS: Final = 5
_SLICE_SAMPLES: Final = 24
_SLICE_PAUSE_S: Final = 0.003
_AHEAD: Final = 512
"""Kernels that the other process keeps in its queue while the time slice is measured."""
_FILL_BLOCKS: Final = 4096
_FILL_BLOCKS_MAX: Final = 1 << 17
_FILL_SHARED_BYTES: Final = 48 << 10
"""Few blocks with so much shared memory fit on an SM, so that they queue."""
_FILL_NS: Final = 2_000_000
_FILL_SAMPLES: Final = 48
_FILL_ATTEMPTS: Final = 4 * _FILL_SAMPLES
_MIN_DELAY_PART: Final = 0.125
"""With a smaller mean delay, as a part of the long kernel, blocks do not queue, and priorities are not measurable."""
_PRIORITY_VARIABLE: Final = "CUDA_MPS_CLIENT_PRIORITY"
MPS_WORD: Final = "mps"
_OTHER: Final = "other"
_ECHO: Final = b"e"
_LAUNCH: Final = b"l"
_KEEP_BUSY: Final = b"b"
_FILL: Final = b"f"
_IS_FILLED: Final = b"i"
_YES: Final = b"y"
_END: Final = b"q"


class _Device:
    """The primary context of the first visible device, with one kernel that does nothing."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.kernel = ctypes.c_void_p()
        self.check(self.driver.cuInit(0))
        self.check(self.driver.cuDeviceGet(ctypes.byref(device), 0))
        self.check(self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self.check(self.driver.cuCtxSetCurrent(context))
        self.check(self.driver.cuModuleLoadData(ctypes.byref(module), _PTX.encode()))
        self.check(self.driver.cuModuleGetFunction(ctypes.byref(self.kernel), module, _KERNEL))

    def check(self, code: int) -> None:
        if code:
            raise SystemExit(f"the driver returned {code}")

    def launch(self, blocks: int = 1, shared_bytes: int = 0) -> None:
        self.check(self.driver.cuLaunchKernel(self.kernel, blocks, 1, 1, 32, 1, 1, shared_bytes, None, None, None))

    def wait(self) -> None:
        self.check(self.driver.cuCtxSynchronize())

    def event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self.check(self.driver.cuEventCreate(ctypes.byref(event), 0))
        return event


class _OtherProcess:
    """The other process, which does what single bytes on its standard input ask for."""

    def __init__(self, priority: str = "0") -> None:
        command = [sys.executable, "-m", "cotenant.node.daemon.monitor.calibration_program", _OTHER]
        environ = {**os.environ, _PRIORITY_VARIABLE: priority}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environ)
        self._answer()

    def ask(self, what: bytes) -> bytes:
        assert self._process.stdin is not None
        self._process.stdin.write(what)
        return self._answer()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(_END)
        self._process.wait()

    def _answer(self) -> bytes:
        assert self._process.stdout is not None
        answer = self._process.stdout.read(1)
        if not answer:
            raise SystemExit("the second process ended")
        return answer


def other() -> None:
    """Answer the first process: with or without a launch, or by keeping the device busy until it asks again."""
    device = _Device()
    device.launch()
    device.wait()
    filled, blocks = device.event(), 0
    stdin, stdout = open(0, "rb", buffering=0, closefd=False), open(1, "wb", buffering=0, closefd=False)  # noqa: SIM115
    stdout.write(_ECHO)
    while (what := stdin.read(1)) not in (b"", _END):
        if what == _LAUNCH:
            device.launch()
            device.wait()
        if what == _KEEP_BUSY:
            _keep_busy(device, lambda: stdout.write(_ECHO))
        elif what == _FILL:
            blocks = blocks or _filling_blocks(device)
            device.wait()
            device.launch(blocks, _FILL_SHARED_BYTES)
            device.check(device.driver.cuEventRecord(filled, None))
            stdout.write(_ECHO)
        elif what == _IS_FILLED:
            stdout.write(_YES if device.driver.cuEventQuery(filled) else _ECHO)
        else:
            stdout.write(_ECHO)


def _keep_busy(device: _Device, begun: Callable[[], object]) -> None:
    """Keep the queue of the device filled for as long as the first process measures."""
    events = [device.event() for _ in range(2)]
    end_ns = monotonic_ns() + round((_SLICE_SAMPLES + 4) * _SLICE_PAUSE_S * 1e9 * 4)
    for number in itertools.count():
        for _ in range(_AHEAD // 2):
            device.launch()
        device.check(device.driver.cuEventRecord(events[number % 2], None))
        if number == 1:
            begun()
        if number:
            device.check(device.driver.cuEventSynchronize(events[(number + 1) % 2]))
        if monotonic_ns() > end_ns:
            break
    device.wait()


def _filling_blocks(device: _Device) -> int:
    """Return how many blocks take about `_FILL_NS`."""
    blocks = _FILL_BLOCKS
    while blocks < _FILL_BLOCKS_MAX and _filling_ns(device, blocks) < _FILL_NS:
        blocks *= 2
    return blocks


def _filling_ns(device: _Device, blocks: int) -> float:
    """Return how long a kernel of so many blocks takes alone."""
    events = device.event(), device.event()
    return median(_device_turn_ns(device, *events, blocks, _FILL_SHARED_BYTES) for _ in range(3))


def _device_turn_ns(
    device: _Device, first: ctypes.c_void_p, second: ctypes.c_void_p, blocks: int = 1, shared_bytes: int = 0
) -> float:
    """Return the time from the submission of a kernel to its end, by events: the host's own delays do not count."""
    elapsed = ctypes.c_float()
    device.check(device.driver.cuEventRecord(first, None))
    device.launch(blocks, shared_bytes)
    device.check(device.driver.cuEventRecord(second, None))
    device.check(device.driver.cuEventSynchronize(second))
    device.check(device.driver.cuEventElapsedTime(ctypes.byref(elapsed), first, second))
    return elapsed.value * 1e6


def measure(*, is_mps: bool) -> dict[str, Any]:
    """Return all measurements; a value that could not be measured is 0."""
    device = _Device()
    driver, events = device.driver, (device.event(), device.event())
    device.launch()
    device.wait()
    result: dict[str, int | None] = {
        "launch_ns": _median_ns(device.launch, device.wait),
        "event_record_ns": _median_ns(lambda: driver.cuEventRecord(events[0], None), device.wait),
        "event_query_ns": _median_ns(lambda: driver.cuEventQuery(events[0]), device.wait),
        "event_resolution_ns": _event_resolution_ns(device, *events),
    }
    second = _OtherProcess()
    result["switch_ns"] = _switch_ns(device, second)
    result["slice_ns"] = _slice_ns(device, second)
    second.end()
    if is_mps:
        result["priority_effect_ppm"] = _priority_effect_ppm(device)
    return result


def _median_ns(call: Callable[[], object], settle: Callable[[], None]) -> int:
    samples = []
    for number in range(_CALLS):
        began_ns = monotonic_ns()
        call()
        samples.append(monotonic_ns() - began_ns)
        if number % 16 == 15:
            settle()
    settle()
    return int(median(samples))


def _event_resolution_ns(device: _Device, first: ctypes.c_void_p, second: ctypes.c_void_p) -> int:
    """Return the smallest difference between two measured durations, which is a multiple of the resolution."""
    elapsed, values = ctypes.c_float(), set()
    for kernels in range(_CALLS):
        device.check(device.driver.cuEventRecord(first, None))
        for _ in range(1 + kernels % 8):
            device.launch()
        device.check(device.driver.cuEventRecord(second, None))
        device.check(device.driver.cuEventSynchronize(second))
        device.check(device.driver.cuEventElapsedTime(ctypes.byref(elapsed), first, second))
        values.add(round(elapsed.value * 1e6))
    ordered = sorted(values)
    return min((later - earlier for earlier, later in itertools.pairwise(ordered)), default=0)


def _turn_ns(device: _Device) -> int:
    began_ns = monotonic_ns()
    device.launch()
    device.wait()
    return monotonic_ns() - began_ns


def _switch_ns(device: _Device, second: _OtherProcess) -> int:
    """Return by how much longer a kernel takes if the other process used the device in between."""
    alternating: list[int] = []
    alone: list[int] = []
    for number in range(_TURNS + _WARM_TURNS):
        for what, samples in ((_LAUNCH, alternating), (_ECHO, alone)):
            if what == _ECHO:
                _turn_ns(device)  # the switch back to this process is not measured
            second.ask(what)
            samples.append(_turn_ns(device))
            if number < _WARM_TURNS:
                samples.clear()
    return max(round(median(alternating) - median(alone)), 0)


def _slice_ns(device: _Device, second: _OtherProcess) -> int:
    """Return for how long the other process keeps the device: a kernel arrives at a random instant of its slice."""
    alone_ns = median(_turn_ns(device) for _ in range(_TURNS))
    second.ask(_KEEP_BUSY)
    samples = []
    for _ in range(_SLICE_SAMPLES):
        pause(_SLICE_PAUSE_S)
        samples.append(_turn_ns(device))
    return max(round(2 * (median(samples) - alone_ns)), 0)


def _priority_effect_ppm(device: _Device) -> int | None:
    """Return which part of the delay by another process's long kernels a lower priority of that process avoids.

    None: it could not be measured, or they hardly delay anything at equal priority.
    """
    long_ns = _filling_ns(device, _filling_blocks(device))
    events = device.event(), device.event()
    alone_ns = median(_device_turn_ns(device, *events) for _ in range(_TURNS))
    equal_ns, lower_ns = (_mean_delay_ns(device, priority, alone_ns, long_ns) for priority in ("0", "1"))
    if equal_ns is None or lower_ns is None or equal_ns < _MIN_DELAY_PART * long_ns:
        return None
    return round(1_000_000 * min(max(1 - lower_ns / equal_ns, 0.0), 1.0))


def _mean_delay_ns(device: _Device, priority: str, alone_ns: float, long_ns: float) -> float | None:
    """Return by how much a long kernel of a process with this priority delays a short one.

    A short kernel that arrived too late, when the long one had ended, does not count; None: too many did.
    """
    second, events = _OtherProcess(priority), (device.event(), device.event())
    samples: list[float] = []
    for _ in range(_FILL_ATTEMPTS):
        second.ask(_FILL)
        delay_ns = _device_turn_ns(device, *events) - alone_ns
        if second.ask(_IS_FILLED) == _YES or delay_ns > _MIN_DELAY_PART * long_ns:
            samples.append(min(max(delay_ns, 0.0), long_ns))
        if len(samples) == _FILL_SAMPLES:
            break
    second.end()
    return fmean(samples) if len(samples) == _FILL_SAMPLES else None


if __name__ == "__main__":
    if sys.argv[1:] == [_OTHER]:
        other()
    else:
        os.environ[_PRIORITY_VARIABLE] = "0"  # before the driver is loaded
        print(json.dumps(measure(is_mps=sys.argv[1:] == [MPS_WORD])))
