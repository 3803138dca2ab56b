"""Numbers of test examples: few in `make test-fast`, more in each full run, many in `make soak`."""

import os
from typing import Final

IS_SOAK: Final = bool(os.environ.get("COTENANT_SOAK"))
"""The C tests read the same variable (native/tests/expect.h)."""
EXAMPLES: Final = 2000 if IS_SOAK else int(os.environ.get("COTENANT_EXAMPLES", "50"))
"""The number of examples of a property that sets none itself."""


def examples(few: int, many: int) -> int:
    """Return the number of examples of a property that is expensive, or that needs many: `many` in a soak."""
    return many if IS_SOAK else min(few, max(EXAMPLES, 1)) if EXAMPLES < 50 else few
