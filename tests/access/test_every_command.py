"""No command fails with a stack trace: for another user, on a full or read-only disk, or when it is interrupted.

Each test runs the whole table of command lines in order, and reports all lines that ended wrongly at once.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_lines import COMMANDS, LINES, CommandLine, arguments_of, command_of, write_files
from tests.support.effort import IS_SOAK
from tests.support.node_processes import BOUND_S, until
from tests.support.shared_machine import ALICE, BOB, ROOT, USERS, SharedMachine, User

pytestmark = [pytest.mark.live, pytest.mark.attack, pytest.mark.timeout(900)]

FOUND_A_PROBLEM = {("doctor",), ("replay",), ("simulate",), ("demo",), ("serve", "profile"), ("serve", "plan")}
"""Commands that end with 1 if they ran and found a problem."""
NOT_RUNNING = 3
"""The code of `cotenant node status` without a node."""
LASTING_S = 1.5
"""Time after which a command that does not end by itself is interrupted."""
SECRET = "argument-that-only-its-user-may-see"
STACK = re.compile(r"Traceback|Exception ignored|Fatal Python error|Stack \(most recent")
OWN_FRAME = re.compile(r'File "[^"]*/cotenant/')
INTERRUPTED = (130, -signal.SIGINT)
MOMENTS_S = {"imports": (0.02, 0.25), "start": (0.25, 0.7), "work": (0.7, 2.5)}
"""Spans of time after the start of a command from which the moment of an interrupt is drawn."""


@pytest.fixture
def machine() -> Iterator[SharedMachine]:
    with SharedMachine() as made:
        write_files(made.home / "files")
        yield made


class CommandRuns:
    """Runs command lines as one user and collects what was wrong with their ends."""

    def __init__(self, machine: SharedMachine, user: User, other: str = "nothing") -> None:
        self._machine = machine
        self._user = user
        self._other = other
        self.problems: list[str] = []

    def run(self, line: CommandLine, *, interrupt_s: float | None = None, **options: Any) -> tuple[int, str, str]:
        """Run one line to its end; interrupt it after some time, or if it lasts. Check how it ended."""
        home = self._machine.home_of(self._user)
        words = arguments_of(line, other=self._other, out=home, files=self._machine.home / "files")
        process = self._machine.start_as(self._user, *words, start_new_session=True, **options)
        after_s = interrupt_s if interrupt_s is not None else LASTING_S if line.lasts else BOUND_S
        try:
            out, err = process.communicate(timeout=after_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the command and all that it started
            try:
                out, err = process.communicate(timeout=BOUND_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
                self._report(line, process.returncode, err, "did not end when it was interrupted")
                return process.returncode, out or "", err
            self._check(line, process.returncode, out or "", err, was_interrupted=True)
        else:
            self._check(line, process.returncode, out or "", err, was_interrupted=False)
        return process.returncode, out or "", err

    def _check(self, line: CommandLine, code: int, out: str, err: str, *, was_interrupted: bool) -> None:
        if STACK.search(out + err):
            # The interpreter imports its own modules before the first line of cotenant: that is not ours to handle.
            if was_interrupted and not OWN_FRAME.search(err):
                return
            self._report(line, code, err, "printed a stack")
        elif was_interrupted and code in INTERRUPTED:
            pass  # the usual end of an interrupted program
        elif code == 1 and command_of(line) in FOUND_A_PROBLEM:
            pass  # it ran, and has reported the problem
        elif code == NOT_RUNNING and command_of(line) == ("node", "status"):
            pass
        elif code in (2, 69, 75):
            last = err.rstrip().rpartition("\n")[2]
            if not last.startswith("cotenant: "):
                self._report(line, code, err, "did not say why")
        elif code:
            self._report(line, code, err, "ended with a code that is not documented for it")

    def _report(self, line: CommandLine, code: int, err: str, what: str) -> None:
        self.problems.append(f"`{line.words}` {what} (code {code}): {err[-1500:]}")


def tenants_of(machine: SharedMachine) -> dict[str, Any]:
    """Return everything that a command could change about the tenants, as root sees it."""
    tenant_list = machine.tenant_list()
    assert tenant_list is not None
    views = [view for view in tenant_list.tenants if view.tenant.uid in {user.uid for user in USERS}]
    return {view.tenant.name: (view.tenant, view.connected) for view in views}


def own_node(machine: SharedMachine, user: User) -> None:
    """Start a node of the user, in the user's own directories, and wait until it answers."""
    node = machine.start_as(user, "node", "--gpu", "v100=16GiB", stdout=subprocess.DEVNULL)
    until(lambda: node.poll() is not None or machine.run_as(user, "ps").returncode == 0)
    assert node.poll() is None, node.communicate()


def mount_tmpfs(machine: SharedMachine, user: User, where: Path, size: str) -> None:
    """Mount a file system of the user with this size on the machine."""
    words = f"mkdir -p {where} && mount -t tmpfs -o size={size},mode=700,uid={user.uid},gid={user.uid} none {where}"
    in_machine(machine, words)


