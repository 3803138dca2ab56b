"""What is on disk of an attempt at a job, so that whoever is killed, the next one knows what ran and how it ended?

A directory for each attempt, there as a whole or not at all:

    order      what is to run, written by the agent before anything runs
    variables  what the job wants in its environment, likewise
    lock       held by the one keeper
    keeper     which process that is, written before anything runs: one that finds it there already is a later one
    stop       why it is to end, written by the agent
    progress   how far the job is, written by the job
    rank-N     how the program on the Nth of its GPUs ended, written by `cotenant run`
    end        how the attempt ended, written by the keeper once nothing of it runs any more
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from cotenant.domain.cluster import Attempt, JobEnd
from cotenant.domain.instant import Duration, Instant
from cotenant.errors import PeerError
from cotenant.format.outcome import OUTCOME_LIMIT_BYTES, Outcome, decode_outcome
from cotenant.format.progress import PROGRESS_LIMIT_BYTES, Progress, decode_progress
from cotenant.format.variables import encode_variables
from cotenant.live.clock import boot_id
from cotenant.live.watch.kin import stat_of
from cotenant.live.whole import read_small, write_whole

MARK: Final = "COTENANT_ATTEMPT_DIRECTORY"
"""In the environment of all that an attempt runs: by it a later keeper finds what an earlier one left behind."""
_ORDER_LIMIT_BYTES: Final = 4 << 20
_SMALL_BYTES: Final = 64 << 10
_Kind = TypeVar("_Kind", bound=msgspec.Struct)


class Order(msgspec.Struct, frozen=True):
    """What a keeper is to run. An agent of a later version may read it: fields are only added, with a default."""

    attempt: Attempt
    gpus: tuple[int, ...]
    progress_ppm: int
    work_ns: int
    commands: tuple[tuple[str, ...], ...]
    """One for each GPU."""
    environment: tuple[dict[str, str], ...]
    """Of each of them, besides what the keeper has itself."""
    directory: str
    log: str
    """A file that what they print is added to."""
    grace_ns: Duration
    """How long the program has between the request to end and the kill."""
    tenants: tuple[str, ...] = ()
    """What they are called at the node."""
    variables: dict[str, str] = {}
    """What the job wants in its environment; for the programs alone, and not for what runs them."""


class Lease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Until when the jobs of this machine may go on, by the clock that counts a machine's sleep too."""

    boot: str
    until_ns: Instant
    grace_ns: Duration
    """After that, until nothing of them may be left."""


class Keeper(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process, told apart from any other that ever has its number."""

    boot: str
    pid: int
    start_ticks: int


class End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an attempt ended."""

    end: JobEnd
    detail: str


class Record:
    """The directory of one attempt."""

    def __init__(self, path: Path) -> None:
        """It need not be there yet."""
        self.path = path

    @property
    def lock(self) -> Path:
        """Held by its keeper."""
        return self.path / "lock"

    @property
    def progress_file(self) -> Path:
        """Where the job says how far it is."""
        return self.path / "progress"

    @property
    def variables_file(self) -> Path:
        """What the job wants in its environment."""
        return self.path / "variables"

    def rank_file(self, rank: int) -> Path:
        """Where `cotenant run` says how the program on one of its GPUs ended."""
        return self.path / f"rank-{rank}"

    def make(self, order: Order, end: End | None = None) -> None:
        """Have it on disk, as a whole: from now on the attempt is this machine's to run, or to say how it ended.

        One that is to end before it begins is never there without its end, or a later agent would have it run.
        """
        beside = self.path.with_name(f".{self.path.name}")
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(mode=0o700)
        write_whole(beside / self.variables_file.name, encode_variables(order.variables))
        write_whole(beside / "order", msgspec.json.encode(order))
        if end is not None:
            write_whole(beside / "end", msgspec.json.encode(end))
        beside.rename(self.path)

    def order(self) -> Order | None:
        """What is to run; None where that cannot be read."""
        return _decoded(self.path / "order", Order, _ORDER_LIMIT_BYTES)

    def take_charge(self) -> Keeper | None:
        """Say that this process is its keeper; returns the one before it, if there was one."""
        before = self.keeper()
        write_whole(self.path / "keeper", msgspec.json.encode(_this_process()))
        return before

    def keeper(self) -> Keeper | None:
        """Who runs it, or did."""
        return _decoded(self.path / "keeper", Keeper, _SMALL_BYTES)

    def ask_to_stop(self, why: str) -> None:
        """Say that it is to end; the first reason counts."""
        if self.stop() is None:
            write_whole(self.path / "stop", why.encode("utf-8", "replace")[:_SMALL_BYTES])

    def stop(self) -> str | None:
        """Why it is to end, if it is."""
        said = read_small(self.path / "stop", _SMALL_BYTES)
        return None if said is None else said.decode("utf-8", "replace")

    def progress(self) -> Progress | None:
        """How far the job says that it is; None where it says nothing, or nothing that can be read."""
        said = read_small(self.progress_file, PROGRESS_LIMIT_BYTES)
        return None if said is None else decode_progress(said)

    def outcome(self, rank: int) -> Outcome | None:
        """How the program on one of its GPUs ended; None where nobody could say."""
        said = read_small(self.rank_file(rank), OUTCOME_LIMIT_BYTES)
        try:
            return None if said is None else decode_outcome(said)
        except PeerError:
            return None

    def finish(self, end: End) -> None:
        """Say how it ended: the last thing a keeper does."""
        write_whole(self.path / "end", msgspec.json.encode(end))

    def end(self) -> End | None:
        """How it ended; None while it has not."""
        return _decoded(self.path / "end", End, _SMALL_BYTES)

    def remove(self) -> None:
        """Forget it: it vanishes at once, and what is left of it is never taken for an attempt."""
        gone = self.path.with_name(f".{self.path.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        try:
            self.path.rename(gone)
        except FileNotFoundError:
            return
        shutil.rmtree(gone, ignore_errors=True)


def records_in(directory: Path) -> list[Record]:
    """All attempts that are on disk; what somebody was killed over is cleared away."""
    found = []
    for path in sorted(directory.iterdir()):
        if path.name.startswith("."):
            shutil.rmtree(path, ignore_errors=True)
        else:
            found.append(Record(path))
    return found


def write_lease(file: Path, until_ns: Instant, grace_ns: Duration) -> None:
    """Let the jobs of this machine go on until then."""
    write_whole(file, msgspec.json.encode(Lease(boot_id(), until_ns, grace_ns)))


def read_lease(file: Path) -> Lease | None:
    """The lease as it stands; None: there is none, and no job may run."""
    lease = _decoded(file, Lease, _SMALL_BYTES)
    return lease if lease is not None and lease.boot == boot_id() else None


def is_alive(keeper: Keeper) -> bool:
    """Whether this very process runs still."""
    stat = stat_of(keeper.pid) if keeper.boot == boot_id() else None
    return stat is not None and stat.start_ticks == keeper.start_ticks and stat.state not in {"Z", "X"}


def _this_process() -> Keeper:
    stat = stat_of(os.getpid())
    return Keeper(boot_id(), os.getpid(), 0 if stat is None else stat.start_ticks)


def _decoded(file: Path, kind: type[_Kind], limit_bytes: int) -> _Kind | None:
    said = read_small(file, limit_bytes)
    if said is None:
        return None
    try:
        return msgspec.json.decode(said, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
