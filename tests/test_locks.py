"""Does every lock bite? Each one is shown a tree with one deliberate break, under the project's own configuration."""

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.test_tidy import RULES
from tests.tidy import sizes
from tests.tidy.mini import FILES, plant
from tests.tidy.tree import tree_of
from tests.tool import BIN, ROOT, ToolMissingError, run, run_or_fail, tool

HEAD = '"""One line."""\n\n'
TO_DO = "TO" + "DO"
WORK = "/wor" + "k/main"


def lint_imports(root: Path, bin_dir: Path = BIN) -> subprocess.CompletedProcess[str]:
    # -S leaves out the editable install, whose import hook would answer with the real cotenant.
    path = os.pathsep.join([str(root / "src"), sysconfig.get_path("purelib")])
    command: list[str | Path] = [tool("python", bin_dir), "-S", tool("lint-imports", bin_dir), "--no-cache"]
    return run(command, root, {"PYTHONPATH": path})


def mypy(root: Path, bin_dir: Path = BIN) -> subprocess.CompletedProcess[str]:
    return run([tool("mypy", bin_dir), "--cache-dir", os.devnull], root)


def ruff_check(root: Path, bin_dir: Path = BIN) -> subprocess.CompletedProcess[str]:
    return run([tool("ruff", bin_dir), "check", "--no-cache", "--output-format", "concise", "."], root)


def ruff_format(root: Path, bin_dir: Path = BIN) -> subprocess.CompletedProcess[str]:
    return run([tool("ruff", bin_dir), "format", "--no-cache", "--check", "."], root)


TOOLS = {"lint-imports": lint_imports, "mypy": mypy, "ruff check": ruff_check, "ruff format": ruff_format}


@pytest.mark.parametrize("name", TOOLS)
def test_the_unbroken_tree_passes(name: str, tmp_path: Path) -> None:
    done = TOOLS[name](plant(tmp_path))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", TOOLS)
def test_a_missing_tool_is_a_failure(name: str, tmp_path: Path) -> None:
    with pytest.raises(ToolMissingError):
        TOOLS[name](plant(tmp_path / "tree"), tmp_path / "an empty folder")


