"""Wires a server of models: what was asked on the command line, and what is said while it serves."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from cotenant.apps.serve_runtime import RuntimeWish, runtime_of
from cotenant.errors import ConfigError
from cotenant.format.quantity import parse_duration, parse_size
from cotenant.live.directory import Places, make_directory
from cotenant.live.serve.http import Limits
from cotenant.live.serve.repository import Repository
from cotenant.live.serve.runtime import RUNTIMES
from cotenant.live.serve.runtime_gpu import runs_at_once
from cotenant.live.serve.server import Listening, ServeOptions, cores_to_use, serve
from cotenant.live.serve.sessions import sweep
from cotenant.live.serve.spans import HOME
from cotenant.live.serve.tls import tls_context, tls_files
from cotenant.machine.server import ServerSettings
from cotenant.policy.admit import REQUEST_POLICIES
from cotenant.policy.schedule import SERVE_POLICIES, SPATIAL

TRACE: Final = ("asked", "always", "off")


class ServeArguments(msgspec.Struct, frozen=True):
    """As on the command line."""

    models: tuple[str, ...]
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    cores: int
    policy: str
    admit: str
    queue: int
    body: str
    memory: str
    connections: int
    drain: str
    runtime: str
    gpu: str
    tenants: str
    workers: int
    run_limit: str
    profiles: str
    tls_cert: str = ""
    tls_key: str = ""
    tls_clients: str = ""
    trace: str = "asked"


def _options(given: ServeArguments, places: Places, own: Places, say: Callable[[str], None]) -> ServeOptions:
    for flag, name, table in (
        ("--trace", given.trace, list(TRACE)),
        ("--policy", given.policy, list(SERVE_POLICIES)),
        ("--admit", given.admit, list(REQUEST_POLICIES)),
    ):
        if name not in table:
            raise ConfigError(flag, name, f"choose {' or '.join(table)}")
    for flag, port in (
        ("--http-port", given.http_port),
        ("--grpc-port", given.grpc_port),
        ("--metrics-port", given.metrics_port),
    ):
        if not -1 <= port <= 0xFFFF:
            raise ConfigError(flag, port, "choose 1 to 65535, 0 for one that is free, -1 for none")
    for flag, count in (("--queue", given.queue), ("--connections", given.connections)):
        if not 1 <= count <= 1_000_000:
            raise ConfigError(flag, count, "choose 1 to 1000000")
    if given.cores < 0:
        raise ConfigError("--cores", given.cores, "choose 1 or more, or 0 for all")
    cores = cores_to_use(sorted(os.sched_getaffinity(0)), given.cores)
    tls = tls_files(given.tls_cert, given.tls_key, given.tls_clients)
    if tls is not None:
        tls_context(tls, "http/1.1")  # files that are of no use are refused before anything else
    models = tuple(Path(one) for one in given.models)
    found = Repository(models, cores).scan()  # a path that is not there is refused before anything else
    limits = Limits(
        parse_size(given.body, field="--body"), parse_size(given.memory, field="--memory"), given.connections
    )
    drain_s = parse_duration(given.drain, field="--drain") / 10**9
    at_once = runs_at_once(given.workers // max(1, len(found))) if given.policy in SPATIAL else 0
    runtime = runtime_of(wish_of(given)._replace(at_once=at_once), cores, places, say)
    settings = ServerSettings(
        runtime.all_units,
        pinned=runtime.pinned,
        schedule=given.policy,
        admit=given.admit,
        requests_limit=given.queue,
        ahead=runtime.pinned,
    )
    ports = (given.http_port, given.grpc_port, given.metrics_port)
    spans = None if given.trace == "off" else _place_of_spans(own, say)
    always = given.trace == "always"
    folder = profiles_folder(given.profiles, own)
    return ServeOptions(
        models, given.host, *ports, cores, runtime, settings, limits, drain_s, folder, tls, spans, always
    )


class RuntimeArguments(Protocol):
    """What every command says that runs models."""

    @property
    def runtime(self) -> str: ...
    @property
    def gpu(self) -> str: ...
    @property
    def tenants(self) -> str: ...
    @property
    def workers(self) -> int: ...
    @property
    def run_limit(self) -> str: ...


def wish_of(given: RuntimeArguments) -> RuntimeWish:
    """What models are to run on."""
    if given.runtime not in RUNTIMES:
        raise ConfigError("--runtime", given.runtime, f"choose {' or '.join(RUNTIMES)}")
    return RuntimeWish(given.runtime, given.gpu, given.tenants, given.workers, given.run_limit)


def profiles_folder(given: str, places: Places) -> Path:
    """Where profiles of models are: as said, or beside what else is kept."""
    return Path(given) if given else places.state / "serve-profiles"


def run_server(
    given: ServeArguments,
    places: Places,
    own: Places,
    say: Callable[[str], None],
    show: Callable[[Listening, Sequence[str]], None],
) -> int:
    """Serve until told to stop; `places` are those of the node, `own` are ours, where `cotenant trace` looks."""
    sweep()
    return serve(_options(given, places, own, say), say, show)


def _place_of_spans(places: Places, say: Callable[[str], None]) -> Path | None:
    """Where requests may be traced; a machine that has no place for it serves all the same."""
    try:
        make_directory(places.runtime, "directories.runtime")
        home = places.runtime / HOME
        home.mkdir(mode=0o700, exist_ok=True)
    except (ConfigError, OSError) as error:
        say(f"requests cannot be traced: {error}")
        return None
    return home


def differences(models: Sequence[str]) -> dict[str, list[str]]:
    """Of each model, what its Triton config asks that is done in another way, or not at all."""
    cores = sorted(os.sched_getaffinity(0))
    repository = Repository([Path(one) for one in models], cores)
    return {name: repository.differences(found) for name, found in repository.scan().items()}
