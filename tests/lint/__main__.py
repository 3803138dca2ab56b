"""Print the problems that the lint rules find below the given prefixes: `python -m tests.lint [PREFIX...]`."""

import sys
from pathlib import Path

from tests.lint.rules import RULES
from tests.lint.tree import tree_of


def main(prefixes: tuple[str, ...]) -> int:
    """Print each problem and the number of problems of each rule; return 1 if there is any."""
    tree = tree_of(Path(__file__).resolve().parents[2])
    total = 0
    for rule, check in RULES.items():
        problems = [problem for problem in check(tree) if problem.path.startswith(prefixes or "")]
        total += len(problems)
        for problem in problems:
            print(f"{problem} [{rule}]")
    print(f"{total} problems")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:])))
