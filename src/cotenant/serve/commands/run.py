"""`cotenant serve run`: options and start of the server."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from cotenant.errors import ConfigError
from cotenant.node.directories import Directories, make_directory
from cotenant.serve.commands.runtime import RuntimeOptions, runtime_of
from cotenant.serve.frontend.http import ClientLimits
from cotenant.serve.frontend.server import BoundPorts, ServeOptions, cores_to_use, serve
from cotenant.serve.frontend.spans import HOME
from cotenant.serve.frontend.tls import tls_context, tls_files
from cotenant.serve.model.scheduling import Widths
from cotenant.serve.policy import policy_class, policy_names
from cotenant.serve.policy.admit import ADMISSION_POLICIES
from cotenant.serve.runtime.gpu.runtime import runs_at_once
from cotenant.serve.runtime.onnx_sessions import remove_stale_weights
from cotenant.serve.runtime.repository import Repository
from cotenant.serve.runtime.runtime import RUNTIMES
from cotenant.serve.state.server import ServerSettings
from cotenant.units.text import parse_duration, parse_size

TRACE: Final = ("asked", "always", "off")


class ServeArguments(msgspec.Struct, frozen=True):
    """Options of the command line."""

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


def _options(
    arguments: ServeArguments, directories: Directories, user_directories: Directories, report: Callable[[str], None]
) -> ServeOptions:
    for flag, name, table in (
        ("--trace", arguments.trace, list(TRACE)),
        ("--policy", arguments.policy, policy_names()),
        ("--admit", arguments.admit, list(ADMISSION_POLICIES)),
    ):
        if name not in table:
            raise ConfigError(flag, name, f"choose one of {', '.join(table)}")
    for flag, port in (
        ("--http-port", arguments.http_port),
        ("--grpc-port", arguments.grpc_port),
        ("--metrics-port", arguments.metrics_port),
    ):
        if not -1 <= port <= 0xFFFF:
            raise ConfigError(flag, port, "choose 1 to 65535, 0 for a free port, or -1 for none")
    for flag, count in (("--queue", arguments.queue), ("--connections", arguments.connections)):
        if not 1 <= count <= 1_000_000:
            raise ConfigError(flag, count, "choose 1 to 1000000")
    if arguments.cores < 0:
        raise ConfigError("--cores", arguments.cores, "choose 1 or more, or 0 for all")
    cores = cores_to_use(sorted(os.sched_getaffinity(0)), arguments.cores)
    tls = tls_files(arguments.tls_cert, arguments.tls_key, arguments.tls_clients)
    if tls is not None:
        tls_context(tls, "http/1.1")  # reject unusable files before anything else
    models = tuple(Path(model_path) for model_path in arguments.models)
    sources = Repository(models, cores).scan()  # reject a missing path before anything else
    limits = ClientLimits(
        parse_size(arguments.body, field="--body"),
        parse_size(arguments.memory, field="--request-memory"),
        arguments.connections,
    )
    drain_s = parse_duration(arguments.drain, field="--drain") / 10**9
    at_once = (
        runs_at_once(arguments.workers // max(1, len(sources)))
        if policy_class(arguments.policy).widths is Widths.MEASURED
        else 0
    )
    runtime = runtime_of(runtime_options(arguments)._replace(at_once=at_once), cores, directories, report)
    settings = ServerSettings(
        runtime.all_units,
        pinned=runtime.pinned,
        schedule=arguments.policy,
        admit=arguments.admit,
        requests_limit=arguments.queue,
        ahead=runtime.pinned,
    )
    ports = (arguments.http_port, arguments.grpc_port, arguments.metrics_port)
    spans = None if arguments.trace == "off" else _spans_directory(user_directories, report)
    always = arguments.trace == "always"
    folder = profiles_folder(arguments.profiles, user_directories)
    return ServeOptions(
        models, arguments.host, *ports, cores, runtime, settings, limits, drain_s, folder, tls, spans, always
    )


class RuntimeArguments(Protocol):
    """Options of every command that runs models."""

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


def runtime_options(arguments: RuntimeArguments) -> RuntimeOptions:
    """Return the options that select the runtime."""
    if arguments.runtime not in RUNTIMES:
        raise ConfigError("--runtime", arguments.runtime, f"choose {' or '.join(RUNTIMES)}")
    return RuntimeOptions(arguments.runtime, arguments.gpu, arguments.tenants, arguments.workers, arguments.run_limit)


def profiles_folder(path: str, directories: Directories) -> Path:
    """Return the directory of profiles: the given one, or the default in the state directory."""
    return Path(path) if path else directories.state / "serve-profiles"


def run_server(
    arguments: ServeArguments,
    directories: Directories,
    user_directories: Directories,
    report: Callable[[str], None],
    show: Callable[[BoundPorts, Sequence[str]], None],
) -> int:
    """Serve until a signal.

    `directories` are the node's; `user_directories` are the user's, where `cotenant trace` reads spans.
    """
    remove_stale_weights()
    return serve(_options(arguments, directories, user_directories, report), report, show)


def _spans_directory(directories: Directories, report: Callable[[str], None]) -> Path | None:
    """Create the directory for request spans; without one, the server runs and requests cannot be traced."""
    try:
        make_directory(directories.runtime, "directories.runtime")
        home = directories.runtime / HOME
        home.mkdir(mode=0o700, exist_ok=True)
    except (ConfigError, OSError) as error:
        report(f"requests cannot be traced: {error}")
        return None
    return home


def differences(models: Sequence[str]) -> dict[str, list[str]]:
    """Return, for each model, the settings of its Triton config that are not applied as written."""
    cores = sorted(os.sched_getaffinity(0))
    repository = Repository([Path(path) for path in models], cores)
    return {name: repository.differences(source) for name, source in repository.scan().items()}
