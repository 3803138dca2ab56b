"""Conversion of a server's plan to a JSON tree and back."""

from __future__ import annotations

from typing import Any

import msgspec

from cotenant.serve.model.plan import ModelPlan, ServePlan


def plan_tree(plan: ServePlan | None) -> dict[str, Any] | None:
    """Return the plan as a tree for JSON."""
    if plan is None:
        return None
    return {**msgspec.structs.asdict(plan), "models": [msgspec.structs.asdict(model) for model in plan.models]}


def plan_from_tree(tree: dict[str, Any] | None) -> ServePlan | None:
    """Return the plan that `plan_tree` converted; raise ValueError for any other tree."""
    if tree is None:
        return None
    try:
        models = [[model[field] for field in ModelPlan.__struct_fields__] for model in tree["models"]]
        fields = [models if field == "models" else tree[field] for field in ServePlan.__struct_fields__]
        return msgspec.convert(fields, ServePlan)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise ValueError(f"not a plan: {error}") from None
