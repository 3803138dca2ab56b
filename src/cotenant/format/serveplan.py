"""How is a server's plan written for others? As a tree with a name for everything, and read back from it."""

from __future__ import annotations

from typing import Any

import msgspec

from cotenant.domain.serveplan import ModelPlan, ServePlan


def plan_tree(plan: ServePlan | None) -> dict[str, Any] | None:
    """For JSON."""
    if plan is None:
        return None
    return {**msgspec.structs.asdict(plan), "models": [msgspec.structs.asdict(one) for one in plan.models]}


def plan_of_tree(tree: dict[str, Any] | None) -> ServePlan | None:
    """What `plan_tree` wrote; what it did not is a ValueError."""
    if tree is None:
        return None
    try:
        models = [[one[field] for field in ModelPlan.__struct_fields__] for one in tree["models"]]
        whole = [models if field == "models" else tree[field] for field in ServePlan.__struct_fields__]
        return msgspec.convert(whole, ServePlan)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise ValueError(f"that is no plan: {error}") from None
