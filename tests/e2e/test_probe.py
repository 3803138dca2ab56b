"""The node knows what a context takes before its first tenant has one: that one, too, is held to its quota."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.domain.gpu import Gpu
from cotenant.live.errand import Outcome
from cotenant.live.ledger import look_at
from cotenant.live.softgpu import manage
from cotenant.live.watch.probe import Prober
from tests.e2e.stage import Stage, alive, until

MIB = 1 << 20
CONTEXT_BYTES = 300 * MIB
OUT_OF_MEMORY = 2
FIRST_CONTEXT = """
from cuda.bindings import driver
driver.cuInit(0)
print(int(driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])[0]))
"""
SOFT = Gpu("soft:0", 0, ("soft:0",))


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as made:
        assert made.run("softgpu", "create", "--gpu", "v100", "--context-memory", "300MiB").returncode == 0
        yield made
        made.run("softgpu", "destroy")


def known(stage: Stage) -> int:
    look = look_at(stage.places.pages, 0)
    return 0 if look is None else look.context_bytes


def first_context(stage: Stage, quota: str) -> int:
    done = stage.run("run", "--gpu", "soft:0", "--memory", quota, "--", sys.executable, "-c", FIRST_CONTEXT)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def test_the_first_context_of_the_first_tenant_is_held_to_its_quota(stage: Stage) -> None:
    stage.node("--watch-period", "50ms")
    until(lambda: known(stage) == CONTEXT_BYTES)
    assert stage.names() == []
    assert manage.inspect(stage.places.runtime / "softgpu", 0)["memory_free_bytes"] > 0
    assert first_context(stage, "100MiB") == OUT_OF_MEMORY
    assert first_context(stage, "400MiB") == 0


def test_no_context_is_made_where_the_config_says_so(stage: Stage) -> None:
    stage.node("--watch-period", "50ms", "--probe", "off")
    assert first_context(stage, "100MiB") == 0  # it is seen when it is there, and not before


class _AtOnce:
    """Errands without a loop and without a thread."""

    def send(self, deed: Callable[[], int], told: Callable[[Outcome[int]], None]) -> None:
        told(Outcome(deed()))

    def close(self) -> None:
        """Nothing is under way."""


def ask(tmp_path: Path, deadline_s: float) -> int:
    told: list[int] = []
    errands: Any = _AtOnce()
    Prober(errands, [tmp_path], dict, deadline_s).ask(0, SOFT, told.append)
    return told[0]


def test_a_driver_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is ended, and nothing is known of contexts."""
    number, stuck = tmp_path / "number", tmp_path / "stuck"
    stuck.write_text(f"#!/bin/sh\necho $$ > {number}\nexec sleep 1000\n")
    stuck.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(stuck))
    for deadline_s in (0.5, 2.0, 8.0, 32.0):  # on a busy machine it may take a while to begin
        assert ask(tmp_path, deadline_s) == 0
        if number.exists() and number.read_text():
            break
    until(lambda: not alive(int(number.read_text())))


@pytest.mark.parametrize("answer", ["echo nonsense", "echo 5; exit 1", "kill -9 $$", "true"])
def test_a_driver_that_answers_nothing_of_use_teaches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    odd = tmp_path / "odd"
    odd.write_text(f"#!/bin/sh\n{answer}\n")
    odd.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(odd))
    assert ask(tmp_path, 30.0) == 0
