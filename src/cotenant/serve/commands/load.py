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
_MOST_RPS: Final = 1e6
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


def offer_load(given: LoadArguments, look: Callable[[float], None]) -> LoadReport:
    """Send the requests and return the results."""
    endpoint = endpoint_of(given.url)
    models = _models(given.models)
    slos = _slos(given.slo, [one.name for one in models])
    warm_ns = _time("--warm-up", given.warm_up, least_ns=0)
    for_ns = _time("--duration", given.duration, least_ns=MILLISECOND_NS)
    patience_ns = _time("--timeout", given.timeout, least_ns=MILLISECOND_NS)
    for flag, number, most in (("--rows", given.rows, 1 << 16), ("--connections", given.connections, 1 << 15)):
        if not 1 <= number <= most:
            raise ConfigError(flag, number, f"choose 1 to {most}")
    if given.tell_slo and not all(slos.values()):
        raise ConfigError("--send-slo", True, "there is no objective to send; give one with --slo")
    recorded = _recorded(given)
    shapes = dict(_shape(one) for one in given.shape)
    messages = []
    unused = set(shapes)
    for one in models:
        timeout_us = slos[one.name] // MICROSECOND_NS if given.tell_slo else 0
        described = describe(endpoint, one.name)
        unused -= {known.name for known in described.inputs}
        messages.append(message_of(synthetic_request(one.name, described, given.rows, shapes, timeout_us), endpoint))
    if unused:
        raise ConfigError("--shape", ", ".join(sorted(unused)), "no requested model has an input of that name")
    whole_ns = warm_ns + for_ns
    streams = [_stream(given, one.rate_rps, whole_ns, place, len(models), recorded) for place, one in enumerate(models)]
    wire = open_connections(endpoint, messages, given.connections)
    try:
        generator = LoadGenerator(
            wire, [(one.name, slos[one.name]) for one in models], MeasureWindow(warm_ns, whole_ns, patience_ns)
        )
        return generator.run(OpenLoopSource(heapq.merge(*streams)), look)
    finally:
        wire.close()


def _stream(
    given: LoadArguments, rate_rps: float, for_ns: Duration, place: int, models: int, recorded: Sequence[int]
) -> Iterator[tuple[Duration, int]]:
    """Return the send times of one model's requests.

    Each model has its own seed, so that their arrivals are independent.
    """
    seed = given.seed + place
    instants: Iterator[int]
    if given.arrival == "trace":
        instants = iter(rescale_trace(recorded, rate_rps, for_ns, place / models))
    elif given.arrival == "constant":
        instants = even_instants(rate_rps, for_ns, place / models)
    elif given.arrival == "bursty":
        instants = iter_instants(bursty_rate(rate_rps, BURST_RATIO, BURST_LOW_NS, BURST_HIGH_NS), for_ns, seed)
    else:
        instants = iter_instants(constant_rate(rate_rps), for_ns, seed)
    return ((at_ns, place) for at_ns in instants)


def _models(named: Sequence[str]) -> list[_Model]:
    found: list[_Model] = []
    for one in named:
        name, _, rate = one.partition("=")
        try:
            rate_rps = float(rate or 10)
        except ValueError:
            raise ConfigError("--model", one, "write NAME or NAME=REQUESTS_PER_SECOND") from None
        if not name or not 0 < rate_rps <= _MOST_RPS:
            raise ConfigError("--model", one, "write NAME=RPS, above 0 and up to a million")
        if name in [other.name for other in found]:
            raise ConfigError("--model", one, "is named twice")
        found.append(_Model(name, rate_rps))
    return found


def _slos(said: Sequence[str], models: Sequence[str]) -> dict[str, Duration]:
    """Return the SLO of each model; a value without a name holds for all models."""
    slos = dict.fromkeys(models, 0)
    for one in sorted(said, key=lambda text: "=" in text):
        name, found, text = one.rpartition("=")
        if found and name not in slos:
            raise ConfigError("--slo", one, f"choose among {', '.join(models)}")
        for model in [name] if found else models:
            slos[model] = _time("--slo", text, least_ns=MICROSECOND_NS)
    return slos


def _time(flag: str, text: str, least_ns: Duration) -> Duration:
    found = parse_duration(text, field=flag)
    if not least_ns <= found <= _DAY_NS:
        raise ConfigError(flag, text, "is too short" if found < least_ns else "is longer than a day")
    return found


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, dims = text.rpartition(":")
    parts = dims.split(",")
    if not name or not all(part.isdecimal() and int(part) <= 1 << 31 for part in parts):
        raise ConfigError("--shape", text, "write INPUT:DIM,DIM as in image:3,224,224")
    return name, tuple(int(part) for part in parts)


def _recorded(given: LoadArguments) -> tuple[int, ...]:
    """Read the instants of a published trace; the file name determines the format."""
    if (given.arrival == "trace") != bool(given.trace):
        if given.trace:
            raise ConfigError("--trace-file", given.trace, "requires --arrival trace")
        raise ConfigError("--arrival", "trace", "name a trace file with --trace-file")
    if not given.trace:
        return ()
    path = Path(given.trace)
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise ConfigError("--trace-file", given.trace, error.strerror or "cannot be read") from None
    if ".csv" in path.suffixes:
        found = read_azure(packed, path.name)
    elif ".jsonl" in path.suffixes:
        found = read_mooncake(packed, path.name)
    else:
        raise ConfigError("--trace-file", given.trace, "name azure_llm's .csv.gz or mooncake's .jsonl.gz")
    if len(found) < 2:
        raise ConfigError("--trace-file", given.trace, "has fewer than two requests")
    return spread_instants(found, given.seed)
