"""One process of a test cluster: how it is started, stopped, killed and restarted, and its log."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from cotenant.runner.clock import monotonic_ns, pause
from cotenant_lab.errors import RunFailedError

_POLL_S: Final = 0.1
_STOP_S: Final = 10.0
_LOG_LINES: Final = 12


class Component:
    """A program of the cluster. Its log file keeps the output of all its runs."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        prefix: Sequence[str] = (),
        forks: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Describe the process; `prefix` enters its namespaces, and `forks` tells that the prefix starts a child."""
        self.name = name
        self.command = list(command)
        self.log = log
        self._prefix = list(prefix)
        self._forks = forks
        self._environment = dict(os.environ if environment is None else environment)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; it must not be running."""
        if self.is_running:
            raise RunFailedError(f"{self.name} is already running")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._prefix, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # Ctrl-C at a terminal stops the test, which then stops its processes in order
            )

    @property
    def is_running(self) -> bool:
        """Return whether the process has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Return the process's number on this machine, whatever its pid namespace."""
        if self._process is None:
            raise RunFailedError(f"{self.name} has not been started")
        return self.child_pid() if self._forks else self._process.pid

    def child_pid(self) -> int:
        """Return the only child of a process that forks once, such as nsenter; wait for it if it is not there yet."""
        children: list[str] = []
        parent = 0 if self._process is None else self._process.pid

        def has_child() -> bool:
            with contextlib.suppress(OSError):
                children[:] = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            return bool(children)

        wait_until(f"{self.name} has a process in its namespaces", has_child, _STOP_S, [self])
        return int(children[0])

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal, SIGKILL if none is given; after SIGKILL wait for the end."""
        if self._process is not None and self.is_running:
            try:
                os.kill(self.pid, number)
            except (ProcessLookupError, RunFailedError):
                if self.is_running:
                    raise
            if number == signal.SIGKILL:
                self._process.wait()

    def reap(self) -> None:
        """Wait for a process whose end has been caused, such as by the end of its namespaces."""
        if self._process is not None:
            self._process.wait(_STOP_S)

    def stop(self) -> None:
        """End the process with SIGTERM, and with SIGKILL if it is still there some seconds later."""
        if self._process is None or not self.is_running:
            return
        self.kill(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self) -> None:
        """Stop the process if it runs, and start it again."""
        self.stop()
        self.start()

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(lines[-_LOG_LINES:])


def wait_until(
    what: str,
    is_true: Callable[[], bool],
    timeout_s: float,
    components: Sequence[Component] = (),
    poll_s: float = _POLL_S,
) -> None:
    """Wait until a condition holds; fail when the time is over, or at once when a component has ended."""
    until = monotonic_ns() + int(timeout_s * 1e9)
    while not is_true():
        for component in components:
            if not component.is_running:
                tail = component.log_tail()
                raise RunFailedError(
                    f"{component.name} ended while waiting until {what}; end of {component.log}:\n{tail}"
                )
        if monotonic_ns() > until:
            tails = "".join(f"\nend of {component.log}:\n{component.log_tail()}" for component in components)
            raise RunFailedError(f"it was not the case within {timeout_s:g} s that {what}{tails}")
        pause(poll_s)
