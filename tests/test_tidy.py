"""Is the project tidy: short files, named rooms, pure rooms, whole seams, no leftovers?

Each rule is a function from a tree to its problems, so that tests/test_locks.py can show each one a broken tree.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tidy import openings, order, purity, seams, sizes, words
from tests.tidy.tree import Problem, Tree, tree_of

ROOT = Path(__file__).resolve().parents[1]

# path: why it may be longer than 400 lines. An entry that is no longer needed fails the test.
LONG_FILES: dict[str, str] = {}

# path::function: why it may be longer than 70 lines.
LONG_FUNCTIONS: dict[str, str] = {}

RULES: dict[str, Callable[[Tree], list[Problem]]] = {
    "file length": lambda tree: sizes.long_files(tree, LONG_FILES),
    "function length": lambda tree: sizes.long_functions(tree, LONG_FUNCTIONS),
    "no buckets": words.buckets,
    "the word for the other world": words.world_word,
    "no leftovers": words.leftovers,
    "no workplace": words.workplaces,
    "no registry in the lock file": words.registries,
    "module openings": openings.module_openings,
    "C openings": openings.c_openings,
    "pure rooms stay inside": purity.outside_in_pure_rooms,
    "one clock": purity.clocks_outside_the_clock,
    "seeded dice": purity.dice_without_a_seed,
    "no walk over a set": order.walks_over_sets,
    "ports have two sides": seams.ports_with_one_side,
    "few bind the C core": seams.native_bound_elsewhere,
}


@pytest.mark.parametrize("rule", RULES)
def test_the_project_keeps(rule: str) -> None:
    problems = RULES[rule](tree_of(ROOT))
    assert not problems, "\n".join(map(str, problems))


def test_the_tree_is_not_empty() -> None:
    tree = tree_of(ROOT)
    assert "src/cotenant/__init__.py" in tree.paths
    assert "native/gate/terms.c" in tree.paths
    assert not [path for path in tree.paths if path.startswith((".venv/", "build/"))]


def test_every_exception_has_a_reason() -> None:
    assert all(reason.strip() for reason in [*LONG_FILES.values(), *LONG_FUNCTIONS.values()])
