"""Report of the policy's plan and its estimates, as a tree for HTTP."""

from __future__ import annotations

from typing import Any

from cotenant.serve.plan_format import plan_tree
from cotenant.serve.state.server import ServerMachine


def plan_report(machine: ServerMachine) -> dict[str, Any]:
    """Return the plan, and for each model its measurements and the current slowdown."""
    settings = machine.settings
    models = [
        {
            "model": queue.spec.name,
            "slo_ns": queue.spec.slo_ns,
            "widths": queue.widths,
            "knee_units": queue.knee_units,
            "profiled": queue.profiled,
            "rate": queue.rate,
            "slower_by_machine": queue.slowdown[0],
            "slower_by_itself": queue.slowdown[1],
        }
        for queue in machine.queues()
        if not queue.withdrawn
    ]
    return {
        "policy": settings.schedule,
        "units": settings.units,
        "percent": not settings.pinned,
        "plan": plan_tree(machine.plan()),
        "models": models,
    }
