"""Replays a stream of kernels as online requests or as a training loop, and prints latency and throughput.

It is an ordinary program over NVIDIA's cuda-bindings and knows nothing of cotenant. Its kernels come from a soft GPU's
text image, so it needs a soft GPU: `cotenant run --gpu soft:0 -- python examples/replay.py --mode online`.

A launch script is a text file of lines `NAME BLOCKS THREADS DURATION_NS INTERVAL_NS [STREAM]`: a kernel, and the time
from its launch to the host's next one, as `cotenant profile import` writes it from a profiler's trace. A line
`@htod BYTES INTERVAL_NS [STREAM]` is a copy (also @dtoh, @dtod, @memset). Without a file one is made: --kernels
of them, --kernel-us long, --gap-us apart.
"""

# ruff: noqa: INP001, T201, TID251
# A program of its own, not a part of cotenant: it prints, sleeps and reads the clock as its users' programs do.

from __future__ import annotations

import argparse
import ctypes
import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda.bindings import driver


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch, and the time until the host's next one; of a copy, `amount` is its bytes."""

    name: str
    blocks: int
    threads: int
    amount: int
    interval_ns: int
    stream: int = 0


def ok(answer: tuple[Any, ...]) -> Any:
    """The value of a call that succeeded."""
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"replay: the driver says {answer[0].name}")
    return answer[1] if len(answer) == 2 else answer[1:]


def read_script(options: argparse.Namespace) -> list[Kernel]:
    """The launches of one request or one training step."""
    if options.script is None:
        duration_ns, gap_ns = int(options.kernel_us * 1000), int(options.gap_us * 1000)
        return [Kernel("made", options.blocks, 256, duration_ns, gap_ns)] * int(options.kernels)
    kernels = []
    for line in Path(options.script).read_text(encoding="utf-8").splitlines():
        words = line.split("#")[0].split()
        if words and words[0].startswith("@"):
            kernels.append(Kernel(words[0], 0, 0, *(int(word) for word in words[1:4])))
        elif words:
            kernels.append(Kernel(words[0], *(int(word) for word in words[1:6])))
    return kernels


def pause_until(instant_ns: int) -> None:
    """Sleeps most of the way and looks at the clock for the rest, as an inference server's loop does."""
    while (left_ns := instant_ns - time.monotonic_ns()) > 0:
        if left_ns > 200_000:
            time.sleep((left_ns - 100_000) / 1e9)


class Replayer:
    """A context, its streams, the kernels' functions, and memory to copy from and to."""

    def __init__(self, kernels: list[Kernel], priority: int, image: str | None) -> None:
        self.kernels = kernels
        ok(driver.cuInit(0))
        self.context = ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(0))))
        names = dict.fromkeys(kernel.name for kernel in kernels if not kernel.name.startswith("@"))
        made = "softgpu-image 1\n" + "".join(f"kernel {n}\n params 8\n duration_param 0\n" for n in names)
        text = Path(image).read_bytes() if image else made.encode()
        self.module = ok(driver.cuModuleLoadData(text))
        self.functions = {name: ok(driver.cuModuleGetFunction(self.module, name.encode())) for name in names}
        numbers = dict.fromkeys(kernel.stream for kernel in kernels)
        self.streams = {number: ok(driver.cuStreamCreateWithPriority(1, priority)) for number in numbers}
        most = max([kernel.amount for kernel in kernels if kernel.name.startswith("@")], default=0)
        if most:
            self.device, self.other = ok(driver.cuMemAlloc(most)), ok(driver.cuMemAlloc(most))
            self.host = ok(driver.cuMemAllocHost(most))

    def launch(self, kernel: Kernel) -> None:
        """One kernel or copy, into its stream."""
        stream = self.streams[kernel.stream]
        if kernel.name == "@htod":
            ok(driver.cuMemcpyHtoDAsync(self.device, self.host, kernel.amount, stream))
        elif kernel.name == "@dtoh":
            ok(driver.cuMemcpyDtoHAsync(self.host, self.device, kernel.amount, stream))
        elif kernel.name == "@dtod":
            ok(driver.cuMemcpyDtoDAsync(self.other, self.device, kernel.amount, stream))
        elif kernel.name == "@memset":
            ok(driver.cuMemsetD8Async(self.device, 0, kernel.amount, stream))
        else:
            parameters = ((kernel.amount,), (ctypes.c_uint64,))
            shape = (kernel.blocks, 1, 1, kernel.threads, 1, 1)
            ok(driver.cuLaunchKernel(self.functions[kernel.name], *shape, 0, stream, parameters, 0))

    def once(self) -> None:
        """All kernels of the script, launched at their intervals, until the last is complete."""
        for kernel in self.kernels:
            launched_ns = time.monotonic_ns()
            self.launch(kernel)
            if kernel.interval_ns:
                pause_until(launched_ns + kernel.interval_ns)
        for stream in self.streams.values():
            ok(driver.cuStreamSynchronize(stream))


