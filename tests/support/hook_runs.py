"""Load the hook in front of a driver in tests, and read its records."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from cotenant.hook import shim
from cotenant.hook.record import Record
from cotenant.hook.records import read_records
from cotenant.softgpu import manage

NATIVE = Path(__file__).parents[2] / "native" / "tests"
HOOK_MODES = ("shim", "preload")


class Hook:
    """The hook in front of one driver: the environment of programs, and their records."""

    def __init__(self, home: Path, driver: Path, base: dict[str, str]) -> None:
        self.base = {**os.environ, **base}
        self.shim, self.records = home / "shim", home / "records"
        home.mkdir()
        self.records.mkdir()
        shim.make_shim(self.shim, driver)

    def environ(self, mode: str, *, measure: bool = False, sample: int = 64, unknown: str = "pass") -> dict[str, str]:
        variables = {
            shim.RECORD_VARIABLE: str(self.records),
            "COTENANT_MEASURE": str(int(measure)),
            "COTENANT_SAMPLE": str(sample),
            "COTENANT_UNKNOWN": unknown,
        }
        return {**self.base, **variables, **shim.environment(mode, self.shim, self.base)}

    def recorded(self) -> list[Record]:
        """Return the records since the last call."""
        records = list(read_records(self.records, "task"))
        for path in self.records.iterdir():
            path.unlink()
        return records


def hook_before(softgpu: Path, home: Path) -> Hook:
    """Return the hook in front of the software GPUs of a directory."""
    return Hook(home, manage.library(), manage.env(softgpu, base={}))


def compiled(home: Path, source: str, *flags: str) -> Path:
    """Compile a C program or library of native/tests without linking to cotenant."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    target = home / Path(source).stem
    command = ["gcc", "-std=gnu11", "-O1", f"-I{NATIVE}", str(NATIVE / source), "-o", str(target), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def run(
    command: Sequence[str | Path], environ: dict[str, str], input_text: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environ, input=input_text, capture_output=True, text=True, check=False, timeout=120
    )
