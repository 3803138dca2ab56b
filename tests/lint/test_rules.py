"""The project follows its lint rules.

Each rule is a function from a tree to its problems; tests/lint/test_contracts.py shows that each one reports a break.
"""

from collections.abc import Callable

import pytest

from tests.lint import docstrings, ordering, purity, seams, sizes, text_rules, vocabulary
from tests.lint.tree import Problem, Tree, tree_of
from tests.support.tools import ROOT

# Path: why the file may be longer than the limit. An entry that is no longer needed fails the test.
LONG_FILES: dict[str, str] = {}

# path::function: why the function may be longer than the limit.
LONG_FUNCTIONS: dict[str, str] = {}

RULES: dict[str, Callable[[Tree], list[Problem]]] = {
    "file length": lambda tree: sizes.long_files(tree, LONG_FILES),
    "function length": lambda tree: sizes.long_functions(tree, LONG_FUNCTIONS),
    "no vague names": text_rules.vague_names,
    "no simulation flag": text_rules.simulation_flags,
    "no leftovers": text_rules.leftovers,
    "no workplace": text_rules.workplaces,
    "no registry in the lock file": text_rules.registries,
    "no retired names": vocabulary.retired_names,
    "no retired words in text": vocabulary.retired_text,
    "no duplicate class names": vocabulary.duplicate_classes,
    "no participle as a type name": vocabulary.participle_classes,
    "module docstrings": docstrings.module_docstrings,
    "C file comments": docstrings.c_file_comments,
    "pure layers": purity.outside_in_pure_layers,
    "one clock": purity.clocks_outside_the_clock,
    "seeded RNG": purity.unseeded_rng,
    "no iteration over a set": ordering.walks_over_sets,
    "ports have two sides": seams.ports_with_one_side,
    "few modules bind the C extension": seams.native_bound_elsewhere,
}


@pytest.mark.parametrize("rule", RULES)
def test_project_follows_every_rule(rule: str) -> None:
    problems = RULES[rule](tree_of(ROOT))
    assert not problems, "\n".join(map(str, problems))


def test_tree_is_not_empty() -> None:
    tree = tree_of(ROOT)
    assert "src/cotenant/__init__.py" in tree.paths
    assert "native/gate/gate.h" in tree.paths
    assert not [path for path in tree.paths if path.startswith((".venv/", "build/"))]


def test_every_exception_has_a_reason() -> None:
    assert all(reason.strip() for reason in [*LONG_FILES.values(), *LONG_FUNCTIONS.values()])
