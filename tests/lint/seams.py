"""Rules about boundaries: every port has a live and a simulated implementation; few modules bind the C extension."""

import ast
from collections.abc import Iterator

from tests.lint.tree import LAB, PRODUCT, Problem, Tree, inside

PORTS = tuple(f"{PRODUCT}{component}/ports.py" for component in ("runner", "node", "serve", "cluster"))
CONFORMANCE = "tests/runner/test_port_conformance.py"
TABLE = "IMPLEMENTATIONS"
SIDES = ("live", "sim")

NATIVE = "_native"
# Bindings of the gate, the ledger, the device model, the matcher, the software GPU, the hook's files and the player.
BINDS_NATIVE = ("gate", "softgpu", "hook", "workload/player", "cluster/policy")


def ports_with_one_side(tree: Tree) -> list[Problem]:
    """Report ports that lack a live or a simulated implementation in the table of the conformance suite.

    The table is a literal, so that it can be read without importing it:
    IMPLEMENTATIONS = {Clock: {"live": LiveClock, "sim": SimLoop}, ...}
    """
    ports = {
        name: (path, line) for path in PORTS if path in tree.paths for name, line in protocols(tree.parse(path)).items()
    }
    table = _table(tree.parse(CONFORMANCE)) if CONFORMANCE in tree.paths else None
    if table is None:
        missing = Problem(CONFORMANCE, 1, f"there is no table {TABLE}: every port needs a row (rule 4)")
        return [missing] if ports else []
    problems = []
    for name, (path, line) in ports.items():
        sides = table.get(name, set())
        lacks = [side for side in SIDES if side not in sides]
        if lacks:
            problems.append(Problem(path, line, f"{name} has no {' and no '.join(lacks)} side in {TABLE} (rule 4)"))
    unknown = [name for name in table if name not in ports]
    return problems + [
        Problem(CONFORMANCE, 1, f"{name} in {TABLE} is not a Protocol of a ports.py") for name in unknown
    ]


def native_bound_elsewhere(tree: Tree) -> list[Problem]:
    """Report imports of the compiled extension, which import-linter cannot see, outside its bindings."""
    return [
        Problem(path, node.lineno, f"only {', '.join(BINDS_NATIVE)} may import cotenant.{NATIVE}")
        for path in tree.python(PRODUCT, LAB)
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
    """Yield the sides that a row fills: a dict literal, or a call with keywords; None and an empty list fill none."""
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
