"""A tenant whose one process reports to the test which entries and pages it can see, with and without a node."""

from __future__ import annotations

import hashlib
import sys

import msgspec

from cotenant.gate.process_pages import PROCESS_BYTES
from cotenant.gate.rules import GateRules, ProcessEntry
from tests.support.node_processes import NodeHarness, until
from tests.support.software_gpus import PROGRAMS


class Place(msgspec.Struct, frozen=True):
    """Where the node attached the process."""

    gpu: int
    slot: int
    index: int
    process_generation: int


class View(msgspec.Struct, frozen=True):
    """What an attached process sees: the tenant table, and by index the generation and the digest of all pages."""

    rules: GateRules
    processes: tuple[ProcessEntry, ...]
    pages: dict[int, tuple[int, str]]


class AttachedTenant:
    """A tenant of `cotenant run` whose program attaches itself, and fills its own pages with its name."""

    def __init__(self, node_harness: NodeHarness, name: str, *options: str) -> None:
        command = ("--", sys.executable, str(PROGRAMS / "attached_process.py"), name)
        self.name = name
        self.run = node_harness.tenant(name, *options, *command, stdin=-1)
        content = (name.encode() * PROCESS_BYTES)[:PROCESS_BYTES]
        self.digest = hashlib.sha256(content).hexdigest()
        self.place: Place = until(self._attach)

    def reattach(self) -> None:
        """Attach to the next node, as soon as there is one."""
        self.place = until(self._attach)

    def look(self) -> View:
        """Return what the process sees now."""
        return msgspec.json.decode(self._ask("look"), type=View)

    def _attach(self) -> Place | None:
        return msgspec.json.decode(self._ask("attach"), type=Place | None)

    def _ask(self, command: str) -> str:
        assert self.run.stdin is not None
        assert self.run.stdout is not None
        print(command, file=self.run.stdin, flush=True)
        line = self.run.stdout.readline()
        assert line, self.run.communicate()
        return line

    def close(self) -> None:
        """End the program, and the tenant with it."""
        self.run.communicate("", timeout=60)
