"""A load generator for the example service: HTTP requests that are due at fixed intervals, whatever the answers do."""

from __future__ import annotations

import http.client
import threading
from types import TracebackType
from typing import Final, Self

from cotenant.runner.clock import monotonic_ns, pause
from cotenant.units.instant import MILLISECOND_NS
from cotenant.workload.player import quantile

_TIMEOUT_S: Final = 10.0


class RequestLoad:
    """Sends requests from a thread, one after the other; a request that is due while another is answered waits."""

    def __init__(self, address: str, port: int = 8000, *, period_ms: int = 50, path: str = "/infer") -> None:
        """Describe the load; entering the context starts it."""
        self._address, self._port, self._path = address, port, path
        self._period_ns = period_ms * MILLISECOND_NS
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="request-load", daemon=True)
        self._latencies_ns: list[int] = []
        self.failed = 0

    def __enter__(self) -> Self:
        """Begin to send."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop after the present request."""
        self._stopping.set()
        self._thread.join()

    def take(self) -> list[int]:
        """Return the latencies since the last call, in nanoseconds from the instant at which a request was due."""
        count = len(self._latencies_ns)
        taken, self._latencies_ns[:count] = self._latencies_ns[:count], []
        return taken

    def wait_for(self, requests: int) -> None:
        """Wait until this many answers are there that have not been taken."""
        while len(self._latencies_ns) < requests and not self._stopping.is_set():
            pause(0.05)

    def _run(self) -> None:
        connection = http.client.HTTPConnection(self._address, self._port, timeout=_TIMEOUT_S)
        due_ns = monotonic_ns()
        while not self._stopping.is_set():
            due_ns += self._period_ns
            if (ahead_ns := due_ns - monotonic_ns()) > 0:
                pause(ahead_ns / 1e9)
            try:
                connection.request("GET", self._path)
                answer = connection.getresponse()
                answer.read()
                if answer.status == http.HTTPStatus.OK:
                    self._latencies_ns.append(monotonic_ns() - due_ns)
                    continue
            except (OSError, http.client.HTTPException):
                connection.close()  # the next request connects again
            self.failed += 1
        connection.close()


def p99_ms(latencies_ns: list[int]) -> float:
    """Return the 99th percentile in milliseconds; 0 if there are none."""
    return quantile(sorted(latencies_ns), 0.99) / MILLISECOND_NS if latencies_ns else 0.0
