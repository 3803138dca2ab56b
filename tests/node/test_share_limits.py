"""Tenants are limited to their shares by the device's own counters, and a changed share takes effect while they run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from cotenant.softgpu import manage
from cotenant.softgpu.commands import home
from tests.support.node_processes import NodeHarness, until

pytestmark = pytest.mark.live

SECOND_NS = 10**9
TOLERANCE_NS = 120_000_000
"""Device time beyond the share: unused time that was saved up, work submitted ahead, and the last kernel."""
MIN_FRACTION = 4
"""A tenant gets at least one in this many parts of its share, even if other programs use most of the processor."""


class DeviceUsage(NamedTuple):
    at_ns: int
    used_ns: dict[str, int]
    """Time of the whole device, by tenant."""


@pytest.fixture
def gpu(node_harness: NodeHarness) -> Iterator[NodeHarness]:
    node_harness.directories.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    manage.create(home(node_harness.directories), "v100", 1)
    node_harness.node("--slots", "4")
    yield node_harness
    manage.destroy(home(node_harness.directories))


def read_usage(node_harness: NodeHarness) -> DeviceUsage:
    counters = manage.inspect(home(node_harness.directories), 0)
    clients = counters["clients"]
    return DeviceUsage(
        counters["now_ns"],
        {client["account"]: client["counters"]["sm_ns"] // counters["sm_count"] for client in clients},
    )


def run_busy(node_harness: NodeHarness, name: str, kind: str, *flags: str) -> None:
    program = ["--", sys.executable, "-m", "cotenant_lab.programs.busy", kind]
    node_harness.tenant(
        name, "--gpu", "soft:0", *flags, *program, env={**node_harness.environ, "SOFTGPU_ACCOUNT": name}
    )
    until(lambda: read_usage(node_harness).used_ns.get(name, 0) > 0)


def measure_usage(node_harness: NodeHarness, name: str, for_ns: int) -> tuple[int, int]:
    """Return the device time that a tenant used, and the time measured: at least `for_ns` and until it used any."""
    before = read_usage(node_harness)

    def enough() -> DeviceUsage | None:
        now = read_usage(node_harness)
        return now if now.at_ns >= before.at_ns + for_ns and now.used_ns[name] > before.used_ns[name] else None

    after: DeviceUsage = until(enough)
    return after.used_ns[name] - before.used_ns[name], after.at_ns - before.at_ns


def test_static_share_is_never_exceeded_and_a_changed_one_takes_effect(gpu: NodeHarness) -> None:
    run_busy(gpu, "job", "large", "--share", "20%", "--limit", "static")
    used_ns, elapsed_ns = measure_usage(gpu, "job", 2 * SECOND_NS)
    assert elapsed_ns // 5 // MIN_FRACTION <= used_ns <= elapsed_ns // 5 + TOLERANCE_NS
    assert gpu.run("set", "job", "--share", "5%").stdout == "job has a share of 5%\n"
    measure_usage(gpu, "job", SECOND_NS // 5)
    used_ns, elapsed_ns = measure_usage(gpu, "job", 2 * SECOND_NS)
    assert elapsed_ns // 20 // MIN_FRACTION <= used_ns <= elapsed_ns // 20 + TOLERANCE_NS // 2
    [reported] = gpu.json("ps")["tenants"]
    assert (reported["share_ppm"], reported["limit"]) == (50_000, "static")


def test_share_that_does_not_fit_is_refused_and_nothing_changes(gpu: NodeHarness) -> None:
    gpu.tenant("one", "--gpu", "soft:0", "--share", "60%", "--", "sleep", "600")
    gpu.tenant("two", "--gpu", "soft:0", "--share", "30%", "--", "sleep", "600")
    refused = gpu.run("set", "two", "--share", "50%")
    assert refused.returncode == 75
    assert "requested a share of 50%" in refused.stderr
    assert gpu.run("set", "two", "--share", "40%", "--limit", "off").returncode == 0
    reported = {tenant["name"]: (tenant["share_ppm"], tenant["limit"]) for tenant in gpu.json("ps")["tenants"]}
    assert reported == {"one": (600_000, "conserving"), "two": (400_000, "off")}


def test_static_share_also_limits_the_sms_under_mps(gpu: NodeHarness) -> None:
    show = ["--", "sh", "-c", "echo ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-all}"]
    assert gpu.run("run", "--share", "25.5%", "--limit", "static", *show).stdout == "26\n"
    assert gpu.run("run", "--share", "25.5%", *show).stdout == "all\n"


def test_restarted_program_gets_the_sms_of_its_current_limit(gpu: NodeHarness) -> None:
    log, go = gpu.home / "percentages", gpu.home / "go"
    # The node sends the present limit when the hook attaches, which is before the driver is initialized.
    show = f"""
import ctypes, os, time
ctypes.CDLL("libcuda.so.1").cuInit(0)
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
with open({str(log)!r}, "ab") as log:
    log.write((getenv(b"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") or b"all") + b"\\n")
while not os.path.exists({str(go)!r}):
    time.sleep(0.02)
os.remove({str(go)!r})
"""
    again = ["--restart", "always", "--restart-delay", "10ms"]
    gpu.tenant("job", "--gpu", "soft:0", "--share", "30%", *again, "--", sys.executable, "-c", show)

    def started(count: int) -> list[str] | None:
        lines = log.read_text().split() if log.exists() else []
        return lines if len(lines) == count else None

    until(lambda: started(1))
    assert gpu.run("set", "job", "--limit", "static").returncode == 0
    go.touch()
    until(lambda: started(2))
    assert gpu.run("set", "job", "--share", "40%", "--limit", "conserving").returncode == 0
    go.touch()
    assert until(lambda: started(3)) == ["all", "30", "all"]
