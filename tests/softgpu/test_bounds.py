"""No client can block the others: not by long work, by much work, or by using up the server's resources."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.errors import ConfigError
from cotenant.softgpu import manage
from cotenant.softgpu.costs import IDEAL
from cotenant.softgpu.fault import KINDS, inject
from tests.softgpu.test_crash import await_work, counters_after_deaths
from tests.support.software_gpus import run, start

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

HOUR_S = 3600


def test_idle_server_uses_little_memory(softgpu: Path) -> None:
    status = Path(f"/proc/{manage.inspect(softgpu, 0)['pid']}/status").read_text()
    resident_kib = int(status.split("VmRSS:")[1].split()[0])
    assert resident_kib < 30 << 10


def test_hour_long_concurrent_kernels_block_no_other_client(softgpu: Path) -> None:
    waiters = [start(softgpu, "longwait.py", "blocking", str(HOUR_S)) for _ in range(2)]
    try:
        for waiter in waiters:
            await_work(waiter)
        assert len(manage.inspect(softgpu, 0)["clients"]) == 2
        assert "computed" in run(softgpu, "compute.py")
        assert [waiter.poll() for waiter in waiters] == [None, None]
    finally:
        for waiter in waiters:
            waiter.kill()
            waiter.communicate()
    assert counters_after_deaths(softgpu)["memory_free_bytes"] == manage.inspect(softgpu, 0)["memory_bytes"]


@pytest.mark.parametrize(
    "memory_bytes, slice_ns, field",
    [(None, 9_999, "--slice"), (None, 0, "--slice"), ((1 << 20) - 1, 10_000, "--memory"), (0, 10_000, "--memory")],
)
def test_slice_or_memory_below_the_minimum_is_refused(
    tmp_path: Path, memory_bytes: int | None, slice_ns: int, field: str
) -> None:
    with pytest.raises(ConfigError, match=field):
        manage.create(tmp_path, "v100", 1, memory_bytes=memory_bytes, costs=IDEAL.with_slice(slice_ns))
    assert manage.gpus(tmp_path) == []


def test_minimum_slice_and_memory_are_accepted(tmp_path: Path) -> None:
    [gpu] = manage.create(tmp_path / "gpu", "v100", 1, memory_bytes=1 << 20, costs=IDEAL.with_slice(10_000))
    try:
        assert gpu.memory_bytes == 1 << 20
    finally:
        manage.destroy(tmp_path / "gpu")


def test_ended_contexts_release_their_host_functions(softgpu: Path) -> None:
    rounds = 300  # more than the device server has entries for
    program = start(softgpu, "hostends.py", str(rounds))
    for _ in range(rounds):
        await_work(program)
        assert inject(softgpu, 0, KINDS["assert"], client=program.pid) == 1
    out, err = program.communicate(timeout=60)
    assert out.strip() == "ran", err
    # A kernel, a marker and a host function went with each context, more often than the server has entries.
    assert manage.inspect(softgpu, 0)["counters"]["killed_ops"] == 3 * rounds


def test_deep_queue_delays_no_earlier_event(softgpu: Path) -> None:
    assert "not held up" in run(softgpu, "deep.py")


def test_waiting_host_functions_block_no_other_stream(softgpu: Path) -> None:
    assert "not held up" in run(softgpu, "hostqueue.py")


def test_memory_freed_in_stream_order_waits_for_its_stream(softgpu: Path) -> None:
    assert "held and given back" in run(softgpu, "freed.py")


def test_kernel_longer_than_an_hour_is_refused(softgpu: Path) -> None:
    waiter = start(softgpu, "longwait.py", "blocking", str(HOUR_S + 1))
    _, err = waiter.communicate(timeout=60)
    assert waiter.returncode != 0
    assert "CUDA_ERROR_INVALID_VALUE" in err
