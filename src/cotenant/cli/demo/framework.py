"""`cotenant demo --story framework`: a training and a service of tinygrad share a software GPU, and compute the same.

The training runs alone, next to the service with long kernels in parts, with a pause, suspended to the host, and
evicted and started again from its checkpoint. All runs must give the same bits, and the loss curve and the answers must
be those of tinygrad's CPU backend within float error.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from rich.console import Console

from cotenant.cli.demo.node import Step, show_steps
from cotenant.errors import ConfigError, CotenantError, WorldError
from cotenant.node.client.connection import list_tenants, read_activity
from cotenant.node.directories import Directories
from cotenant.node.model.protection import ExitPhase
from cotenant.runner.clock import pause
from cotenant.runner.process import start_with_pipes

STEPS: Final = 10
ANSWERS: Final = 32
TOLERANCE: Final = 1e-4
"""Relative error by which sums of single precision may differ that are formed in another order."""
DEVICE: Final = "t4"
MEMORY: Final = "1GiB"
_INSTALL: Final = "pip install tinygrad==0.14.0"
_TRAIN: Final = ("--memory", "700MiB", "--on-pressure", "suspend")
_EVICTABLE: Final = ("--memory", "700MiB", "--restart", "on-failure", "--restart-delay", "50ms")
_LARGE: Final = ("--memory", "600MiB")
"""Memory of a service next to which the training does not fit."""
_PROGRAM: Final = Path(__file__).with_name("tinygrad_program.py")
_TIMEOUT_S: Final = 300.0
_POLL_S: Final = 0.02


class FrameworkDemo:
    """A software GPU, a node, and the processes of the programs, in one directory."""

    def __init__(self, home: Path) -> None:
        """Start the device and the node."""
        self.home = home
        self.directories = Directories(home / "run", home / "state")
        self._where = ["--runtime-dir", str(self.directories.runtime), "--state-dir", str(self.directories.state)]
        self._environ = {**os.environ, "CACHEDB": str(home / "kernels.db"), "COTENANT_CACHE": str(home)}
        self._processes: list[subprocess.Popen[str]] = []
        self.command("softgpu", "create", "--gpu", DEVICE, "--memory", MEMORY)
        try:
            node = self._start([sys.executable, "-m", "cotenant", "node", *self._where, "--slots", "8"], {})
            self.until("the node answers", lambda: self._names() is not None or node.poll() is not None)
            if node.poll() is not None:
                raise WorldError(f"the node did not start: {node.communicate()[1].strip()[-200:]}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all processes and the device."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
        for process in reversed(self._processes):
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        with contextlib.suppress(CotenantError):
            self.command("softgpu", "destroy")

    def command(self, *words: str) -> str:
        """Run a command of cotenant on this node, and return its output."""
        split = 2 if words[0] == "softgpu" else 1
        command = [sys.executable, "-m", "cotenant", *words[:split], *self._where, *words[split:]]
        process = start_with_pipes(command, self._environ)
        output, errors = process.communicate()
        if process.returncode:
            raise WorldError(f"cotenant {' '.join(words)} failed: {errors.strip()[-200:]}")
        return output

    def program(self, words: Sequence[str], device: str) -> subprocess.Popen[str]:
        """Start the program on one of tinygrad's devices, not as a tenant."""
        return self._start([sys.executable, str(_PROGRAM), *words], {"DEV": device})

    def tenant(self, name: str, options: Sequence[str], words: Sequence[str]) -> subprocess.Popen[str]:
        """Start the program as a tenant of the node."""
        command = ["run", *self._where, "--gpu", "soft:0", "--name", name, *options, "--", sys.executable]
        return self._start([sys.executable, "-m", "cotenant", *command, str(_PROGRAM), *words], {"DEV": "CUDA:PTX"})

    def end(self, process: subprocess.Popen[str], what: str) -> None:
        """Wait until a program has ended, and raise an error if it failed."""
        try:
            _, errors = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise WorldError(f"{what} did not end within {_TIMEOUT_S:.0f} s; try again on an idle machine") from None
        if process.returncode:
            last = (errors.strip().splitlines() or ["it wrote no error"])[-1]
            raise WorldError(f"{what} ended with {process.returncode}: {last}")

    def phase(self, name: str) -> ExitPhase | None:
        """Return the phase of a tenant; None: it is no tenant."""
        with contextlib.suppress(CotenantError):
            for view in list_tenants(self.directories).tenants:
                if view.tenant.name == name:
                    return view.tenant.lifecycle.phase
        return None

    def parts(self, name: str) -> int:
        """Return how many parts the tenant's kernels were launched in so far; 0 also if it is no tenant any more."""
        with contextlib.suppress(CotenantError):
            slots = {view.tenant.name: view.tenant.grant.slot for view in list_tenants(self.directories).tenants}
            for gpu in read_activity(self.directories).gpus:
                if gpu.gate is not None and name in slots and slots[name] in gpu.gate.counts:
                    return gpu.gate.counts[slots[name]].parts
        return 0

    def until(self, what: str, condition: Callable[[], Any]) -> None:
        """Wait until the condition holds."""
        for _ in range(round(_TIMEOUT_S / _POLL_S)):
            if condition():
                return
            pause(_POLL_S)
        raise WorldError(f"the demo waited in vain until {what}; run `cotenant doctor` and try again")

    def _names(self) -> list[str] | None:
        with contextlib.suppress(CotenantError):
            return [view.tenant.name for view in list_tenants(self.directories).tenants]
        return None

    def _start(self, command: Sequence[str], variables: dict[str, str]) -> subprocess.Popen[str]:
        process = start_with_pipes(command, {**self._environ, **variables}, keep_input=True)
        self._processes.append(process)
        return process


