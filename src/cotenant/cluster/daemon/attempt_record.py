"""State of an attempt on disk, from which a restarted agent or supervisor continues.

There is a directory for each attempt, created atomically:

    order       what to run, written by the agent before anything runs
    variables   the job's environment variables, likewise
    lock        held by the supervisor
    supervisor  the supervisor's process, written before anything runs; if present, a new supervisor starts nothing
    stop        why the attempt is to end, written by the agent
    progress    the progress of the job, written by the job
    rank-N      how the program on the Nth GPU ended, written by `cotenant run`
    end         how the attempt ended, written by the supervisor when nothing of it runs any more
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from cotenant.cluster.model.cluster import Attempt, JobEnd
from cotenant.cluster.progress import PROGRESS_LIMIT_BYTES, Progress, decode_progress
from cotenant.errors import PeerError
from cotenant.node.client.outcome import OUTCOME_LIMIT_BYTES, RunOutcome, decode_outcome
from cotenant.node.client.variables import encode_variables
from cotenant.node.daemon.proc import ProcessTree
from cotenant.runner.atomic_file import read_limited, write_atomically
from cotenant.runner.clock import boot_id
from cotenant.units.instant import Duration, Instant

MARK: Final = "COTENANT_ATTEMPT_DIRECTORY"
"""In the environment of all that an attempt runs: by it a later supervisor finds what an earlier one left behind."""
_ORDER_LIMIT_BYTES: Final = 4 << 20
_SMALL_BYTES: Final = 64 << 10
_Kind = TypeVar("_Kind", bound=msgspec.Struct)


class Order(msgspec.Struct, frozen=True):
    """What a supervisor is to run. An agent of a later version may read it: fields are only added, with a default."""

    attempt: Attempt
    gpus: tuple[int, ...]
    progress_ppm: int
    work_ns: int
    commands: tuple[tuple[str, ...], ...]
    """One for each GPU."""
    environment: tuple[dict[str, str], ...]
    """Of each of them, besides what the supervisor has itself."""
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


class SupervisorProcess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
        """Held by its supervisor."""
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
        co_runners = self.path.with_name(f".{self.path.name}")
        shutil.rmtree(co_runners, ignore_errors=True)
        co_runners.mkdir(mode=0o700)
        write_atomically(co_runners / self.variables_file.name, encode_variables(order.variables))
        write_atomically(co_runners / "order", msgspec.json.encode(order))
        if end is not None:
            write_atomically(co_runners / "end", msgspec.json.encode(end))
        co_runners.rename(self.path)

    def order(self) -> Order | None:
        """What is to run; None where that cannot be read."""
        return _decoded(self.path / "order", Order, _ORDER_LIMIT_BYTES)

    def take_charge(self) -> SupervisorProcess | None:
        """Say that this process is its supervisor; returns the one before it, if there was one."""
        before = self.supervisor()
        write_atomically(self.path / "supervisor", msgspec.json.encode(_this_process()))
        return before

    def supervisor(self) -> SupervisorProcess | None:
        """Who runs it, or did."""
        return _decoded(self.path / "supervisor", SupervisorProcess, _SMALL_BYTES)

    def ask_to_stop(self, why: str) -> None:
        """Say that it is to end; the first reason counts."""
        if self.stop() is None:
            write_atomically(self.path / "stop", why.encode("utf-8", "replace")[:_SMALL_BYTES])

    def stop(self) -> str | None:
        """Why it is to end, if it is."""
        said = read_limited(self.path / "stop", _SMALL_BYTES)
        return None if said is None else said.decode("utf-8", "replace")

    def progress(self) -> Progress | None:
        """How far the job says that it is; None where it says nothing, or nothing that can be read."""
        said = read_limited(self.progress_file, PROGRESS_LIMIT_BYTES)
        return None if said is None else decode_progress(said)

    def outcome(self, rank: int) -> RunOutcome | None:
        """How the program on one of its GPUs ended; None where nobody could say."""
        said = read_limited(self.rank_file(rank), OUTCOME_LIMIT_BYTES)
        try:
            return None if said is None else decode_outcome(said)
        except PeerError:
            return None

    def finish(self, end: End) -> None:
        """Say how it ended: the last thing a supervisor does."""
        write_atomically(self.path / "end", msgspec.json.encode(end))

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
    write_atomically(file, msgspec.json.encode(Lease(boot_id(), until_ns, grace_ns)))


def read_lease(file: Path) -> Lease | None:
    """The lease as it stands; None: there is none, and no job may run."""
    lease = _decoded(file, Lease, _SMALL_BYTES)
    return lease if lease is not None and lease.boot == boot_id() else None


def is_alive(supervisor: SupervisorProcess) -> bool:
    """Whether this very process runs still."""
    stat = ProcessTree().stat(supervisor.pid) if supervisor.boot == boot_id() else None
    return stat is not None and stat.start_ticks == supervisor.start_ticks and stat.state not in {"Z", "X"}


def _this_process() -> SupervisorProcess:
    stat = ProcessTree().stat(os.getpid())
    return SupervisorProcess(boot_id(), os.getpid(), 0 if stat is None else stat.start_ticks)


def _decoded(file: Path, kind: type[_Kind], limit_bytes: int) -> _Kind | None:
    said = read_limited(file, limit_bytes)
    if said is None:
        return None
    try:
        return msgspec.json.decode(said, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
