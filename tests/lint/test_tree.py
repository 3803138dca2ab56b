"""The tree that the lint rules check contains the project's files, and exceptions from a rule have a reason."""

from tests.lint.rules import LONG_FILES, LONG_FUNCTIONS
from tests.lint.tree import tree_of
from tests.support.tools import ROOT


def test_tree_is_not_empty() -> None:
    tree = tree_of(ROOT)
    assert "src/cotenant/__init__.py" in tree.paths
    assert "native/gate/gate.h" in tree.paths
    assert not [path for path in tree.paths if path.startswith((".venv/", "build/"))]


def test_every_exception_has_a_reason() -> None:
    assert all(reason.strip() for reason in [*LONG_FILES.values(), *LONG_FUNCTIONS.values()])