class Results:
    """What the programs wrote in one run."""

    def __init__(self, directory: Path) -> None:
        """Take the directory of the run, which is created."""
        self.directory = directory
        directory.mkdir()

    @property
    def losses(self) -> list[float]:
        """The loss curve so far."""
        with contextlib.suppress(FileNotFoundError):
            return [float.fromhex(line) for line in (self.directory / "losses").read_text().split()]
        return []

    def arrays(self, name: str) -> dict[str, Any]:
        """Return the arrays of a file; empty: it does not exist."""
        path = self.directory / f"{name}.npz"
        if not path.exists():
            return {}
        with np.load(path) as file:
            return dict(file)

    def is_same(self, other: Results, name: str) -> bool:
        """Return whether both wrote the same bits."""
        mine, theirs = self.arrays(name), other.arrays(name)
        equal = all(mine[key].tobytes() == theirs[key].tobytes() for key in mine if key in theirs)
        return bool(mine) and mine.keys() == theirs.keys() and equal and self.losses == other.losses

    def error_of(self, other: Results, name: str) -> float:
        """Return the largest difference from the other's arrays and losses, relative to the largest value."""
        pairs: list[tuple[Any, Any]] = [(one, other.arrays(name).get(key)) for key, one in self.arrays(name).items()]
        if self.losses or other.losses:
            pairs.append((np.array(self.losses), np.array(other.losses)))
        if not pairs or any(theirs is None or mine.shape != theirs.shape for mine, theirs in pairs):
            return float("inf")
        return max(float(np.abs(mine - theirs).max() / np.abs(theirs).max()) for mine, theirs in pairs)

    def answer_counts(self) -> tuple[int, int]:
        """Return how many answers were given, and how many differed from an earlier one to the same question."""
        given, different = (self.directory / "counts").read_text().split()
        return int(given), int(different)


def check_framework() -> None:
    """Raise an error with the remedy if something that the story needs is not installed."""
    if importlib.util.find_spec("tinygrad") is None:
        raise ConfigError("--story", "framework", f"it needs tinygrad, which is not installed: {_INSTALL}")
    compiler = os.environ.get("CC") or "clang"
    if shutil.which(compiler) is None:
        remedy = f"tinygrad's CPU backend needs {compiler}, which is not installed: apt-get install clang"
        raise ConfigError("--story", "framework", remedy)