def test_make_check_fails_without_its_tools(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for made in ("bin/python", ".pinned", ".installed"):  # as if setup had been done
        (tmp_path / made).touch(mode=0o755)
    done = run(["make", "check", f"VENV={tmp_path}"], ROOT)
    assert done.returncode != 0
    assert "ruff" in done.stdout


ROOMS = "Rooms only look down"
PURE = "Pure rooms touch no clock"
BELIEF = "never sees a policy"
WORLDS = "do not know each other"
VERBS = "Verbs are independent"

IMPORT_BREAKS = {
    "domain looks up": ("domain/gpu.py", "from cotenant.machine import node", ROOMS),
    "host looks up": ("host.py", "from cotenant.live import clock", ROOMS),
    "an import inside a function": ("domain/gpu.py", "def f() -> None:\n    import cotenant.cli", ROOMS),
    "someone imports __main__": ("cli/__init__.py", "import cotenant.__main__", ROOMS),
    "an unlisted room": ("lounge/__init__.py", "", ROOMS),
    "an unlisted module": ("lounge.py", "", ROOMS),
    "live imports sim": ("live/gpu.py", "from cotenant.sim import clock", WORLDS),
    "sim imports live": ("sim/device.py", "from cotenant.live import clock", WORLDS),
    "sim imports a policy": ("sim/device.py", "from cotenant.policy.predict import mean", BELIEF),
    "sim reaches a policy through host": ("sim/device.py", "from cotenant import host", BELIEF),
    "a verb imports another": ("policy/place/best.py", "from cotenant.policy.predict import mean", VERBS),
    "a verb nobody declared": ("policy/guess/__init__.py", "", VERBS),
} | {
    f"{module} in {room}": (path, f"import {module}", PURE)
    for module, room, path in (
        ("time", "machine", "machine/node.py"),
        ("random", "policy", "policy/limit/budget.py"),
        ("asyncio", "host", "host.py"),
        ("threading", "domain", "domain/gpu.py"),
        ("socket", "format", "format/config.py"),
        ("os", "port", "port.py"),
        ("logging", "errors", "errors.py"),
        ("subprocess", "machine", "machine/server.py"),
        ("secrets", "policy", "policy/admit/quota.py"),
        ("datetime", "domain", "domain/event.py"),
        ("selectors", "host", "host.py"),
        ("signal", "machine", "machine/node.py"),
        ("multiprocessing", "policy", "policy/protect/monitor.py"),
    )
}


@pytest.mark.parametrize("name", IMPORT_BREAKS)
def test_import_linter_catches(name: str, tmp_path: Path) -> None:
    path, line, contract = IMPORT_BREAKS[name]
    done = lint_imports(plant(tmp_path, {f"src/cotenant/{path}": f"{HEAD}{line}\n"}))
    assert done.returncode != 0, done.stdout
    assert re.search(rf"{contract}.* BROKEN", done.stdout), done.stdout


@pytest.mark.parametrize("room", ["errors.py", "port.py", "host.py", "cli/__init__.py", "__main__.py"])
def test_import_linter_misses_a_room_that_is_gone(room: str, tmp_path: Path) -> None:
    root = plant(tmp_path)
    (root / "src/cotenant" / room).unlink()
    assert lint_imports(root).returncode != 0


TYPE_BREAKS = {
    "a wrong type": ("src/cotenant/domain/gpu.py", 'memory_bytes: int = "4GiB"', "assignment"),
    "no annotation": ("src/cotenant/domain/gpu.py", "def f(x):\n    return x", "no-untyped-def"),
    "a bare generic": ("src/cotenant/domain/gpu.py", "def f(x: list) -> None: ...", "type-arg"),
    "an ignore without its code": ("src/cotenant/domain/gpu.py", "x: int = ''  # type: ignore", "ignore-without-code"),
    "maybe never bound": ("src/cotenant/domain/gpu.py", "if __name__:\n    x = 1\nprint(x)", "possibly-undefined"),
    "an untyped test": ("tests/test_gpu.py", "def test_gpu():\n    assert True", "no-untyped-def"),
}


def test_mypy_catches_each_break(tmp_path: Path) -> None:
    """All at once, each in a file of its own: most of the time goes into reading the types of Python itself."""
    at = {name: path.replace("gpu", f"gpu{place}") for place, (name, (path, _, _)) in enumerate(TYPE_BREAKS.items())}
    done = mypy(plant(tmp_path, {at[name]: f"{HEAD}{line}\n" for name, (_, line, _) in TYPE_BREAKS.items()}))
    assert done.returncode == 1, done.stdout
    caught = set(re.findall(r"^(\S+?):\d+: error: .*\[(\S+)\]$", done.stdout, re.MULTILINE))
    missed = [name for name, (_, _, code) in TYPE_BREAKS.items() if (at[name], code) not in caught]
    assert not missed, done.stdout


LINT_BREAKS = {
    "no module docstring": ("domain/gpu.py", "x = 1\n", "D100"),
    "no package docstring": ("domain/__init__.py", "x = 1\n", "D104"),
    "an opening that is no sentence": ("domain/gpu.py", '"""One line"""\n', "D415"),
    "an opening below its quotes": ("domain/gpu.py", '"""\nOne line.\n\nMore.\n"""\n', "D212"),
    "a print in a pure room": ("domain/gpu.py", HEAD + "print(1)\n", "T201"),
    "a print in live": ("live/gpu.py", HEAD + "print(1)\n", "T201"),
    "a clock in live": ("live/gpu.py", HEAD + "import time\n\nt = time.monotonic()\n", "TID251"),
    "a clock by another name": ("live/gpu.py", HEAD + "from time import perf_counter_ns as p\n\nt = p()\n", "TID251"),
    "a clock in experiment": ("experiment/lab.py", HEAD + "import time\n\nt = time.time()\n", "TID251"),
    "a date in apps": ("apps/node.py", HEAD + "import datetime\n\nt = datetime.datetime.now(None)\n", "TID251"),
    "a sleep": ("live/gpu.py", HEAD + "import time\n\ntime.sleep(1)\n", "TID251"),
    "dice without a seed": ("sim/device.py", HEAD + "import random\n\nx = random.random()\n", "TID251"),
    "an unused import": ("domain/gpu.py", HEAD + "import json\n", "F401"),
    "a bare except": ("live/gpu.py", HEAD + "try:\n    x = 1\nexcept Exception:\n    x = 2\n", "BLE001"),
    "a long line": ("domain/gpu.py", HEAD + f'x = "{"long " * 30}"\n', "E501"),
    "an unused noqa": ("domain/gpu.py", HEAD + "x = 1  # noqa: F401\n", "RUF100"),
    "a noqa without a code": ("domain/gpu.py", HEAD + "import json  # noqa\n", "PGH004"),
    "too many branches": (
        "domain/gpu.py",
        HEAD
        + "def f(x: int) -> int:\n"
        + "".join(f"    if x == {i}:\n        x += {i}\n" for i in range(13))
        + "    return x\n",
        "C901",
    ),
    "a mutable default": ("domain/gpu.py", HEAD + "def f(x: list[int] = []) -> None: ...\n", "B006"),
    "a flag by position": ("domain/gpu.py", HEAD + "def f(x: bool) -> None: ...\n", "FBT001"),
}


@pytest.mark.parametrize("name", LINT_BREAKS)
def test_ruff_catches(name: str, tmp_path: Path) -> None:
    path, text, code = LINT_BREAKS[name]
    done = ruff_check(plant(tmp_path, {f"src/cotenant/{path}": text}))
    assert done.returncode == 1, done.stdout
    assert re.search(rf"{path}:\d+:\d+: {code} ", done.stdout), done.stdout


LINT_ALLOWED = {
    "a clock in the clock's folder": ("live/clock/wall.py", HEAD + "import time\n\nx = time.monotonic_ns()\n"),
    "a print in an experiment": ("experiment/lab.py", HEAD + "print(1)\n"),
    "a print in an app": ("apps/node/wire.py", HEAD + "print(1)\n"),
    "seeded dice": ("sim/traffic.py", HEAD + "from random import Random\n\nx = Random(1).random()\n"),
    "a process in live": ("live/gpu/mps.py", HEAD + 'import subprocess\n\nsubprocess.run(["mps"], check=True)\n'),
    "no docstring on a function": ("domain/gpu.py", HEAD + "def f() -> None: ...\n"),
}


@pytest.mark.parametrize("name", LINT_ALLOWED)
def test_ruff_allows(name: str, tmp_path: Path) -> None:
    path, text = LINT_ALLOWED[name]
    done = ruff_check(plant(tmp_path, {f"src/cotenant/{path}": text}))
    reported = [line for line in done.stdout.splitlines() if path in line and "INP001" not in line]
    assert reported == []


def test_ruff_format_catches_another_layout(tmp_path: Path) -> None:
    done = ruff_format(plant(tmp_path, {"src/cotenant/domain/gpu.py": f"{HEAD}x  =  'one'\n"}))
    assert done.returncode == 1
    assert "domain/gpu.py" in done.stdout


@pytest.mark.parametrize("rule", RULES)
def test_the_unbroken_tree_is_tidy(rule: str, tmp_path: Path) -> None:
    assert RULES[rule](tree_of(plant(tmp_path))) == []


PURE_GPU = "src/cotenant/domain/gpu.py"
LONG_BODY = "".join(f"    x = {i};\n" for i in range(70))
CONFORMANCE = "tests/live/test_port_conformance.py"
SECOND_PORT = FILES["src/cotenant/port.py"] + "\n\nclass Disk(Protocol):\n    pass\n"

TIDY_BREAKS = [
    ("file length", PURE_GPU, HEAD + "\n" * 400),
    ("file length", "native/gate/two.c", "/* Two. */\n" + "int x;\n" * 400),
    ("function length", PURE_GPU, HEAD + "def f() -> None:\n" + LONG_BODY),
    ("function length", PURE_GPU, HEAD + "class A:\n  async def f(self) -> None:\n" + LONG_BODY),
    (
        "function length",
        "native/gate/two.c",
        "/* Two. */\nchar a = '{'; /* { */ char *s = \"}{{\";\n"
        "static struct p q = {1};\nint f(int x)\n{\n" + LONG_BODY + "}\n",
    ),
    ("no buckets", "src/cotenant/live/utils.py", HEAD),
    ("no buckets", "src/cotenant/policy/place/_helpers/__init__.py", HEAD),
    ("no buckets", "native/common/page.h", "/* A page. */\n"),
    ("no buckets", "native/gate/types.h", "/* Types. */\n"),
    ("the word for the other world", "src/cotenant/machine/node.py", HEAD + "x = 1  # only when Simulated\n"),
    ("the word for the other world", "src/cotenant/host.py", HEAD + "is_sim = False\n"),
    ("the word for the other world", "src/cotenant/live/gpu.py", HEAD + 'MODE = "simulation"\n'),
    ("the word for the other world", "native/hook/launch.c", "/* A launch. */\nint simulate;\n"),
    ("no leftovers", PURE_GPU, HEAD + f"# {TO_DO}: later\n"),
    ("no leftovers", "Makefile", "# FIX" + "ME\n"),
    ("no leftovers", "native/gate/two.c", "/* XX" + "X. */\n"),
    ("no workplace", "docs/guide.md", f"Open {WORK}.\n"),
    ("no workplace", "deploy/run.sh", "cd /tmp/han" + "ds/one\n"),
    ("no registry in the lock file", "requirements.lock", "--index-url https" + "://registry.example/simple\n"),
    ("no registry in the lock file", "requirements.lock", "one @ file" + ":///srv/one.whl\n"),
    ("module openings", PURE_GPU, "x = 1\n"),
    ("module openings", PURE_GPU, '"""No sentence"""\n'),
    ("module openings", PURE_GPU, '"""\nBelow the quotes.\n"""\n'),
    ("module openings", "tests/test_gpu.py", '"""Two lines.\nwithout a blank."""\n'),
    ("C openings", "native/gate/two.c", "int two(void);\n"),
    ("C openings", "native/gate/two.h", "/* no sentence */\n"),
    ("pure rooms stay inside", PURE_GPU, HEAD + "import uuid\n"),
    ("pure rooms stay inside", PURE_GPU, HEAD + "from time import monotonic\n"),
    ("pure rooms stay inside", PURE_GPU, HEAD + 'm = __import__("random")\n'),
    ("pure rooms stay inside", PURE_GPU, HEAD + "from importlib import import_module\nm = import_module('os.path')\n"),
    ("pure rooms stay inside", PURE_GPU, HEAD + "x = os.urandom(8)\n"),
    ("pure rooms stay inside", "src/cotenant/host.py", HEAD + "def f() -> None:\n    import datetime\n"),
    ("one clock", "src/cotenant/live/loop.py", HEAD + "import time as t\n\nx = t.perf_counter()\n"),
    ("one clock", "src/cotenant/live/loop.py", HEAD + "from time import time_ns as n\n\nx = n\n"),
    ("one clock", "src/cotenant/live/loop.py", HEAD + "import asyncio\n\nx = asyncio.get_running_loop().time()\n"),
    ("one clock", "src/cotenant/live/loop.py", HEAD + "def f(self) -> None:\n    self.loop.time()\n"),
    ("one clock", "src/cotenant/apps/node.py", HEAD + "from datetime import datetime\n\nx = datetime.now(None)\n"),
    ("seeded dice", "src/cotenant/sim/fault.py", HEAD + "import random\n\nx = random.Random()\n"),
    ("seeded dice", "src/cotenant/sim/fault.py", HEAD + "from random import choice\n\nx = choice([1])\n"),
    ("seeded dice", "src/cotenant/sim/fault.py", HEAD + "import os\n\nx = os.urandom(8)\n"),
    ("no walk over a set", PURE_GPU, HEAD + "for x in {1, 2}:\n    pass\n"),
    ("no walk over a set", PURE_GPU, HEAD + "x = [y for y in set([1])]\n"),
    ("no walk over a set", PURE_GPU, HEAD + "x = list({y for y in [1]})\n"),
    ("no walk over a set", PURE_GPU, HEAD + "def f(s: frozenset[int]) -> int:\n    return sum(x for x in s)\n"),
    (
        "no walk over a set",
        PURE_GPU,
        HEAD + "def f(a: dict, b: dict) -> None:\n    for x in a.keys() & b.keys(): ...\n",
    ),
    (
        "no walk over a set",
        PURE_GPU,
        HEAD + "class A:\n    s: set[int]\n\n    def f(self):\n        return self.s.pop()\n",
    ),
    (
        "no walk over a set",
        PURE_GPU,
        HEAD + "def f(s: set[int]) -> int:\n    t = s | {1}\n    return min(t, key=abs)\n",
    ),
    ("ports have two sides", "src/cotenant/port.py", SECOND_PORT),
    ("ports have two sides", CONFORMANCE, HEAD + 'IMPLEMENTATIONS = {Clock: {"live": 1}}\n'),
    ("ports have two sides", CONFORMANCE, HEAD + 'IMPLEMENTATIONS = {"Clock": {"live": 1, "sim": None}}\n'),
    ("ports have two sides", CONFORMANCE, HEAD + 'IMPLEMENTATIONS = {Clock: {"live": 1, "sim": 1}, Gone: {}}\n'),
    ("ports have two sides", CONFORMANCE, HEAD),
    ("few bind the C core", "src/cotenant/machine/node.py", HEAD + "from cotenant import _native\n"),
    ("few bind the C core", "src/cotenant/live/gpu.py", HEAD + "import cotenant._native as n\n"),
    ("few bind the C core", "src/cotenant/sim/fault.py", HEAD + "from .._native import terms_read\n"),
]


@pytest.mark.parametrize("rule, path, text", TIDY_BREAKS)
def test_tidy_catches(rule: str, path: str, text: str, tmp_path: Path) -> None:
    problems = RULES[rule](tree_of(plant(tmp_path, {path: text})))
    assert problems


def test_every_tidy_rule_has_been_shown_a_break() -> None:
    assert {rule for rule, _, _ in TIDY_BREAKS} == set(RULES)


TIDY_ALLOWED = [
    ("function length", "native/gate/two.c", "/* Two. */\nstatic int x[] = {\n" + "    1,\n" * 90 + "};\n"),
    (
        "function length",
        "native/gate/two.h",
        '/* Two. */\n#define A(x) \\\n  if (x) {\nextern "C" {\nint f(void) { return 1; }\n}\n',
    ),
    ("the word for the other world", "src/cotenant/domain/gpu.py", HEAD + "is_similar = 'simultaneous'\n"),
    ("pure rooms stay inside", PURE_GPU, HEAD + "def f(time: slice) -> object:\n    return time.start\n"),
    ("one clock", "src/cotenant/live/clock/wall.py", HEAD + "import time\n\nx = time.time()\n"),
    ("no walk over a set", PURE_GPU, HEAD + "x = sorted({1, 2})\ny = {z for z in {1}}\nq = any(z for z in {1})\n"),
    ("few bind the C core", "src/cotenant/policy/schedule/gate.py", HEAD + "from cotenant import _native\n"),
    ("few bind the C core", "src/cotenant/live/page/terms.py", HEAD + "from cotenant import _native\n"),
]


@pytest.mark.parametrize("rule, path, text", TIDY_ALLOWED)
def test_tidy_allows(rule: str, path: str, text: str, tmp_path: Path) -> None:
    assert RULES[rule](tree_of(plant(tmp_path, {path: text}))) == []


def test_an_exception_that_is_none_is_reported(tmp_path: Path) -> None:
    tree = tree_of(plant(tmp_path))
    assert sizes.long_files(tree, {"src/cotenant/host.py": "short"})
    assert sizes.long_files(tree, {"src/cotenant/gone.py": "gone"})
    assert sizes.long_functions(tree, {"src/cotenant/host.py::turn": "none"})


def test_git_and_a_walk_see_the_same_tree(tmp_path: Path) -> None:
    root = plant(tmp_path, {"build/made.py": "", "src/cotenant/__pycache__/a.py": ""})
    walked = tree_of(root)
    (root / ".gitignore").write_text("build/\n__pycache__/\n.gitignore\n", encoding="utf-8")
    run_or_fail(["git", "init", "--quiet"], root)
    assert tree_of(root).paths == walked.paths
