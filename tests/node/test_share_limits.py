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
SLACK_NS = 120_000_000
"""What was saved up, worked ahead, or is the last kernel."""
HAD_AT_LEAST = 4
"""One in so many parts of a share is had even where the program's processor was mostly somebody else's."""


class Look(NamedTuple):
    at_ns: int
    used_ns: dict[str, int]
    """Time of the whole device."""


@pytest.fixture
def gpu(node_harness: NodeHarness) -> Iterator[NodeHarness]:
    node_harness.directories.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    manage.create(home(node_harness.directories), "v100", 1)
    node_harness.node("--slots", "4")
    yield node_harness
    manage.destroy(home(node_harness.directories))


def look(node_harness: NodeHarness) -> Look:
    counters = manage.inspect(home(node_harness.directories), 0)
    clients = counters["clients"]
    return Look(
        counters["now_ns"], {one["account"]: one["counters"]["sm_ns"] // counters["sm_count"] for one in clients}
    )


def press(node_harness: NodeHarness, name: str, kind: str, *flags: str) -> None:
    program = ["--", sys.executable, "-m", "cotenant_lab.programs.busy", kind]
    node_harness.tenant(
        name, "--gpu", "soft:0", *flags, *program, env={**node_harness.environ, "SOFTGPU_ACCOUNT": name}
    )
    until(lambda: look(node_harness).used_ns.get(name, 0) > 0)


def used_while(node_harness: NodeHarness, name: str, for_ns: int) -> tuple[int, int]:
    """What it used in so much of the device's time or more, and how much that was: at least until it used anything."""
    before = look(node_harness)

    def enough() -> Look | None:
        now = look(node_harness)
        return now if now.at_ns >= before.at_ns + for_ns and now.used_ns[name] > before.used_ns[name] else None

    after: Look = until(enough)
    return after.used_ns[name] - before.used_ns[name], after.at_ns - before.at_ns


def test_a_static_share_is_never_passed_and_another_acts_while_it_runs(gpu: NodeHarness) -> None:
    press(gpu, "job", "large", "--share", "20%", "--limit", "static")
    used_ns, passed_ns = used_while(gpu, "job", 2 * SECOND_NS)
    assert passed_ns // 5 // HAD_AT_LEAST <= used_ns <= passed_ns // 5 + SLACK_NS
    assert gpu.run("set", "job", "--share", "5%").stdout == "job has a share of 5%\n"
    used_while(gpu, "job", SECOND_NS // 5)
    used_ns, passed_ns = used_while(gpu, "job", 2 * SECOND_NS)
    assert passed_ns // 20 // HAD_AT_LEAST <= used_ns <= passed_ns // 20 + SLACK_NS // 2
    [reported] = gpu.json("ps")["tenants"]
    assert (reported["share_ppm"], reported["limit"]) == (50_000, "static")


def test_a_share_that_does_not_fit_is_refused_and_nothing_changes(gpu: NodeHarness) -> None:
    gpu.tenant("one", "--gpu", "soft:0", "--share", "60%", "--", "sleep", "600")
    gpu.tenant("two", "--gpu", "soft:0", "--share", "30%", "--", "sleep", "600")
    refused = gpu.run("set", "two", "--share", "50%")
    assert refused.returncode == 75
    assert "requested a share of 50%" in refused.stderr
    assert gpu.run("set", "two", "--share", "40%", "--limit", "off").returncode == 0
    reported = {one["name"]: (one["share_ppm"], one["limit"]) for one in gpu.json("ps")["tenants"]}
    assert reported == {"one": (600_000, "conserving"), "two": (400_000, "off")}


def test_under_mps_a_static_share_is_also_one_of_the_sms(gpu: NodeHarness) -> None:
    show = ["--", "sh", "-c", "echo ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-all}"]
    assert gpu.run("run", "--share", "25.5%", "--limit", "static", *show).stdout == "26\n"
    assert gpu.run("run", "--share", "25.5%", *show).stdout == "all\n"


def test_a_program_that_starts_again_has_the_sms_of_its_limit_as_it_is_then(gpu: NodeHarness) -> None:
    log, go = gpu.home / "percentages", gpu.home / "go"
    show = (
        f"echo ${{CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-all}} >> {log}; while [ ! -e {go} ]; do sleep 0.02; done; rm {go}"
    )
    again = ["--restart", "always", "--restart-delay", "10ms"]
    gpu.tenant("job", "--gpu", "soft:0", "--share", "30%", *again, "--", "sh", "-c", show)

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
