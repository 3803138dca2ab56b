"""Directories of MPS, and log lines in the format of NVIDIA's daemons."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from cotenant.runner.clock import unix_ns

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
WORDS_BYTES = 65536
"""Longest message between a daemon and its peers."""


def pipe_directory() -> Path:
    return Path(os.environ.get(PIPE_VARIABLE) or "/tmp/nvidia-mps")  # noqa: S108  where MPS has always been


def log_directory() -> Path:
    return Path(os.environ.get(LOG_VARIABLE) or "/var/log/nvidia-mps")


def control_socket() -> Path:
    return pipe_directory() / "control"


def connect_to_daemon() -> socket.socket | None:
    """Connect to the control daemon; None if there is none behind the socket."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        line.connect(str(control_socket()))
    except OSError:
        line.close()
        return None
    return line


class Log:
    """A log file whose lines contain time, source and text."""

    def __init__(self, file: Path, who: str, echo: TextIO | None = None) -> None:
        self._file = file.open("a", encoding="utf-8", errors="backslashreplace")
        self._who = who
        self._echo = echo

    def write(self, text: str) -> None:
        second, rest_ns = divmod(unix_ns(), 1_000_000_000)
        when = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S")
        line = f"[{when}.{rest_ns // 1_000_000:03d} {self._who} {os.getpid():5d}] {text}\n"
        for out in (self._file, self._echo):
            if out is not None:
                out.write(line)
                out.flush()
