"""Rules about docstrings: every file starts with one sentence that states what it contains."""

import ast
import re

from tests.lint.tree import Problem, Tree

END = "."


def module_docstrings(tree: Tree) -> list[Problem]:
    problems = []
    for path in tree.python():
        docstring = ast.get_docstring(tree.parse(path), clean=False)
        fault = _docstring_fault(docstring)
        if fault:
            problems.append(Problem(path, 1, fault))
    return problems


def c_file_comments(tree: Tree) -> list[Problem]:
    problems = []
    for path in tree.c():
        comment = re.match(r"/\*(.*?)\*/|//([^\n]*(?:\n//[^\n]*)*)", tree.read(path), re.DOTALL)
        text = (comment.group(1) or comment.group(2) or "").replace("//", "").strip() if comment else ""
        if not text:
            problems.append(Problem(path, 1, "the file does not start with a comment that says what it contains"))
        elif not text.endswith(END):
            problems.append(Problem(path, 1, "the first comment does not end with a period: write a statement"))
    return problems


def _docstring_fault(docstring: str | None) -> str | None:
    if not docstring:
        return "the module has no docstring"
    first, *rest = docstring.split("\n")
    if not first.strip():
        return "the docstring's first line is empty: write the summary on the line of the quotes"
    if not first.rstrip().endswith(END):
        return "the docstring's first line does not end with a period: write a statement"
    if rest and rest[0].strip():
        return "the docstring's summary is longer than one line: leave the second line blank"
    return None
