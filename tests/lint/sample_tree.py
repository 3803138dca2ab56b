"""A project small enough to be broken on purpose: one module for each row of the import table, real configuration."""

import configparser
import shutil
from pathlib import Path

from tests.support.tools import ROOT

CONFIG = ("pyproject.toml", ".importlinter")
POLICIES = ("place", "admit", "limit", "adjust", "protect")


def _text(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def rows() -> list[str]:
    """Return the names of the rows of the import table."""
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter", encoding="utf-8")
    lines = config["importlinter:contract:components"]["table"].splitlines()
    return [line.partition(":")[0].strip() for line in lines if line.strip()]


FILES = {
    "src/cotenant/__init__.py": _text(
        *('"""The package."""', "", "from cotenant.api import request", "from cotenant.operate import Node", ""),
        '__all__ = ["Node", "request"]',
    ),
    "src/cotenant/operate.py": _text('"""Nodes from Python."""', "", "", "class Node:", "    pass"),
    "src/cotenant/api.py": _text(
        *('"""The public API."""', "", "import os", "", ""),
        *("def request() -> bool:", '    return bool(os.environ.get("COTENANT_RECORD"))'),
    ),
    "src/cotenant/errors.py": _text('"""The exceptions."""', "", "", "class CotenantError(Exception):", "    pass"),
    "src/cotenant/units/instant.py": _text('"""Instants and durations."""', "", "SECOND_NS = 1_000_000_000"),
    "src/cotenant/runner/ports.py": _text(
        *('"""The ports."""', "", "from typing import Protocol", "", ""),
        *("class Clock(Protocol):", "    def now(self) -> int: ..."),
    ),
    "src/cotenant/runner/host.py": _text(
        '"""One turn."""', "", "from cotenant.units.instant import SECOND_NS", "", "TURN_NS = SECOND_NS"
    ),
    "src/cotenant/runner/clock.py": _text(
        *('"""The one clock."""', "", "import time", "", ""),
        *("class LiveClock:", "    def now(self) -> int:", "        return time.monotonic_ns()"),
    ),
    "src/cotenant/node/policy/place/spread.py": _text(
        *('"""The least loaded device."""', "", ""),
        *("def spread(loads: list[int]) -> int:", "    return loads.index(min(loads))"),
    ),
    "src/cotenant/node/state/node.py": _text(
        *('"""The state of a node."""', "", "from cotenant.node.policy.place.spread import spread", "", ""),
        *("def choose(loads: list[int]) -> int:", "    return spread(loads)"),
    ),
    "src/cotenant/node/sim/clock.py": _text(
        *('"""A clock that follows its caller."""', "", "import random", "", "", "class SimClock:"),
        *("    def __init__(self, seed: int) -> None:", "        self.now_ns = random.Random(seed).getrandbits(32)"),
        *("", "    def now(self) -> int:", "        return self.now_ns"),
    ),
    "src/cotenant/softgpu/sim/device.py": _text('"""A device in simulated time."""', "", "SMS = 80"),
    "src/cotenant/gate/sim.py": _text('"""A gate in memory."""', "", "SLOTS = 8"),
    "src/cotenant/simulate/node.py": _text(
        *('"""Simulate a node."""', "", "from cotenant.node.sim.clock import SimClock"),
        *("from cotenant.node.state.node import choose", "", "", "def simulate(seed: int) -> int:"),
        "    return choose([SimClock(seed).now()])",
    ),
    "src/cotenant/cli/__init__.py": _text(
        *('"""The command line."""', "", "from cotenant.simulate.node import simulate", "", ""),
        *("def main() -> int:", "    print(simulate(1))", "    return 0"),
    ),
    "src/cotenant/__main__.py": _text(
        '"""python -m cotenant."""', "", "from cotenant.cli import main", "", "raise SystemExit(main())"
    ),
    "lab/src/cotenant_lab/__init__.py": _text('"""The lab."""', "", "import cotenant", "", "product = cotenant"),
    "tests/__init__.py": _text('"""The tests."""'),
    "tests/lint/__init__.py": _text('"""The lint rules."""'),
    "tests/runner/test_port_conformance.py": _text(
        *('"""Both sides of each port."""', "", "from cotenant.node.sim.clock import SimClock"),
        *("from cotenant.runner.clock import LiveClock", "from cotenant.runner.ports import Clock", ""),
        'IMPLEMENTATIONS = {Clock: {"live": LiveClock, "sim": SimClock}}',
    ),
    "native/gate/one.c": _text("/* One function. */", "int one(void)", "{", "    return 1;", "}"),
}


def plant(root: Path, changes: dict[str, str] | None = None) -> Path:
    """Write the whole tree with these files added or replaced; return its root."""
    files: dict[str, str] = {}
    for row in rows():
        folder = f"src/cotenant/{row.replace('.', '/')}"
        if f"{folder}.py" not in FILES:
            files[f"{folder}/__init__.py"] = f'"""The row {row}."""\n'
    for path in [*FILES, *files, *(f"src/cotenant/node/policy/{policy}/x" for policy in POLICIES)]:
        if path.startswith("src/cotenant/"):
            for parent in list(Path(path).parents)[:-2]:
                files.setdefault(f"{parent}/__init__.py", f'"""The package {parent.name}."""\n')
    files |= FILES | (changes or {})
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    for name in (*CONFIG, "tests/lint/allowed_imports.py"):
        shutil.copy(ROOT / name, root / name)
    return root
