"""Who runs when? Of tenants: the pages that the gate reads. Of a server's requests: a policy of this table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cotenant.domain.lane import ServePolicy
from cotenant.policy.schedule.clipper import Clipper
from cotenant.policy.schedule.dstack import Dstack
from cotenant.policy.schedule.fifo import Fifo
from cotenant.policy.schedule.fixed import Fixed
from cotenant.policy.schedule.gslice import Gslice
from cotenant.policy.schedule.nexus import Nexus
from cotenant.policy.schedule.temporal import Temporal
from cotenant.policy.schedule.triton import Triton

SERVE_POLICIES: Final[dict[str, Callable[[], ServePolicy]]] = {
    "dstack": Dstack,
    "fifo": Fifo,
    "temporal": Temporal,
    "fixed": Fixed,
    "triton": Triton,
    "clipper": Clipper,
    "nexus": Nexus,
    "gslice": Gslice,
}
"""A new one for each server: what it remembers is that server's."""
SPATIAL: Final = ("dstack", "gslice")
"""Those that choose among a model's widths, where they were measured."""
UNDIVIDED: Final = ("temporal", "fixed", "triton", "clipper", "nexus")
"""Those whose runs have the whole device, alone or beside others."""
