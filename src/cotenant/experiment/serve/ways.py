"""In which ways are many models served from one device? Each is a policy, what it admits, and what it knows.

A published system comes with what it does about requests that are late, as part of its definition:

- `temporal`, `fixed` and `triton` do not know objectives: everything is taken and answered, however late. (Triton can
  be told to refuse what waited too long; by default it does not.)
- `clipper`, `nexus` and `gslice` know them. What has passed its deadline while it waited is dropped, as Clipper's queue
  and Nexus' dispatch do (GSLICE is not known to; it is given the same). Nexus also drops what can no longer make it.
- `dstack` refuses at once what is not going to make it.

Much of what a server gains past saturation is admission alone. So that it is not taken for scheduling, each baseline is
also there with this project's admission before it (`... + admission`).
"""

from __future__ import annotations

from typing import Final

from cotenant.domain.value import Value

OURS: Final = "dstack"
TEMPORAL: Final = "temporal"
BLIND: Final = (TEMPORAL, "fixed", "triton", "fifo")
"""Do not know what is wanted by when."""
AWARE: Final = ("clipper", "nexus", "gslice")
ADMITTED: Final = " + admission"


class Way(Value, frozen=True):
    """One way to serve."""

    name: str
    schedule: str
    """A policy, by its name in `policy.schedule.SERVE_POLICIES`."""
    admit: str
    """What it takes, by its name in `policy.admit.REQUEST_POLICIES`."""
    knows_slo: bool
    """Whether the server is told what is wanted by when; if not, nothing is ever too late for it."""


def way_of(name: str) -> Way:
    """A policy by its name as it was published, or with our admission before it."""
    schedule = name.removesuffix(ADMITTED)
    if name != schedule or schedule not in (*BLIND, *AWARE):
        return Way(name, schedule, "deadline", knows_slo=True)
    return Way(name, schedule, "anyone", knows_slo=schedule in AWARE)
