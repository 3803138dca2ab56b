"""How does a server live? Listens, loads, is ready, is asked to stop, answers what it has, and goes."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.errors import ConfigError, WorldError
from cotenant.live.serve.engine import Engine
from cotenant.live.serve.grpc import GrpcServing
from cotenant.live.serve.http import HttpServing, Limits
from cotenant.live.serve.metrics import exposition
from cotenant.live.serve.repository import Repository
from cotenant.live.serve.runtime import ModelRuntime
from cotenant.live.serve.site import Site
from cotenant.machine.server import ServerSettings

_BACKLOG: Final = 2048
_SWITCH_INTERVAL_S: Final = 0.0005
"""How long a thread may hold the interpreter while others wait: 5 ms, the default, would be a tail of its own."""
OFF: Final = -1


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


class Listening(NamedTuple):
    """The ports that were opened, negative where there is none."""

    http: int
    grpc: int
    metrics: int


Tell = Callable[[str], None]


def serve(options: ServeOptions, say: Tell, ready: Callable[[Listening, Sequence[str]], None]) -> int:
    """Serve until told to stop; `ready` is called once with the ports and the models. Returns the exit code."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    main = _Server(options, say, ready).run()
    try:
        import uvloop  # noqa: PLC0415  quicker by far, yet nothing depends on it
    except ImportError:
        say("uvloop is not installed: serving goes on, at a third of the speed")
        return asyncio.run(main)
    code: int = uvloop.run(main)
    return code


class _Server:
    def __init__(self, options: ServeOptions, say: Tell, ready: Callable[[Listening, Sequence[str]], None]) -> None:
        self._options = options
        self._say = say
        self._ready = ready

    async def run(self) -> int:
        options = self._options
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        runtime = options.runtime
        engine = Engine(options.settings, runtime, loop, options.limits.held_bytes)
        site = Site(engine, Repository(options.models, options.cores, runtime), runtime.all_units)
        http = HttpServing(site, options.limits, lambda: exposition(engine))
        grpc = GrpcServing(site, options.limits.body_bytes, options.limits.connections)
        servers = []
        ports = []
        for port, factory, name in (
            (options.http_port, http, "--http-port"),
            (options.grpc_port, grpc, "--grpc-port"),
            (options.metrics_port, http, "--metrics-port"),
        ):
            if port < 0:
                ports.append(OFF)
                continue
            server = await self._listen(loop, factory, port, name)
            servers.append(server)
            ports.append(server.sockets[0].getsockname()[1])
        refused = await site.load_all()
        for reason in refused.values():
            self._say(reason)
        gc.collect()
        gc.freeze()  # what is loaded stays: no collection need look at it again
        self._ready(Listening(*ports), engine.names())
        sweeper = loop.create_task(_sweep(http))
        await stop.wait()
        code = await self._leave(engine, http, grpc, servers)
        sweeper.cancel()
        return code

    async def _listen(
        self, loop: asyncio.AbstractEventLoop, factory: HttpServing | GrpcServing, port: int, name: str
    ) -> asyncio.Server:
        host = self._options.host
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise WorldError(f"cannot listen at {host}:{port}: {why}; name another by {name}") from None
        return await loop.create_server(factory, sock=listener, backlog=_BACKLOG)

    async def _leave(
        self, engine: Engine, http: HttpServing, grpc: GrpcServing, servers: Sequence[asyncio.Server]
    ) -> int:
        """Not ready at once; then what was taken is answered; then connections end."""
        self._say("draining: no new requests, those under way are answered")
        drained = asyncio.Event()
        engine.drain(drained.set)
        code = 0
        try:
            await asyncio.wait_for(drained.wait(), self._options.drain_s)
        except TimeoutError:
            self._say(f"some requests took longer than the {self._options.drain_s:g} s of --drain, and are given up")
            code = 75
        for server in servers:
            server.close()
        http.leave()
        grpc.leave()
        for _ in range(20):  # let the last answers out
            if not http.connections and not grpc.connections:
                break
            await asyncio.sleep(0.05)
        engine.close(patient=code == 0)
        return code


async def _sweep(http: HttpServing) -> None:
    while True:
        await asyncio.sleep(http.limits.patience_s)
        http.sweep()


def cores_to_use(available: Sequence[int], count: int) -> tuple[int, ...]:
    """The first so many of the cores that this process may use; zero: all of them."""
    if count > len(available):
        raise ConfigError("--cores", count, f"this process may use {len(available)}")
    return tuple(sorted(available))[: count or len(available)]
