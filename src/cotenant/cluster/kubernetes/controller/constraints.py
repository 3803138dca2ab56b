"""Which nodes a pod may use by its node selector, required node affinity and tolerations.

kube-scheduler decides about these. The controller evaluates the same rules before it chooses a GPU, because a pod that
was released for a node that the scheduler refuses would hold the GPU without ever using it.
Rules: https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/ and .../taint-and-toleration/
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from cotenant.cluster.kubernetes.controller.objects import (
    KubeNode,
    NodeSelectorTerm,
    Pod,
    SelectorRequirement,
    Taint,
    Toleration,
)

_EFFECTS: Final = ("NoSchedule", "NoExecute")
"""Effects that keep a pod without toleration from a node."""
_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
"""Taint of a cordoned node, about which `KubeNode.spec.unschedulable` says the same."""


class Constraint(msgspec.Struct, frozen=True):
    """What restricts the nodes of a pod; equal pods have equal constraints."""

    labels: tuple[tuple[str, str], ...] = ()
    alternatives: tuple[NodeSelectorTerm, ...] | None = None
    """Conditions of which one must hold; None: there is no required affinity."""
    tolerations: tuple[Toleration, ...] = ()

    @property
    def pool(self) -> str:
        """Return the name of the pool of nodes that satisfy the constraint."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


def constraint_of(pod: Pod) -> Constraint:
    """Return the constraint of a pod."""
    affinity = pod.spec.affinity
    required = affinity.node_affinity.required if affinity is not None and affinity.node_affinity is not None else None
    tolerations = {toleration for toleration in pod.spec.tolerations if toleration.effect in {"", *_EFFECTS}}
    return Constraint(
        tuple(sorted(pod.spec.node_selector.items())),
        None if required is None else required.alternatives,
        tuple(sorted(tolerations, key=lambda each: (each.key, each.operator, each.value, each.effect))),
    )


def allows(constraint: Constraint, node: KubeNode) -> bool:
    """Return whether a pod with this constraint may be scheduled to the node, if that is not cordoned."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in constraint.labels):
        return False
    if constraint.alternatives is not None and not any(_matches(term, node) for term in constraint.alternatives):
        return False
    taints = (taint for taint in node.spec.taints if taint.effect in _EFFECTS and taint.key != _UNSCHEDULABLE)
    return all(_is_tolerated(taint, constraint.tolerations) for taint in taints)


def _matches(term: NodeSelectorTerm, node: KubeNode) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False  # an empty term matches no node
    fields = {"metadata.name": node.metadata.name}
    return all(_holds(each, node.metadata.labels) for each in term.match_expressions) and all(
        _holds(each, fields) for each in term.match_fields
    )


def _holds(requirement: SelectorRequirement, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(requirement.key), requirement.values
    match requirement.operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compare(value, values, is_greater=requirement.operator == "Gt")
    return False


def _compare(value: str | None, values: tuple[str, ...], *, is_greater: bool) -> bool:
    try:
        left, right = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return left > right if is_greater else left < right


def _is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(
        toleration.effect in {"", taint.effect}
        and (
            (toleration.operator == "Exists" and toleration.key in {"", taint.key})
            or (toleration.operator != "Exists" and toleration.key == taint.key and toleration.value == taint.value)
        )
        for toleration in tolerations
    )
