"""Train until the bench gives the order, then attack: `python -m cotenant_lab.programs.attacker TARGET HOME`.

TARGET is `module:function` or `module:function:argument` of this package; a generator function prepares the attack up
to its `yield`. HOME contains `facts.json` and `report`. Orders are files in it: `start` to use the device, `go` to
attack, `stop` to end.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cotenant.runner.clock import pause
from cotenant_lab.programs.attacker.context import AttackContext
from cotenant_lab.programs.client import CudaError

_POLL_S: Final = 0.01


def main(arguments: Sequence[str]) -> int:
    """Run one attack."""
    module, function, *argument = arguments[0].split(":")
    attack = getattr(importlib.import_module(f"cotenant_lab.programs.attacker.{module}"), function)
    context = AttackContext(Path(arguments[1]))
    while not context.is_ordered("start"):
        pause(_POLL_S)
    context.connect_device()
    steps = attack(context, *argument) if inspect.isgeneratorfunction(attack) else None
    if steps is not None:
        next(steps)
    _work_until(context, "go", "ready")
    context.begin()
    try:
        if steps is None:
            attack(context, *argument)
        else:
            next(steps, None)
        ended = ""
    except (CudaError, OSError, ValueError) as error:  # the target resisted, or the attack broke its own process
        ended = f"{type(error).__name__}: {error}"
    context.note("done", attempts=context.attempts, successes=context.successes, ended=ended)
    _work_until(context, "stop", "holding")
    return 0


def _work_until(context: AttackContext, order: str, note: str) -> None:
    is_first = True
    while not context.is_ordered(order):
        try:
            context.step()
        except CudaError:
            pause(_POLL_S)
        if is_first:
            context.note(note)
            is_first = False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
