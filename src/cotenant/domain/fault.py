"""What can go wrong, whose is it, and what is done about it? The words of the table in policy/protect/errors.py."""

from __future__ import annotations

import enum
from typing import Final

from cotenant.domain.value import Value


class Source(enum.Enum):
    """Who tells of an error; each counts its codes in its own way."""

    SIGNAL = "signal"
    CUDA = "cuda"
    XID = "xid"
    MPS = "mps"
    HOST = "host"
    HANG = "hang"
    DAEMON = "daemon"


_CALLED: Final = {"cuda": "CUDA error", "signal": "signal", "xid": "Xid", "mps": "MPS trouble", "host": "host trouble"}


def called(source: str) -> str:
    """How an error of this source is spoken of, before its code."""
    return _CALLED.get(source, f"{source} error")


class Whose(enum.Enum):
    """Whom an error concerns: the smallest thing that must be begun anew."""

    TENANT = "tenant"
    SERVER = "server"
    DEVICE = "device"
    NODE = "node"


class Act(enum.Enum):
    """What the node does."""

    NONE = "none"
    """Nothing: it is over already, or only to be told."""
    END = "end"
    """The tenant is ended step by step, after some time to end by itself."""
    KILL = "kill"
    """The tenant is killed at once."""
    RESTART_SERVER = "restart-server"
    """The MPS server is started anew; online tenants come back first."""
    DRAIN = "drain"
    """Nobody joins the device and offline tenants are ended, until everybody has left."""
    DISABLE = "disable"
    """Nobody joins the device until it answers again."""


class MpsTrouble(enum.IntEnum):
    """The codes of `Source.MPS`."""

    SERVER_DIED = 1
    NOT_READY = 2
    NOT_STARTED = 3


class HostTrouble(enum.IntEnum):
    """The codes of `Source.HOST`."""

    OUT_OF_MEMORY = 1
    DISK_FULL = 2


class DaemonTrouble(enum.IntEnum):
    """The codes of `Source.DAEMON`."""

    DIED = 1
    JOURNAL_LOST = 2
    PAGES_LOST = 3


class ErrorClass(Value, frozen=True):
    """Errors that are dealt with alike."""

    source: Source
    codes: tuple[int, ...]
    """Nothing: every code of this source that no other class has."""
    name: str
    whose: Whose
    act: Act
    restart: bool
    """Whether beginning the program again can help: what `cotenant run --restart` goes by."""
    words: str
