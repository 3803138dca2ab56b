"""The time that `cotenant run` takes to start a program, next to the start of the interpreter that it is written in."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cotenant.errors import WorldError
from cotenant.harness.harness import NodePolicy, SharingHarness
from cotenant.runner.clock import monotonic_ns

_STARTS: Final = 20


def measure_starts(rounds: int) -> list[tuple[float, float]]:
    """Return the seconds of `cotenant run -- true` and of a bare interpreter, one after the other, in each start.

    The modules are compiled, as those of an installed package are, whatever the environment says.
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory(prefix="cotenant-bench-") as home, SharingHarness(Path(home)) as harness:
        harness.set_policy(NodePolicy())
        paths = harness.directories
        where = ["--runtime-dir", str(paths.runtime), "--state-dir", str(paths.state)]
        run = [sys.executable, "-m", "cotenant", "run", *where, "--", "true"]
        bare = [sys.executable, "-c", "pass"]
        _seconds(run, environ)  # compiles what is not compiled yet
        return [(_seconds(run, environ), _seconds(bare, environ)) for _ in range(rounds * _STARTS)]


def _seconds(command: Sequence[str], environ: Mapping[str, str]) -> float:
    began_ns = monotonic_ns()
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorldError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return (monotonic_ns() - began_ns) / 1e9
