"""A load generator for the example service: HTTP requests that are due at fixed intervals, whatever the answers do.

It is a process of its own, `python -m cotenant_lab.kubernetes.request_load ADDRESS PORT PERIOD_MS PATH`, which prints a
line per request: its latency in nanoseconds from the instant at which it was due, or 0 if it failed. It has a high
priority where that is permitted, because it stands for clients on other machines.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from cotenant.runner.clock import monotonic_ns, pause
from cotenant.units.instant import MILLISECOND_NS
from cotenant.workload.player import quantile
from cotenant_lab.errors import RunFailedError

_TIMEOUT_S: Final = 10.0
_PRIORITY: Final = -10


class RequestLoad:
    """Sends requests one after the other; a request that is due while another is answered waits."""

    def __init__(self, address: str, port: int = 8000, *, period_ms: int = 50, path: str = "/infer") -> None:
        """Describe the load; entering the context starts it."""
        words = [address, str(port), str(period_ms), path]
        self._command = [sys.executable, "-m", "cotenant_lab.kubernetes.request_load", *words]
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread(target=self._read, name="request-load", daemon=True)
        self._latencies_ns: list[int] = []
        self.failed = 0

    def __enter__(self) -> Self:
        """Begin to send."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop at once."""
        assert self._process is not None
        self._process.kill()
        self._reader.join()
        self._process.communicate()

    def take(self) -> list[int]:
        """Return the latencies since the last call, in nanoseconds from the instant at which a request was due."""
        count = len(self._latencies_ns)
        taken, self._latencies_ns[:count] = self._latencies_ns[:count], []
        return taken

    def wait_for(self, requests: int) -> None:
        """Wait until this many answers are there that have not been taken."""
        assert self._process is not None
        while len(self._latencies_ns) < requests:
            if self._process.poll() is not None:
                raise RunFailedError(f"the load generator ended with code {self._process.returncode}")
            pause(0.05)

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            latency_ns = int(line)
            if latency_ns:
                self._latencies_ns.append(latency_ns)
            else:
                self.failed += 1


def percentile_ms(latencies_ns: list[int], part: float) -> float:
    """Return a percentile in milliseconds, 0.99 for the 99th; 0 if there are no latencies."""
    return quantile(sorted(latencies_ns), part) / MILLISECOND_NS


def main(arguments: Sequence[str]) -> None:
    """Send requests until the process is killed."""
    address, port, period_ms, path = arguments
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    connection = http.client.HTTPConnection(address, int(port), timeout=_TIMEOUT_S)
    due_ns = monotonic_ns()
    while True:
        due_ns += int(period_ms) * MILLISECOND_NS
        if (ahead_ns := due_ns - monotonic_ns()) > 0:
            pause(ahead_ns / 1e9)
        is_answered = _send(connection, path)
        print(monotonic_ns() - due_ns if is_answered else 0, flush=True)


def _send(connection: http.client.HTTPConnection, path: str) -> bool:
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        connection.close()  # the next request connects again
        return False
    return answer.status == http.HTTPStatus.OK


if __name__ == "__main__":
    main(sys.argv[1:])
