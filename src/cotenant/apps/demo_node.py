"""Wires `cotenant demo --story node`: tenants join, one is killed, the daemon is killed, the journal is replayed."""

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

from cotenant.apps.replay import replay_file
from cotenant.apps.show import show_tenants, table
from cotenant.domain.tenant import TenantView
from cotenant.errors import CotenantError, WorldError
from cotenant.format import wire
from cotenant.live.client import tenants_of
from cotenant.live.clock import pause
from cotenant.live.directory import Places

_GPU = "demo-v100=16GiB"
_PROGRAM = "import time\nprint('here', flush=True)\nwhile True: time.sleep(0.1)"
_ENDS_AT_A_WORD = "import sys\nsys.stdin.read()"


class Step(msgspec.Struct, frozen=True):
    """One thing that was done, what it should show, and whether it did."""

    what: str
    shows: str
    seen: str
    fine: bool


class Stage:
    """The processes of the demo: all real, all ended with it."""

    def __init__(self, home: Path) -> None:
        """Everything lives below this directory."""
        self.places = Places(home / "run", home / "state")
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

    def _where(self) -> list[str]:
        return ["--runtime", str(self.places.runtime), "--state", str(self.places.state)]

    def _start_node(self) -> subprocess.Popen[str]:
        node = self._start("node", *self._where(), "--gpu", _GPU, "--slots", "8")
        self.until(lambda roll: roll.pid == node.pid)
        return node

    def tenant(self, name: str, *options: str, program: str = _PROGRAM) -> subprocess.Popen[str]:
        """Start a program as a tenant."""
        command = ["--", sys.executable, "-c", program]
        return self._start("run", *self._where(), "--name", name, *options, *command)

    def restart_node(self) -> None:
        """SIGKILL the daemon and start another on the same directories."""
        self.node.kill()
        self.node.wait()
        self.node = self._start_node()

    def until(self, wanted: Callable[[wire.Tenants], bool], tries: int = 1200) -> wire.Tenants:
        """Ask the node until it shows what is wanted; for a minute at least, since the machine may be busy."""
        for _ in range(tries):
            with contextlib.suppress(CotenantError):
                roll = tenants_of(self.places.socket)
                if wanted(roll):
                    return roll
            pause(0.05)
        raise WorldError("the demo waited in vain; run `cotenant doctor` and try again")

    def close(self) -> None:
        """End whatever still runs."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.kill()
            process.communicate()


def tell_node_story(console: Console, home: Path, say: Callable[[str], None], *, as_json: bool) -> int:
    """The whole story; returns 0 when every step showed what it should."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background: its tenants would inherit the deafness, and one of them is to be interrupted.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    say(f"demo: a node of its own in {home}")
    stage = Stage(home)
    try:
        steps = _story(stage, say, None if as_json else console)
    finally:
        stage.close()
    fine = all(step.fine for step in steps)
    if as_json:
        print(msgspec.json.encode({"fine": fine, "steps": steps}).decode())
        return 0 if fine else 1
    marks = [Text("yes", style="green") if step.fine else Text("NO", style="bold red") for step in steps]
    rows: list[list[str | Text]] = []
    for step, mark in zip(steps, marks, strict=True):
        rows.append([step.what, step.shows, step.seen, mark])
    console.print()
    console.print(table("what happened", ["DONE", "SHOULD SHOW", "SEEN", "FINE"], rows, fold=True))
    return 0 if fine else 1


def _story(stage: Stage, say: Callable[[str], None], console: Console | None) -> list[Step]:
    steps: list[Step] = []
    say("demo: three tenants join: an online service, a training job, a batch job")
    web = stage.tenant("web", "--online", "--slo", "50ms", "--memory", "4GiB", "--share", "30%")
    stage.until(lambda roll: len(roll.tenants) == 1)
    train = stage.tenant("train", "--memory", "8GiB")
    stage.until(lambda roll: len(roll.tenants) == 2)
    batch = stage.tenant("batch", "--memory", "2GiB", "--priority", "9", program=_ENDS_AT_A_WORD)
    roll = stage.until(lambda roll: len(roll.tenants) == 3)
    if console is not None:
        show_tenants(console, roll, {}, everybody=False)
    steps.append(_step("three tenants join", "slots 0, 1, 2", _slots(roll.tenants), "web 0/1, train 1/1, batch 2/1"))

    say("demo: a fourth asks for more memory than is left")
    greedy = stage.tenant("greedy", "--memory", "4GiB")
    _, told = greedy.communicate()
    refused = greedy.returncode == 75 and "2GiB" in told
    steps.append(Step("a fourth asks for 4GiB", "refused: 2GiB are left", told.strip().rsplit(": ", 1)[-1], refused))

    say("demo: SIGKILL to the training job")
    train.kill()
    roll = stage.until(lambda roll: len(roll.tenants) == 2)
    ending = roll.departed[-1]
    seen = f"{ending.tenant.name}: {ending.ending}"
    steps.append(_step("the training job is killed", "its slot is free", seen, "train: lost: its connection closed"))

    say("demo: SIGKILL to the node's daemon, and a new one on the same directories")
    stage.restart_node()
    roll = stage.until(lambda roll: all(view.connected for view in roll.tenants))
    steps.append(_step("the daemon is killed and restarted", "same slots", _slots(roll.tenants), "web 0/1, batch 2/1"))

    say("demo: a new tenant takes the free slot, the batch job ends by itself, the service is asked to stop")
    again = stage.tenant("train", "--memory", "8GiB")
    roll = stage.until(lambda roll: len(roll.tenants) == 3)
    taken = _slots(roll.tenants)
    steps.append(_step("a new training job joins", "slot 1, generation 2", taken, "web 0/1, train 1/2, batch 2/1"))
    batch.communicate("")
    web.send_signal(signal.SIGTERM)
    web.communicate()
    assert again.stdout is not None
    again.stdout.readline()  # a program that is only about to begin dies of an interrupt in ways of its own
    again.send_signal(signal.SIGINT)
    again.communicate()
    codes = f"batch {batch.returncode}, web {web.returncode}, train {again.returncode}"
    steps.append(_step("end, SIGTERM, SIGINT", "their exit codes", codes, "batch 0, web 143, train 130"))

    say("demo: the node stops, its journal is replayed")
    stage.until(lambda roll: not roll.tenants)
    stage.node.send_signal(signal.SIGTERM)
    stage.node.communicate()
    report = replay_file(stage.places.journal)
    seen = f"{report.turns} turns, {report.actions} actions, {stage.places.journal.stat().st_size} bytes"
    steps.append(Step("the journal is replayed", "every action reproduced", seen, report.reproduced))
    return steps


def _step(what: str, shows: str, seen: str, wanted: str) -> Step:
    return Step(what, shows, seen, seen == wanted)


def _slots(views: list[TenantView]) -> str:
    tenants = [view.tenant for view in views]
    return ", ".join(f"{tenant.name} {tenant.terms.slot}/{tenant.terms.generation}" for tenant in tenants)
