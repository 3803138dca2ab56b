"""How do tests run a whole cluster of real processes: a brain, nodes with software GPUs, and jobs that keep a log?"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from cotenant.apps.softgpu import home
from cotenant.domain.cluster import JobSpec, JobTold
from cotenant.errors import CotenantError
from cotenant.format import cluster_wire
from cotenant.live.cluster.ask import talk
from cotenant.live.cluster.places import operator_of
from cotenant.live.cluster.record import Record
from cotenant.live.softgpu import manage
from tests.e2e.stage import Stage, alive, until
from tests.live.softgpus import PROGRAMS

# Appends a line for every step to its log, which is also what it goes on from: a step and the memory of it are one
# write. Half way it waits for a file, so that a test can be sure to meet it there. Whoever runs at the same time as
# another attempt at the same job finds its lock taken, and says so.
JOB = """
import fcntl, os, signal, sys, time
steps, half = int(sys.argv[1]), sys.argv[2]
job, attempt = os.environ["COTENANT_JOB"], os.environ["COTENANT_ATTEMPT"]
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
assert os.environ["GREETING"] == "hello"
log = os.open(job + ".log", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
def steps_done():
    with open(job + ".log") as before:
        return sum(line.startswith("step ") for line in before)
if os.environ.get("RANK", "0") != "0":  # of a gang, one works and the others wait for it
    while not told and steps_done() < steps:
        time.sleep(0.05)
    sys.exit(1 if told else 0)
lock = os.open(job + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
def say(word, number):
    os.write(log, f"{word} {attempt} {number}\\n".encode())
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    say("overlap", 0)
done = steps_done()
say("begin", done)
while done < steps and not told:
    if done == steps // 2 and not os.path.exists(half):
        time.sleep(0.05)
        continue
    time.sleep(0.02)
    say("step", done)
    done += 1
    with open(os.environ["COTENANT_PROGRESS"], "w") as progress:
        progress.write(f"{done}/{steps}\\n")
sys.exit(0 if done == steps else 1)
"""
STEPS = 12
SERVICE = (sys.executable, str(PROGRAMS / "service.py"))


PATIENCE_S = 300.0
_LOOK_S = 0.2


def eventually(wanted: Callable[[], Any]) -> Any:
    """As `until`, looking seldom: each look at the brain is a handshake, and the machine has better things to do."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := wanted()):
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:.0f} s in vain"
        time.sleep(_LOOK_S)
    return answer


def own_port() -> int:
    """A port of those that the system gives to nobody unasked: it is free again once its owner was killed."""
    while True:
        port = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.socket() as tried:
            tried.bind(("127.0.0.1", port))
            return port


class Line(NamedTuple):
    """One line of a job's log."""

    word: str
    attempt: int
    number: int


class Cluster:
    """A brain in a directory of its own, and nodes in theirs."""

    def __init__(self, brain: Stage, nodes: Sequence[Stage], lease: str, grace: str) -> None:
        self.brain = brain
        self._times = ["--round", "500ms", "--lease", lease, "--grace", grace, "--moves", "0"]
        self.nodes = {f"n{number}": stage for number, stage in enumerate(nodes, 1)}
        self.work = brain.home / "work"
        self.work.mkdir()
        (self.work / "msgspec.py").write_text("raise SystemExit('what is in a job's directory is the job's')\n")
        self.half = self.work / "half"
        self.token = brain.home / "token"
        self.address = ""

    # -- processes ---------------------------------------------------------------------------------------------------

    def start_brain(self) -> None:
        """The brain, for the first time or again at the same address."""
        listen = self.address or f"127.0.0.1:{own_port()}"
        with (self.brain.home / "brain.err").open("ab") as said:
            process = self.brain.start("cluster", "start", "--listen", listen, *self._times, stderr=said)
        until(lambda: process.poll() is not None or self._asks())
        assert process.poll() is None, (self.brain.home / "brain.err").read_text()
        self.address = operator_of(self.brain.places).brain
        self.brain_pid = process.pid

    def make_token(self) -> None:
        self.token.write_text(self.brain.run("cluster", "token", "--uses", "3").stdout)

    def start_node(self, name: str) -> int:
        """A node daemon that joins; its agent comes with it."""
        stage = self.nodes[name]
        given = ["--join", self.address, "--join-token-file", str(self.token), "--node-name", name]
        timing = ["--report-period", "200ms", "--job-grace", "5s", "--slots", "8", "--grace", "60s"]
        with (stage.home / "node.err").open("ab") as said:
            return stage.node(*given, *timing, stderr=said).pid

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid))

    def agent_of(self, name: str) -> int | None:
        """The agent's process, once it has its lock."""
        try:
            pid = int((self.nodes[name].places.state / "agent" / "lock").read_text())
        except (OSError, ValueError):
            return None
        return pid if alive(pid) else None

    # -- jobs --------------------------------------------------------------------------------------------------------

    def submit(self, name: str, memory_bytes: int, gpus: int = 1) -> None:
        command = (sys.executable, "-S", "-c", JOB, str(STEPS), str(self.half))
        spec = JobSpec(
            name,
            "ann",
            memory_bytes=memory_bytes,
            gpus=gpus,
            command=command,
            environment=(("GREETING", "hello"), ("PYTHONPATH", "/nowhere")),
            directory=str(self.work),
        )
        with talk(operator_of(self.brain.places)) as brain:
            brain.ask(cluster_wire.Submit(cluster_wire.VERSION, spec), cluster_wire.Done)

    def jobs(self) -> dict[str, JobTold]:
        """All jobs that the brain remembers; none while it is away."""
        with contextlib.suppress(CotenantError, OSError), talk(operator_of(self.brain.places)) as brain:
            told = brain.ask(cluster_wire.ListJobs(cluster_wire.VERSION), cluster_wire.Jobs)
            return {job.spec.name: job for job in told.jobs}
        return {}

    def lines(self, job: str) -> list[Line]:
        """What a job's log says; a line that is just being written is not counted."""
        path = self.work / f"{job}.log"
        words = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [Line(word[0], int(word[1]), int(word[2])) for word in words if len(word) == 3]

    def half_way(self) -> list[str]:
        """Jobs that wait in the middle."""
        names = [path.stem for path in self.work.glob("*.log")]
        return sorted(name for name in names if any(line.number == STEPS // 2 - 1 for line in self.lines(name)))

    def attempts(self, name: str) -> list[Record]:
        """What is on a node's disk of attempts."""
        folder = self.nodes[name].places.state / "agent" / "attempts"
        return [Record(path) for path in folder.iterdir()] if folder.exists() else []

    def is_clear(self, name: str) -> bool:
        return not self.attempts(name)

    def said(self) -> str:
        """What all daemons printed, for whoever reads a failure."""
        files = [self.brain.home / "brain.err", *(stage.home / "node.err" for stage in self.nodes.values())]
        files += self.work.glob("cotenant-*.log")
        return "\n".join(f"{path}:\n{path.read_text()[-3000:]}" for path in files if path.exists())

    def _asks(self) -> bool:
        try:
            with talk(operator_of(self.brain.places)) as brain:
                brain.ask(cluster_wire.ListNodes(cluster_wire.VERSION), cluster_wire.Nodes)
        except (CotenantError, OSError):
            return False
        return True


@contextmanager
def clusters(nodes: int, gpus: int, lease: str = "120s", grace: str = "30s") -> Iterator[Cluster]:
    """A cluster whose brain runs and has a token, and whose nodes have GPUs; nothing is left of it afterwards.

    A failure shows what all of it said.
    """
    with contextlib.ExitStack() as stack:
        brain = stack.enter_context(Stage())
        stages = [stack.enter_context(Stage()) for _ in range(nodes)]
        for stage in stages:
            stage.places.runtime.mkdir(mode=0o700, parents=True)
            stack.callback(manage.destroy, home(stage.places))
            manage.create(home(stage.places), "v100", gpus)
        cluster = Cluster(brain, stages, lease, grace)
        cluster.start_brain()
        cluster.make_token()
        try:
            yield cluster
        except BaseException:
            print(cluster.said())
            raise
