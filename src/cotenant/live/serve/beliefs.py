"""What does a server intend and believe? A tree for those who ask over HTTP."""

from __future__ import annotations

from typing import Any

from cotenant.format.serveplan import plan_tree
from cotenant.machine.server import ServerMachine


def beliefs_of(machine: ServerMachine) -> dict[str, Any]:
    """Its policy's plan, and of each model how it was measured and how far that still holds."""
    settings = machine.settings
    models = [
        {
            "model": lane.spec.name,
            "slo_ns": lane.spec.slo_ns,
            "widths": lane.widths,
            "knee_units": lane.knee_units,
            "profiled": lane.profiled,
            "rate": lane.rate,
            "slower_by_machine": lane.slower[0],
            "slower_by_itself": lane.slower[1],
        }
        for lane in machine.lanes()
        if not lane.leaving
    ]
    return {
        "policy": settings.schedule,
        "units": settings.units,
        "percent": not settings.pinned,
        "plan": plan_tree(machine.plan()),
        "models": models,
    }
