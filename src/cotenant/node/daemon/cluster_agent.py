"""The cluster agent of `cotenant node --join`: a child process that is restarted whenever it ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from cotenant.cluster.config_agent import AgentConfig
from cotenant.node.config.file import plain
from cotenant.node.directories import Directories
from cotenant.node.policy.protect.backoff import delay_ns
from cotenant.runner.clock import monotonic_ns
from cotenant.units.instant import SECOND_NS

_BACKOFF_NS: Final = SECOND_NS // 2
_BACKOFF_CAP_NS: Final = 30 * SECOND_NS
_STABLE_NS: Final = 30 * SECOND_NS
_JOIN_THREAD_S: Final = 5.0


@contextmanager
def running_agent(
    config: AgentConfig, directories: Directories, file: str, report: Callable[[str], None]
) -> Iterator[None]:
    """Run the agent while the context is open; do nothing if the node joins no cluster."""
    if not config.join:
        yield
        return
    flags = [
        "--runtime-dir",
        str(directories.runtime),
        "--state-dir",
        str(directories.state),
        *(["--config", file] if file else []),
    ]
    for field in config.__struct_fields__:
        value = str(plain(getattr(config, field)))
        flags += [f"--{field.replace('_', '-')}", value] if value else []
    agent = SupervisedProcess([sys.executable, "-m", "cotenant", "cluster", "agent", "--until-eof", *flags], report)
    try:
        yield
    finally:
        agent.close()


class SupervisedProcess:
    """A process that is restarted with backoff whenever it ends; it ends when its standard input is closed.

    So it also ends if the node is killed: an agent without its node is useless, and two agents would conflict.
    """

    def __init__(self, command: Sequence[str], report: Callable[[str], None]) -> None:
        """Start the process and a thread that supervises it."""
        self._command = list(command)
        self._report = report
        self._is_closing = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the process and wait for it."""
        self._is_closing.set()
        with self._lock:
            if self._process is not None:
                self._process.terminate()
        self._thread.join(_JOIN_THREAD_S)

    def _run(self) -> None:
        tries = 0
        while not self._is_closing.is_set():
            began_ns = monotonic_ns()
            with self._lock:
                if self._is_closing.is_set():
                    return
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
                )
            process = self._process
            assert process.stderr is not None
            for line in process.stderr:
                self._report(line.rstrip().removeprefix("cotenant: "))
            code = process.wait()
            assert process.stdin is not None
            process.stdin.close()
            process.stderr.close()
            if self._is_closing.is_set():
                return
            tries = 1 if monotonic_ns() - began_ns > _STABLE_NS else tries + 1
            wait_ns = delay_ns(tries, _BACKOFF_NS, _BACKOFF_CAP_NS)
            self._report(f"the agent exited with code {code}; restarting it")
            self._is_closing.wait(wait_ns / SECOND_NS)
