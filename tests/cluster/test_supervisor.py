"""Tests of supervisors of attempts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.cluster.daemon.attempt_record import End, Record, is_alive
from cotenant.cluster.daemon.attempt_result import end_of
from cotenant.cluster.daemon.attempts import LOG_LIMIT_BYTES
from cotenant.cluster.daemon.supervisor import marked
from cotenant.cluster.model.cluster import Attempt, JobEnd
from cotenant.node.client.outcome import EndedBy, RunOutcome
from cotenant.runner.clock import boot_ns
from cotenant.units.instant import SECOND_NS
from tests.support.cluster_attempts import AttemptFixture
from tests.support.node_processes import alive, until

pytestmark = pytest.mark.live


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[AttemptFixture]:
    made = AttemptFixture(tmp_path)
    yield made
    made.close()


def supervisor_of(record: Record) -> int:
    supervisor = until(record.supervisor)
    assert is_alive(supervisor)
    pid: int = supervisor.pid
    return pid


def said(doing: EndedBy, code: int) -> RunOutcome:
    return RunOutcome(code, doing, f"exit {code}")


@pytest.mark.parametrize(
    "outcomes, end",
    [
        ([said(EndedBy.OWN, 0)], JobEnd.DONE),
        ([said(EndedBy.OWN, 3)], JobEnd.FAILED),
        ([said(EndedBy.NODE, 143)], JobEnd.EVICTED),
        ([said(EndedBy.NODE, 0)], JobEnd.EVICTED),
        ([said(EndedBy.ASKED, 0)], JobEnd.EVICTED),
        ([said(EndedBy.REFUSED, 75)], JobEnd.REFUSED),
        ([None], JobEnd.EVICTED),
        ([said(EndedBy.OWN, 0), said(EndedBy.OWN, 0)], JobEnd.DONE),
        ([said(EndedBy.OWN, 0), said(EndedBy.NODE, 143), said(EndedBy.OWN, 3)], JobEnd.EVICTED),
        ([said(EndedBy.OWN, 3), said(EndedBy.ASKED, 143)], JobEnd.FAILED),
    ],
)
def test_end_is_classified_by_its_cause(outcomes: list[RunOutcome | None], end: JobEnd) -> None:
    """Of several programs the first that does not end well decides: the others were told to end because of it."""
    assert end_of(outcomes, None, is_complete=False).end is end
    is_well = all(outcome is not None and outcome.code == 0 for outcome in outcomes)
    assert end_of(outcomes, "moved", is_complete=False) == End(JobEnd.EVICTED, "moved")
    assert (end_of(outcomes, "moved", is_complete=True).end is JobEnd.DONE) == is_well


@pytest.mark.parametrize("what, end", [(["own:0", "own:0"], JobEnd.DONE), (["wait", "last:3"], JobEnd.FAILED)])
def test_all_programs_of_an_attempt_end_before_its_end_is_reported(
    yard: AttemptFixture, what: list[str], end: JobEnd
) -> None:
    record = yard.begin(1, *what)
    report = yard.ended()
    assert report.end is end
    assert not marked(record.path)
    assert len(yard.born_lines(1)) == len(what)


def test_stopped_attempt_is_terminated_and_named_until_acknowledged(yard: AttemptFixture) -> None:
    record = yard.begin(1, "wait")
    assert yard.attempts.reports(boot_ns())[0].end is None
    yard.attempts.stop(Attempt("job-1", 1), "moved elsewhere")
    report = yard.ended()
    assert (report.end, report.detail) == (JobEnd.EVICTED, "moved elsewhere")
    assert yard.agent().reports(boot_ns())[0].attempt == report.attempt, "a new agent names it too"
    yard.attempts.forget(report.attempt)
    assert not yard.attempts.reports(boot_ns())
    assert not record.path.exists()
    assert not yard.agent().reports(boot_ns())


def test_stopped_attempt_with_complete_progress_is_done(yard: AttemptFixture) -> None:
    record = yard.begin(1, "wait")
    record.progress_file.write_text("8/8\n")
    yard.attempts.stop(Attempt("job-1", 1), "moved elsewhere")
    assert yard.ended().end is JobEnd.DONE


def test_supervisor_survives_its_agent_and_is_found_by_the_next(yard: AttemptFixture) -> None:
    record = yard.begin(1, "wait")
    supervisor = supervisor_of(record)
    later = yard.agent()
    for _ in range(3):
        later.tend(boot_ns())
    assert [report.end for report in later.reports(boot_ns())] == [None]
    assert supervisor_of(record) == supervisor
    assert len(yard.born_lines(1)) == 1, "nothing was started again"
    later.stop(Attempt("job-1", 1), "enough")
    assert yard.ended(later).end is JobEnd.EVICTED


def test_accepted_attempt_is_started_by_the_next_agent(yard: AttemptFixture) -> None:
    """The agent was killed between its record and the start."""
    assert yard.attempts.accept(yard.order(1, "own:0"), None)
    assert yard.ended(yard.agent()).end is JobEnd.DONE
    assert len(yard.born_lines(1)) == 1


def test_two_agents_start_a_program_once(yard: AttemptFixture) -> None:
    """The agent was killed just after it started a supervisor that is slow to take charge."""
    order = yard.order(1, "wait")
    assert yard.attempts.accept(order, None)
    others = [yard.agent() for _ in range(3)]
    for agent in (yard.attempts, *others):
        agent.tend(boot_ns())
    until(lambda: yard.born_lines(1))
    record = yard.attempts.record_of(order.attempt)
    others[0].stop(order.attempt, "enough")
    assert yard.ended(others[0]).end is JobEnd.EVICTED
    assert len(yard.born_lines(1)) == 1
    assert record.end() == End(JobEnd.EVICTED, "enough")


def test_repeated_order_is_one_attempt(yard: AttemptFixture) -> None:
    yard.begin(1, "wait")
    assert not yard.attempts.accept(yard.order(1, "wait"), None)
    assert len(yard.attempts.reports(boot_ns())) == 1


def test_programs_of_a_killed_supervisor_end_before_the_report(yard: AttemptFixture) -> None:
    record = yard.begin(1, "wait")
    [program] = map(int, yard.born_lines(1))
    os.kill(supervisor_of(record), signal.SIGKILL)
    report = yard.ended()
    assert (report.end, report.detail) == (JobEnd.EVICTED, "its supervisor was killed")
    assert not alive(program)
    assert len(yard.born_lines(1)) == 1, "the second supervisor runs nothing"


def test_program_that_outlives_its_supervisor_is_killed(yard: AttemptFixture) -> None:
    record = yard.begin(1, "deaf", grace_ns=-8 * SECOND_NS)  # no patience at all
    until(lambda: "deaf" in yard.born_lines(1))
    os.kill(supervisor_of(record), signal.SIGKILL)
    assert yard.ended().end is JobEnd.EVICTED
    assert not alive(int(yard.born_lines(1)[0]))


def test_programs_end_with_the_lease_without_an_agent(yard: AttemptFixture) -> None:
    """The agent is dead: nobody tends, the supervisor alone reads the file."""
    record = yard.begin(1, "wait")
    yard.extend(lease_ns=0)
    end = until(record.end)
    assert end.end is JobEnd.EVICTED
    assert end.detail.startswith("the lease ran out")
    assert not marked(record.path)


def test_program_is_killed_within_the_grace_after_its_lease(yard: AttemptFixture) -> None:
    record = yard.begin(1, "deaf", grace_ns=600 * SECOND_NS)
    until(lambda: "deaf" in yard.born_lines(1))
    yard.extend(lease_ns=0, grace_ns=SECOND_NS)
    assert until(record.end).end is JobEnd.EVICTED
    assert not marked(record.path)


def test_no_program_starts_without_a_lease(yard: AttemptFixture) -> None:
    yard.extend(lease_ns=0)
    yard.attempts.accept(yard.order(1, "own:0"), None)
    assert yard.ended().end is JobEnd.EVICTED
    assert not yard.born(1).exists()


def test_attempt_stopped_before_its_start_never_starts(yard: AttemptFixture) -> None:
    order = yard.order(1, "own:0")
    yard.attempts.accept(order, None)
    yard.attempts.stop(order.attempt, "cancelled")
    assert yard.ended().detail == "cancelled"
    assert not yard.born(1).exists()


def test_attempt_stopped_at_its_start_reports_the_reason(yard: AttemptFixture) -> None:
    """The supervisor is told by a signal, which finds it whatever it is about to do."""
    order = yard.order(1, "wait")
    yard.attempts.accept(order, None)
    yard.attempts.tend(boot_ns())
    supervisor_of(yard.attempts.record_of(order.attempt))
    yard.attempts.stop(order.attempt, "moved elsewhere")
    assert yard.ended().detail == "moved elsewhere"


def test_processes_left_by_a_program_are_killed(yard: AttemptFixture, tmp_path: Path) -> None:
    left = tmp_path / "left"
    order = yard.order(1, "own:0")
    [words] = order.commands
    script = f"setsid sh -c 'echo $$ > {left}; sleep 600' & while [ ! -s {left} ]; do sleep 0.01; done; exec \"$@\""
    both = ("sh", "-c", script, "sh", *words)
    yard.attempts.accept(
        type(order)(**{name: getattr(order, name) for name in order.__struct_fields__} | {"commands": (both,)}), None
    )
    assert yard.ended().end is JobEnd.DONE
    assert not alive(int(left.read_text()))


def test_missing_directory_fails_the_job(yard: AttemptFixture) -> None:
    order = yard.order(1, "own:0")
    fields = {name: getattr(order, name) for name in order.__struct_fields__}
    nowhere = str(yard.home / "nowhere")
    yard.attempts.accept(type(order)(**fields | {"directory": nowhere, "log": f"{nowhere}/log"}), None)
    report = yard.ended()
    assert report.end is JobEnd.FAILED
    assert nowhere in report.detail


def test_unreadable_order_is_reported_as_ended(yard: AttemptFixture) -> None:
    record = yard.begin(1, "wait")
    (record.path / "order").write_text("{}")
    assert not yard.agent().reports(boot_ns())
    assert not record.path.exists()
    assert not alive(int(yard.born_lines(1)[0]))


def test_supervisor_without_an_order_exits(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "cotenant.cluster.daemon.supervisor",
        str(tmp_path / "gone"),
        str(tmp_path / "lease"),
    ]
    assert subprocess.run(command, capture_output=True, check=False).stderr == b""


def test_output_of_supervisors_is_bounded(yard: AttemptFixture) -> None:
    log = yard.attempts.record_of(Attempt("job-1", 1)).path.parent.parent / "supervisors.log"
    log.write_bytes(b"x" * LOG_LIMIT_BYTES)
    yard.begin(1, "own:0")
    yard.ended()
    assert log.with_name("supervisors.log.1").stat().st_size == LOG_LIMIT_BYTES
    assert log.stat().st_size < LOG_LIMIT_BYTES
    before = log.stat().st_ino
    yard.begin(2, "own:0")
    yard.ended()
    assert log.stat().st_ino == before, "one that is small goes on"
