"""Run the web console until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import ConfigError, WorldError
from cotenant.node.directories import Directories, make_directory
from cotenant.runner.address import join_address, split_address
from cotenant.web.access import WebAccess, load_token
from cotenant.web.console import ClusterSource, Console
from cotenant.web.http import HttpServer
from cotenant.web.server_view import ServerView
from cotenant.web.static import NOT_BUILT

DEFAULT_ADDRESS: Final = "127.0.0.1:7070"
TOKEN_FILE: Final = "web-token"  # noqa: S105  the name of a file
MIN_PERIOD_S: Final = 0.2
_PARENT_PERIOD_S: Final = 2.0


class WebOptions(msgspec.Struct, frozen=True):
    """How the console is served."""

    address: str = DEFAULT_ADDRESS
    may_operate: bool = False
    hosts: tuple[str, ...] = ()
    certificate: str = ""
    key: str = ""
    period_s: float = 1.0
    server: str = "127.0.0.1:8000"
    """Address of an inference server."""
    parent: int = 0
    """A process with which the console ends; 0: none."""


def serve_web(
    directories: Directories,
    own: Directories,
    options: WebOptions,
    cluster: ClusterSource,
    report: Callable[[str], None],
) -> None:
    """Serve the page of the node of these directories until SIGTERM or SIGINT; `report` receives the address.

    `own` are the directories of the caller, in which the token is stored.
    """
    host, port = split_address(options.address, "--listen")
    tls = _tls(options)
    make_directory(own.state, "directories.state")
    token = load_token(own.state / TOKEN_FILE)
    access = WebAccess(token, (host, *options.hosts), may_operate=options.may_operate, is_secure=tls is not None)
    needs_token = not _is_loopback(host) or options.may_operate
    where = host, port, tls, token if needs_token else ""
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(_serve((directories, own), options, (access, cluster), where, report))


async def _serve(
    directories: tuple[Directories, Directories],
    options: WebOptions,
    parts: tuple[WebAccess, ClusterSource],
    where: tuple[str, int, ssl.SSLContext | None, str],
    report: Callable[[str], None],
) -> None:
    access, cluster = parts
    host, port, tls, token = where
    console = Console(*directories, access, cluster, ServerView(options.server), options.period_s)
    try:
        server = await HttpServer(console.respond).start(host, port, tls)
    except OSError as error:
        why = error.strerror or str(error)
        raise WorldError(f"cannot listen at --listen = {options.address!r}: {why}; choose another address") from None
    bound = server.sockets[0].getsockname()
    url = f"{'http' if tls is None else 'https'}://{join_address(host, bound[1])}/"
    report(f"web console: {url}{f'#token={token}' if token else ''}")
    if not console.is_built:
        report(NOT_BUILT)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    watch = asyncio.create_task(_end_with(options.parent, stop)) if options.parent else None
    async with server:
        await stop.wait()
        if watch is not None:
            watch.cancel()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # streams have no end of their own


async def _end_with(parent: int, stop: asyncio.Event) -> None:
    """Stop when the node that started this process is gone."""
    while os.getppid() == parent:  # noqa: ASYNC110  the kernel sends no event for this
        await asyncio.sleep(_PARENT_PERIOD_S)
    stop.set()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tls(options: WebOptions) -> ssl.SSLContext | None:
    if not options.certificate and not options.key:
        return None
    if not options.certificate or not options.key:
        raise ConfigError("--certificate", options.certificate, "give --certificate and --key together")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(Path(options.certificate), Path(options.key))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("--certificate", options.certificate, f"cannot be used: {error}") from None
    return context
