"""Does every file open with the one line that says what it is for?"""

import ast
import re

from tests.tidy.tree import Problem, Tree

ENDS = (".", "?")


def module_openings(tree: Tree) -> list[Problem]:
    problems = []
    for path in tree.python():
        docstring = ast.get_docstring(tree.parse(path), clean=False)
        fault = _docstring_fault(docstring)
        if fault:
            problems.append(Problem(path, 1, fault))
    return problems


def c_openings(tree: Tree) -> list[Problem]:
    problems = []
    for path in tree.c():
        found = re.match(r"/\*(.*?)\*/|//([^\n]*(?:\n//[^\n]*)*)", tree.read(path), re.DOTALL)
        text = (found.group(1) or found.group(2) or "").replace("//", "").strip() if found else ""
        if not text:
            problems.append(Problem(path, 1, "opens without a comment that says what it is for"))
        elif not text.endswith(ENDS):
            problems.append(Problem(path, 1, "the opening comment is no sentence: it ends in neither . nor ?"))
    return problems


def _docstring_fault(docstring: str | None) -> str | None:
    if not docstring:
        return "opens without a docstring"
    first, *rest = docstring.split("\n")
    if not first.strip():
        return "the docstring's opening line is empty: write it beside the quotes"
    if not first.rstrip().endswith(ENDS):
        return "the docstring's opening line is no sentence: it ends in neither . nor ?"
    if rest and rest[0].strip():
        return "the docstring's opening is more than one line: leave the next one blank"
    return None
