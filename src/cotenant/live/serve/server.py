"""How does a server live? Listens, loads, is ready, is asked to stop, answers what it has, and goes."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from cotenant.domain.instant import SECOND_NS
from cotenant.domain.runtimes import RunTimes
from cotenant.errors import ConfigError, WorldError
from cotenant.live.clock import monotonic_ns
from cotenant.live.prompt import be_prompt
from cotenant.live.serve.engine import Engine
from cotenant.live.serve.found import Found
from cotenant.live.serve.grpc import GrpcServing
from cotenant.live.serve.http import HttpServing, Limits
from cotenant.live.serve.metrics import exposition
from cotenant.live.serve.profiles import ProfileCache, model_hash
from cotenant.live.serve.regions import Regions
from cotenant.live.serve.repository import Repository
from cotenant.live.serve.runtime import ModelRuntime
from cotenant.live.serve.site import Site
from cotenant.live.serve.tls import TlsFiles, tls_context
from cotenant.machine.server import ServerSettings

_BACKLOG: Final = 2048
_SWITCH_INTERVAL_S: Final = 0.0005
"""How long a thread may hold the interpreter while others wait: 5 ms, the default, would be a tail of its own."""
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""In seconds and tries: a client whose machine is gone is noticed after two minutes."""
_FEEL_S: Final = 0.25
_OTHER_FILES: Final = 512
OFF: Final = -1
T = TypeVar("T")


class ServeOptions(NamedTuple):
    """Where and how to serve."""

    models: tuple[Path, ...]
    host: str
    http_port: int
    """0 chooses one that is free, negative: no such door."""
    grpc_port: int
    metrics_port: int
    cores: tuple[int, ...]
    """The machine's own numbers."""
    runtime: ModelRuntime
    settings: ServerSettings
    limits: Limits
    drain_s: float
    profiles: Path
    """The folder of what models' runs took."""
    tls: TlsFiles | None = None
    spans: Path | None = None
    """The directory for what becomes of requests; None: it is not written down."""
    always_spans: bool = False


class Listening(NamedTuple):
    """The ports that were opened, negative where there is none."""

    http: int
    grpc: int
    metrics: int


Tell = Callable[[str], None]


def serve(options: ServeOptions, say: Tell, ready: Callable[[Listening, Sequence[str]], None]) -> int:
    """Serve until told to stop; `ready` is called once with the ports and the models. Returns the exit code."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    be_prompt()
    wanted = len(Listening._fields) * options.limits.connections + _OTHER_FILES
    allowed = allow_files(wanted)
    if allowed < wanted:
        say(f"this process may open {allowed} files: fewer clients at once than --connections says (see ulimit -n)")
    main = _Server(options, say, ready).run()
    try:
        import uvloop  # noqa: PLC0415  quicker by far, yet nothing depends on it
    except ImportError:
        say("uvloop is not installed: serving goes on, at a third of the speed")
        return asyncio.run(main)
    code: int = uvloop.run(main)
    return code


class _Profiles:
    """What is known of the models that are loaded, and of which nothing is."""

    def __init__(self, cache: ProfileCache, runtime: ModelRuntime) -> None:
        self._cache = cache
        self._runtime = runtime
        self.missing: list[str] = []

    def of(self, found: Found) -> RunTimes | None:
        known = self._cache.find(model_hash(found.path, found.name), self._runtime.identity)
        if known is None:
            self.missing.append(found.name)
        return None if known is None else known.times


def allow_files(wanted: int) -> int:
    """Have so many files open, connections among them, as far as we may; returns how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _without_profile(names: Sequence[str]) -> str:
    learned = "what runs take is learned from them; `cotenant serve profile MODELS` measures it"
    return f"no profile of {_some(names)}: {learned}"


