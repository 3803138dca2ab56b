"""No client can keep the others from the device: not by long work, not by much of it, not by taking every place."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.errors import ConfigError
from cotenant.softgpu import manage
from cotenant.softgpu.fault import KINDS, inject
from tests.softgpu.test_crash import at_work, settled
from tests.support.software_gpus import run, start

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

HOUR_S = 3600


def test_an_idle_server_is_small(softgpu: Path) -> None:
    status = Path(f"/proc/{manage.inspect(softgpu, 0)['pid']}/status").read_text()
    resident_kib = int(status.split("VmRSS:")[1].split()[0])
    assert resident_kib < 30 << 10


def test_hour_long_concurrent_kernels_block_no_other_client(softgpu: Path) -> None:
    waiters = [start(softgpu, "longwait.py", "blocking", str(HOUR_S)) for _ in range(2)]
    try:
        for waiter in waiters:
            at_work(waiter)
        assert len(manage.inspect(softgpu, 0)["clients"]) == 2
        assert "computed" in run(softgpu, "compute.py")
        assert [waiter.poll() for waiter in waiters] == [None, None]
    finally:
        for waiter in waiters:
            waiter.kill()
            waiter.communicate()
    assert settled(softgpu)["memory_free_bytes"] == manage.inspect(softgpu, 0)["memory_bytes"]


@pytest.mark.parametrize(
    "memory_bytes, slice_ns, field",
    [(None, 9_999, "--slice"), (None, 0, "--slice"), ((1 << 20) - 1, None, "--memory"), (0, None, "--memory")],
)
def test_too_short_a_slice_and_too_little_memory_are_refused(
    tmp_path: Path, memory_bytes: int | None, slice_ns: int | None, field: str
) -> None:
    with pytest.raises(ConfigError, match=field):
        manage.create(tmp_path, "v100", 1, memory_bytes=memory_bytes, slice_ns=slice_ns)
    assert manage.gpus(tmp_path) == []


def test_the_shortest_slice_and_the_least_memory_work(tmp_path: Path) -> None:
    [gpu] = manage.create(tmp_path / "gpu", "v100", 1, memory_bytes=1 << 20, slice_ns=10_000)
    try:
        assert gpu.memory_bytes == 1 << 20
    finally:
        manage.destroy(tmp_path / "gpu")


def test_ended_contexts_leave_room_for_host_functions(softgpu: Path) -> None:
    rounds = 300  # more than the device server has places for
    program = start(softgpu, "hostends.py", str(rounds))
    for _ in range(rounds):
        at_work(program)
        assert inject(softgpu, 0, KINDS["assert"], client=program.pid) == 1
    out, err = program.communicate(timeout=60)
    assert out.strip() == "ran", err
    # A kernel, a marker and a host function went with each context, more often than the server has places.
    assert manage.inspect(softgpu, 0)["counters"]["killed_ops"] == 3 * rounds


def test_a_deep_queue_holds_up_no_event_before_it(softgpu: Path) -> None:
    assert "not held up" in run(softgpu, "deep.py")


def test_waiting_host_functions_hold_up_no_other_stream(softgpu: Path) -> None:
    assert "not held up" in run(softgpu, "hostqueue.py")


def test_memory_freed_in_stream_order_waits_for_its_stream(softgpu: Path) -> None:
    assert "held and given back" in run(softgpu, "freed.py")


def test_a_kernel_of_more_than_an_hour_is_refused(softgpu: Path) -> None:
    waiter = start(softgpu, "longwait.py", "blocking", str(HOUR_S + 1))
    _, err = waiter.communicate(timeout=60)
    assert waiter.returncode != 0
    assert "CUDA_ERROR_INVALID_VALUE" in err
