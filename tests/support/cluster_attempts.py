"""Orders to supervisors for tests, and waiting for their results."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from cotenant.cluster.daemon.attempt_record import Order, Record, write_lease
from cotenant.cluster.daemon.attempts import Attempts
from cotenant.cluster.daemon.supervisor import marked
from cotenant.cluster.model.cluster import Attempt, AttemptReport
from cotenant.runner.clock import boot_ns
from cotenant.units.instant import SECOND_NS
from tests.support.node_processes import BOUND_S, alive, until

# Stands in for `cotenant run` and writes an outcome file. Its arguments: the outcome file, a file to which it appends
# its process number, and what to do: "DOING:CODE" to end with, or "wait" for a signal.
RUN = """
import json, os, signal, sys, time
outcome, born, what = sys.argv[1:4]
def on_term(number, frame):
    write_outcome("asked", 0)
    os._exit(0)
def write_outcome(doing, code):
    with open(outcome + ".new", "w") as file:
        json.dump({"code": code, "doing": doing, "why": f"exit {code}"}, file)
    os.rename(outcome + ".new", outcome)
signal.signal(signal.SIGTERM, on_term)
with open(born, "a") as file:
    file.write(f"{os.getpid()}\\n")
if what == "wait":
    while True:
        time.sleep(0.01)
if what == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(born, "a") as file:
        file.write("deaf\\n")
    time.sleep(600)
if what.startswith("last:"):
    while len(open(born).readlines()) < 2:
        time.sleep(0.01)
    what = what.replace("last", "own")
doing, code = what.split(":")
write_outcome(doing, int(code))
sys.exit(int(code))
"""


class AttemptFixture:
    """The attempts of one machine and its agents; a killed agent is one that is no longer used."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.lease = home / "lease"
        self.said: list[str] = []
        self._agents: list[Attempts] = []
        self.extend()
        self.attempts = self.agent()

    def agent(self) -> Attempts:
        """Start a new agent on the records on disk."""
        self._agents.append(Attempts(self.home / "attempts", self.lease, self.said.append))
        return self._agents[-1]

    def extend(self, lease_ns: int = 600 * SECOND_NS, grace_ns: int = 60 * SECOND_NS) -> None:
        """Extend the lease of the jobs, or let it end."""
        write_lease(self.lease, boot_ns() + lease_ns, grace_ns)

    def order(self, number: int, *what: str, grace_ns: int = 10 * SECOND_NS) -> Order:
        """Return an order that runs one program for each word."""
        attempt = Attempt(f"job-{number}", number)
        record = self.attempts.record_of(attempt)
        words = [(str(record.rank_file(rank)), str(self.born(number)), word) for rank, word in enumerate(what)]
        commands = tuple((sys.executable, "-c", RUN, *arguments) for arguments in words)
        environments: tuple[dict[str, str], ...] = ({},) * len(what)
        log = str(self.home / "log")
        gpus = tuple(range(len(what)))
        return Order(attempt, gpus, 0, 0, commands, environments, str(self.home), log, grace_ns)

    def born(self, number: int) -> Path:
        """Return the file to which each process of an attempt appends its number."""
        return self.home / f"born-{number}"

    def begin(self, number: int, *what: str, **given: int) -> Record:
        """Start an attempt and wait until its programs run."""
        order = self.order(number, *what, **given)
        assert self.attempts.accept(order, None)
        self.attempts.tend(boot_ns())
        until(lambda: len(self.born_lines(number)) >= len(what))
        return self.attempts.record_of(order.attempt)

    def born_lines(self, number: int) -> list[str]:
        return self.born(number).read_text().splitlines() if self.born(number).exists() else []

    def ended(self, attempts: Attempts | None = None) -> AttemptReport:
        """Wait for the end of an attempt and return its report."""
        agent = attempts or self.attempts

        def first_end() -> AttemptReport | None:
            agent.tend(boot_ns())
            ends = [report for report in agent.reports(boot_ns()) if report.end is not None]
            return ends[0] if ends else None

        report: AttemptReport = until(first_end)
        return report

    def close(self) -> None:
        """Kill all remaining processes."""
        for path in (self.home / "attempts").iterdir():
            supervisor = Record(path).supervisor()
            if supervisor is not None and alive(supervisor.pid):
                _kill(supervisor.pid)
            for pid in marked(path):
                _kill(pid)
        for process in [process for agent in self._agents for process in agent.supervisors]:
            process.wait(BOUND_S)


def _kill(pid: int) -> None:
    """Kill a process, which may have ended: a supervisor's programs end when it is killed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
