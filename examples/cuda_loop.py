"""An ordinary CUDA driver program with no dependencies: an online service or an offline training loop.

It loads libcuda.so.1 like any program and knows nothing of cotenant. Its kernel takes a given time on a software GPU:

    cotenant run --online --gpu soft:0 -- python examples/cuda_loop.py service
    cotenant run --offline --gpu soft:0 -- python examples/cuda_loop.py training
"""

# ruff: noqa: INP001, T201, TID251
# A user's program, not a part of cotenant: it prints, sleeps and reads the clock.

import argparse
import ctypes
import time

IMAGE = b"softgpu-image 1\nkernel spin\n params 8\n duration_param 0\n"


class Gpu:
    """A context on the first device and one kernel."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.kernel = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        self.call("cuModuleLoadData", ctypes.byref(module), IMAGE)
        self.call("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"spin")

    def call(self, name: str, *arguments: object) -> None:
        """Call a driver function; end the program if it fails."""
        code = getattr(self.driver, name)(*arguments)
        if code:
            raise SystemExit(f"{name} failed with CUDA error {code}")

    def run(self, kernels: int, kernel_us: int, blocks: int) -> None:
        """Launch kernels of the given duration and wait for them."""
        duration_ns = ctypes.c_uint64(kernel_us * 1000)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(duration_ns))
        for _ in range(kernels):
            self.call("cuLaunchKernel", self.kernel, blocks, 1, 1, 128, 1, 1, 0, None, parameters, None)
        self.call("cuCtxSynchronize")


def serve(gpu: Gpu, seconds: float) -> None:
    """Answer 50 requests per second of 20 kernels each, and print the latencies."""
    begin, latencies = time.monotonic(), []
    for number in range(int(seconds * 50)):
        arrival = begin + number / 50
        time.sleep(max(arrival - time.monotonic(), 0))
        gpu.run(kernels=20, kernel_us=50, blocks=80)
        latencies.append((time.monotonic() - arrival) * 1000)
    latencies.sort()
    count = len(latencies)
    print(f"{count} requests, p50 {latencies[count // 2]:.2f} ms, p99 {latencies[-1 - count // 100]:.2f} ms")


def train(gpu: Gpu, seconds: float) -> None:
    """Run steps of 50 kernels one after the other, and print their rate."""
    begin, steps = time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        gpu.run(kernels=50, kernel_us=200, blocks=160)
        steps += 1
    print(f"{steps / seconds:.1f} steps per second")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("mode", choices=("service", "training"))
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    {"service": serve, "training": train}[options.mode](Gpu(), options.seconds)
