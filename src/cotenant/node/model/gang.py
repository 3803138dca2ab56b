"""A job with several ranks on this machine."""

from __future__ import annotations

from typing import Final

import msgspec

GANG_RANKS: Final = 32
"""The largest number of ranks of one job on one machine; CT_GANG_RANKS in native/gate/gang.h."""


class GangKey(msgspec.Struct, frozen=True):
    """What identifies a job whose ranks agree on their collectives."""

    account: tuple[int, str]
    """The user whose processes they are; the same name of another user is another job."""
    name: str
    ranks: int
