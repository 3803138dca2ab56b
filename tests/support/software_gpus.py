"""Run unmodified programs on a software GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cotenant.softgpu import manage

PROGRAMS = Path(__file__).parents[1] / "programs"


def start(directory: Path, program: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a program of tests/programs on the software GPUs of the directory."""
    return subprocess.Popen(
        [sys.executable, str(PROGRAMS / program), *arguments],
        env={**os.environ, **manage.env(directory)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(directory: Path, program: str, *arguments: str) -> str:
    """Run a program to its end and return its output; a failure shows the output."""
    process = start(directory, program, *arguments)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, f"{program} {arguments} ended with {process.returncode}:\n{out}\n{err}"
    return out
