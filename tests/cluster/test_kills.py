"""Tests of recovery of supervisors and agents that are killed.

Every write, rename and removal is a place to be killed at, before it and after it; each is tried.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.cluster.daemon import attempt_record as record_module
from cotenant.cluster.daemon import attempts as attempts_module
from cotenant.cluster.daemon.attempt_record import End, Order, Record
from cotenant.cluster.daemon.attempts import Attempts
from cotenant.cluster.daemon.supervisor import keep
from cotenant.cluster.model.cluster import Attempt, JobEnd
from cotenant.runner.atomic_file import write_atomically

pytestmark = pytest.mark.live

ATTEMPT = Attempt("job", 7)
ORDER = Order(ATTEMPT, (0,), 0, 0, (("program",),), ({},), "/", "/dev/null", -(1 << 60))


class KilledError(BaseException):
    """Here somebody was killed."""


class Mortal:
    """Counts the steps on disk, and dies at one of them: before it is done, or after."""

    def __init__(self, at: int, *, after: bool) -> None:
        self._at = at
        self._after = after
        self.steps = 0

    def step(self, do: Callable[..., Any]) -> Callable[..., Any]:
        def done(*arguments: Any, **given: Any) -> Any:
            self.steps += 1
            is_last = self.steps == self._at
            if is_last and not self._after:
                raise KilledError
            result = do(*arguments, **given)
            if is_last:
                raise KilledError
            return result

        return done


class World:
    """A machine whose supervisors run within the test, as soon as they are started."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, mortal: Mortal) -> None:
        self.home = home
        self.started = 0
        self.now = 0
        monkeypatch.setattr(record_module, "write_atomically", mortal.step(write_atomically))
        monkeypatch.setattr(shutil, "rmtree", mortal.step(shutil.rmtree))
        monkeypatch.setattr(Path, "rename", mortal.step(Path.rename))
        monkeypatch.setattr(attempts_module, "is_alive", lambda supervisor: False)  # each ends before it could be seen
        monkeypatch.setattr(subprocess, "Popen", self._popen)

    def _popen(self, command: list[str], **given: Any) -> Any:
        del given
        with contextlib.suppress(KilledError):
            keep(Record(Path(command[-2])), self._run)

        class Gone:
            def poll(self) -> int:
                return 0

        return Gone()

    def _run(self, order: Order) -> End:
        assert order == ORDER
        self.started += 1
        return End(JobEnd.DONE, "exit 0")

    def agent(self) -> Attempts:
        return Attempts(self.home / "attempts", self.home / "lease", lambda text: None)

    def ends(self, agent: Attempts) -> list[JobEnd | None]:
        """What it reports after it looked a few times, each a good while after the last."""
        for _ in range(4):
            self.now += 10**10
            agent.tend(self.now)
        return [report.end for report in agent.reports(self.now)]


def story(world: World) -> Iterator[str]:
    """An attempt from its order to its oblivion."""
    agent = world.agent()
    agent.accept(ORDER, None)
    yield "accepted"
    world.ends(agent)
    yield "ended"
    agent.forget(ATTEMPT)
    yield "forgotten"


def test_killed_attempt_runs_at_most_once_and_its_end_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, reached = 0, True
    while reached:
        at += 1
        for after in (False, True):
            with monkeypatch.context() as patch:
                mortal = Mortal(at, after=after)
                home = tmp_path / f"{at}-{after}"
                home.mkdir()
                world = World(home, patch, mortal)
                reported: list[str] = []
                with contextlib.suppress(KilledError):
                    for word in story(world):
                        reported.append(word)  # noqa: PERF402  what was told before the kill counts
                reached = mortal.steps >= at
                heir = world.agent()
                ends = world.ends(heir)
                assert world.started <= 1, "nothing runs twice"
                if ("accepted" in reported and "ended" not in reported) or ends:
                    assert len(ends) == 1, "what was accepted is named"
                    assert ends[0] in {JobEnd.DONE, JobEnd.EVICTED}, "and has an end"
                    assert ends[0] is JobEnd.EVICTED or world.started == 1
                    heir.forget(ATTEMPT)
                assert not heir.reports(0)
                world.agent()
                assert not list((home / "attempts").iterdir()), "and then nothing is left of it"
    assert at > 8, "there were steps to be killed at"


def test_attempt_without_kill_completes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch, Mortal(-1, after=False))
    agent = world.agent()
    assert agent.accept(ORDER, None)
    assert world.ends(agent) == [JobEnd.DONE]
    assert world.started == 1


def test_refused_attempt_ends_without_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch, Mortal(-1, after=False))
    agent = world.agent()
    assert agent.accept(ORDER, End(JobEnd.REFUSED, "no such GPU"))
    assert world.ends(agent) == [JobEnd.REFUSED]
    assert world.ends(world.agent()) == [JobEnd.REFUSED]
    assert world.started == 0


def test_refused_attempt_never_runs_after_a_kill_of_its_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(1, 9):
        for after in (False, True):
            with monkeypatch.context() as patch:
                home = tmp_path / f"{at}-{after}"
                home.mkdir()
                world = World(home, patch, Mortal(at, after=after))
                with contextlib.suppress(KilledError):
                    world.agent().accept(ORDER, End(JobEnd.REFUSED, "no such GPU"))
                assert world.ends(world.agent()) in ([], [JobEnd.REFUSED])
                assert world.started == 0
