"""Scheduling policies of the inference server: the built-in ones and those that other packages install.

A package adds a policy through the entry-point group `cotenant.policies`: the entry's name is the policy's name, and
its object is a class that implements `ServePolicy`.
"""

from __future__ import annotations

import importlib.metadata
from typing import Final

from cotenant.serve.model.scheduling import ServePolicy
from cotenant.serve.policy.dstack import Dstack
from cotenant.serve.policy.fifo import Fifo

ENTRY_POINTS: Final = "cotenant.policies"
BUILT_IN: Final[dict[str, type[ServePolicy]]] = {"dstack": Dstack, "fifo": Fifo}


def policy_names() -> list[str]:
    """Return the names of all policies that a server can follow, the built-in ones first."""
    installed = {entry.name for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    return [*BUILT_IN, *sorted(installed - set(BUILT_IN))]


def policy_class(name: str) -> type[ServePolicy]:
    """Return the class of a policy; raise KeyError if no policy of that name is installed."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS, name=name):
        loaded: type[ServePolicy] = entry.load()
        return loaded
    raise KeyError(name)
