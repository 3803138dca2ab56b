"""The program of bench `slice`: launch a kernel of PTX by the driver's own functions, and print how long that took.

`python -m cotenant_lab.bench.slice.program train LAUNCHES` launches and waits; `compare LAUNCHES` alternates between
the kernel and its variant; `hold` launches three times a second until its input ends.
"""

from __future__ import annotations

import ctypes
import json
import select
import sys
from collections.abc import Callable
from typing import Any, Final

from cotenant.errors import WorldError
from cotenant.hook import parts
from cotenant.runner.clock import monotonic_ns

KERNEL: Final = "k"
TRAIN_BLOCKS: Final = 8000
BLOCKS: Final = 320
"""Two waves on a V100, whose SMs have shared memory for two of these blocks."""
THREADS: Final = 32
TEXT: Final = b""".version 7.8
.target sm_70
.address_size 64
.visible .entry k(.param .u64 out)
{
  .shared .align 4 .b8 area[40960];
  .reg .b32 %n, %i, %v; .reg .b64 %o; .reg .pred %p;
  ld.param.u64 %o, [out];
  mov.u32 %n, %ctaid.x;
  mov.u32 %i, 0;
  mov.u32 %v, area;
LOOP:
  mad.lo.u32 %v, %v, 5, %n;
  add.u32 %i, %i, 1;
  setp.lt.u32 %p, %i, 1000;
  @%p bra LOOP;
  setp.ne.u32 %p, %n, 0;
  @!%p st.global.u32 [%o], %v;
  ret;
}
"""
"""About four thousand instructions per thread."""
PERIOD_S: Final = 0.3


class _Driver:
    """A context, the kernel and its variant, and memory for its result."""

    def __init__(self, text: bytes) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        context, self._module, pointer = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._call("cuCtxSetCurrent", context)
        self._call("cuModuleLoadData", ctypes.byref(self._module), text)
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(4))
        self._pointer = pointer

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._cuda, name)(*arguments)
        if result:
            raise WorldError(f"{name} answered {result}")

    def function(self, name: bytes) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), self._module, name)
        return function

    def launch(self, function: ctypes.c_void_p, blocks: int, part: bytes = b"") -> None:
        values = [ctypes.addressof(self._pointer)]
        buffer = ctypes.create_string_buffer(part, len(part)) if part else None
        if buffer is not None:
            values.append(ctypes.addressof(buffer))
        params = (ctypes.c_void_p * len(values))(*values)
        self._call("cuLaunchKernel", function, blocks, 1, 1, THREADS, 1, 1, 0, None, params, None)

    def wait(self) -> None:
        self._call("cuCtxSynchronize")


def _time_ns(work: Callable[[], None]) -> int:
    began_ns = monotonic_ns()
    work()
    return monotonic_ns() - began_ns


def _train(launches: int) -> list[int]:
    driver = _Driver(TEXT)
    kernel = driver.function(b"k")

    def step() -> None:
        driver.launch(kernel, TRAIN_BLOCKS)
        driver.wait()

    return [_time_ns(step) for _ in range(launches)]


def _compare(launches: int) -> list[tuple[int, int]]:
    """Return how long the kernel and its variant took, each over the whole grid."""
    rewritten, (kernel,) = parts.rewrite(TEXT)
    if rewritten is None or kernel.variant is None:
        raise WorldError("the kernel of the bench has no variant")
    driver = _Driver(rewritten)
    plain, other = driver.function(KERNEL.encode()), driver.function(kernel.variant.encode())
    part = parts.part_parameter((BLOCKS, 1, 1), 0)

    def run_plain() -> None:
        driver.launch(plain, BLOCKS)
        driver.wait()

    def run_variant() -> None:
        driver.launch(other, BLOCKS, part)
        driver.wait()

    rows = []
    for number in range(launches):
        if number % 2:
            plain_ns, variant_ns = _time_ns(run_plain), _time_ns(run_variant)
        else:
            variant_ns, plain_ns = _time_ns(run_variant), _time_ns(run_plain)
        rows.append((plain_ns, variant_ns))
    return rows


def _hold() -> list[int]:
    driver = _Driver(TEXT)
    kernel, count = driver.function(b"k"), 0
    while count == 0 or not select.select([sys.stdin], [], [], PERIOD_S)[0]:
        driver.launch(kernel, 1)
        driver.wait()
        if not count:
            print("holding", flush=True)
        count += 1
    return [count]


def main(words: list[str]) -> int:
    """Run the command and print its result as JSON."""
    command, numbers = words[0], [int(word) for word in words[1:]]
    commands: dict[str, Callable[..., object]] = {"train": _train, "compare": _compare, "hold": _hold}
    print(json.dumps(commands[command](*numbers)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
