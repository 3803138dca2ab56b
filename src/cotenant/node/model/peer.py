"""The identity of a process that connected to the node."""

from __future__ import annotations

from typing import Final

import msgspec

NO_DESCRIPTOR: Final = -1


class PeerIdentity(msgspec.Struct, frozen=True):
    """The process that opened a connection. The kernel supplied every field; the process itself supplied none."""

    pid: int
    """Its number in the node's pid namespace; 0 if it has none there."""
    pidfd: int
    """A descriptor of the process, owned by the connection; -1 if the process had ended already."""
    uid: int
    gid: int
    cgroup: str = ""
    """Its path in the unified cgroup hierarchy; empty if unknown."""
    is_foreign: bool = False
    """Whether it is in another pid or user namespace than the node, or whether that cannot be determined."""
    groups: tuple[int, ...] = ()
    """Its supplementary groups when it connected."""

    @property
    def account(self) -> tuple[int, str]:
        """The user that limits of connections and requests count for; root of a container is not root of the host."""
        return self.uid, self.cgroup if self.is_foreign else ""
