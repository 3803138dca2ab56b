"""`cotenant load`: options, send times and the load generator."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.serve.load.connections import endpoint_of, message_of, open_connections
from cotenant.serve.load.discovery import describe
from cotenant.serve.load.open_loop import LoadGenerator, LoadReport, MeasureWindow, OpenLoopSource
from cotenant.serve.load.request import synthetic_request
from cotenant.units.instant import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS, Duration
from cotenant.units.text import parse_duration
from cotenant.workload.arrival_trace import read_azure, read_mooncake
from cotenant.workload.arrivals import even_instants, iter_instants, spread_instants
from cotenant.workload.rates import bursty_rate, constant_rate, rescale_trace

ARRIVALS: Final = ("poisson", "bursty", "constant", "trace")
BURST_RATIO: Final = 4.0
BURST_LOW_NS: Final = 300 * MILLISECOND_NS
BURST_HIGH_NS: Final = 100 * MILLISECOND_NS
_MAX_RPS: Final = 1e6
_DAY_NS: Final = 24 * 3600 * SECOND_NS


class LoadArguments(msgspec.Struct, frozen=True):
    """Options of the command line."""

    url: str
    models: tuple[str, ...]
    arrival: str
    trace: str
    duration: str
    warm_up: str
    slo: tuple[str, ...]
    timeout: str
    tell_slo: bool
    rows: int
    shape: tuple[str, ...]
    connections: int
    seed: int


class _Model(msgspec.Struct, frozen=True):
    name: str
    rate_rps: float


def offer_load(arguments: LoadArguments, on_progress: Callable[[float], None]) -> LoadReport:
    """Send the requests and return the results."""
    endpoint = endpoint_of(arguments.url)
    models = _models(arguments.models)
    slos = _slos(arguments.slo, [model.name for model in models])
    warm_ns = _time("--warm-up", arguments.warm_up, least_ns=0)
    for_ns = _time("--duration", arguments.duration, least_ns=MILLISECOND_NS)
    patience_ns = _time("--timeout", arguments.timeout, least_ns=MILLISECOND_NS)
    for flag, number, limit in (("--rows", arguments.rows, 1 << 16), ("--connections", arguments.connections, 1 << 15)):
        if not 1 <= number <= limit:
            raise ConfigError(flag, number, f"choose 1 to {limit}")
    if arguments.tell_slo and not all(slos.values()):
        raise ConfigError("--send-slo", True, "there is no objective to send; give one with --slo")
    trace = _trace_instants(arguments)
    shapes = dict(_shape(text) for text in arguments.shape)
    messages = []
    unused = set(shapes)
    for model in models:
        timeout_us = slos[model.name] // MICROSECOND_NS if arguments.tell_slo else 0
        metadata = describe(endpoint, model.name)
        unused -= {tensor.name for tensor in metadata.inputs}
        messages.append(
            message_of(synthetic_request(model.name, metadata, arguments.rows, shapes, timeout_us), endpoint)
        )
    if unused:
        raise ConfigError("--shape", ", ".join(sorted(unused)), "no requested model has an input of that name")
    total_ns = warm_ns + for_ns
    streams = [
        _stream(arguments, model.rate_rps, total_ns, index, len(models), trace) for index, model in enumerate(models)
    ]
    pool = open_connections(endpoint, messages, arguments.connections)
    try:
        generator = LoadGenerator(
            pool, [(model.name, slos[model.name]) for model in models], MeasureWindow(warm_ns, total_ns, patience_ns)
        )
        return generator.run(OpenLoopSource(heapq.merge(*streams)), on_progress)
    finally:
        pool.close()


def _stream(
    arguments: LoadArguments, rate_rps: float, for_ns: Duration, index: int, models: int, trace: Sequence[int]
) -> Iterator[tuple[Duration, int]]:
    """Return the send times of one model's requests.

    Each model has its own seed, so that their arrivals are independent.
    """
    seed = arguments.seed + index
    instants: Iterator[int]
    if arguments.arrival == "trace":
        instants = iter(rescale_trace(trace, rate_rps, for_ns, index / models))
    elif arguments.arrival == "constant":
        instants = even_instants(rate_rps, for_ns, index / models)
    elif arguments.arrival == "bursty":
        instants = iter_instants(bursty_rate(rate_rps, BURST_RATIO, BURST_LOW_NS, BURST_HIGH_NS), for_ns, seed)
    else:
        instants = iter_instants(constant_rate(rate_rps), for_ns, seed)
    return ((at_ns, index) for at_ns in instants)


def _models(texts: Sequence[str]) -> list[_Model]:
    models: list[_Model] = []
    for text in texts:
        name, _, rate = text.partition("=")
        try:
            rate_rps = float(rate or 10)
        except ValueError:
            raise ConfigError("--model", text, "write NAME or NAME=REQUESTS_PER_SECOND") from None
        if not name or not 0 < rate_rps <= _MAX_RPS:
            raise ConfigError("--model", text, "write NAME=RPS, above 0 and up to a million")
        if name in [other.name for other in models]:
            raise ConfigError("--model", text, "is named twice")
        models.append(_Model(name, rate_rps))
    return models


def _slos(texts: Sequence[str], models: Sequence[str]) -> dict[str, Duration]:
    """Return the SLO of each model; a value without a name holds for all models."""
    slos = dict.fromkeys(models, 0)
    for text in sorted(texts, key=lambda value: "=" in value):
        name, separator, value = text.rpartition("=")
        if separator and name not in slos:
            raise ConfigError("--slo", text, f"choose among {', '.join(models)}")
        for model in [name] if separator else models:
            slos[model] = _time("--slo", value, least_ns=MICROSECOND_NS)
    return slos


def _time(flag: str, text: str, least_ns: Duration) -> Duration:
    duration_ns = parse_duration(text, field=flag)
    if not least_ns <= duration_ns <= _DAY_NS:
        raise ConfigError(flag, text, "is too short" if duration_ns < least_ns else "is longer than a day")
    return duration_ns


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, dims = text.rpartition(":")
    parts = dims.split(",")
    if not name or not all(part.isdecimal() and int(part) <= 1 << 31 for part in parts):
        raise ConfigError("--shape", text, "write INPUT:DIM,DIM as in image:3,224,224")
    return name, tuple(int(part) for part in parts)


def _trace_instants(arguments: LoadArguments) -> tuple[int, ...]:
    """Read the instants of a published trace; the file name determines the format."""
    if (arguments.arrival == "trace") != bool(arguments.trace):
        if arguments.trace:
            raise ConfigError("--trace-file", arguments.trace, "requires --arrival trace")
        raise ConfigError("--arrival", "trace", "name a trace file with --trace-file")
    if not arguments.trace:
        return ()
    path = Path(arguments.trace)
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise ConfigError("--trace-file", arguments.trace, error.strerror or "cannot be read") from None
    if ".csv" in path.suffixes:
        instants = read_azure(packed, path.name)
    elif ".jsonl" in path.suffixes:
        instants = read_mooncake(packed, path.name)
    else:
        raise ConfigError("--trace-file", arguments.trace, "name azure_llm's .csv.gz or mooncake's .jsonl.gz")
    if len(instants) < 2:
        raise ConfigError("--trace-file", arguments.trace, "has fewer than two requests")
    return spread_instants(instants, arguments.seed)