def in_machine(machine: SharedMachine, script: str) -> None:
    """Run a shell script of root on the machine."""
    process = machine.open_as(ROOT, ["sh", "-c", script])
    out, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0, out + err


def fill(machine: SharedMachine, user: User, where: Path) -> None:
    """Fill a file system to the last byte."""
    process = machine.open_as(user, ["sh", "-c", f"exec 2> /dev/null; cat /dev/zero > {where}/filler; true"])
    assert process.wait(BOUND_S) == 0


def test_table_has_a_line_for_every_command() -> None:
    assert {command_of(line) for line in LINES} == COMMANDS


def test_every_command_of_a_user_without_a_node(machine: SharedMachine) -> None:
    runs = CommandRuns(machine, ALICE)
    for line in LINES:
        runs.run(line)
    assert not runs.problems, "\n\n".join(runs.problems)


@pytest.mark.parametrize("user", USERS, ids=[user.name for user in USERS])
def test_every_command_of_a_user_beside_another_users_tenants(user: User, machine: SharedMachine) -> None:
    """The node is root's; no command changes a tenant of the other user or shows the arguments of its program."""
    machine.start_node()
    sleep = ("sh", "-c", "sleep 600; true")  # the words after it are arguments that the shell does not use
    for owner in USERS:
        for number, kind in enumerate(("--online", "--offline")):
            machine.start_tenant(owner, f"{owner.name}-{number}", kind, "--", *sleep, f"{SECRET}-{owner.name}")
    before = tenants_of(machine)
    assert len(before) == 4
    [other] = [owner for owner in USERS if owner is not user]
    for name in (f"{other.name}-0", f"{other.name}-1"):
        runs = CommandRuns(machine, user, other=name)
        for line in LINES if name.endswith("0") else [line for line in LINES if "{other}" in line.words]:
            code, out, err = runs.run(line)
            if line.operator_only and code == 0:
                runs.problems.append(f"`{line.words}` was accepted from an ordinary user: {out}{err}")
            if f"{SECRET}-{other.name}" in out + err:
                runs.problems.append(f"`{line.words}` shows the arguments of another user's program")
        assert not runs.problems, "\n\n".join(runs.problems)
    after = tenants_of(machine)
    foreign = [name for name in before if name.startswith(other.name)]
    assert {name: after.get(name) for name in foreign} == {name: before[name] for name in foreign}


@pytest.mark.parametrize("with_node", [False, True], ids=["without-node", "with-node"])
def test_every_command_on_a_full_disk(with_node: bool, machine: SharedMachine) -> None:
    home = machine.home_of(ALICE)
    mount_tmpfs(machine, ALICE, home, "8m")
    in_machine(machine, f"install -d -m 700 -o {ALICE.uid} -g {ALICE.uid} {home}/run")
    if with_node:
        own_node(machine, ALICE)
    fill(machine, ALICE, home)
    runs = CommandRuns(machine, ALICE)
    for line in LINES:
        runs.run(line)
    assert not runs.problems, "\n\n".join(runs.problems)


@pytest.mark.parametrize("with_node", [False, True], ids=["without-node", "with-node"])
def test_every_command_with_a_read_only_state_directory(with_node: bool, machine: SharedMachine) -> None:
    state = machine.home_of(ALICE) / ".local" / "state"
    mount_tmpfs(machine, ALICE, state, "8m")
    in_machine(machine, f"chown -R {ALICE.uid}:{ALICE.uid} {state.parent}")
    if with_node:
        own_node(machine, ALICE)
        in_machine(machine, f"mount --bind {state} {state} && mount -o remount,bind,ro {state}")
    else:
        in_machine(machine, f"mount -o remount,ro {state}")
    runs = CommandRuns(machine, ALICE)
    for line in LINES:
        runs.run(line)
    assert not runs.problems, "\n\n".join(runs.problems)


def test_every_command_with_its_output_on_a_full_disk(machine: SharedMachine) -> None:
    """What a command prints is lost, and it says so."""
    runs = CommandRuns(machine, ALICE)
    with Path("/dev/full").open("w") as full:
        for line in LINES:
            runs.run(line, stdout=full)
    assert not runs.problems, "\n\n".join(runs.problems)


@pytest.mark.parametrize("span", MOMENTS_S)
def test_every_command_interrupted_at_a_random_moment(span: str, machine: SharedMachine) -> None:
    rng = random.Random(f"interrupt {span}")
    machine.start_node()
    runs = CommandRuns(machine, ALICE, other="bob-0")
    machine.start_tenant(BOB, "bob-0")
    for line in LINES * (10 if IS_SOAK else 1):
        runs.run(line, interrupt_s=rng.uniform(*MOMENTS_S[span]))
    assert not runs.problems, "\n\n".join(runs.problems)
    assert "bob-0" in machine.names()
