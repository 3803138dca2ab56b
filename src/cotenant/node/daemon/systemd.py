"""The interface of systemd for services: readiness by sd_notify(3), and whether the log goes to its journal."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

from cotenant.runner.clock import monotonic_ns

PRIORITIES: Final = {"error": 3, "warning": 4, "info": 6}
"""By the level of a log event: the priorities of syslog(3), which the journal reads from a prefix such as <4>."""


class ServiceManager:
    """Sends the state of this process to the service manager that started it, if there is one."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Use the socket that the environment names in NOTIFY_SOCKET; without it nothing is sent."""
        self._address = environ.get("NOTIFY_SOCKET", "")

    def ready(self, status: str) -> None:
        """Report that the start, or the reload, is complete."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Report that the config is being read again."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={monotonic_ns() // 1000}")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(f"STATUS={text}")

    def stopping(self) -> None:
        """Report that the service ends."""
        self._send("STOPPING=1")

    def _send(self, *lines: str) -> None:
        if not self._address.startswith(("/", "@")):
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        text = "\n".join(line.replace("\n", " ") for line in lines)
        # A service must not end because its manager does not listen.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
        ):
            sender.setblocking(False)
            sender.sendto(text.encode(), address)


def is_journal_stream(descriptor: int, environ: Mapping[str, str]) -> bool:
    """Return whether a descriptor is connected to systemd's journal (JOURNAL_STREAM names its device and inode)."""
    device, colon, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    if not colon or not device.isdigit() or not inode.isdigit():
        return False
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (int(device), int(inode))