class _Server:
    def __init__(self, options: ServeOptions, say: Tell, ready: Callable[[Listening, Sequence[str]], None]) -> None:
        self._options = options
        self._say = say
        self._ready = ready

    async def run(self) -> int:
        options = self._options
        loop = asyncio.get_running_loop()
        asked = _Asked(loop)
        limits, runtime = options.limits, options.runtime
        regions = Regions(limits.held_bytes, limits.body_bytes)
        engine = Engine(
            *(options.settings, runtime, loop, limits.held_bytes, options.spans),
            always=options.always_spans,
            regions=regions,
        )
        profiles = _Profiles(ProfileCache(options.profiles, self._say), runtime)
        repository = Repository(options.models, options.cores, runtime)
        site = Site(engine, repository, runtime.all_units, profiles.of)
        http = HttpServing(site, limits, lambda: exposition(site, clients()))
        grpc = GrpcServing(site, limits.body_bytes, limits.held_bytes, limits.connections)
        figures = HttpServing(site, limits, http.metrics, figures_only=True)
        doors = (http, grpc, figures)

        def clients() -> dict[str, int]:
            return dict(zip(Listening._fields, (len(door.connections) for door in doors), strict=True))

        servers = []
        ports = []
        for port, factory, name, words in (
            (options.http_port, http, "--http-port", "http/1.1"),
            (options.grpc_port, grpc, "--grpc-port", "h2"),
            (options.metrics_port, figures, "--metrics-port", "http/1.1"),
        ):
            if port < 0:
                ports.append(OFF)
                continue
            tls = None if options.tls is None else tls_context(options.tls, words)
            server = await self._listen(loop, factory, port, name, tls)
            servers.append(server)
            ports.append(server.sockets[0].getsockname()[1])
        refused = await _unless(asked.to_stop, site.load_all())
        if refused is None:
            self._leave_at_once(engine)
        for reason in refused.values():
            self._say(reason)
        if repository.otherwise:
            some = _some(sorted(repository.otherwise))
            self._say(f"not all is done that config.pbtxt of {some} asks: `cotenant serve MODELS --import` names it")
        if profiles.missing:
            self._say(_without_profile(profiles.missing))
        gc.collect()
        gc.freeze()  # what is loaded stays: no collection need look at it again
        self._ready(Listening(*ports), engine.names())
        tasks = [loop.create_task(one) for one in (_sweep(doors, limits.patience_s), _feel_lag(engine))]
        await asked.to_stop.wait()
        code = await self._leave(engine, doors, servers, asked.at_once)
        for task in tasks:
            task.cancel()
        return code

    async def _listen(
        self,
        loop: asyncio.AbstractEventLoop,
        factory: HttpServing | GrpcServing,
        port: int,
        name: str,
        tls: ssl.SSLContext | None,
    ) -> asyncio.Server:
        host = self._options.host
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # accepted sockets take these over
            for option, value in _KEEPALIVE:
                listener.setsockopt(socket.IPPROTO_TCP, option, value)
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise WorldError(f"cannot listen at {host}:{port}: {why}; name another by {name}") from None
        return await loop.create_server(factory, sock=listener, backlog=_BACKLOG, ssl=tls)

    def _leave_at_once(self, engine: Engine) -> NoReturn:
        """Nothing was promised yet. A thread that loads a model cannot be ended, and nobody is to wait for it."""
        self._say("stopped while models were loaded")
        engine.close(patient=False)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    async def _leave(
        self,
        engine: Engine,
        doors: Sequence[HttpServing | GrpcServing],
        servers: Sequence[asyncio.Server],
        at_once: asyncio.Event,
    ) -> int:
        """Not ready at once; then what was taken is answered; then connections end."""
        self._say("draining: no new requests, those under way are answered")
        drained = asyncio.Event()
        engine.drain(drained.set)
        code = 0
        try:
            if await asyncio.wait_for(_unless(at_once, drained.wait()), self._options.drain_s) is None:
                self._say("asked to stop once more: requests that are under way are given up")
                code = 75
        except TimeoutError:
            self._say(f"some requests took longer than the {self._options.drain_s:g} s of --drain, and are given up")
            code = 75
        for server in servers:
            server.close()
        for door in doors:
            door.leave()
        for _ in range(20):  # let the last answers out
            if not any(door.connections for door in doors):
                break
            await asyncio.sleep(0.05)
        engine.close(patient=code == 0)
        return code


class _Asked:
    """What signals ask for: to stop, and at the next one to do it at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.to_stop = asyncio.Event()
        self.at_once = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._hear)

    def _hear(self) -> None:
        (self.at_once if self.to_stop.is_set() else self.to_stop).set()


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What work comes to, or None if something happens before."""
    doing, happens = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((doing, happens), return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        doing.cancel()
        happens.cancel()


async def _sweep(doors: Sequence[HttpServing | GrpcServing], patience_s: float) -> None:
    while True:
        await asyncio.sleep(patience_s)
        for door in doors:
            door.sweep()


async def _feel_lag(engine: Engine) -> None:
    """The worst of the last moments, slowly forgotten."""
    while True:
        due = monotonic_ns() + int(_FEEL_S * SECOND_NS)
        await asyncio.sleep(_FEEL_S)
        late_ns = max(monotonic_ns() - due, 0)
        engine.loop_lag_ns = max(late_ns, engine.loop_lag_ns * 9 // 10)


def cores_to_use(available: Sequence[int], count: int) -> tuple[int, ...]:
    """The first so many of the cores that this process may use; zero: all of them."""
    if count > len(available):
        raise ConfigError("--cores", count, f"this process may use {len(available)}")
    return tuple(sorted(available))[: count or len(available)]
