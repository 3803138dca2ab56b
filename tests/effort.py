"""How hard do tests look? Enough to find a fault soon in every run; `make soak` looks for an hour."""

import os
from typing import Final

IS_SOAK: Final = bool(os.environ.get("COTENANT_SOAK"))
"""The C tests ask for the same variable (native/tests/expect.h)."""
EXAMPLES: Final = 2000 if IS_SOAK else 50
"""Of a property that says nothing else."""


def examples(few: int, many: int) -> int:
    """How many examples of a property whose own are dear, or must be many."""
    return many if IS_SOAK else few
