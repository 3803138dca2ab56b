"""Run a tool of the project's environment; a missing tool is a failure, not a skipped check."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


class ToolMissingError(Exception):
    """The tool is not installed: run `make setup`."""


def tool(name: str, bin_dir: Path = BIN) -> Path:
    path = bin_dir / name
    if not os.access(path, os.X_OK):
        raise ToolMissingError(f"{name} is not in {bin_dir}: run `make setup`")
    return path


def run(
    command: Sequence[str | Path], cwd: Path, env: Mapping[str, str] | None = None, timeout_s: int = 240
) -> subprocess.CompletedProcess[str]:
    """Run a command and return the finished process; standard output and error are one text."""
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )


def run_or_fail(
    command: Sequence[str | Path], cwd: Path, env: Mapping[str, str] | None = None, timeout_s: int = 240
) -> str:
    done = run(command, cwd, env, timeout_s)
    assert done.returncode == 0, f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout
