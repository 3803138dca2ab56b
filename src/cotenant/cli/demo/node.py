"""`cotenant demo --story node`: tenants join, one is killed, the daemon is killed, and the journal is replayed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant.cli.render.tenants import show_tenants
from cotenant.errors import CotenantError, WorldError
from cotenant.node import wire
from cotenant.node.client.connection import list_tenants
from cotenant.node.directories import Directories
from cotenant.node.model.tenant import TenantView
from cotenant.runner.clock import pause
from cotenant.simulate.replay import replay_file

_GPU = "demo-v100=16GiB"
_PROGRAM = "import time\nprint('here', flush=True)\nwhile True: time.sleep(0.1)"
_ENDS_AT_EOF = "import sys\nsys.stdin.read()"


class Step(msgspec.Struct, frozen=True):
    """One step: the action, the expected and the actual result."""

    what: str
    shows: str
    seen: str
    fine: bool


class DemoNode:
    """A node and its tenants, as processes that end with the demo."""

    def __init__(self, home: Path) -> None:
        """Start the node; all its files are below this directory."""
        self.directories = Directories(home / "run", home / "state")
        self._processes: list[subprocess.Popen[str]] = []
        try:
            self.node = self._start_node()
        except BaseException:
            self.close()
            raise

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "cotenant", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def _directory_flags(self) -> list[str]:
        return ["--runtime-dir", str(self.directories.runtime), "--state-dir", str(self.directories.state)]

    def _start_node(self) -> subprocess.Popen[str]:
        node = self._start("node", *self._directory_flags(), "--gpu", _GPU, "--slots", "8")
        self.until(lambda registry: registry.pid == node.pid)
        return node

    def tenant(self, name: str, *options: str, program: str = _PROGRAM) -> subprocess.Popen[str]:
        """Start a program as a tenant."""
        command = ["--", sys.executable, "-c", program]
        return self._start("run", *self._directory_flags(), "--name", name, *options, *command)

    def restart_node(self) -> None:
        """SIGKILL the daemon and start another on the same directories."""
        self.node.kill()
        self.node.wait()
        self.node = self._start_node()

    def until(self, condition: Callable[[wire.TenantList], bool], tries: int = 1200) -> wire.TenantList:
        """List the tenants until the condition holds; wait at least a minute, because the machine may be busy."""
        for _ in range(tries):
            with contextlib.suppress(CotenantError):
                registry = list_tenants(self.directories)
                if condition(registry):
                    return registry
            pause(0.05)
        raise WorldError("the demo timed out; run `cotenant doctor` and try again")

    def close(self) -> None:
        """Kill the processes that still run."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.kill()
            process.communicate()


def demonstrate_node(console: Console, home: Path, report_step: Callable[[str], None], *, as_json: bool) -> int:
    """Run all steps; return 0 if each had the expected result."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs with SIGINT ignored; the tenants would inherit that, and one gets a SIGINT.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    report_step(f"demo: starting a node in {home}")
    demo_node = DemoNode(home)
    try:
        steps = _run_steps(demo_node, report_step, None if as_json else console)
    finally:
        demo_node.close()
    return show_steps(console, steps, as_json=as_json)


def show_steps(console: Console, steps: list[Step], *, as_json: bool) -> int:
    """Print the steps as JSON or as a table; return 0 if each had the expected result."""
    fine = all(step.fine for step in steps)
    if as_json:
        print(msgspec.json.encode({"fine": fine, "steps": steps}).decode())
        return 0 if fine else 1
    marks = [Text("yes", style="green") if step.fine else Text("NO", style="bold red") for step in steps]
    rows: list[list[str | Text]] = []
    for step, mark in zip(steps, marks, strict=True):
        rows.append([step.what, step.shows, step.seen, mark])
    console.print()
    console.print(table("steps", ["STEP", "EXPECTED", "RESULT", "PASSED"], rows, fold=True))
    return 0 if fine else 1


def _run_steps(demo_node: DemoNode, report_step: Callable[[str], None], console: Console | None) -> list[Step]:
    steps: list[Step] = []
    report_step("demo: three tenants join: an online service, a training job, a batch job")
    web = demo_node.tenant("web", "--online", "--slo", "50ms", "--memory", "4GiB", "--share", "30%")
    demo_node.until(lambda registry: len(registry.tenants) == 1)
    train = demo_node.tenant("train", "--memory", "8GiB")
    demo_node.until(lambda registry: len(registry.tenants) == 2)
    batch = demo_node.tenant("batch", "--memory", "2GiB", "--priority", "9", program=_ENDS_AT_EOF)
    registry = demo_node.until(lambda registry: len(registry.tenants) == 3)
    if console is not None:
        show_tenants(console, registry, {}, with_departed=False)
    steps.append(
        _step("three tenants join", "slots 0, 1, 2", _slots(registry.tenants), "web 0/1, train 1/1, batch 2/1")
    )

    report_step("demo: a fourth tenant requests more memory than is free")
    greedy = demo_node.tenant("greedy", "--memory", "4GiB")
    _, output = greedy.communicate()
    refused = greedy.returncode == 75 and "2GiB" in output
    steps.append(Step("a fourth requests 4GiB", "refused: 2GiB are free", output.strip().rsplit(": ", 1)[-1], refused))

    report_step("demo: SIGKILL to the training job")
    train.kill()
    registry = demo_node.until(lambda registry: len(registry.tenants) == 2)
    ending = registry.departed[-1]
    result = f"{ending.tenant.name}: {ending.ending}"
    steps.append(_step("the training job is killed", "its slot is free", result, "train: lost: its connection closed"))

    report_step("demo: SIGKILL to the node daemon, then a new daemon on the same directories")
    demo_node.restart_node()
    registry = demo_node.until(lambda registry: all(view.connected for view in registry.tenants))
    steps.append(
        _step("the daemon is killed and restarted", "same slots", _slots(registry.tenants), "web 0/1, batch 2/1")
    )

    report_step("demo: a new tenant takes the free slot, the batch job ends, the service gets SIGTERM")
    new_train = demo_node.tenant("train", "--memory", "8GiB")
    registry = demo_node.until(lambda registry: len(registry.tenants) == 3)
    slots = _slots(registry.tenants)
    steps.append(_step("a new training job joins", "slot 1, generation 2", slots, "web 0/1, train 1/2, batch 2/1"))
    batch.communicate("")
    web.send_signal(signal.SIGTERM)
    web.communicate()
    assert new_train.stdout is not None
    new_train.stdout.readline()  # a program that is still starting may exit differently on SIGINT
    new_train.send_signal(signal.SIGINT)
    new_train.communicate()
    codes = f"batch {batch.returncode}, web {web.returncode}, train {new_train.returncode}"
    steps.append(_step("end, SIGTERM, SIGINT", "their exit codes", codes, "batch 0, web 143, train 130"))

    report_step("demo: the node stops, its journal is replayed")
    demo_node.until(lambda registry: not registry.tenants)
    demo_node.node.send_signal(signal.SIGTERM)
    demo_node.node.communicate()
    report = replay_file(demo_node.directories.journal)
    result = f"{report.turns} turns, {report.actions} actions, {demo_node.directories.journal.stat().st_size} bytes"
    steps.append(Step("the journal is replayed", "every action reproduced", result, report.reproduced))
    return steps


def _step(what: str, shows: str, seen: str, expected: str) -> Step:
    return Step(what, shows, seen, seen == expected)


def _slots(views: list[TenantView]) -> str:
    tenants = [view.tenant for view in views]
    return ", ".join(f"{tenant.name} {tenant.grant.slot}/{tenant.grant.generation}" for tenant in tenants)
