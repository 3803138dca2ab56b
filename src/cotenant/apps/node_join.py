"""Wires `cotenant node --join`: the agent runs beside the node, ends with it, and is started again when it ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from cotenant.domain.instant import SECOND_NS
from cotenant.format.config import plain
from cotenant.format.config_agent import AgentConfig
from cotenant.live.clock import monotonic_ns
from cotenant.live.directory import Places
from cotenant.policy.protect.backoff import delay_ns

_FIRST_NS: Final = SECOND_NS // 2
_LONGEST_NS: Final = 30 * SECOND_NS
_WELL_NS: Final = 30 * SECOND_NS
_LAST_S: Final = 5.0


@contextmanager
def agent_beside(config: AgentConfig, places: Places, file: str, say: Callable[[str], None]) -> Iterator[None]:
    """Nothing, where the machine is in no cluster."""
    if not config.join:
        yield
        return
    words = ["--runtime", str(places.runtime), "--state", str(places.state), *(["--config", file] if file else [])]
    for field in config.__struct_fields__:
        value = str(plain(getattr(config, field)))
        words += [f"--{field.replace('_', '-')}", value] if value else []
    agent = Supervised([sys.executable, "-m", "cotenant", "cluster", "agent", "--until-eof", *words], say)
    try:
        yield
    finally:
        agent.close()


class Supervised:
    """A process that is started again whenever it ends, each time later; it ends when its standard input does.

    So it ends with us, even if we are killed: two agents would be in each other's way, and one alone serves nobody.
    """

    def __init__(self, command: Sequence[str], say: Callable[[str], None]) -> None:
        """On a thread of its own: the node's loop has no time for it."""
        self._command = list(command)
        self._say = say
        self._is_closing = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it, and wait until it has."""
        self._is_closing.set()
        with self._lock:
            if self._process is not None:
                self._process.terminate()
        self._thread.join(_LAST_S)

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
                self._say(line.rstrip().removeprefix("cotenant: "))
            code = process.wait()
            assert process.stdin is not None
            process.stdin.close()
            process.stderr.close()
            if self._is_closing.is_set():
                return
            tries = 1 if monotonic_ns() - began_ns > _WELL_NS else tries + 1
            wait_ns = delay_ns(tries, _FIRST_NS, _LONGEST_NS)
            self._say(f"the agent ended with {code}; starting it again")
            self._is_closing.wait(wait_ns / SECOND_NS)
