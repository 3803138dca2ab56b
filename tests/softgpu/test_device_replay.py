"""Measured kernel streams on the model: alone they take the time they took on the real device."""

import os
from pathlib import Path

import pytest

from cotenant.softgpu.sim.device import Device, Kernel, ScriptClient, Step, preset
from cotenant.workload.kernel_table import read_kernels
from cotenant_lab.physics.stream import kernel_of

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("COTENANT_DATA", ROOT.parent / "shared" / "data"))
STREAMS = DATA / "orion" / "model_kernels"

pytestmark = pytest.mark.skipif(
    not STREAMS.is_dir(), reason=f"no measured kernel streams in {STREAMS}: set COTENANT_DATA to where they are"
)


def measured_stream(model: str) -> list[tuple[Kernel, int]]:
    """Kernels with the duration measured alone."""
    path = STREAMS / f"{model}_fwd.csv"
    config = preset("v100")
    stream = read_kernels(path.read_bytes(), model, str(path))
    return [(kernel_of(activity, config), activity.device_ns) for activity in stream.activities]


def request(stream: list[tuple[Kernel, int]]) -> tuple[Step, ...]:
    launches = tuple(Step(1000, index) for index in range(len(stream)))
    return (*launches, Step(0, None, sync=True))


@pytest.mark.parametrize("model", ["resnet50_4", "mobilenetv2_4", "resnet101_4", "bert_2", "transformer_xl_4"])
def test_inference_alone_takes_the_sum_of_its_kernels(model: str) -> None:
    stream = measured_stream(model)
    measured_ns = sum(duration_ns for _, duration_ns in stream)
    device = Device(preset("v100"))
    (result,) = device.run([kernel for kernel, _ in stream], [ScriptClient(steps=request(stream), repeats=3)])
    busy_ns = device.count().busy_ns / 3
    assert abs(busy_ns - measured_ns) <= 0.01 * measured_ns
    assert result.completions == 3 * len(stream)
    assert device.count().delayed_ns == 0


def test_delays_of_two_time_sliced_inferences_equal_their_lost_time() -> None:
    stream = measured_stream("resnet50_4")
    kernels = [kernel for kernel, _ in stream]
    client = ScriptClient(steps=request(stream), repeats=5)
    alone = Device(preset("v100")).run(kernels, [client])[0]
    device = Device(preset("v100"))
    results = device.run(kernels, [client, client])
    for result in results:
        assert result.finished_ns is not None
        assert alone.finished_ns is not None
        assert result.finished_ns > 1.5 * alone.finished_ns
        # Kernels queue back to back here, so the counted delay equals the lost time, except for idle gaps.
        lost_ns = result.finished_ns - alone.finished_ns
        assert abs(sum(result.delays_ns) - lost_ns) <= 0.05 * lost_ns
