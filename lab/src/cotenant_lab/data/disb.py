"""Reader of DISB: clients that shared an RTX 3080, their load, and their latencies alone and together.

Source: SJTU-IPADS/disb (Apache-2.0).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from cotenant.errors import ConfigError
from cotenant.units.table_row import REMEDY
from cotenant.units.value import Value

_MILLISECOND_NS = 1_000_000


class ClientLoad(Value, frozen=True):
    """Arrivals of a client: back to back, periodic, Poisson, or at given instants."""

    kind: Literal["continuous", "periodic", "poisson", "trace"]
    rate_per_s: float = 0.0
    arrivals_ns: tuple[int, ...] = ()


class Client(Value, frozen=True):
    """One client of a workload."""

    name: str
    model: str
    load: ClientLoad


class ClientResult(Value, frozen=True):
    """Result of a client: mean latency alone, mean latency with the others, requests done."""

    client: str
    alone_ns: int
    together_ns: int
    throughput_per_s: float


class _RawLoad(msgspec.Struct):
    type: str
    frequency: float = 0.0
    trace: tuple[float, ...] = ()


class _RawClient(msgspec.Struct):
    model_name: str


class _RawTask(msgspec.Struct):
    id: str
    load: _RawLoad
    client: _RawClient


class _RawWorkload(msgspec.Struct):
    tasks: tuple[_RawTask, ...]


class _RawResult(msgspec.Struct):
    clientName: str  # noqa: N815 - DISB's name
    analyzers: tuple[dict[str, Any], ...]


class _RawResults(msgspec.Struct):
    results: tuple[_RawResult, ...]


class _Basic(msgspec.Struct):
    alone_us: float = msgspec.field(name="standAloneTotalLatency(us)")
    together_us: float = msgspec.field(name="avgTotalLatency(us)")
    per_s: float = msgspec.field(name="avgThroughput(req/s)")


def read_workload(content: bytes, where: str) -> tuple[Client, ...]:
    """Return the clients of a workload file."""
    raw = _decode(content, _RawWorkload, where)
    return tuple(Client(name=task.id, model=task.client.model_name, load=_load(task, where)) for task in raw.tasks)


def read_results(content: bytes, where: str) -> tuple[ClientResult, ...]:
    """Return the result of each client of a result file."""
    results = []
    for result in _decode(content, _RawResults, where).results:
        basics = [analyzer for analyzer in result.analyzers if analyzer.get("type") == "basic"]
        if len(basics) != 1:
            raise ConfigError(result.clientName, len(basics), f"should have one basic analyzer; {REMEDY}", where=where)
        try:
            basic = msgspec.convert(basics[0], _Basic)
        except msgspec.ValidationError as error:
            raise ConfigError(result.clientName, str(error), REMEDY, where=where) from None
        if not (0 < basic.alone_us < 1e9 and 0 < basic.together_us < 1e9 and 0 <= basic.per_s < 1e9):
            raise ConfigError(result.clientName, basics[0], f"latencies must be positive; {REMEDY}", where=where)
        results.append(
            ClientResult(
                client=result.clientName,
                alone_ns=round(basic.alone_us * 1000),
                together_ns=round(basic.together_us * 1000),
                throughput_per_s=basic.per_s,
            )
        )
    return tuple(results)


def _load(task: _RawTask, where: str) -> ClientLoad:
    load = task.load
    if load.type == "continuous":
        return ClientLoad(kind="continuous")
    if load.type in {"periodic", "poisson"}:
        if not 0 < load.frequency <= 1e6:
            raise ConfigError(f"{task.id}.frequency", load.frequency, f"must be positive; {REMEDY}", where=where)
        return ClientLoad(kind="periodic" if load.type == "periodic" else "poisson", rate_per_s=load.frequency)
    if load.type == "trace":
        instants = tuple(round(instant * _MILLISECOND_NS) for instant in load.trace)
        if not instants or min(instants) < 0 or list(instants) != sorted(instants):
            raise ConfigError(f"{task.id}.trace", len(instants), f"should be instants in order; {REMEDY}", where=where)
        span_s = max(instants[-1] / 1e9, 1e-9)
        return ClientLoad(kind="trace", rate_per_s=len(instants) / span_s, arrivals_ns=instants)
    raise ConfigError(f"{task.id}.load", load.type, "should be continuous, periodic, poisson or trace", where=where)


def _decode(content: bytes, kind: type[Any], where: str) -> Any:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError("file", str(error), REMEDY, where=where) from None
