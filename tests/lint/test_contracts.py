"""Every contract and lint rule reports a tree with one deliberate break, under the project's own configuration."""

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.lint import sizes
from tests.lint.rules import RULES
from tests.lint.sample_tree import FILES, plant
from tests.lint.tree import tree_of
from tests.support.tools import BIN, ROOT, ToolMissingError, run, run_or_fail, tool

HEAD = '"""One line."""\n\n'
OLD_NOUN = "roster"
TO_DO = "TO" + "DO"
WORK = "/wor" + "k/main"


def lint_imports(root: Path, bin_dir: Path = BIN) -> subprocess.CompletedProcess[str]:
    # -S skips the editable install, whose import hook would find the real cotenant.
    path = os.pathsep.join([str(root / "src"), str(root / "lab/src"), sysconfig.get_path("purelib")])
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
def test_unbroken_tree_passes(name: str, tmp_path: Path) -> None:
    done = TOOLS[name](plant(tmp_path))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", TOOLS)
def test_missing_tool_is_a_failure(name: str, tmp_path: Path) -> None:
    with pytest.raises(ToolMissingError):
        TOOLS[name](plant(tmp_path / "tree"), tmp_path / "an empty folder")


def test_make_check_fails_without_its_tools(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for made in ("bin/python", ".pinned", ".installed"):  # as if setup had been done
        (tmp_path / made).touch(mode=0o755)
    done = run(["make", "check", f"VENV={tmp_path}"], ROOT)
    assert done.returncode != 0
    assert "ruff" in done.stdout


TABLE = "import only what this table allows"
PURE = "Pure layers use no clock"
SIMULATORS = "Simulators never import a policy"
POLICIES = "Policy folders of the node are independent"
PRODUCT = "The product never imports the lab"

IMPORT_BREAKS = {
    "model imports state": ("node/model/gpu.py", "from cotenant.node.state import node", TABLE),
    "runner imports the node": ("runner/host.py", "from cotenant.node import state", TABLE),
    "an import inside a function": ("units/instant.py", "def f() -> None:\n    import cotenant.cli", TABLE),
    "something imports __main__": ("cli/__init__.py", "import cotenant.__main__", TABLE),
    "a component that is not listed": ("lounge/__init__.py", "", TABLE),
    "a layer that is not listed": ("node/lounge.py", "", TABLE),
    "the daemon imports the simulator": ("node/daemon/main.py", "from cotenant.node.sim import clock", TABLE),
    "the simulator imports the daemon": ("node/sim/traffic.py", "from cotenant.node import daemon", TABLE),
    "the simulator imports a policy": (
        "node/sim/traffic.py",
        "from cotenant.node.policy.place import spread",
        SIMULATORS,
    ),
    "the simulator reaches a policy": ("node/sim/traffic.py", "from cotenant.node.state import node", SIMULATORS),
    "a policy imports another": (
        "node/policy/limit/share.py",
        "from cotenant.node.policy.place import spread",
        POLICIES,
    ),
    "a policy folder that is not listed": ("node/policy/guess/__init__.py", "", POLICIES),
    "the product imports the lab": ("serve/model/scheduling.py", "import cotenant_lab", PRODUCT),
    "the product imports scipy": ("predict/latency.py", "import scipy", PRODUCT),
} | {
    f"{module} in {path}": (path, f"import {module}", PURE)
    for module, path in (
        ("time", "node/state/node.py"),
        ("random", "node/policy/limit/budget.py"),
        ("asyncio", "runner/host.py"),
        ("threading", "units/instant.py"),
        ("socket", "serve/protocol/http1.py"),
        ("os", "runner/ports.py"),
        ("logging", "errors.py"),
        ("subprocess", "serve/state/server.py"),
        ("secrets", "node/policy/admit/quota.py"),
        ("datetime", "node/model/event.py"),
        ("selectors", "cluster/state/cluster.py"),
        ("signal", "cluster/model/job.py"),
        ("multiprocessing", "node/policy/protect/monitor.py"),
    )
}


@pytest.mark.parametrize("name", IMPORT_BREAKS)
def test_import_linter_catches(name: str, tmp_path: Path) -> None:
    path, line, contract = IMPORT_BREAKS[name]
    done = lint_imports(plant(tmp_path, {f"src/cotenant/{path}": f"{HEAD}{line}\n"}))
    assert done.returncode != 0, done.stdout
    assert re.search(rf"{contract}.* BROKEN", done.stdout), done.stdout


@pytest.mark.parametrize("module", ["errors.py", "runner/host.py", "cli/__init__.py", "__main__.py"])
def test_import_linter_reports_a_removed_module(module: str, tmp_path: Path) -> None:
    root = plant(tmp_path)
    (root / "src/cotenant" / module).unlink()
    assert lint_imports(root).returncode != 0


TYPE_BREAKS = {
    "a wrong type": ("src/cotenant/node/model/gpu.py", 'memory_bytes: int = "4GiB"', "assignment"),
    "no annotation": ("src/cotenant/node/model/gpu.py", "def f(x):\n    return x", "no-untyped-def"),
    "a bare generic": ("src/cotenant/node/model/gpu.py", "def f(x: list) -> None: ...", "type-arg"),
    "an ignore without its code": (
        "src/cotenant/node/model/gpu.py",
        "x: int = ''  # type: ignore",
        "ignore-without-code",
    ),
    "maybe never bound": ("src/cotenant/node/model/gpu.py", "if __name__:\n    x = 1\nprint(x)", "possibly-undefined"),
    "an untyped test": ("tests/test_gpu.py", "def test_gpu():\n    assert True", "no-untyped-def"),
}


def test_mypy_catches_each_break(tmp_path: Path) -> None:
    """All at once, each in a file of its own: most of the time goes into reading the types of Python itself."""
    at = {name: path.replace("gpu", f"gpu{index}") for index, (name, (path, _, _)) in enumerate(TYPE_BREAKS.items())}
    done = mypy(plant(tmp_path, {at[name]: f"{HEAD}{line}\n" for name, (_, line, _) in TYPE_BREAKS.items()}))
    assert done.returncode == 1, done.stdout
    caught = set(re.findall(r"^(\S+?):\d+: error: .*\[(\S+)\]$", done.stdout, re.MULTILINE))
    missed = [name for name, (_, _, code) in TYPE_BREAKS.items() if (at[name], code) not in caught]
    assert not missed, done.stdout


LINT_BREAKS = {
    "no module docstring": ("node/model/gpu.py", "x = 1\n", "D100"),
    "no package docstring": ("node/model/__init__.py", "x = 1\n", "D104"),
    "a summary without a period": ("node/model/gpu.py", '"""One line"""\n', "D400"),
    "a summary below its quotes": ("node/model/gpu.py", '"""\nOne line.\n\nMore.\n"""\n', "D212"),
    "a print in a pure layer": ("predict/gpu.py", HEAD + "print(1)\n", "T201"),
    "a print in units": ("units/text.py", HEAD + "print(1)\n", "T201"),
    "a clock in the node": ("node/nvml.py", HEAD + "import time\n\nt = time.monotonic()\n", "TID251"),
    "a clock by another name": ("node/nvml.py", HEAD + "from time import perf_counter_ns as p\n\nt = p()\n", "TID251"),
    "a clock in simulate": ("simulate/node.py", HEAD + "import time\n\nt = time.time()\n", "TID251"),
    "a date in the daemon": (
        "node/daemon/main.py",
        HEAD + "import datetime\n\nt = datetime.datetime.now(None)\n",
        "TID251",
    ),
    "a sleep": ("node/nvml.py", HEAD + "import time\n\ntime.sleep(1)\n", "TID251"),
    "an RNG without a seed": ("node/sim/device.py", HEAD + "import random\n\nx = random.random()\n", "TID251"),
    "an unused import": ("node/model/gpu.py", HEAD + "import json\n", "F401"),
    "a bare except": ("node/nvml.py", HEAD + "try:\n    x = 1\nexcept Exception:\n    x = 2\n", "BLE001"),
    "a long line": ("node/model/gpu.py", HEAD + f'x = "{"long " * 30}"\n', "E501"),
    "an unused noqa": ("node/model/gpu.py", HEAD + "x = 1  # noqa: F401\n", "RUF100"),
    "a noqa without a code": ("node/model/gpu.py", HEAD + "import json  # noqa\n", "PGH004"),
    "too many branches": (
        "node/model/gpu.py",
        HEAD
        + "def f(x: int) -> int:\n"
        + "".join(f"    if x == {i}:\n        x += {i}\n" for i in range(13))
        + "    return x\n",
        "C901",
    ),
    "a mutable default": ("node/model/gpu.py", HEAD + "def f(x: list[int] = []) -> None: ...\n", "B006"),
    "a flag by position": ("node/model/gpu.py", HEAD + "def f(x: bool) -> None: ...\n", "FBT001"),
}


@pytest.mark.parametrize("name", LINT_BREAKS)
def test_ruff_catches(name: str, tmp_path: Path) -> None:
    path, text, code = LINT_BREAKS[name]
    done = ruff_check(plant(tmp_path, {f"src/cotenant/{path}": text}))
    assert done.returncode == 1, done.stdout
    assert re.search(rf"{path}:\d+:\d+: {code} ", done.stdout), done.stdout


LINT_ALLOWED = {
    "a clock in the clock module": ("runner/clock.py", HEAD + "import time\n\nx = time.monotonic_ns()\n"),
    "a print in simulate": ("simulate/node.py", HEAD + "print(1)\n"),
    "a print in a command": ("cli/node.py", HEAD + "print(1)\n"),
    "a seeded RNG": ("node/sim/traffic.py", HEAD + "from random import Random\n\nx = Random(1).random()\n"),
    "a process in the daemon": (
        "node/daemon/mps.py",
        HEAD + 'import subprocess\n\nsubprocess.run(["mps"], check=True)\n',
    ),
    "no docstring on a function": ("node/model/gpu.py", HEAD + "def f() -> None: ...\n"),
}


@pytest.mark.parametrize("name", LINT_ALLOWED)
def test_ruff_allows(name: str, tmp_path: Path) -> None:
    path, text = LINT_ALLOWED[name]
    done = ruff_check(plant(tmp_path, {f"src/cotenant/{path}": text}))
    reported = [line for line in done.stdout.splitlines() if path in line and "INP001" not in line]
    assert reported == []


def test_ruff_format_catches_a_different_layout(tmp_path: Path) -> None:
    done = ruff_format(plant(tmp_path, {"src/cotenant/node/model/gpu.py": f"{HEAD}x  =  'one'\n"}))
    assert done.returncode == 1
    assert "node/model/gpu.py" in done.stdout


@pytest.mark.parametrize("rule", RULES)
def test_unbroken_tree_follows_every_rule(rule: str, tmp_path: Path) -> None:
    assert RULES[rule](tree_of(plant(tmp_path))) == []


PURE_GPU = "src/cotenant/node/model/gpu.py"
LONG_BODY = "".join(f"    x = {i};\n" for i in range(70))
CONFORMANCE = "tests/runner/test_port_conformance.py"
SECOND_PORT = FILES["src/cotenant/runner/ports.py"] + "\n\nclass Disk(Protocol):\n    pass\n"

RULE_BREAKS = [
    ("file length", PURE_GPU, HEAD + "\n" * 600),
    ("file length", "native/gate/two.c", "/* Two. */\n" + "int x;\n" * 600),
    ("function length", PURE_GPU, HEAD + "def f() -> None:\n" + LONG_BODY),
    ("function length", PURE_GPU, HEAD + "class A:\n  async def f(self) -> None:\n" + LONG_BODY),
    (
        "function length",
        "native/gate/two.c",
        "/* Two. */\nchar a = '{'; /* { */ char *s = \"}{{\";\n"
        "static struct p q = {1};\nint f(int x)\n{\n" + LONG_BODY + "}\n",
    ),
    ("no vague names", "src/cotenant/node/utils.py", HEAD),
    ("no vague names", "src/cotenant/node/policy/place/_helpers/__init__.py", HEAD),
    ("no vague names", "native/common/page.h", "/* A page. */\n"),
    ("no vague names", "native/gate/types.h", "/* Types. */\n"),
    ("no simulation flag", "src/cotenant/node/state/node.py", HEAD + "is_sim = False\n"),
    ("no simulation flag", "src/cotenant/node/nvml.py", HEAD + "if self.is_simulated:\n    pass\n"),
    ("no simulation flag", "native/hook/launch.c", "/* A launch. */\nint is_simulation;\n"),
    ("no retired names", PURE_GPU, HEAD + f"class Gpu{OLD_NOUN.capitalize()}:\n    pass\n"),
    ("no retired names", PURE_GPU, HEAD + f"def f(read_{OLD_NOUN}_now: int) -> None: ...\n"),
    ("no retired names", PURE_GPU, HEAD + f"class A:\n    def f(self) -> None:\n        self.{OLD_NOUN}s = 1\n"),
    ("no retired names", PURE_GPU, HEAD + f"import json as {OLD_NOUN}\n"),
    ("no retired names", f"src/cotenant/node/{OLD_NOUN}.py", HEAD),
    ("no retired names", "tests/node/test_gpu.py", HEAD + f"def test_{OLD_NOUN}() -> None: ...\n"),
    ("no retired names", "lab/src/cotenant_lab/run.py", HEAD + f"{OLD_NOUN.upper()} = 1\n"),
    ("no retired names", "native/gate/two.c", f"/* Two. */\nint ct_gate_{OLD_NOUN}(void);\n"),
    ("no retired words in text", PURE_GPU, HEAD + f"x = 1  # the {OLD_NOUN}\n"),
    ("no retired words in text", "docs/guide.md", f"The {OLD_NOUN.capitalize()} decides.\n"),
    ("no retired words in text", "native/gate/two.c", f"/* The {OLD_NOUN}. */\n"),
    ("no retired words in text", "scenarios/node.toml", f'name = "{OLD_NOUN}"\n'),
    ("no duplicate class names", PURE_GPU, HEAD + "class Gpu:\n    pass\n"),
    ("no participle as a type name", PURE_GPU, HEAD + "class Judged:\n    pass\n"),
    ("no participle as a type name", PURE_GPU, HEAD + "class _Seen:\n    pass\n"),
    ("no leftovers", PURE_GPU, HEAD + f"# {TO_DO}: later\n"),
    ("no leftovers", "Makefile", "# FIX" + "ME\n"),
    ("no leftovers", "native/gate/two.c", "/* XX" + "X. */\n"),
    ("no workplace", "docs/guide.md", f"Open {WORK}.\n"),
    ("no workplace", "deploy/run.sh", "cd ../sha" + "red/data\n"),
    ("no registry in the lock file", "requirements.lock", "--index-url https" + "://registry.example/simple\n"),
    ("no registry in the lock file", "requirements.lock", "one @ file" + ":///srv/one.whl\n"),
    ("module docstrings", PURE_GPU, "x = 1\n"),
    ("module docstrings", PURE_GPU, '"""No period"""\n'),
    ("module docstrings", PURE_GPU, '"""Is this a question?"""\n'),
    ("module docstrings", PURE_GPU, '"""\nBelow the quotes.\n"""\n'),
    ("module docstrings", "tests/test_gpu.py", '"""Two lines.\nwithout a blank."""\n'),
    ("C file comments", "native/gate/two.c", "int two(void);\n"),
    ("C file comments", "native/gate/two.h", "/* no period */\n"),
    ("pure layers", PURE_GPU, HEAD + "import uuid\n"),
    ("pure layers", PURE_GPU, HEAD + "from time import monotonic\n"),
    ("pure layers", PURE_GPU, HEAD + 'm = __import__("random")\n'),
    ("pure layers", PURE_GPU, HEAD + "from importlib import import_module\nm = import_module('os.path')\n"),
    ("pure layers", PURE_GPU, HEAD + "x = os.urandom(8)\n"),
    ("pure layers", "src/cotenant/runner/host.py", HEAD + "def f() -> None:\n    import datetime\n"),
    ("one clock", "src/cotenant/runner/live_loop.py", HEAD + "import time as t\n\nx = t.perf_counter()\n"),
    ("one clock", "src/cotenant/runner/live_loop.py", HEAD + "from time import time_ns as n\n\nx = n\n"),
    (
        "one clock",
        "src/cotenant/runner/live_loop.py",
        HEAD + "import asyncio\n\nx = asyncio.get_running_loop().time()\n",
    ),
    ("one clock", "src/cotenant/runner/live_loop.py", HEAD + "def f(self) -> None:\n    self.loop.time()\n"),
    (
        "one clock",
        "src/cotenant/node/daemon/main.py",
        HEAD + "from datetime import datetime\n\nx = datetime.now(None)\n",
    ),
    ("seeded RNG", "src/cotenant/node/sim/fault.py", HEAD + "import random\n\nx = random.Random()\n"),
    ("seeded RNG", "src/cotenant/node/sim/fault.py", HEAD + "from random import choice\n\nx = choice([1])\n"),
    ("seeded RNG", "src/cotenant/node/sim/fault.py", HEAD + "import os\n\nx = os.urandom(8)\n"),
    ("no iteration over a set", PURE_GPU, HEAD + "for x in {1, 2}:\n    pass\n"),
    ("no iteration over a set", PURE_GPU, HEAD + "x = [y for y in set([1])]\n"),
    ("no iteration over a set", PURE_GPU, HEAD + "x = list({y for y in [1]})\n"),
    ("no iteration over a set", PURE_GPU, HEAD + "def f(s: frozenset[int]) -> int:\n    return sum(x for x in s)\n"),
    (
        "no iteration over a set",
        PURE_GPU,
        HEAD + "def f(a: dict, b: dict) -> None:\n    for x in a.keys() & b.keys(): ...\n",
    ),
    (
        "no iteration over a set",
        PURE_GPU,
        HEAD + "class A:\n    s: set[int]\n\n    def f(self):\n        return self.s.pop()\n",
    ),
    (
        "no iteration over a set",
        PURE_GPU,
        HEAD + "def f(s: set[int]) -> int:\n    t = s | {1}\n    return min(t, key=abs)\n",
    ),
    ("ports have two sides", "src/cotenant/runner/ports.py", SECOND_PORT),
    ("ports have two sides", CONFORMANCE, HEAD + 'IMPLEMENTATIONS = {Clock: {"live": 1}}\n'),
    ("ports have two sides", CONFORMANCE, HEAD + 'IMPLEMENTATIONS = {"Clock": {"live": 1, "sim": None}}\n'),
    ("ports have two sides", CONFORMANCE, HEAD + 'IMPLEMENTATIONS = {Clock: {"live": 1, "sim": 1}, Gone: {}}\n'),
    ("ports have two sides", CONFORMANCE, HEAD),
    ("few modules bind the C extension", "src/cotenant/node/state/node.py", HEAD + "from cotenant import _native\n"),
    ("few modules bind the C extension", "src/cotenant/node/nvml.py", HEAD + "import cotenant._native as n\n"),
    ("few modules bind the C extension", "src/cotenant/node/sim/fault.py", HEAD + "from .._native import read_page\n"),
]


@pytest.mark.parametrize("rule, path, text", RULE_BREAKS)
def test_rule_reports_a_break(rule: str, path: str, text: str, tmp_path: Path) -> None:
    others = {"src/cotenant/node/state/gpu.py": HEAD + "class Gpu:\n    pass\n"}
    problems = RULES[rule](tree_of(plant(tmp_path, others | {path: text})))
    assert problems


def test_every_rule_has_a_sample_break() -> None:
    assert {rule for rule, _, _ in RULE_BREAKS} == set(RULES)


RULE_ALLOWED = [
    ("function length", "native/gate/two.c", "/* Two. */\nstatic int x[] = {\n" + "    1,\n" * 90 + "};\n"),
    (
        "function length",
        "native/gate/two.h",
        '/* Two. */\n#define A(x) \\\n  if (x) {\nextern "C" {\nint f(void) { return 1; }\n}\n',
    ),
    ("no simulation flag", PURE_GPU, HEAD + "is_similar = 'simultaneous'\n"),
    ("no retired names", PURE_GPU, HEAD + "left = doorway = 1\n"),
    ("no participle as a type name", PURE_GPU, HEAD + "class Speed:\n    pass\n"),
    ("no duplicate class names", PURE_GPU, HEAD + "class _Gpu:\n    pass\n"),
    ("pure layers", PURE_GPU, HEAD + "def f(time: slice) -> object:\n    return time.start\n"),
    ("one clock", "src/cotenant/runner/clock.py", HEAD + "import time\n\nx = time.time()\n"),
    ("no iteration over a set", PURE_GPU, HEAD + "x = sorted({1, 2})\ny = {z for z in {1}}\nq = any(z for z in {1})\n"),
    ("few modules bind the C extension", "src/cotenant/gate/grant_page.py", HEAD + "from cotenant import _native\n"),
    ("few modules bind the C extension", "src/cotenant/softgpu/wire.py", HEAD + "from cotenant import _native\n"),
]


@pytest.mark.parametrize("rule, path, text", RULE_ALLOWED)
def test_rule_allows_valid_code(rule: str, path: str, text: str, tmp_path: Path) -> None:
    assert RULES[rule](tree_of(plant(tmp_path, {path: text}))) == []


def test_unneeded_exception_is_reported(tmp_path: Path) -> None:
    tree = tree_of(plant(tmp_path))
    assert sizes.long_files(tree, {"src/cotenant/runner/host.py": "short"})
    assert sizes.long_files(tree, {"src/cotenant/gone.py": "gone"})
    assert sizes.long_functions(tree, {"src/cotenant/runner/host.py::turn": "none"})


def test_git_and_a_directory_walk_find_the_same_files(tmp_path: Path) -> None:
    root = plant(tmp_path, {"build/made.py": "", "src/cotenant/__pycache__/a.py": ""})
    walked = tree_of(root)
    (root / ".gitignore").write_text("build/\n__pycache__/\n.gitignore\n", encoding="utf-8")
    run_or_fail(["git", "init", "--quiet"], root)
    assert tree_of(root).paths == walked.paths
