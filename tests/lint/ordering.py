"""Rule about determinism: pure layers and simulators never iterate over a set, whose order no seed decides."""

import ast
from collections.abc import Iterator

from tests.lint.tree import Problem, Tree

SET_TYPES = {"set", "frozenset", "Set", "FrozenSet", "AbstractSet", "MutableSet"}
SET_METHODS = {"union", "intersection", "difference", "symmetric_difference"}
# Calls whose result depends on the order of a set, and calls whose result does not.
ORDERED_BY = {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "sum", "reversed", "next", "join", "extend"}
ORDER_FREE = {"sorted", "any", "all", "len", "set", "frozenset", "min", "max"}


def walks_over_sets(tree: Tree) -> list[Problem]:
    problems = []
    for path in sorted({*tree.pure(), *tree.simulated()}):
        module = tree.parse(path)
        attributes = set(_annotated_attributes(module))
        for scope in _scopes(module):
            names = set(_names_of_sets(scope, attributes))
            problems += [Problem(path, line, text) for line, text in _walks(scope, names, attributes)]
    return sorted(set(problems))


def _walks(scope: ast.AST, names: set[str], attributes: set[str]) -> Iterator[tuple[int, str]]:
    free = {
        id(arg)
        for node in _nodes_of_scope(scope)
        if isinstance(node, ast.Call) and _is_order_free(node)
        for arg in node.args
    }
    for node in _nodes_of_scope(scope):
        walked: list[ast.expr] = []
        if isinstance(node, ast.For | ast.AsyncFor):
            walked = [node.iter]
        elif isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp) and id(node) not in free:
            walked = [part.iter for part in node.generators]
        elif isinstance(node, ast.Call) and (_called(node) in ORDERED_BY or _breaks_ties(node)):
            walked = list(node.args)
        elif isinstance(node, ast.Starred):
            walked = [node.value]
        elif isinstance(node, ast.Call) and _called(node) == "pop" and isinstance(node.func, ast.Attribute):
            walked = [] if node.args else [node.func.value]
        for expr in walked:
            if _is_set(expr, names, attributes):
                yield (
                    node.lineno if hasattr(node, "lineno") else expr.lineno,
                    (f"{ast.unparse(expr)} is a set: sort it, or keep a dict or a list (rule 7)"),
                )


def _is_order_free(call: ast.Call) -> bool:
    """Return whether a call ignores order: min and max do unless a key lets two elements tie."""
    return _called(call) in ORDER_FREE and not _breaks_ties(call)


def _breaks_ties(call: ast.Call) -> bool:
    return _called(call) in {"min", "max"} and any(word.arg == "key" for word in call.keywords)


def _is_set(expr: ast.expr, names: set[str], attributes: set[str]) -> bool:
    if isinstance(expr, ast.Set | ast.SetComp):
        return True
    if isinstance(expr, ast.Name):
        return expr.id in names
    if isinstance(expr, ast.Attribute):
        return expr.attr in attributes and isinstance(expr.value, ast.Name) and expr.value.id in {"self", "cls"}
    if isinstance(expr, ast.Call):
        if _called(expr) in {"set", "frozenset"}:
            return True
        return _called(expr) in SET_METHODS
    if isinstance(expr, ast.BinOp) and isinstance(expr.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        sides = (expr.left, expr.right)
        return any(_is_set(side, names, attributes) or _is_keys(side) for side in sides)
    return False


def _is_keys(expr: ast.expr) -> bool:
    return isinstance(expr, ast.Call) and _called(expr) == "keys" and not expr.args


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _names_of_sets(scope: ast.AST, attributes: set[str]) -> Iterator[str]:
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]
        yield from (arg.arg for arg in arguments if _annotates_set(arg.annotation))
    set_names: set[str] = set()
    for node in _nodes_of_scope(scope):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _annotates_set(node.annotation):
            set_names.add(node.target.id)
        elif isinstance(node, ast.Assign) and _is_set(node.value, set_names, attributes):
            set_names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    yield from set_names


def _annotated_attributes(module: ast.Module) -> Iterator[str]:
    """Yield the attributes that this file annotates as sets, in a class body or at an assignment."""
    for node in ast.walk(module):
        if isinstance(node, ast.AnnAssign) and _annotates_set(node.annotation):
            if isinstance(node.target, ast.Attribute):
                yield node.target.attr
            elif isinstance(node.target, ast.Name):
                yield node.target.id


def _annotates_set(annotation: ast.expr | None) -> bool:
    head = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    name = head.attr if isinstance(head, ast.Attribute) else getattr(head, "id", "")
    return name in SET_TYPES


def _scopes(module: ast.Module) -> Iterator[ast.AST]:
    yield module
    yield from (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _nodes_of_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope in order, without those of nested functions."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield child
        yield from _nodes_of_scope(child)
