"""Who tells a daemon to stop? SIGTERM and SIGINT, which become a step of its loop like any other."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable

from cotenant.live.loop import READ, ReadyLoop


def stop_on_signals(loop: ReadyLoop, stop: Callable[[str], None]) -> None:
    """Call `stop` with why, in the loop, through a pipe that it watches."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    def told(mask: int) -> None:
        del mask
        with contextlib.suppress(BlockingIOError):
            for number in reader.recv(64):
                stop(f"told to by {signal.Signals(number).name}")

    loop.watch(reader.fileno(), READ, told)
    loop.keep(reader, writer)
