"""A soft GPU for tests, and a way to run programs that know nothing of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cotenant.live.softgpu import manage

PROGRAMS = Path(__file__).parent / "programs"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def softgpu(tmp_path: Path) -> Iterator[Path]:
    """A directory with one soft V100."""
    directory = tmp_path / "gpu"
    manage.create(directory, "v100", 1)
    yield directory
    manage.destroy(directory)


def start(directory: Path, program: str, *arguments: str) -> subprocess.Popen[str]:
    """A program of tests/live/programs as its own process, on the soft GPUs of the directory."""
    return subprocess.Popen(
        [sys.executable, str(PROGRAMS / program), *arguments],
        env={**os.environ, **manage.env(directory)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(directory: Path, program: str, *arguments: str) -> str:
    """Runs it to its end; what it printed. A failure shows what it said."""
    process = start(directory, program, *arguments)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, f"{program} {arguments} ended with {process.returncode}:\n{out}\n{err}"
    return out