def online(replayer: Replayer, rate_per_s: float, seconds: float, seed: int) -> list[int]:
    """Requests arrive by themselves (Poisson); a request's latency counts from its arrival, not from its turn."""
    dice = random.Random(seed)
    latencies_ns: list[int] = []
    start_ns = time.monotonic_ns()
    arrival_ns = float(start_ns)
    while True:
        arrival_ns += dice.expovariate(rate_per_s) * 1e9
        if arrival_ns - start_ns > seconds * 1e9:
            return latencies_ns
        pause_until(int(arrival_ns))
        replayer.once()
        latencies_ns.append(time.monotonic_ns() - int(arrival_ns))


def training(replayer: Replayer, seconds: float) -> list[int]:
    """One step after the other, at least one."""
    steps_ns = []
    end_ns = time.monotonic_ns() + int(seconds * 1e9)
    while not steps_ns or time.monotonic_ns() < end_ns:
        before_ns = time.monotonic_ns()
        replayer.once()
        steps_ns.append(time.monotonic_ns() - before_ns)
    return steps_ns


def summary(mode: str, durations_ns: list[int], seconds: float, kernels: int) -> dict[str, Any]:
    ordered = sorted(durations_ns) or [0]

    def quantile_us(part: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))] / 1000, 1)

    return {
        "mode": mode,
        "count": len(durations_ns),
        "per_s": round(len(durations_ns) / seconds, 2),
        "kernels": len(durations_ns) * kernels,
        "mean_us": round(sum(ordered) / len(ordered) / 1000, 1),
        "p50_us": quantile_us(0.5),
        "p90_us": quantile_us(0.9),
        "p99_us": quantile_us(0.99),
        "max_us": round(ordered[-1] / 1000, 1),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="replay a stream of kernels on a soft GPU")
    parser.add_argument("--mode", choices=("online", "training", "once"), default="online")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second, online")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals")
    parser.add_argument("--priority", type=int, default=0, help="of the stream; lower goes first")
    parser.add_argument("--script", help="a launch script, see above")
    parser.add_argument("--image", help="the image its kernels are in (default: one made of their names)")
    parser.add_argument("--kernels", type=int, default=20)
    parser.add_argument("--kernel-us", type=float, default=50.0)
    parser.add_argument("--gap-us", type=float, default=0.0)
    parser.add_argument("--blocks", type=int, default=80)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    kernels = read_script(options)
    replayer = Replayer(kernels, options.priority, options.image)
    start_ns = time.monotonic_ns()
    if options.mode == "online":
        durations_ns = online(replayer, options.rate, options.seconds, options.seed)
    else:
        durations_ns = training(replayer, options.seconds if options.mode == "training" else 0.0)
    said = summary(options.mode, durations_ns, (time.monotonic_ns() - start_ns) / 1e9, len(kernels))
    if options.json:
        print(json.dumps(said))
    else:
        what = "requests" if options.mode == "online" else "steps"
        print(f"{said['count']} {what}, {said['per_s']}/s, {said['kernels']} kernels")
        print(f"latency us: mean {said['mean_us']}  p50 {said['p50_us']}  p90 {said['p90_us']}  p99 {said['p99_us']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
