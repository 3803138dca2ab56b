"""The gate of a device with two tenants, without a node."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import msgspec

from cotenant.gate.grant import Grant, Kind
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules
from tests.support.fake_node import FakeNode, NodePages

ONLINE, OFFLINE = 0, 1
GENERATION = 1
_LARGEST = {
    "at_ns",
    "quiet_ns",
    "next_ns",
    "busy_ns",
    "waits_ns",
    "over_ns",
    "paid_ns",
    "part_ppm",
    "requests_reported",
}
"""Words of which a tenant has the largest of all its processes; of others it has the sum."""


class Gate:
    """The gate of one device with an online and an offline tenant, and the environment of their programs."""

    def __init__(self, policy: GatePolicy = GatePolicy.FILL) -> None:
        grants = [Grant(slot, GENERATION, kind, 7, 0, 0, 0, 0) for slot, kind in enumerate((Kind.ONLINE, Kind.OFFLINE))]
        self.policy = policy
        self._home = Path(tempfile.mkdtemp(prefix="cotenant-"))  # short enough for the path of a socket
        self._pages = NodePages(grants)
        self.set_entries()
        self.node = FakeNode(self._home / "tenant.sock", self._pages)

    def set_entries(
        self,
        online: int | None = 2,
        offline: int = 7,
        *,
        paused: bool = False,
        static_ppm: int = 0,
        patience_ns: int = GateRules().patience_ns,
        rules: GateRules | None = None,
    ) -> None:
        """Write the tenant table; `online` None: there is no online tenant."""
        offline_entry = GateEntry(
            OFFLINE, GENERATION, offline, False, paused, limit_ppm=static_ppm, static=static_ppm > 0
        )
        online_entries = () if online is None else (GateEntry(ONLINE, GENERATION, online, online=True),)
        rules = GateRules(self.policy, patience_ns=patience_ns) if rules is None else rules
        self._pages.write_rules(msgspec.structs.replace(rules, entries=(*online_entries, offline_entry)))

    def environ(self, environ: dict[str, str], slot: int) -> dict[str, str]:
        """Return the environment of a program in a slot, which joins the node by itself."""
        return {**environ, "COTENANT_SOCKET": str(self.node.path), "COTENANT_TOKEN": str(slot)}

    def word(self, slot: int, name: str) -> int:
        """Return a word of a tenant, from the gate pages of all its processes, also of those that have ended."""
        processes = self.node.processes(slot)
        values = [value for process in processes if isinstance(value := process.words()[name], int)]
        if name == "requests_began_ns":
            return min(filter(None, values), default=0)
        return max(values, default=0) if name in _LARGEST else sum(values)

    def passed(self, slot: int, reason: int) -> int:
        """Return how many launches of a tenant passed for this reason."""
        lists = [process.words()["passed"] for process in self.node.processes(slot)]
        return sum(counts[reason] for counts in lists if isinstance(counts, list))

    def buckets(self, slot: int) -> list[int]:
        """Return the latency histogram of a tenant's requests."""
        lists = [process.words()["request_buckets"] for process in self.node.processes(slot)]
        return [sum(counts) for counts in zip(*(counts for counts in lists if isinstance(counts, list)), strict=True)]

    def close(self) -> None:
        self.node.close()
        self._pages.close()
        shutil.rmtree(self._home)
