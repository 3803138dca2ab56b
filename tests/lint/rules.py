"""The lint rules that `make check` applies to the project.

Each rule is a function from a tree to its problems; tests/lint/test_contracts.py shows that each one reports a break.
"""

from collections.abc import Callable

from tests.lint import docstrings, ordering, purity, seams, sizes, text_rules, vocabulary
from tests.lint.tree import Problem, Tree

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
