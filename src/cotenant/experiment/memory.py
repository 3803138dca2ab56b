"""Does the memory quota hold, whatever processes do and whoever is killed? By the device's own high-water marks."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec

from cotenant.domain.tenant import Kind, Terms
from cotenant.errors import CotenantError, WorldError
from cotenant.live.client import tenants_of
from cotenant.live.clock import LiveClock, pause
from cotenant.live.directory import Places
from cotenant.live.hook import door, probe
from cotenant.live.ledger import LiveLedgers, look_at, path_of
from cotenant.live.page import SLOT_VARIABLE, LivePages
from cotenant.live.process import run_to_end
from cotenant.live.soak.board import KINDS, QUIET, STOP, WORK, Board
from cotenant.live.softgpu import manage

OPERATIONS: Final = 100_000
QUICK_OPERATIONS: Final = 2_400
KILLS: Final = 48
QUICK_KILLS: Final = 8
QUIETS: Final = 10
QUICK_QUIETS: Final = 2
CONTEXT_BYTES: Final = 24 << 20
BURSTS: Final = 60
CALLS: Final = 1_000
_MIB: Final = 1 << 20
_PATIENCE_S: Final = 120.0
_SETTLED_S: Final = 60.0
"""The node may have to wait for its turn; what is counted is what never goes away."""
_LOOK_S: Final = 0.01
Say = Callable[[str], None]


class Tenancy(NamedTuple):
    """A tenant of the bench: so many processes under one quota."""

    name: str
    workers: int
    quota_bytes: int


TENANTS: Final = (
    Tenancy("four", 4, 1024 * _MIB),
    Tenancy("two", 2, 512 * _MIB),
    Tenancy("other", 2, 384 * _MIB),
)
SCOUT: Final = Tenancy("scout", 1, 256 * _MIB)
LARGEST_BYTES: Final = 128 * _MIB


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that the bench found."""

    bench: str = "memory"
    processes: int
    operations: int
    kills: int
    denied: int
    stale_handles: int
    failed: int
    """Calls that failed for no reason that the bench knows."""
    allocations: dict[str, int]
    bypassed_bytes: int
    """By how much any tenant ever was past its quota."""
    leaked_bytes: int
    """By how much ledger and device differed when nothing moved, or anything was left when all processes were gone."""
    quiet_points: int
    peaks: dict[str, int]
    quotas: dict[str, int]
    added_ns_per_alloc: float
    """An allocation with its free, beside the hook without a ledger."""


def bench_memory(rounds: int, say: Say, *, quick: bool = False) -> MemoryReport:
    """Eight processes of three tenants on a software GPU, then one process before a driver that does nothing."""
    home = Path(tempfile.mkdtemp(prefix="cotenant-memory-"))
    try:
        with _World(home, quick=quick, say=say) as world:
            world.run()
            found = world.figures()
        added_ns = _added_ns(home, rounds, say)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return MemoryReport(**found, added_ns_per_alloc=added_ns)


