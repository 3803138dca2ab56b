"""The program `cotenant`, which `python -m cotenant` starts as well."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the built-in part of `signal`; the rest takes milliseconds to import
import sys


def start() -> int:
    """Run the command that the arguments name.

    Until the command itself begins, Ctrl-C ends the process by the signal, as it ends a program in C: a Python
    exception in the middle of an import would be printed with its stack. A caller that ignores the signal, such as
    nohup, has it ignored here too.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from cotenant.cli import main  # noqa: PLC0415  imported once Ctrl-C can no longer print a stack

    return main()


if __name__ == "__main__":
    sys.exit(start())
