"""Tests of launch scripts on the simulated device."""

import pytest

from cotenant.softgpu.sim.device import Device, Kernel, ScriptClient, Step, StreamKind, preset, preset_keys

ONE_WAVE = Kernel(blocks=80, block_ns=1000, blocks_per_sm=1)
NEVER_NS = 2**64 - 1


def test_repeat_begins_at_its_arrival_or_after_its_predecessor() -> None:
    device = Device(preset("v100"))
    client = ScriptClient(steps=(Step(100, 0, sync=True),), repeats=3, arrivals_ns=(0, 500, 9000))
    (result,) = device.run([ONE_WAVE], [client])
    assert list(result.starts_ns) == [100, 1200, 9100]
    assert list(result.repeat_ends_ns) == [1100, 2200, 10100]
    assert result.finished_ns == 10100
    assert result.blocked_ns == 3000


def test_host_runs_ahead_up_to_its_limit() -> None:
    device = Device(preset("v100"))
    client = ScriptClient(steps=(Step(10, 0),), repeats=5, ahead_limit=2)
    (result,) = device.run([ONE_WAVE], [client])
    assert list(result.ends_ns) == [1010, 2010, 3010, 4010, 5010]
    assert list(result.repeat_ends_ns) == [10, 20, 1010, 2010, 3010]  # from the third on it waits for the oldest
    assert result.blocked_ns == 980 + 990 + 990


def test_work_after_the_end_instant_is_not_completed() -> None:
    device = Device(preset("v100"))
    client = ScriptClient(steps=(Step(0, 0, sync=True),), repeats=4)
    (result,) = device.run([ONE_WAVE], [client], until_ns=2500)
    assert (result.launches, result.completions, result.finished_ns) == (3, 2, None)
    assert list(result.ends_ns) == [1000, 2000, NEVER_NS, NEVER_NS]
    assert device.now_ns() == 2500


def test_scripts_honour_stream_kinds_and_priorities() -> None:
    device = Device(preset("v100"))
    long = Kernel(blocks=800, block_ns=1000, blocks_per_sm=1)
    streams = ((StreamKind.NONBLOCKING, 0), (StreamKind.NONBLOCKING, -5))
    client = ScriptClient(steps=(Step(0, 0, 0), Step(1500, 1, 1)), streams=streams)
    (result,) = device.run([long, ONE_WAVE], [client])
    assert list(result.starts_ns) == [0, 2000]
    assert list(result.ends_ns) == [11000, 3000]


@pytest.mark.parametrize("step", [Step(0, 7), Step(0, 0, stream=3)])
def test_script_with_an_unknown_kernel_or_stream_is_refused(step: Step) -> None:
    with pytest.raises(ValueError, match="an argument is invalid"):
        Device(preset("v100")).run([ONE_WAVE], [ScriptClient(steps=(step,))])


def test_errors_have_distinct_exceptions() -> None:
    device = Device(preset("t4"))
    client = device.add_client(0)
    context = device.create_context(0, client)
    stream = device.create_stream(0, context)
    with pytest.raises(MemoryError):
        device.take_memory(context, 2**40)
    with pytest.raises(ValueError, match="does not fit"):
        device.launch(0, stream, Kernel(blocks=1, block_ns=1, threads_per_block=4096))
    with pytest.raises(LookupError):
        device.launch(0, stream + 1, ONE_WAVE)
    with pytest.raises(LookupError):
        preset("gtx")
    device.kill_client(0, client)
    with pytest.raises(LookupError):
        device.create_stream(0, context)


def test_every_preset_creates_a_device() -> None:
    assert preset_keys() == ["t4", "v100-16", "v100-32", "a100-40", "a100-80", "h100"]
    for key in preset_keys():
        config = preset(key)
        device = Device(config)
        assert device.config.key == key
        assert config.occupancy(1024, 32) == config.threads_per_sm // 1024
