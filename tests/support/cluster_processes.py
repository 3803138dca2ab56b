"""Clusters of real processes for tests: a controller, nodes with software GPUs, and jobs that keep a log."""

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

from cotenant.cluster import wire as cluster_wire
from cotenant.cluster.daemon.attempt_record import Record
from cotenant.cluster.daemon.client import talk
from cotenant.cluster.daemon.directories import operator_of
from cotenant.cluster.model.cluster import JobReport, JobSpec
from cotenant.errors import CotenantError
from cotenant.softgpu import manage
from cotenant.softgpu.commands import home
from tests.support.node_processes import NodeHarness, alive, until
from tests.support.software_gpus import PROGRAMS

# Appends a line for every step to its log and continues from it, so that a step and its record are one write. Half way
# it waits for a file, so that a test can act at that point. A process that runs at the same time as another attempt of
# the same job finds its lock taken and logs "overlap".
JOB = """
import fcntl, os, signal, sys, time
steps, half = int(sys.argv[1]), sys.argv[2]
job, attempt = os.environ["COTENANT_JOB"], os.environ["COTENANT_ATTEMPT"]
stops = []
signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
assert os.environ["GREETING"] == "hello"
log = os.open(job + ".log", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
def steps_done():
    with open(job + ".log") as before:
        return sum(line.startswith("step ") for line in before)
if os.environ.get("RANK", "0") != "0":  # in a gang, rank 0 works and the others wait for it
    while not stops and steps_done() < steps:
        time.sleep(0.05)
    sys.exit(1 if stops else 0)
lock = os.open(job + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
def log_line(word, number):
    os.write(log, f"{word} {attempt} {number}\\n".encode())
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    log_line("overlap", 0)
done = steps_done()
log_line("begin", done)
while done < steps and not stops:
    if done == steps // 2 and not os.path.exists(half):
        time.sleep(0.05)
        continue
    time.sleep(0.02)
    log_line("step", done)
    done += 1
    with open(os.environ["COTENANT_PROGRESS"], "w") as progress:
        progress.write(f"{done}/{steps}\\n")
sys.exit(0 if done == steps else 1)
"""
STEPS = 12
SERVICE = (sys.executable, str(PROGRAMS / "service.py"))


PATIENCE_S = 300.0
_POLL_S = 0.2


def eventually(condition: Callable[[], Any]) -> Any:
    """Wait as `until` does, polling seldom: each poll of the controller is a TLS handshake."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:.0f} s without success"
        time.sleep(_POLL_S)
    return answer


def own_port() -> int:
    """Return a free port outside the ephemeral range, so that it stays free after its owner was killed."""
    while True:
        port = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


class Line(NamedTuple):
    """One line of a job's log."""

    word: str
    attempt: int
    number: int


