"""Wires the agent: this machine as a node of a cluster, beside the node daemon and through its own door."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cotenant.domain.instant import SECOND_NS
from cotenant.errors import ConfigError, WorldError
from cotenant.format.config_agent import AgentConfig
from cotenant.live.clock import BootClock, unix_ns
from cotenant.live.cluster.agent import Agent, Site, next_epoch
from cotenant.live.cluster.attempts import Attempts
from cotenant.live.cluster.enrol import check_name, enrol, read_token
from cotenant.live.cluster.identity import Identity, read_identity
from cotenant.live.cluster.launch import Launch
from cotenant.live.cluster.link import BrainLink
from cotenant.live.cluster.offers import Offers
from cotenant.live.directory import Places, close_directory, make_directory, take_lock
from cotenant.live.loop import READ, ReadyLoop
from cotenant.live.process import name_process
from cotenant.live.stopping import stop_on_signals

STANDARD_INPUT = 0
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


def serve_agent(config: AgentConfig, places: Places, file: str, say: Callable[[str], None], *, until_eof: bool) -> None:
    """Take jobs of the cluster until told to stop, or (`until_eof`) until standard input ends.

    `file` is the config file that was named. The jobs go on: the next agent finds them, or their lease runs out.
    """
    home = places.state / "agent"
    make_directory(places.state, "directories.state")
    make_directory(home, "directories.state")
    lock = take_lock(home / "lock", "an agent")
    close_directory(home, "directories.state")
    name_process("cotenant-agent")
    try:
        identity = _identity(config, home / "identity.pem", say)
        clock = BootClock()
        loop = ReadyLoop(clock)
        epoch = next_epoch(home / "epoch", unix_ns() // SECOND_NS)
        site = Site(identity.name, epoch, places.socket, home / "lease", int(config.report_period))
        attempts = Attempts(home / "attempts", site.lease, say)
        named = ["--config", file] if file else []
        words = ["--runtime", str(places.runtime), "--state", str(places.state), *named]
        launch = Launch(words, int(config.job_grace))
        agent = Agent(site, attempts, Offers(places.pages), launch, clock, say)
        link = BrainLink(loop, clock, identity, agent.take, say)
        agent.bind(link)
        loop.add_timed(agent)
        stop_on_signals(loop, loop.stop)
        if until_eof:
            os.set_blocking(STANDARD_INPUT, False)
            loop.watch(STANDARD_INPUT, READ, lambda _: loop.stop("the node is gone") if _is_over() else None)
        say(f"agent of {identity.name} serves the brain at {identity.brain}")
        try:
            say(f"agent stops: {loop.run()}")
        finally:
            link.close()
            loop.close()
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        # What is not on record may not be promised: better none than an agent that forgets.
        told = f"the agent cannot keep its records in {home}: {error.strerror}"
        raise WorldError(f"{told}; make room there. Jobs go on, and the next agent finds them") from None
    finally:
        os.close(lock)


def _identity(config: AgentConfig, path: Path, say: Callable[[str], None]) -> Identity:
    """Who this machine is in the cluster; it joins where it has not yet."""
    if not config.join:
        raise ConfigError("agent.join", "", "say where the cluster's brain is, as in: --join brain:9838")
    name = check_name(config.node_name or socket.gethostname(), "agent.node_name")
    if path.exists():
        identity = read_identity(path)
        if identity.name == name:
            return msgspec.structs.replace(identity, brain=config.join)
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