class _World:
    """A software GPU, a node and the tenants, in one directory; ended with it."""

    def __init__(self, home: Path, *, quick: bool, say: Say) -> None:
        self._home = home
        self._say = say
        self._places = Places(home / "run", home / "state")
        self._gpus = self._places.runtime / "softgpu"
        self._operations = QUICK_OPERATIONS if quick else OPERATIONS
        self._kills = QUICK_KILLS if quick else KILLS
        self._quiets = QUICK_QUIETS if quick else QUIETS
        self._clock = LiveClock(0)
        self._boards = {one.name: Board(home / f"board-{one.name}", one.workers) for one in TENANTS}
        self._running: list[subprocess.Popen[bytes]] = []
        self._node: subprocess.Popen[bytes] | None = None
        self._leaked = 0
        self._left = 0

    def __enter__(self) -> Self:
        for directory in (self._places.runtime, self._places.state):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        manage.create(self._gpus, "v100", 1, context_bytes=CONTEXT_BYTES, counts_code=True)
        with (self._home / "node.err").open("ab") as complaints:
            self._node = subprocess.Popen(
                self._cotenant("node", "--slots", "8"), stdin=subprocess.DEVNULL, stdout=complaints, stderr=complaints
            )
        for _ in self._until("the node does not answer"):
            try:
                tenants_of(self._places.socket)
            except CotenantError:
                continue
            return self
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.kill()
            process.wait()
        if self._node is not None:
            self._node.terminate()
            self._node.wait()
        manage.destroy(self._gpus)

    def run(self) -> None:
        """From the first process to the last."""
        total = sum(one.workers for one in TENANTS)
        self._say(f"a node, then {total} processes of {len(TENANTS)} tenants, which {self._kills} times lose one")
        self._scout()
        for number, one in enumerate(TENANTS):
            self._start(number, one, self._operations // total, self._kills * one.workers // total)
        goal = self._operations // total * total
        for quiet in range(1, self._quiets + 1):
            for _ in self._until("the processes do not go on"):
                if self._total("done") * self._quiets >= goal * quiet:
                    break
            self._tell(QUIET)
            self._leaked = max(self._leaked, self._difference())
            self._say(f"{self._total('done')} of {goal} operations, {self._total('denied')} refused")
            self._tell(WORK)
        for board in self._boards.values():
            board.tell(STOP)
        self._left = self._remains()

    def figures(self) -> dict[str, Any]:
        """What was seen."""
        accounts = {one["account"]: one for one in manage.inspect(self._gpus, 0)["accounts"]}
        peaks = {one.name: accounts[one.name]["memory_peak_bytes"] for one in TENANTS}
        lives = self._total("lives")
        return {
            "processes": sum(one.workers for one in TENANTS),
            "operations": self._total("done"),
            "kills": lives - sum(one.workers for one in TENANTS),
            "denied": self._total("denied"),
            "stale_handles": self._total("stale"),
            "failed": self._total("failed"),
            "allocations": {kind: self._total(kind) for kind in KINDS},
            "bypassed_bytes": max(0, *(peaks[one.name] - one.quota_bytes for one in TENANTS)),
            "leaked_bytes": self._leaked + self._left,
            "quiet_points": self._quiets,
            "peaks": peaks,
            "quotas": {one.name: one.quota_bytes for one in TENANTS},
        }

    # -- tenants -------------------------------------------------------------------------------------------------

    def _scout(self) -> None:
        """What a context takes of this device the node learns from the first process that has one and nothing else."""
        board = Board(self._home / f"board-{SCOUT.name}", SCOUT.workers)
        self._start(0, SCOUT, 0, 0)
        for _ in self._until("the node does not learn what a context takes"):
            if (look := look_at(self._places.pages, 0)) is not None and look.context_bytes:
                break
        board.tell(STOP)
        scout = self._running.pop()
        scout.communicate()

    def _cotenant(self, *words: str) -> list[str]:
        where = ["--runtime", str(self._places.runtime), "--state", str(self._places.state)]
        return [sys.executable, "-m", "cotenant", words[0], *where, *words[1:]]

    def _start(self, number: int, one: Tenancy, operations: int, kills: int) -> None:
        numbers = (one.workers, operations, kills, number + 1, LARGEST_BYTES)
        told = [str(self._home / f"board-{one.name}"), str(self._home / "mail"), *map(str, numbers)]
        flags = ["--name", one.name, "--gpu", "soft:0", "--offline", "--memory", f"{one.quota_bytes}B"]
        lead = [sys.executable, "-m", "cotenant.live.soak.hoard", "lead", *told]
        with (self._home / f"{one.name}.err").open("ab") as complaints:
            self._running.append(
                subprocess.Popen(
                    self._cotenant(
                        "run", *flags, "--measure", "never", "--", "env", f"SOFTGPU_ACCOUNT={one.name}", *lead
                    ),
                    stdin=subprocess.PIPE,
                    stdout=complaints,
                    stderr=complaints,
                )
            )

    def _total(self, word: str) -> int:
        return sum(board.total(word) for board in self._boards.values())

    def _tell(self, order: int) -> None:
        for board in self._boards.values():
            board.tell(order)
        if order != QUIET:
            return
        for _ in self._until("the processes do not come to rest"):
            if all(board.obeyed() for board in self._boards.values()):
                return

    # -- who says what -------------------------------------------------------------------------------------------

    def _apart(self) -> int:
        """The largest difference between what ledger and device say that a tenant has on the device."""
        slots = {row.tenant.name: row.tenant.terms.slot for row in tenants_of(self._places.socket).tenants}
        look = look_at(self._places.pages, 0)
        books = {one["account"]: one["memory_bytes"] for one in manage.inspect(self._gpus, 0)["accounts"]}
        apart = 0
        for one in TENANTS:
            account = look.accounts.get(slots.get(one.name, -1)) if look is not None else None
            managed = sum(line.managed_bytes for line in account.lines) if account is not None else 0
            held = account.held_bytes - managed if account is not None else 0
            apart = max(apart, abs(held - books.get(one.name, 0)))
        return apart

    def _difference(self) -> int:
        """Once whoever was killed has been cleared away, or what is left after a while."""
        end_ns = self._clock.now() + round(_SETTLED_S * 1e9)
        while (apart := self._apart()) and self._clock.now() < end_ns:
            pause(_LOOK_S)
        return apart

    def _remains(self) -> int:
        """What ledger and device have when every process that used it is gone."""
        for _ in self._until("the processes do not end"):
            if not manage.inspect(self._gpus, 0)["clients"]:
                break
        left = self._difference()
        books = manage.inspect(self._gpus, 0)["accounts"]
        return left + sum(int(one["memory_bytes"]) for one in books)

    def _until(self, otherwise: str) -> Iterator[None]:
        end_ns = self._clock.now() + round(_PATIENCE_S * 1e9)
        while self._clock.now() < end_ns:
            yield
            if any(process.poll() is not None for process in self._running):
                raise WorldError(f"a tenant of the bench ended by itself: {self._complaint()}")
            pause(_LOOK_S)
        raise WorldError(f"{otherwise}: {self._complaint()}")

    def _complaint(self) -> str:
        lines = [line for file in sorted(self._home.glob("*.err")) for line in file.read_text().splitlines()[-3:]]
        return " / ".join(lines) or "nobody said why"


# -- what it costs -----------------------------------------------------------------------------------------------


def _added_ns(home: Path, rounds: int, say: Say) -> float:
    """The hook with a ledger and without one take turns; each is compared with the bare driver in the same process."""
    costs: dict[bool, list[float]] = {False: [], True: []}
    for number in range(1, rounds + 1):
        say(f"round {number} of {rounds}: {BURSTS} bursts of {CALLS} allocations, with and without a ledger")
        for has_ledger, found in costs.items():
            found.extend(_bursts(home / f"cost{number}-{int(has_ledger)}", has_ledger=has_ledger))
    return statistics.median(costs[True]) - statistics.median(costs[False])


def _bursts(home: Path, *, has_ledger: bool) -> list[float]:
    """Nanoseconds that the hook adds to an allocation with its free, burst by burst."""
    home.mkdir()
    environ = probe.environment(home, door.idle_driver(), {}, measure=False, sample=0)
    ledgers = LiveLedgers(home / "pages", 1)
    pages = LivePages(home / "pages")
    try:
        if has_ledger:
            pages.publish(Terms(0, 1, Kind.OFFLINE, 7, 0, 1 << 30, 0, 0), 0)
            ledgers.grant(0, 0, 1)
            (home / "records" / "terms").symlink_to(next((home / "pages").glob("terms-*")))
            (home / "records" / "ledger").symlink_to(path_of(home / "pages", 0))
            environ[SLOT_VARIABLE] = "0/1"
        command = [sys.executable, "-m", "cotenant.live.hook.probe", "compare", str(BURSTS), str(CALLS)]
        rows: list[list[float]] = msgspec.json.decode(run_to_end(command, environ))
        if has_ledger and not ledgers.lines(0):
            raise WorldError("the hook found no ledger: nothing was measured")
    finally:
        ledgers.close()
    return [2 * (row[3] - row[2]) for row in rows]
