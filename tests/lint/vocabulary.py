"""Rules about names: no retired word, no public class name twice in a component, no bare participle as a type name."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tests.lint.tree import C_SUFFIXES, LAB, PRODUCT, Problem, Tree, component

_WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RETIRED_IN_NAMES = frozenset(_WORDS["retired_in_names"])
RETIRED_IN_TEXT = frozenset(_WORDS["retired_in_text"])
IRREGULAR = frozenset(_WORDS["irregular_participles"])
NOUNS = frozenset(_WORDS["nouns"])

# The files that define the rule or translate the old words.
DEFINES_THE_RULE = (
    "tests/lint/vocabulary.py",
    "tests/lint/vocabulary.toml",
    "tests/lint/test_contracts.py",
    "docs/developer/glossary.md",
)
TEXT_SUFFIXES = (".py", ".pyi", *C_SUFFIXES, ".def", ".md", ".toml", ".yaml", ".yml", ".txt", ".log", ".json")
TEXT_NAMES = ("Makefile", ".importlinter")

_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_C_NAME = re.compile(r"[A-Za-z_]\w*")
_C_LITERAL = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|^[ \t]*#[ \t]*include[^\n]*', re.DOTALL | re.MULTILINE)
_TEXT = re.compile(r"(?<![a-z])(" + "|".join(sorted(RETIRED_IN_TEXT)) + r")(?![a-z])", re.IGNORECASE)


def retired_names(tree: Tree) -> list[Problem]:
    """Report names that the project defines and that contain a retired word."""
    problems = []
    for path in tree.python("src/", "lab/", "tests/"):
        if path in DEFINES_THE_RULE:
            continue
        for name, line in [*_defined(tree.parse(path)), (PurePosixPath(path).stem, 1)]:
            problems += [_retired(path, line, name, word) for word in _words(name) & RETIRED_IN_NAMES]
    for path in tree.c():
        code = _C_LITERAL.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), tree.read(path))
        for number, line_text in enumerate(code.splitlines(), start=1):
            for name in _C_NAME.findall(line_text):
                problems += [_retired(path, number, name, word) for word in _words(name) & RETIRED_IN_NAMES]
    return sorted(set(problems))


def retired_text(tree: Tree) -> list[Problem]:
    """Report retired words in comments, messages and documents."""
    paths = [
        path
        for path in tree.paths
        if (path.endswith(TEXT_SUFFIXES) or PurePosixPath(path).name in TEXT_NAMES) and path not in DEFINES_THE_RULE
    ]
    return [
        Problem(path, number, f"{found.group()!r} is a retired word: see docs/developer/glossary.md")
        for path in paths
        for number, line in enumerate(tree.read(path).splitlines(), start=1)
        if (found := _TEXT.search(line))
    ]


def duplicate_classes(tree: Tree) -> list[Problem]:
    """Report a second public class of the same name within a component."""
    first: dict[tuple[str, str], str] = {}
    problems = []
    for path in tree.python(PRODUCT, LAB):
        for node in tree.parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                before = first.setdefault((component(path), node.name), path)
                if before != path:
                    problems.append(Problem(path, node.lineno, f"class {node.name} is also defined in {before}"))
    return problems


def participle_classes(tree: Tree) -> list[Problem]:
    """Report classes whose whole name is a participle: the name does not say what was done to what."""
    return [
        Problem(path, node.lineno, f"class {node.name} is named by a bare participle: add the noun")
        for path in tree.python(PRODUCT, LAB)
        for node in ast.walk(tree.parse(path))
        if isinstance(node, ast.ClassDef) and _is_participle(node.name.strip("_"))
    ]


def _is_participle(name: str) -> bool:
    return name in IRREGULAR or bool(re.fullmatch(r"[A-Z][a-z]+ed", name) and name not in NOUNS)


def _retired(path: str, line: int, name: str, word: str) -> Problem:
    return Problem(path, line, f"the name {name!r} contains the retired word {word!r}: see docs/developer/glossary.md")


def _words(name: str) -> set[str]:
    return {part.lower() for part in _PARTS.findall(name)}


def _defined(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names that a module defines: classes, functions, arguments, variables, attributes, import aliases."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from ((alias.asname, node.lineno) for alias in node.names if alias.asname)
