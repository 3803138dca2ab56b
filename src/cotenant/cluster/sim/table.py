"""Readers of nodes and jobs in a simple CSV format.

Jobs: `job,user,submit_s,work_s,gpus,profile,memory_mib,types`; nodes: `node,type,gpus,memory_mib,online`. The header is
required. An empty `profile` is chosen at random. `types` are separated by `|`, and so is `online`: the highest load of
the online service of each GPU, 0 to 1; empty: chosen by the scenario.
"""

from __future__ import annotations

import gzip
import zlib
from typing import Annotated, Final

import msgspec

from cotenant.cluster.model.cluster import GANG_LIMIT, GPUS_LIMIT, Amount, Name, Part
from cotenant.errors import ConfigError
from cotenant.units.share import WHOLE_PPM
from cotenant.units.table_row import REMEDY, number, table_rows, whole
from cotenant.units.value import Value

JOB_COLUMNS: Final = ("job", "user", "submit_s", "work_s", "gpus", "profile", "memory_mib", "types")
NODE_COLUMNS: Final = ("node", "type", "gpus", "memory_mib", "online")
_GZIP: Final = b"\x1f\x8b"
_SECOND_NS: Final = 1_000_000_000
_LONGEST_S: Final = 1e9


class TraceJob(Value, frozen=True):
    """An offline job of a trace; instants count from the start of the trace."""

    name: Name
    user: Name
    submit_ns: Amount
    work_ns: Amount
    """Duration alone on whole GPUs."""
    gpus: Annotated[int, msgspec.Meta(ge=1)] = 1
    profile: str = ""
    memory_bytes: Amount = 0
    types: tuple[Name, ...] = ()


class TraceNode(Value, frozen=True):
    """A node of a trace."""

    name: Name
    type: Name
    gpus: Annotated[int, msgspec.Meta(ge=1, le=GPUS_LIMIT)]
    memory_bytes: Amount
    """Memory of each GPU."""
    peaks_ppm: tuple[Part, ...] | None = None
    """Highest load of the online service of each GPU; 0: none. None: unknown."""


class UniqueNames:
    """Rejects duplicate names."""

    def __init__(self, noun: str) -> None:
        """Set what the names denote, for messages."""
        self._noun = noun
        self._locations: dict[str, str] = {}

    def add(self, name: str, location: str) -> None:
        """Add a name; raises `ConfigError` if it was added before."""
        if name in self._locations:
            remedy = f"appears twice (also {self._locations[name]}); name each {self._noun} once"
            raise ConfigError(self._noun, name, remedy, where=location)
        self._locations[name] = location


def unpacked(content: bytes, where: str) -> bytes:
    """Return the content of a file, decompressed if it is gzip."""
    if not content.startswith(_GZIP):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError("file", str(error), f"is not a complete gzip file; {REMEDY}", where=where) from None


def read_jobs(content: bytes, where: str) -> list[TraceJob]:
    """Return the jobs of a table by submission."""
    jobs = []
    unique_names = UniqueNames("job")
    for location, cells in table_rows(unpacked(content, where), JOB_COLUMNS, where):
        name, user, submit, work, gpus, profile, memory, types = cells
        unique_names.add(name, location)
        jobs.append(
            checked_job(
                TraceJob(
                    name=name,
                    user=user,
                    submit_ns=seconds(submit, "submit_s", location),
                    work_ns=seconds(work, "work_s", location),
                    gpus=whole(gpus, "gpus", location, least=1, most=GANG_LIMIT),
                    profile=profile,
                    memory_bytes=whole(memory or "0", "memory_mib", location, least=0, most=1 << 30) << 20,
                    types=tuple(types.split("|")) if types else (),
                ),
                location,
            )
        )
    return in_order(jobs)


def read_nodes(content: bytes, where: str) -> list[TraceNode]:
    """Return the nodes of a table in its order."""
    nodes = []
    unique_names = UniqueNames("node")
    for location, (name, kind, gpus, memory, online) in table_rows(unpacked(content, where), NODE_COLUMNS, where):
        unique_names.add(name, location)
        count = whole(gpus, "gpus", location, least=1, most=GPUS_LIMIT)
        peaks = None
        if online:
            parts = [number(peak, "online", location, least=0, most=1) for peak in online.split("|")]
            if len(parts) != count:
                remedy = f"name the load of each of its {count} GPUs, separated by |, or of none"
                raise ConfigError("online", online, remedy, where=location)
            peaks = tuple(round(part * WHOLE_PPM) for part in parts)
        memory_bytes = whole(memory, "memory_mib", location, least=1, most=1 << 30) << 20
        nodes.append(checked_node(TraceNode(name, kind, count, memory_bytes, peaks), location))
    return nodes


def in_order(jobs: list[TraceJob]) -> list[TraceJob]:
    """Return jobs by submission; jobs of one instant stay in the order of the trace."""
    return sorted(jobs, key=lambda job: job.submit_ns)


def window(jobs: list[TraceJob], begin_ns: int, span_ns: int, limit: int, compress: int = 1) -> list[TraceJob]:
    """Return the jobs submitted within a window, in time from its start; at most `limit`, 0: all.

    Submissions are faster by the factor `compress`; durations stay.
    """
    inside = [job for job in jobs if 0 <= (job.submit_ns - begin_ns) // compress < span_ns]
    chosen = inside[:limit] if limit else inside
    return [msgspec.structs.replace(job, submit_ns=(job.submit_ns - begin_ns) // compress) for job in chosen]


def seconds(text: str, field: str, location: str) -> int:
    """Return nanoseconds from a text of seconds."""
    return round(number(text, field, location, least=0, most=_LONGEST_S) * _SECOND_NS)


def checked_job(job: TraceJob, location: str) -> TraceJob:
    """Return the job, or raise `ConfigError` for an invalid name."""
    try:
        return msgspec.convert(msgspec.to_builtins(job), TraceJob)
    except msgspec.ValidationError as error:
        raise ConfigError("job", job.name, f"{error}; {REMEDY}", where=location) from None


def checked_node(node: TraceNode, location: str) -> TraceNode:
    """Return the node, or raise `ConfigError` for an invalid name."""
    try:
        return msgspec.convert(msgspec.to_builtins(node), TraceNode)
    except msgspec.ValidationError as error:
        raise ConfigError("node", node.name, f"{error}; {REMEDY}", where=location) from None
