"""Are the seams whole: every port with two sides, the C core bound in its few places?"""

import ast
from collections.abc import Iterator

from tests.tidy.tree import PACKAGE, Problem, Tree, inside

PORT = PACKAGE + "port.py"
CONFORMANCE = "tests/live/test_port_conformance.py"
TABLE = "IMPLEMENTATIONS"
SIDES = ("live", "sim")

NATIVE = "_native"
# The gate and the matching for the policies, the device for the simulated world (kernel streams have no time for a
# wrapper), the pages, the ledger and the soft GPU for the real one; the hook's file lies beside the module, and its
# bench and the player are driven from C.
BINDS_NATIVE = (
    "policy/schedule",
    "policy/place",
    "sim/device",
    "sim/kernels",
    "live/page",
    "live/ledger",
    "live/softgpu",
    "live/hook",
    "live/player",
)


def ports_with_one_side(tree: Tree) -> list[Problem]:
    """Law 4: every Protocol in port.py is a row of the conformance table, with a live and a sim implementation.

    The table is a literal, so that it can be read without importing it:
    IMPLEMENTATIONS = {Clock: {"live": WallClock, "sim": HeapClock}, ...}
    """
    if PORT not in tree.paths:
        return []  # import-linter misses the room itself
    ports = protocols(tree.parse(PORT))
    table = _table(tree.parse(CONFORMANCE)) if CONFORMANCE in tree.paths else None
    if table is None:
        missing = Problem(CONFORMANCE, 1, f"no table {TABLE}: every Protocol of port.py needs its row (law 4)")
        return [missing] if ports else []
    problems = []
    for name, line in ports.items():
        sides = table.get(name, set())
        lacks = [side for side in SIDES if side not in sides]
        if lacks:
            problems.append(Problem(PORT, line, f"{name} has no {' and no '.join(lacks)} side in {TABLE} (law 4)"))
    unknown = [name for name in table if name not in ports]
    return problems + [Problem(CONFORMANCE, 1, f"{name} in {TABLE} is no Protocol of port.py") for name in unknown]


def native_bound_elsewhere(tree: Tree) -> list[Problem]:
    """The compiled module is invisible to import-linter, so its importers are counted here."""
    return [
        Problem(path, node.lineno, f"only {', '.join(BINDS_NATIVE)} may import cotenant.{NATIVE}")
        for path in tree.python(PACKAGE)
        if not inside(path, *BINDS_NATIVE)
        for node in ast.walk(tree.parse(path))
        if isinstance(node, ast.stmt | ast.expr) and NATIVE in _imported_parts(node)
    ]


def protocols(module: ast.Module) -> dict[str, int]:
    return {
        node.name: node.lineno
        for node in module.body
        if isinstance(node, ast.ClassDef) and any(_name(base) == "Protocol" for base in node.bases)
    }


def _table(module: ast.Module) -> dict[str, set[str]] | None:
    for node in module.body:
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if any(_name(target) == TABLE for target in targets) and isinstance(node.value, ast.Dict):
            rows = zip(node.value.keys, node.value.values, strict=True)
            return {_name(key): set(_sides(value)) for key, value in rows if key is not None}
    return None


def _sides(row: ast.expr) -> Iterator[str]:
    """The sides a row fills: a dict literal, or a call with keywords; None and an empty list fill nothing."""
    if isinstance(row, ast.Dict):
        pairs = [(_name(key), value) for key, value in zip(row.keys, row.values, strict=True) if key is not None]
    elif isinstance(row, ast.Call):
        pairs = [(word.arg or "", word.value) for word in row.keywords]
    else:
        return
    for side, value in pairs:
        empty = isinstance(value, ast.List | ast.Tuple) and not value.elts
        nothing = isinstance(value, ast.Constant) and not value.value
        if not empty and not nothing:
            yield side


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    if isinstance(node, ast.Constant):
        return str(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _imported_parts(node: ast.stmt | ast.expr) -> set[str]:
    if isinstance(node, ast.Import):
        return {part for alias in node.names for part in alias.name.split(".")}
    if isinstance(node, ast.ImportFrom):
        return {*(node.module or "").split("."), *(alias.name for alias in node.names)}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.Call) and _name(node.func) in {"__import__", "import_module"}:
        return {part for arg in node.args if isinstance(arg, ast.Constant) for part in str(arg.value).split(".")}
    return set()
