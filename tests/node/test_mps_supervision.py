"""The MPS daemon is started once, taken over, restarted after a death with growing delays, and ended."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cotenant.errors import ConfigError, WorldError
from cotenant.node.daemon.mps import (
    BACKOFF_CAP_NS,
    BACKOFF_NS,
    PIPE_VARIABLE,
    STABLE_NS,
    MpsControl,
    MpsServers,
    MpsSupervisor,
    control_of,
)
from cotenant.node.model.event import Event, MpsStatusChanged, TimerFired
from cotenant.runner.background import TaskResult
from cotenant.runner.clock import LiveClock
from cotenant.runner.live_loop import LiveLoop
from cotenant.softgpu import manage
from tests.support.mps_daemons import MpsHarness
from tests.support.node_in_process import ManualClock, until

pytestmark = pytest.mark.live


class RecordingLoop(LiveLoop[Event]):
    """A loop without a node that keeps the posted events."""

    def __init__(self) -> None:
        super().__init__(LiveClock(0), TimerFired())
        self.events: list[MpsStatusChanged] = []
        self._thread = threading.Thread(target=self.run)

    def post(self, event: Event) -> None:
        assert isinstance(event, MpsStatusChanged)
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
    """Wakes the loop often, so that it handles changes that the test makes."""

    def next_wakeup(self) -> int:
        return LiveClock(0).now() + 5_000_000

    def wake(self, now: int) -> None:
        """Nothing to do."""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "gpu"
    manage.create(home, "v100", 1)
    yield tmp_path
    MpsControl(tmp_path / "mps", os.environ, [home]).quit()
    manage.destroy(home)


def node_of(directory: Path) -> tuple[RecordingLoop, MpsSupervisor]:
    """A node's supervision, under way."""
    loop = RecordingLoop()
    program = MpsControl(directory / "mps", os.environ, [directory / "gpu"])
    mps = MpsSupervisor(loop, LiveClock(0), program, lambda: 1)
    loop.add_timer(mps)
    loop.add_timer(_Often())
    mps.begin()
    loop.begin()
    return loop, mps


def control_pid(directory: Path) -> int:
    return int((directory / "mps" / "pipe" / "nvidia-cuda-mps-control.pid").read_text())


def server_pid(loop: RecordingLoop) -> int:
    return int(loop.events[-1].detail.split()[-1])


def test_unresponsive_daemon_is_gone_after_quit(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotenant.node.daemon.mps._QUIT_S", 0.5)
    monkeypatch.setattr("cotenant.node.daemon.mps._GONE_S", 0.1)
    program = MpsControl(directory / "mps", os.environ, [directory / "gpu"])
    servers = program.start()
    os.kill(servers.control, signal.SIGSTOP)
    program.quit()
    until(lambda: control_of(directory / "mps") is None)


def test_server_death_is_reported_and_the_server_restarted(directory: Path) -> None:
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
    os.kill(control, signal.SIGKILL)  # no client needs a notification: it stays a client
    until(lambda: (directory / "mps" / "pipe" / "nvidia-cuda-mps-control.pid").read_text() != f"{control}\n")
    until(lambda: loop.states()[3:] == [(0, True)])
    loop.end()
    mps.close(keep=False)
    loop.close()
    assert not (directory / "mps" / "pipe" / "control").exists()


def test_next_node_takes_over_the_daemon(directory: Path) -> None:
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


def test_environment_of_a_tenant_makes_it_an_mps_client(tmp_path: Path) -> None:
    harness = MpsHarness(tmp_path)
    try:
        program = MpsControl(tmp_path / "mps", os.environ, [harness.directory])
        servers = program.start()
        client = harness.client("init", "context", **program.environment())
        assert [row["pid"] for row in harness.counters()["clients"] if row["pid"] == client.pid] == [client.pid]
        assert any(group["pid"] == servers.server for group in harness.counters()["groups"])
        client.end()
        program.quit()
    finally:
        harness.close()


class Fickle:
    """A program whose daemon starts when the test says so; its server is this process, which lives."""

    def __init__(self) -> None:
        self.tries = 0
        self.is_sound = False

    def start(self) -> MpsServers:
        self.tries += 1
        if not self.is_sound:
            raise WorldError("it does not start")
        return MpsServers(os.getpid(), os.getpid())


def at_once(work: Callable[[], MpsServers], on_done: Callable[[TaskResult[MpsServers]], None]) -> None:
    """Run a background task at once, without a thread."""
    outcome: TaskResult[MpsServers] = TaskResult()
    try:
        outcome.value = work()
    except WorldError as error:
        outcome.error = error
    on_done(outcome)


def test_restart_delay_grows_with_failures_and_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, clock, program = RecordingLoop(), ManualClock(), Fickle()
    mps = MpsSupervisor(loop, clock, program, lambda: 2)  # type: ignore[arg-type]  # it is only started here
    monkeypatch.setattr(mps._tasks, "submit", at_once)
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
    mps._on_death("server")
    mps.restart()
    assert mps.next_wakeup() == clock.now() + BACKOFF_CAP_NS  # it had not been there for long
    mps.begin()
    clock.advance(STABLE_NS)
    mps._on_death("server")
    mps.restart()
    assert mps.next_wakeup() == clock.now()  # a new trouble: at once
    mps.begin()
    assert loop.states()[2:] == [(gpu, ready) for ready in (True, False, True, False, True) for gpu in (0, 1)]
    mps.close(keep=True)
    loop.close()


def test_impossible_setup_is_reported_before_the_node_serves(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not on PATH"):
        MpsControl(tmp_path / "mps", {"PATH": str(tmp_path)}, [])
    with pytest.raises(ConfigError, match="too long"):
        MpsControl(tmp_path / ("x" * 100) / "mps", {"PATH": str(tmp_path)}, [])
