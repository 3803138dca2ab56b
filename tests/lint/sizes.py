"""Rules about the length of files and functions."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tests.lint.tree import C_SUFFIXES, Problem, Tree

FILE_LINES = 600
FUNCTION_LINES = 70

# Comments, strings, character literals and directives: a brace in them does not open a block.
C_NOISE = re.compile(
    r"""/\*.*?\*/ | //(?:\\\n|[^\n])* | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | ^[ \t]*\#(?:\\\n|[^\n])*""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)


class Span(NamedTuple):
    name: str
    first: int
    last: int

    @property
    def lines(self) -> int:
        return self.last - self.first + 1


def long_files(tree: Tree, exceptions: Mapping[str, str]) -> list[Problem]:
    """Report files above the limit, and exceptions that are no longer needed."""
    problems = []
    for path in tree.paths:
        if not path.endswith((".py", *C_SUFFIXES)):
            continue
        lines = len(tree.read(path).splitlines())
        if lines > FILE_LINES and path not in exceptions:
            problems.append(Problem(path, FILE_LINES, f"has {lines} lines, more than {FILE_LINES}"))
        if lines <= FILE_LINES and path in exceptions:
            problems.append(Problem(path, 1, "is listed as a long file but is short: remove the exception"))
    gone = [path for path in exceptions if path not in tree.paths]
    return problems + [Problem(path, 1, "is listed as a long file but does not exist") for path in gone]


def long_functions(tree: Tree, exceptions: Mapping[str, str]) -> list[Problem]:
    """Report functions above the limit; an exception is written path::function."""
    problems = []
    named = set()
    for path in tree.paths:
        for span in functions(tree, path):
            key = f"{path}::{span.name}"
            if span.lines <= FUNCTION_LINES:
                continue
            named.add(key)
            if key not in exceptions:
                what = f"{span.name} has {span.lines} lines, more than {FUNCTION_LINES}"
                problems.append(Problem(path, span.first, what))
    stale = [key for key in exceptions if key not in named]
    return problems + [Problem(key, 1, "is listed as a long function but is none") for key in stale]


def functions(tree: Tree, path: str) -> list[Span]:
    if path.endswith(".py"):
        nodes = ast.walk(tree.parse(path))
        return [
            Span(node.name, node.lineno, node.end_lineno or node.lineno)
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
    if path.endswith(C_SUFFIXES):
        return list(c_functions(tree.read(path)))
    return []


def c_functions(text: str) -> Iterator[Span]:
    """Yield the functions of a C file: outermost blocks whose brace follows a parenthesis."""
    code = C_NOISE.sub(_blank, text)
    depth = 0
    header_from = 0
    opened_at: int | None = None
    for mark in re.finditer(r"[{};]", code):
        at, char = mark.start(), mark.group()
        if char == "{":
            header = code[header_from:at]
            if depth == 0 and re.fullmatch(r"\s*extern\s*", header):
                header_from = at + 1  # extern "C" { contains functions and is not one itself
                continue
            if depth == 0 and header.rstrip().endswith(")"):
                opened_at = header_from + len(header) - len(header.lstrip())
            depth += 1
        elif char == "}":
            depth = max(0, depth - 1)
            if depth == 0:
                if opened_at is not None:
                    yield _c_span(code, opened_at, at)
                opened_at = None
                header_from = at + 1
        elif char == ";" and depth == 0:
            header_from = at + 1


def _c_span(code: str, first: int, last: int) -> Span:
    names = re.findall(r"(\w+)\s*\(", code[first:last].partition("{")[0])
    name = next((name for name in names if not name.startswith("__")), "?")
    return Span(name, code.count("\n", 0, first) + 1, code.count("\n", 0, last) + 1)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())
