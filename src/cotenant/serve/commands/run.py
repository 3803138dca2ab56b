"""`cotenant serve run`: options and start of the server."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from cotenant.errors import ConfigError
from cotenant.node.directories import Directories, make_directory
from cotenant.serve.commands.runtime import RuntimeOptions, runtime_of
from cotenant.serve.frontend.access import Access, create_token, read_token
from cotenant.serve.frontend.admin import EXPLICIT, MODEL_CONTROL
from cotenant.serve.frontend.connections import ClientLimits
from cotenant.serve.frontend.listeners import OFF, BoundPorts, ServeOptions
from cotenant.serve.frontend.server import cores_to_use, serve
from cotenant.serve.frontend.spans import HOME
from cotenant.serve.frontend.tls import TlsFiles, tls_context, tls_files
from cotenant.serve.model.scheduling import Widths
from cotenant.serve.policy import policy_class, policy_names
from cotenant.serve.policy.admit import ADMISSION_POLICIES
from cotenant.serve.runtime.gpu.runtime import runs_at_once
from cotenant.serve.runtime.onnx_files import remove_stale_weights
from cotenant.serve.runtime.repository import Repository
from cotenant.serve.runtime.runtime import RUNTIMES, ModelRuntime
from cotenant.serve.state.server import ServerSettings
from cotenant.units.text import parse_duration, parse_size

TRACE: Final = ("asked", "always", "off")
ADMIN_PORT: Final = 8003
ADMIN_TOKEN: Final = "serve-admin-token"  # noqa: S105  the name of a file


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
    token_file: str = ""
    allow_origin: tuple[str, ...] = ()
    model_control: str = "none"
    poll_interval: str = "5s"
    admin_host: str = "127.0.0.1"
    admin_port: int | None = None
    admin_token_file: str = ""
    admin_tls_clients: str = ""
    client_connections: int = 2048
    idle_timeout: str = "5min"
    access_log: str = ""


def _options(
    arguments: ServeArguments, directories: Directories, user_directories: Directories, report: Callable[[str], None]
) -> ServeOptions:
    for flag, name, table in (
        ("--trace", arguments.trace, list(TRACE)),
        ("--policy", arguments.policy, policy_names()),
        ("--admit", arguments.admit, list(ADMISSION_POLICIES)),
        ("--model-control", arguments.model_control, list(MODEL_CONTROL)),
    ):
        if name not in table:
            raise ConfigError(flag, name, f"choose one of {', '.join(table)}")
    for flag, port in (
        ("--http-port", arguments.http_port),
        ("--grpc-port", arguments.grpc_port),
        ("--metrics-port", arguments.metrics_port),
        ("--admin-port", arguments.admin_port or 0),
    ):
        if not -1 <= port <= 0xFFFF:
            raise ConfigError(flag, port, "choose 1 to 65535, 0 for a free port, or -1 for none")
    for flag, count in (
        ("--queue", arguments.queue),
        ("--connections", arguments.connections),
        ("--client-connections", arguments.client_connections),
    ):
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
        arguments.client_connections,
        parse_duration(arguments.idle_timeout, field="--idle-timeout") / 10**9,
    )
    drain_s = parse_duration(arguments.drain, field="--drain") / 10**9
    at_once = (
        runs_at_once(arguments.workers // max(1, len(sources)))
        if policy_class(arguments.policy).widths is Widths.MEASURED
        else 0
    )
    runtime = runtime_of(runtime_options(arguments)._replace(at_once=at_once), cores, directories, report)
    settings = _settings(arguments, runtime)
    ports = (arguments.http_port, arguments.grpc_port, arguments.metrics_port, _admin_port(arguments))
    spans = None if arguments.trace == "off" else _spans_directory(user_directories, report)
    always = arguments.trace == "always"
    folder = profiles_folder(arguments.profiles, user_directories)
    return ServeOptions(
        *(models, arguments.host, *ports, cores, runtime, settings, limits, drain_s, folder, tls, spans, always),
        access=_access(arguments, tls, report),
        admin_host=arguments.admin_host,
        admin_access=_admin_access(arguments, user_directories, report),
        admin_tls=_admin_tls(arguments, tls),
        control=arguments.model_control,
        poll_s=parse_duration(arguments.poll_interval, field="--poll-interval") / 10**9,
        access_log=arguments.access_log,
    )


def _settings(arguments: ServeArguments, runtime: ModelRuntime) -> ServerSettings:
    return ServerSettings(
        runtime.all_units,
        pinned=runtime.pinned,
        schedule=arguments.policy,
        admit=arguments.admit,
        requests_limit=arguments.queue,
        interference=runtime.interference,
        ahead=runtime.pinned,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _access(arguments: ServeArguments, tls: TlsFiles | None, report: Callable[[str], None]) -> Access:
    """Return the rules of the listeners for clients; warn if the network may use them without identification."""
    token = read_token(arguments.token_file, "--token-file") if arguments.token_file else ""
    if not token and not _is_loopback(arguments.host) and (tls is None or tls.clients is None):
        problem = f"everyone who reaches {arguments.host} may use the models"
        report(f"warning: {problem}: require a token with --token-file, or client certificates with --tls-clients")
    if token and tls is None and not _is_loopback(arguments.host):
        report("warning: the token is sent over the network in clear text: use TLS with --tls-cert and --tls-key")
    return Access(token, frozenset(origin.rstrip("/") for origin in arguments.allow_origin))


def _admin_port(arguments: ServeArguments) -> int:
    if arguments.admin_port is not None:
        return arguments.admin_port
    return ADMIN_PORT if arguments.model_control == EXPLICIT else OFF


def _admin_tls(arguments: ServeArguments, tls: TlsFiles | None) -> TlsFiles | None:
    """Return the certificate of the admin listener: that of the others, with its own authorities if they are given."""
    if not arguments.admin_tls_clients:
        return tls
    if tls is None:
        raise ConfigError("--admin-tls-clients", arguments.admin_tls_clients, "name the certificate with --tls-cert")
    files = tls._replace(clients=Path(arguments.admin_tls_clients))
    tls_context(files, "http/1.1")  # reject unusable files before anything else
    return files


def _admin_access(arguments: ServeArguments, directories: Directories, report: Callable[[str], None]) -> Access:
    """Return the rules of the admin listener: a token, unless client certificates of its own identify operators."""
    if _admin_port(arguments) < 0:
        return Access()
    if arguments.admin_token_file:
        return Access(read_token(arguments.admin_token_file, "--admin-token-file"), may_control=True)
    if arguments.admin_tls_clients:
        return Access(may_control=True)
    path = directories.state / ADMIN_TOKEN
    try:
        token = create_token(path)
    except OSError as error:
        reason = f"is missing, and no token can be written to {path}: {error.strerror}"
        raise ConfigError("--admin-token-file", "", reason) from None
    report(f"the token of the admin listener is in {path}")
    return Access(token, may_control=True)


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
    return {name: repository.differences(source) for name, source in repository.scan(run_code=True).items()}