class Cluster:
    """A controller and nodes, each with its own directory."""

    def __init__(self, controller: NodeHarness, nodes: Sequence[NodeHarness], lease: str, grace: str) -> None:
        self.controller = controller
        self._times = ["--round", "500ms", "--lease", lease, "--lease-grace", grace, "--moves", "0"]
        self.nodes = {f"n{number}": node_harness for number, node_harness in enumerate(nodes, 1)}
        self.work = controller.home / "work"
        self.work.mkdir()
        (self.work / "msgspec.py").write_text("raise SystemExit('modules of a job's directory must not be imported')\n")
        self.half = self.work / "half"
        self.token = controller.home / "token"
        self.address = ""

    # -- processes ---------------------------------------------------------------------------------------------------

    def start_controller(self) -> None:
        """Start the controller, or restart it at the same address."""
        listen = self.address or f"127.0.0.1:{own_port()}"
        with (self.controller.home / "controller.err").open("ab") as log:
            process = self.controller.start("cluster", "start", "--listen", listen, *self._times, stderr=log)
        until(lambda: process.poll() is not None or self._answers())
        assert process.poll() is None, (self.controller.home / "controller.err").read_text()
        self.address = operator_of(self.controller.directories).controller
        self.controller_pid = process.pid

    def make_token(self) -> None:
        self.token.write_text(self.controller.run("cluster", "token", "--uses", "3").stdout)

    def start_node(self, name: str) -> int:
        """Start a node daemon that joins the cluster with its agent."""
        node_harness = self.nodes[name]
        joining = ["--join", self.address, "--join-token-file", str(self.token), "--node-name", name]
        timing = ["--report-period", "200ms", "--job-grace", "5s", "--slots", "8", "--reconnect-grace", "60s"]
        with (node_harness.home / "node.err").open("ab") as log:
            return node_harness.node(*joining, *timing, stderr=log).pid

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid))

    def agent_of(self, name: str) -> int | None:
        """Return the agent's process, once it has its lock."""
        try:
            pid = int((self.nodes[name].directories.state / "agent" / "lock").read_text())
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
        with talk(operator_of(self.controller.directories)) as controller:
            controller.ask(cluster_wire.Submit(cluster_wire.VERSION, spec), cluster_wire.Success)

    def jobs(self) -> dict[str, JobReport]:
        """Return the jobs of the controller; none while it is down."""
        with contextlib.suppress(CotenantError, OSError), talk(operator_of(self.controller.directories)) as controller:
            reported = controller.ask(cluster_wire.ListJobs(cluster_wire.VERSION), cluster_wire.JobPage)
            return {job.spec.name: job for job in reported.jobs}
        return {}

    def lines(self, job: str) -> list[Line]:
        """Return the lines of a job's log without an incomplete one."""
        path = self.work / f"{job}.log"
        words = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [Line(word[0], int(word[1]), int(word[2])) for word in words if len(word) == 3]

    def half_way(self) -> list[str]:
        """Return the jobs that wait half way."""
        names = [path.stem for path in self.work.glob("*.log")]
        return sorted(name for name in names if any(line.number == STEPS // 2 - 1 for line in self.lines(name)))

    def attempts(self, name: str) -> list[Record]:
        """Return the attempt records on a node's disk."""
        folder = self.nodes[name].directories.state / "agent" / "attempts"
        return [Record(path) for path in folder.iterdir()] if folder.exists() else []

    def is_clear(self, name: str) -> bool:
        return not self.attempts(name)

    def said(self) -> str:
        """Return the output of all daemons, to explain a failure."""
        files = [
            self.controller.home / "controller.err",
            *(node_harness.home / "node.err" for node_harness in self.nodes.values()),
        ]
        files += self.work.glob("cotenant-*.log")
        return "\n".join(f"{path}:\n{path.read_text()[-3000:]}" for path in files if path.exists())

    def _answers(self) -> bool:
        try:
            with talk(operator_of(self.controller.directories)) as controller:
                controller.ask(cluster_wire.ListNodes(cluster_wire.VERSION), cluster_wire.NodePage)
        except (CotenantError, OSError):
            return False
        return True


@contextmanager
def clusters(nodes: int, gpus: int, lease: str = "120s", grace: str = "30s") -> Iterator[Cluster]:
    """Yield a cluster with a running controller, a token, and nodes with GPUs; remove it afterwards.

    A failure prints the output of all daemons.
    """
    with contextlib.ExitStack() as stack:
        controller = stack.enter_context(NodeHarness())
        harnesses = [stack.enter_context(NodeHarness()) for _ in range(nodes)]
        for node_harness in harnesses:
            node_harness.directories.runtime.mkdir(mode=0o700, parents=True)
            stack.callback(manage.destroy, home(node_harness.directories))
            manage.create(home(node_harness.directories), "v100", gpus)
        cluster = Cluster(controller, harnesses, lease, grace)
        cluster.start_controller()
        cluster.make_token()
        try:
            yield cluster
        except BaseException:
            print(cluster.said())
            raise
