"""Rules about purity: pure layers use no clock, no RNG and nothing outside the process."""

import ast
from collections.abc import Iterator

from tests.lint.tree import LAB, PRODUCT, Problem, Tree, inside

OUTSIDE = {
    *("asyncio", "datetime", "logging", "multiprocessing", "os", "random", "secrets", "selectors", "signal"),
    *("socket", "subprocess", "threading", "time", "uuid", "zoneinfo", "tempfile", "shutil", "concurrent"),
}
IMPORTERS = {"__import__", "import_module"}

CLOCK_READS = {
    *(
        f"time.{name}{suffix}"
        for name in ("time", "monotonic", "perf_counter", "process_time")
        for suffix in ("", "_ns")
    ),
    *(f"time.{name}{suffix}" for name in ("thread_time", "clock_gettime") for suffix in ("", "_ns")),
    *("time.localtime", "time.gmtime", "time.ctime", "time.sleep"),
    *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
}
LOOP_GETTERS = {"asyncio.get_running_loop", "asyncio.get_event_loop", "asyncio.new_event_loop"}
UNSEEDED = ("secrets", "os.urandom", "os.getrandom", "uuid.uuid1", "uuid.uuid4", "random.SystemRandom")


def outside_in_pure_layers(tree: Tree) -> list[Problem]:
    """Report what import-linter cannot see: imports by string, and names that reached the module in another way."""
    problems = []
    for path in tree.pure():
        module = tree.parse(path)
        bound = _bound_names(module)
        for node in ast.walk(module):
            if not isinstance(node, ast.stmt | ast.expr):
                continue
            for name in _reached(node, bound):
                if name.split(".")[0] in OUTSIDE:
                    problems.append(Problem(path, node.lineno, f"a pure layer uses {name} (rules 1 and 5)"))
    return problems


def clocks_outside_the_clock(tree: Tree) -> list[Problem]:
    """Report reads of a clock outside runner/clock: everything else takes the instant as an argument."""
    problems = []
    for path in tree.python(PRODUCT, LAB):
        if inside(path, "runner/clock"):
            continue
        for name, node in _uses(tree.parse(path)):
            if name in CLOCK_READS or _is_loop_time(name):
                problems.append(Problem(path, node.lineno, f"{name} outside runner/clock (rule 1)"))
    return problems


def unseeded_rng(tree: Tree) -> list[Problem]:
    """Report random numbers in simulators that do not come from a seed."""
    problems = []
    for path in tree.simulated():
        module = tree.parse(path)
        seeded = {id(node.func) for node in ast.walk(module) if isinstance(node, ast.Call) and node.args}
        for name, node in _uses(module):
            if name.startswith("random.Random."):
                continue  # a method of an RNG that was checked where it was created
            if name == "random.Random":
                is_unseeded = id(node) not in seeded and _is_called(module, node)
            else:
                is_unseeded = name.startswith(("random.", "secrets.")) or name in UNSEEDED
            if is_unseeded:
                problems.append(Problem(path, node.lineno, f"{name} draws without a seed (rule 7)"))
    return problems


def _is_called(module: ast.Module, func: ast.expr) -> bool:
    return any(isinstance(node, ast.Call) and node.func is func for node in ast.walk(module))


def _is_loop_time(name: str) -> bool:
    owner, _, method = name.rpartition(".")
    return method == "time" and (owner.endswith("loop") or owner in LOOP_GETTERS)


def _reached(node: ast.AST, bound: set[str]) -> Iterator[str]:
    """Yield the outside names that one node imports or uses."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module
    elif isinstance(node, ast.Call) and _last_name(node.func) in IMPORTERS:
        yield from (str(arg.value) for arg in node.args if isinstance(arg, ast.Constant))
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id not in bound:
        yield f"{node.value.id}.{node.attr}"


def _bound_names(module: ast.Module) -> set[str]:
    """Return the arguments and variables: `time.width` of an argument called time is not a clock."""
    names = set()
    for node in ast.walk(module):
        if isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _uses(module: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield each dotted name that is used, with import aliases resolved: `t.monotonic` after `import time as t`."""
    spelled = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            spelled.update({alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module:
            spelled.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            dotted = _dotted(node)
            if dotted:
                head, _, tail = dotted.partition(".")
                yield spelled.get(head, head) + (f".{tail}" if tail else ""), node


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value.func if isinstance(node.value, ast.Call) else node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