def demonstrate_framework(console: Console, home: Path, report_step: Callable[[str], None], *, as_json: bool) -> int:
    """Run all scenarios; return 0 if each had the expected result."""
    report_step(f"demo: starting a software {DEVICE.upper()} and a node in {home}")
    for directory in (home / "run", home / "state"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    demo = FrameworkDemo(home)
    try:
        steps = list(_scenarios(demo, report_step))
    finally:
        demo.close()
    return show_steps(console, steps, as_json=as_json)


def _scenarios(demo: FrameworkDemo, report_step: Callable[[str], None]) -> Iterator[Step]:
    report_step("demo: the training and the service on tinygrad's CPU backend")
    cpu, alone = Results(demo.home / "cpu"), Results(demo.home / "alone")
    for words in (_training(cpu), _service(cpu)):
        process = demo.program(words, "CPU")
        demo.end(process, "a program on the CPU backend")
    report_step("demo: both alone, as tenants")
    demo.end(demo.tenant("train", _TRAIN, _training(alone)), "the training")
    demo.end(demo.tenant("web", ["--online"], _service(alone)), "the service")
    for what, name in (("loss curve and weights", "weights"), ("answers", "answers")):
        error = alone.error_of(cpu, name)
        expected = f"as on the CPU within {TOLERANCE:g}"
        yield Step(f"alone: {what}", expected, f"largest relative difference {error:.1e}", error <= TOLERANCE)
    for title, scenario in (
        ("next to each other, long kernels in parts", _shared),
        ("paused and resumed", _paused),
        ("suspended to the host and restored", _suspended),
        ("evicted and started from its checkpoint", _evicted),
    ):
        report_step(f"demo: {title}")
        results = Results(demo.home / scenario.__name__.strip("_"))
        yield from scenario(demo, results, alone)
        same = results.is_same(alone, "weights") and len(results.losses) == STEPS
        yield Step(f"{title}: training", "the same bits", "the same bits" if same else "other bits", same)


def _training(results: Results) -> list[str]:
    return ["train", str(results.directory), str(STEPS)]


def _service(results: Results) -> list[str]:
    return ["serve", str(results.directory), str(ANSWERS)]


@contextlib.contextmanager
def _serving(demo: FrameworkDemo, results: Results, *options: str) -> Iterator[None]:
    """Run the service from its first answers on; its input ends with the block."""
    web = demo.tenant("web", ["--online", *options], _service(results))
    demo.until("the service answers", lambda: (results.directory / "ready").exists() or web.poll() is not None)
    yield
    demo.end(web, "the service")


def _answers(results: Results, alone: Results) -> Step:
    given, different = results.answer_counts()
    same = results.directory.joinpath("answers.npz").exists() and not different
    same = same and all(
        one.tobytes() == alone.arrays("answers")[key].tobytes() for key, one in results.arrays("answers").items()
    )
    return Step("next to each other: answers", "the same bits", f"{given} answers, {different} different", same)


def _shared(demo: FrameworkDemo, results: Results, alone: Results) -> Iterator[Step]:
    with _serving(demo, results):
        train = demo.tenant("train", _TRAIN, _training(results))
        parts = 0
        while train.poll() is None:
            parts = max(parts, demo.parts("train"))
            pause(_POLL_S)
        demo.end(train, "the training")
    yield Step("next to each other: kernels", "launched in parts", f"{parts} parts", parts > 0)
    yield _answers(results, alone)


def _await_steps(demo: FrameworkDemo, results: Results, count: int) -> None:
    demo.until(f"the training has made {count} steps", lambda: len(results.losses) >= count)


def _paused(demo: FrameworkDemo, results: Results, _alone: Results) -> Iterator[Step]:
    train = demo.tenant("train", _TRAIN, _training(results))
    _await_steps(demo, results, 3)
    demo.command("pause", "train")
    pause(0.5)  # a step that had begun may end
    before = len(results.losses)
    pause(1.0)
    during = len(results.losses)
    demo.command("resume", "train")
    demo.end(train, "the training")
    made = f"{during - before} while paused"
    yield Step("paused and resumed: steps", "none while paused", made, during == before < STEPS)


def _suspended(demo: FrameworkDemo, results: Results, alone: Results) -> Iterator[Step]:
    train = demo.tenant("train", _TRAIN, _training(results))
    _await_steps(demo, results, 3)
    with _serving(demo, results, *_LARGE):
        phase = demo.phase("train")
    demo.end(train, "the training")
    seen = phase.value if phase else "gone"
    yield Step("suspended: while the service runs", "suspended", seen, phase is ExitPhase.SUSPENDED)
    yield msgspec.structs.replace(_answers(results, alone), what="suspended: answers of the service")


def _evicted(demo: FrameworkDemo, results: Results, alone: Results) -> Iterator[Step]:
    train = demo.tenant("train", _EVICTABLE, _training(results))
    _await_steps(demo, results, 3)
    with _serving(demo, results, *_LARGE):
        is_gone, kept = demo.phase("train") is None, (results.directory / "checkpoint.npz").exists()
    demo.end(train, "the training")
    seen = f"{'evicted' if is_gone else 'running'}, {'a' if kept else 'no'} checkpoint"
    yield Step("evicted: while the service runs", "evicted, a checkpoint", seen, is_gone and kept)
    yield msgspec.structs.replace(_answers(results, alone), what="evicted: answers of the service")
