"""Are tenants held to their shares, by the device's own counters, and does another share act while they run?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from cotenant.apps.softgpu import home
from cotenant.live.softgpu import manage
from tests.e2e.stage import Stage, until

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
def gpu(stage: Stage) -> Iterator[Stage]:
    stage.places.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    manage.create(home(stage.places), "v100", 1)
    stage.node("--slots", "4")
    yield stage
    manage.destroy(home(stage.places))


def look(stage: Stage) -> Look:
    books = manage.inspect(home(stage.places), 0)
    clients = books["clients"]
    return Look(books["now_ns"], {one["account"]: one["counters"]["sm_ns"] // books["sm_count"] for one in clients})


def press(stage: Stage, name: str, kind: str, *flags: str) -> None:
    program = ["--", sys.executable, "-m", "cotenant.live.soak.press", kind]
    stage.tenant(name, "--gpu", "soft:0", *flags, *program, env={**stage.environ, "SOFTGPU_ACCOUNT": name})
    until(lambda: look(stage).used_ns.get(name, 0) > 0)


def used_while(stage: Stage, name: str, for_ns: int) -> tuple[int, int]:
    """What it used in so much of the device's time or more, and how much that was: at least until it used anything."""
    before = look(stage)

    def enough() -> Look | None:
        now = look(stage)
        return now if now.at_ns >= before.at_ns + for_ns and now.used_ns[name] > before.used_ns[name] else None

    after: Look = until(enough)
    return after.used_ns[name] - before.used_ns[name], after.at_ns - before.at_ns


def test_a_static_share_is_never_passed_and_another_acts_while_it_runs(gpu: Stage) -> None:
    press(gpu, "job", "large", "--share", "20%", "--limit", "static")
    used_ns, passed_ns = used_while(gpu, "job", 2 * SECOND_NS)
    assert passed_ns // 5 // HAD_AT_LEAST <= used_ns <= passed_ns // 5 + SLACK_NS
    assert gpu.run("set", "job", "--share", "5%").stdout == "job has a share of 5%\n"
    used_while(gpu, "job", SECOND_NS // 5)
    used_ns, passed_ns = used_while(gpu, "job", 2 * SECOND_NS)
    assert passed_ns // 20 // HAD_AT_LEAST <= used_ns <= passed_ns // 20 + SLACK_NS // 2
    [told] = gpu.json("ps")["tenants"]
    assert (told["share_ppm"], told["limit"]) == (50_000, "static")


def test_a_share_that_does_not_fit_is_refused_and_nothing_changes(gpu: Stage) -> None:
    gpu.tenant("one", "--gpu", "soft:0", "--share", "60%", "--", "sleep", "600")
    gpu.tenant("two", "--gpu", "soft:0", "--share", "30%", "--", "sleep", "600")
    refused = gpu.run("set", "two", "--share", "50%")
    assert refused.returncode == 75
    assert "asked for a share of 50%" in refused.stderr
    assert gpu.run("set", "two", "--share", "40%", "--limit", "off").returncode == 0
    told = {one["name"]: (one["share_ppm"], one["limit"]) for one in gpu.json("ps")["tenants"]}
    assert told == {"one": (600_000, "conserving"), "two": (400_000, "off")}


def test_under_mps_a_static_share_is_also_one_of_the_sms(gpu: Stage) -> None:
    show = ["--", "sh", "-c", "echo ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-all}"]
    assert gpu.run("run", "--share", "25.5%", "--limit", "static", *show).stdout == "26\n"
    assert gpu.run("run", "--share", "25.5%", *show).stdout == "all\n"


def test_a_program_that_starts_again_has_the_sms_of_its_limit_as_it_is_then(gpu: Stage) -> None:
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
