"""The same script behind libcuda in real time and in the simulated device has the same completion instants."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from cotenant.softgpu.sim.device import Device, Kernel, OpKind, StreamKind, preset
from tests.support.software_gpus import start

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

# By name: block_ns, bytes_per_block, registers, shared_bytes and blocks_per_sm.
KERNELS = {
    "small": (900, 0, 32, 0, 0),
    "heavy": (7000, 200000, 64, 0, 0),
    "wide": (2500, 1000, 32, 30000, 0),
    "given": (4100, 0, 32, 0, 3),
}


def make_script(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    ops = []
    for number in range(30):
        name = rng.choice([*KERNELS, "copy"])
        size = rng.randrange(1, 500000) if name == "copy" else rng.randrange(1, 900)
        earlier = rng.randrange(number) if number and rng.random() < 0.2 else None
        ops.append([rng.randrange(4), name, size, rng.choice([64, 128, 256]), earlier])
    lines = {
        name: f"block_ns {k[0]}\nbytes_per_block {k[1]}\nregisters {k[2]}\nshared_bytes {k[3]}\nblocks_per_sm {k[4]}"
        for name, k in KERNELS.items()
    }
    return {"kernels": lines, "priorities": [0, -1, 0, -5], "ops": ops}


def simulate_script(script: dict[str, Any]) -> list[int]:
    """Return the completion instants of the same calls, all at instant 0, with the gate opened after 1 ms."""
    device = Device(preset("v100"))
    client = device.add_client(0)
    context = device.create_context(0, client)
    streams = [device.create_stream(0, context, StreamKind.NONBLOCKING, p) for p in script["priorities"]]
    gate = device.create_event(context)
    held = device.host(0, streams[0])
    device.record_event(0, streams[0], gate)
    for stream in streams[1:]:
        device.wait_event(0, stream, gate)
    events: list[int] = []
    for index, name, size, threads, earlier in script["ops"]:
        if earlier is not None:
            device.wait_event(0, streams[index], events[earlier])
        if name == "copy":
            device.copy(0, streams[index], OpKind.COPY_HTOD, size)
        else:
            block_ns, traffic, registers, shared, at_once = KERNELS[name]
            kernel = Kernel(
                blocks=size,
                block_ns=block_ns,
                bytes_per_block=traffic,
                threads_per_block=threads,
                registers_per_thread=registers,
                shared_bytes_per_block=shared,
                blocks_per_sm=at_once,
            )
            device.launch(0, streams[index], kernel)
        events.append(device.create_event(context))
        device.record_event(0, streams[index], events[-1])
    device.host_done(1_000_000, held)
    device.advance(10_000_000_000)
    opened_ns = device.event_instant_ns(gate)
    assert opened_ns == 1_000_000
    instants = [device.event_instant_ns(event) for event in events]
    return [instant - opened_ns for instant in instants if instant is not None]


@pytest.mark.parametrize("seed", range(4))
def test_real_time_and_simulated_completions_agree(softgpu: Path, seed: int) -> None:
    script = make_script(seed)
    process = start(softgpu, "script.py")
    out, err = process.communicate(json.dumps(script), timeout=60)
    assert process.returncode == 0, err
    real_ns, model_ns = json.loads(out), simulate_script(script)
    assert len(real_ns) == len(model_ns) == 30
    # CUDA tells time between events as a float of milliseconds: a nanosecond in four, at these lengths.
    assert all(abs(real - model) <= 4 for real, model in zip(real_ns, model_ns, strict=True)), (real_ns, model_ns)
