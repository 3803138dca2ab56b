"""Start an attacker so that every process of it can be ended, also those that detached themselves.

`python launcher.py COMMAND...`: the launcher is a child subreaper (prctl(2)), to which detached descendants of the
attacker are moved. It ends after the last of them; on SIGTERM, or when the bench has ended, it kills all of them. The
attacker gets the lowest processor priority (SCHED_IDLE), because the bench measures the sharing of a GPU and not that
of a processor.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for word in (task / "children").read_text().split():
                yield int(word)
                yield from _descendants(int(word))


def main() -> int:
    """Start the command and wait for the order to end."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    watched = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    if os.fork() == 0:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
        os.execvp(sys.argv[1], sys.argv[1:])
    while signal.sigwait(watched) == signal.SIGCHLD:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return 0
    while pids := list(_descendants(os.getpid())):
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
