"""The program `cotenant`, which `python -m cotenant` starts as well."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the built-in part of `signal`; the rest takes milliseconds to import
import atexit
import gc
import os
import sys


def start() -> int:
    """Run the command that the arguments name, and end the process.

    Until the command itself begins, Ctrl-C ends the process by the signal, as it ends a program in C: a Python
    exception in the middle of an import would be printed with its stack. A caller that ignores the signal, such as
    nohup, has it ignored here too.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    gc.disable()  # what is imported stays; `run_command` enables it again for what the command does
    from cotenant.cli import main  # noqa: PLC0415  imported once Ctrl-C can no longer print a stack

    try:
        code = main()
    except SystemExit as end:  # argparse has printed help or an error
        if not isinstance(end.code, int):
            raise
        code = end.code
    _end_at_once(code)
    return code


def _end_at_once(code: int) -> None:
    """End the process without destroying every object first, which takes longer than many commands run.

    All that Python does at the end of a program besides is done here. It is left to Python while a thread is running,
    or if the output cannot be written.
    """
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        return
    atexit._run_exitfuncs()  # noqa: SLF001  there is no public name
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return
    os._exit(code)


if __name__ == "__main__":
    sys.exit(start())
