"""A project small enough to be broken on purpose: every room once, under the real configuration."""

import shutil
from pathlib import Path

from tests.tool import ROOT

CONFIG = ("pyproject.toml", ".importlinter")
VERBS = ("predict", "place", "admit", "schedule", "limit", "adjust", "protect")
FOLDERS = ("apps", "experiment", "live", "sim", "machine", "policy", "format", "domain")


def _text(*lines: str) -> str:
    return "\n".join(lines) + "\n"


FILES = {
    "src/cotenant/__init__.py": _text(
        *('"""The package."""', "", "from cotenant.told import request", "", '__all__ = ["request"]'),
    ),
    "src/cotenant/told.py": _text(
        *('"""What programs tell."""', "", "import os", "", ""),
        *("def request() -> bool:", '    return bool(os.environ.get("COTENANT_RECORD"))'),
    ),
    "src/cotenant/errors.py": _text('"""One tree."""', "", "", "class CotenantError(Exception):", "    pass"),
    "src/cotenant/domain/instant.py": _text('"""What is an instant?"""', "", "SECOND_NS = 1_000_000_000"),
    "src/cotenant/format/wire.py": _text(
        '"""Bytes to values."""', "", "from cotenant.domain.instant import SECOND_NS", "", "WIRE_NS = SECOND_NS"
    ),
    "src/cotenant/port.py": _text(
        *('"""Every seam."""', "", "from typing import Protocol", "", ""),
        *("class Clock(Protocol):", "    def now(self) -> int: ..."),
    ),
    "src/cotenant/policy/predict/mean.py": _text(
        *('"""The mean is the forecast."""', "", ""),
        *("def mean_ns(samples_ns: list[int]) -> int:", "    return sum(samples_ns) // len(samples_ns)"),
    ),
    "src/cotenant/machine/node.py": _text(
        *('"""Who remembers on a node."""', "", "from cotenant.policy.predict.mean import mean_ns", "", ""),
        *("def expect_ns(samples_ns: list[int]) -> int:", "    return mean_ns(samples_ns)"),
    ),
    "src/cotenant/host.py": _text(
        '"""One turn."""', "", "from cotenant.machine.node import expect_ns", "", "turn = expect_ns"
    ),
    "src/cotenant/live/clock.py": _text(
        *('"""The one clock."""', "", "import time", "", ""),
        *("class WallClock:", "    def now(self) -> int:", "        return time.monotonic_ns()"),
    ),
    "src/cotenant/sim/clock.py": _text(
        *('"""A clock that is told the time."""', "", "import random", "", "", "class HeapClock:"),
        *("    def __init__(self, seed: int) -> None:", "        self.now_ns = random.Random(seed).getrandbits(32)"),
        *("", "    def now(self) -> int:", "        return self.now_ns"),
    ),
    "src/cotenant/apps/simulate.py": _text(
        *('"""Wires the simulated world."""', "", "from cotenant.host import turn"),
        *("from cotenant.sim.clock import HeapClock", "", "", "def simulate(seed: int) -> int:"),
        "    return turn([HeapClock(seed).now()])",
    ),
    "src/cotenant/cli/__init__.py": _text(
        *('"""Arguments to config."""', "", "from cotenant.apps.simulate import simulate", "", ""),
        *("def main() -> int:", "    print(simulate(1))", "    return 0"),
    ),
    "src/cotenant/__main__.py": _text(
        '"""python -m cotenant."""', "", "from cotenant.cli import main", "", "raise SystemExit(main())"
    ),
    "tests/live/test_port_conformance.py": _text(
        *('"""Do both sides keep what a port promises?"""', "", "from cotenant.live.clock import WallClock"),
        *("from cotenant.port import Clock", "from cotenant.sim.clock import HeapClock", ""),
        'IMPLEMENTATIONS = {Clock: {"live": WallClock, "sim": HeapClock}}',
    ),
    "native/gate/one.c": _text("/* One function. */", "int one(void)", "{", "    return 1;", "}"),
}


def plant(root: Path, changes: dict[str, str] | None = None) -> Path:
    """The whole tree with these files added or replaced; returns its root."""
    files: dict[str, str] = {}
    for folder in (*FOLDERS, *(f"policy/{verb}" for verb in VERBS)):
        files[f"src/cotenant/{folder}/__init__.py"] = f'"""The room {folder}."""\n'
    files |= FILES | (changes or {})
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    for name in CONFIG:
        shutil.copy(ROOT / name, root / name)
    return root
