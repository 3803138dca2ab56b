"""Classes of errors: their source, their scope and the remedy. policy/protect/errors.py has the table."""

from __future__ import annotations

import enum
from typing import Final

from cotenant.units.value import Value


class Source(enum.Enum):
    """The component that reports an error; each source has its own codes."""

    SIGNAL = "signal"
    CUDA = "cuda"
    XID = "xid"
    MPS = "mps"
    HOST = "host"
    HANG = "hang"
    DAEMON = "daemon"
    PAGES = "pages"


_LABELS: Final = {
    "cuda": "CUDA error",
    "signal": "signal",
    "xid": "Xid",
    "mps": "MPS fault",
    "host": "host fault",
    "pages": "page fault",
}


def source_label(source: str) -> str:
    """Return the words that precede the code of an error from this source."""
    return _LABELS.get(source, f"{source} error")


class FaultScope(enum.Enum):
    """The smallest unit that an error affects and that must be restarted."""

    TENANT = "tenant"
    SERVER = "server"
    DEVICE = "device"
    NODE = "node"


class Remedy(enum.Enum):
    """What the node does about an error."""

    NONE = "none"
    """Nothing: the error is over, or is only reported."""
    END = "end"
    """End the tenant step by step, after some time to exit by itself."""
    KILL = "kill"
    """Kill the tenant at once."""
    EVICT = "evict"
    """Kill the tenant at once from the node, without its parent: it is not to be trusted."""
    RESTART_SERVER = "restart-server"
    """Restart the MPS server; online tenants may join first."""
    DRAIN = "drain"
    """Admit no tenants to the device and end its offline tenants until all tenants have left."""
    DISABLE = "disable"
    """Admit no tenants to the device until it responds again."""


class MpsFault(enum.IntEnum):
    """The codes of `Source.MPS`."""

    SERVER_DIED = 1
    NOT_READY = 2
    NOT_STARTED = 3


class HostFault(enum.IntEnum):
    """The codes of `Source.HOST`."""

    OUT_OF_MEMORY = 1
    DISK_FULL = 2


class DaemonFault(enum.IntEnum):
    """The codes of `Source.DAEMON`."""

    DIED = 1
    JOURNAL_LOST = 2
    PAGES_LOST = 3


class PageFault(enum.IntEnum):
    """The codes of `Source.PAGES`."""

    COUNTER_DECREASED = 1
    WRONG_GENERATION = 2
    IMPOSSIBLE_AMOUNT = 3
    IMPOSSIBLE_INSTANT = 4
    IMPOSSIBLE_SHARE = 5


class ErrorClass(Value, frozen=True):
    """Errors with the same remedy."""

    source: Source
    codes: tuple[int, ...]
    """Empty: every code of this source that no other class lists."""
    name: str
    scope: FaultScope
    remedy: Remedy
    restart: bool
    """Whether restarting the program can help; `cotenant run --restart` depends on it."""
    description: str
