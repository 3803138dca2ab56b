"""The node's MPS: started once, taken over, started again after any death with growing patience, left or ended."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cotenant.domain.event import Event, MpsSeen
from cotenant.errors import ConfigError, WorldError
from cotenant.live.clock import LiveClock
from cotenant.live.errand import Outcome
from cotenant.live.loop import LiveLoop
from cotenant.live.mps import BACKOFF_CAP_NS, BACKOFF_NS, PIPE_VARIABLE, SOUND_NS, Mps, Program, Servers, control_of
from cotenant.live.softgpu import manage
from tests.live.indoors import SetClock, until
from tests.live.mps import Stage


class Heard(LiveLoop):
    """A loop without a node: what is posted is kept."""

    def __init__(self) -> None:
        super().__init__(LiveClock(0))
        self.events: list[MpsSeen] = []
        self._thread = threading.Thread(target=self.run)

    def post(self, event: Event) -> None:
        assert isinstance(event, MpsSeen)
        self.events.append(event)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.stop("the test is over")
        self._thread.join(30)
        assert not self._thread.is_alive()

    def states(self) -> list[tuple[int, bool]]:
        return [(event.gpu, event.is_ready) for event in list(self.events)]


class _Often:
    """Keeps the loop turning, for what the test says to it from outside."""

    def next_wakeup(self) -> int:
        return LiveClock(0).now() + 5_000_000

    def wake(self, now: int) -> None:
        """Nothing to do."""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "gpu"
    manage.create(home, "v100", 1)
    yield tmp_path
    Program(tmp_path / "mps", os.environ, [home]).quit()
    manage.destroy(home)


def node_of(directory: Path) -> tuple[Heard, Mps]:
    """A node's supervision, under way."""
    loop = Heard()
    program = Program(directory / "mps", os.environ, [directory / "gpu"])
    mps = Mps(loop, LiveClock(0), program, lambda: 1)
    loop.add_timed(mps)
    loop.add_timed(_Often())
    mps.begin()
    loop.begin()
    return loop, mps


def control_pid(directory: Path) -> int:
    return int((directory / "mps" / "pipe" / "nvidia-cuda-mps-control.pid").read_text())


def server_pid(loop: Heard) -> int:
    return int(loop.events[-1].detail.split()[-1])


def test_a_daemon_that_does_not_hear_is_gone_after_it_was_told_to_go(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotenant.live.mps._QUIT_S", 0.5)
    monkeypatch.setattr("cotenant.live.mps._GONE_S", 0.1)
    program = Program(directory / "mps", os.environ, [directory / "gpu"])
    servers = program.start()
    os.kill(servers.control, signal.SIGSTOP)
    program.quit()
    until(lambda: control_of(directory / "mps") is None)


def test_a_server_that_dies_is_told_of_and_started_again_when_the_node_says_so(directory: Path) -> None:
    loop, mps = node_of(directory)
    until(lambda: loop.states() == [(0, True)])
    server, control = server_pid(loop), control_pid(directory)
    os.kill(server, signal.SIGKILL)
    until(lambda: loop.states()[1:] == [(0, False)])
    mps.restart()
    mps.restart()  # once for every device
    until(lambda: loop.states()[2:] == [(0, True)])
    assert server_pid(loop) != server
    assert control_pid(directory) == control
    os.kill(control, signal.SIGKILL)  # nobody need be told: who is a client stays one
    until(lambda: (directory / "mps" / "pipe" / "nvidia-cuda-mps-control.pid").read_text() != f"{control}\n")
    until(lambda: loop.states()[3:] == [(0, True)])
    loop.end()
    mps.close(keep=False)
    loop.close()
    assert not (directory / "mps" / "pipe" / "control").exists()


def test_the_next_node_takes_over_what_the_last_one_left(directory: Path) -> None:
    loop, mps = node_of(directory)
    until(lambda: loop.states() == [(0, True)])
    server, control = server_pid(loop), control_pid(directory)
    loop.end()
    mps.close(keep=True)
    loop.close()
    again, later = node_of(directory)
    until(lambda: again.states() == [(0, True)])
    assert (server_pid(again), control_pid(directory)) == (server, control)
    assert later.environment() == {PIPE_VARIABLE: str(directory / "mps" / "pipe")}
    again.end()
    later.close(keep=False)
    again.close()


def test_a_tenants_environment_makes_it_a_client(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    try:
        program = Program(tmp_path / "mps", os.environ, [stage.directory])
        servers = program.start()
        client = stage.client("init", "context", **program.environment())
        assert [row["pid"] for row in stage.books()["clients"] if row["pid"] == client.pid] == [client.pid]
        assert any(group["pid"] == servers.server for group in stage.books()["groups"])
        client.end()
        program.quit()
    finally:
        stage.close()


class Fickle:
    """A program whose daemon starts when the test says so; its server is this process, which lives."""

    def __init__(self) -> None:
        self.tries = 0
        self.is_sound = False

    def start(self) -> Servers:
        self.tries += 1
        if not self.is_sound:
            raise WorldError("it does not start")
        return Servers(os.getpid(), os.getpid())


def at_once(deed: Callable[[], Servers], told: Callable[[Outcome[Servers]], None]) -> None:
    """As an errand, without a thread."""
    outcome: Outcome[Servers] = Outcome()
    try:
        outcome.value = deed()
    except WorldError as error:
        outcome.error = error
    told(outcome)


def test_patience_grows_with_every_failure_and_starts_anew_after_a_sound_while(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, clock, program = Heard(), SetClock(), Fickle()
    mps = Mps(loop, clock, program, lambda: 2)  # type: ignore[arg-type]  # it is only started here
    monkeypatch.setattr(mps._errands, "send", at_once)
    waits = []
    mps.begin()
    for _ in range(12):
        due = mps.next_wakeup()
        assert due is not None
        waits.append(due - clock.now())
        clock.advance(due - clock.now())
        mps.wake(clock.now())
    assert waits == sorted(waits)
    assert waits[0] == BACKOFF_NS
    assert waits[-1] == BACKOFF_CAP_NS
    assert program.tries == 13
    assert loop.states() == [(0, False), (1, False)]  # said once, of each device

    program.is_sound = True
    mps.begin()
    mps._died("server")
    mps.restart()
    assert mps.next_wakeup() == clock.now() + BACKOFF_CAP_NS  # it had not been there for long
    mps.begin()
    clock.advance(SOUND_NS)
    mps._died("server")
    mps.restart()
    assert mps.next_wakeup() == clock.now()  # a new trouble: at once
    mps.begin()
    assert loop.states()[2:] == [(gpu, ready) for ready in (True, False, True, False, True) for gpu in (0, 1)]
    mps.close(keep=True)
    loop.close()


def test_what_cannot_be_is_said_before_the_node_serves(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not on PATH"):
        Program(tmp_path / "mps", {"PATH": str(tmp_path)}, [])
    with pytest.raises(ConfigError, match="too long"):
        Program(tmp_path / ("x" * 100) / "mps", {"PATH": str(tmp_path)}, [])
