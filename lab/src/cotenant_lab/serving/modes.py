"""Serving modes: a policy, its admission rule, and whether it knows objectives.

The treatment of late requests is part of the definition of a published system:

- `temporal`, `fixed` and `triton` do not know objectives: every request is accepted and answered, however late. (Triton
  can be configured to refuse what waited too long; by default it does not.)
- `clipper`, `nexus` and `gslice` know them. A request whose deadline has passed while it waited is dropped, as
  Clipper's queue and Nexus' dispatch do (GSLICE is not known to; it gets the same rule). Nexus also drops
  hopeless requests.
- `dstack` refuses at once requests that will be late.

Much of what a server gains at overload is due to admission alone. To separate it from scheduling, each baseline also
exists with this project's admission (`... + admission`).
"""

from __future__ import annotations

from typing import Final

from cotenant.units.value import Value

OURS: Final = "dstack"
TEMPORAL: Final = "temporal"
BLIND: Final = (TEMPORAL, "fixed", "triton", "fifo")
"""Modes that do not know objectives."""
AWARE: Final = ("clipper", "nexus", "gslice")
ADMITTED: Final = " + admission"


class ServingMode(Value, frozen=True):
    """One serving mode."""

    name: str
    schedule: str
    """A policy, by its name in the entry-point group `cotenant.policies` or among the built-in ones."""
    admit: str
    """The admission rule, by its name in the product's table."""
    knows_slo: bool
    """Whether the server knows objectives; if not, no request is ever too late for it."""


def mode_of(name: str) -> ServingMode:
    """Return a policy as it was published, or with our admission."""
    schedule = name.removesuffix(ADMITTED)
    if name != schedule or schedule not in (*BLIND, *AWARE):
        return ServingMode(name, schedule, "deadline", knows_slo=True)
    return ServingMode(name, schedule, "accept-all", knows_slo=schedule in AWARE)
