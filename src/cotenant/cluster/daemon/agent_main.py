"""Composition of the agent process, which runs next to the node daemon and is its client."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cotenant.cluster.config_agent import AgentConfig
from cotenant.cluster.daemon.agent import Agent, Site, next_epoch
from cotenant.cluster.daemon.attempts import Attempts
from cotenant.cluster.daemon.enrol import check_name, enrol, read_token
from cotenant.cluster.daemon.identity import Identity, read_identity
from cotenant.cluster.daemon.launch import Launch
from cotenant.cluster.daemon.link import ControllerLink
from cotenant.cluster.daemon.offers import Offers
from cotenant.errors import ConfigError, WorldError
from cotenant.node.client.connection import read_activity
from cotenant.node.directories import Directories, make_directory, restrict_directory, take_lock
from cotenant.runner.clock import BootClock, unix_ns
from cotenant.runner.live_loop import READ, IoLoop, stop_on_signals
from cotenant.runner.process import name_process
from cotenant.units.instant import SECOND_NS

STANDARD_INPUT = 0
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


def serve_agent(
    config: AgentConfig, directories: Directories, file: str, say: Callable[[str], None], *, until_eof: bool
) -> None:
    """Take jobs of the cluster until told to stop, or (`until_eof`) until standard input ends.

    `file` is the config file that was named. The jobs go on: the next agent finds them, or their lease runs out.
    """
    home = directories.state / "agent"
    make_directory(directories.state, "directories.state")
    make_directory(home, "directories.state")
    lock = take_lock(home / "lock", "an agent")
    restrict_directory(home, "directories.state")
    name_process("cotenant-agent")
    try:
        identity = _identity(config, home / "identity.pem", say)
        clock = BootClock()
        loop = IoLoop(clock)
        epoch = next_epoch(home / "epoch", unix_ns() // SECOND_NS)
        site = Site(identity.name, epoch, directories, home / "lease", int(config.report_period))
        attempts = Attempts(home / "attempts", site.lease, say)
        named = ["--config", file] if file else []
        words = ["--runtime-dir", str(directories.runtime), "--state-dir", str(directories.state), *named]
        launch = Launch(words, int(config.job_grace))
        agent = Agent(site, attempts, Offers(lambda: read_activity(directories)), launch, clock, say)
        link = ControllerLink(loop, clock, identity, agent.take, say)
        agent.bind(link)
        loop.add_timer(agent)
        stop_on_signals(loop, loop.stop)
        if until_eof:
            os.set_blocking(STANDARD_INPUT, False)
            loop.watch(STANDARD_INPUT, READ, lambda _: loop.stop("the node is gone") if _is_over() else None)
        say(f"agent of {identity.name} serves the controller at {identity.controller}")
        try:
            say(f"agent stops: {loop.run()}")
        finally:
            link.close()
            loop.close()
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        # What is not on record may not be promised: better none than an agent that forgets.
        message = f"the agent cannot keep its records in {home}: {error.strerror}"
        raise WorldError(f"{message}; make room there. Jobs go on, and the next agent finds them") from None
    finally:
        os.close(lock)


def _identity(config: AgentConfig, path: Path, say: Callable[[str], None]) -> Identity:
    """Who this machine is in the cluster; it joins where it has not yet."""
    if not config.join:
        raise ConfigError("agent.join", "", "say where the cluster's controller is, as in: --join controller:9838")
    name = check_name(config.node_name or socket.gethostname(), "agent.node_name")
    if path.exists():
        identity = read_identity(path)
        if identity.name == name:
            return msgspec.structs.replace(identity, controller=config.join)
        if not config.join_token_file:
            remedy = f"this machine has joined as {identity.name!r}; keep that name, or join anew with a token"
            raise ConfigError("agent.node_name", name, remedy)
    if not config.join_token_file:
        remedy = "this machine has not joined yet; name the file with a join token: --join-token-file FILE"
        raise ConfigError("agent.join", config.join, remedy)
    return enrol(config.join, read_token(Path(config.join_token_file)), name, path, say)


def _is_over() -> bool:
    try:
        return not os.read(STANDARD_INPUT, 4096)
    except BlockingIOError:
        return False
