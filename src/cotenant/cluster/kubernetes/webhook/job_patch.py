"""Translate a Job: an eviction of its pods costs no retry, and a bad template is refused with the Job."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.webhook.objects import JsonObject, join_path, list_at, object_at, text_at
from cotenant.cluster.kubernetes.webhook.pod_patch import Translation, size_warnings
from cotenant.cluster.kubernetes.webhook.pod_request import WebhookSettings, read_request
from cotenant.errors import ConfigError
from cotenant.gate.grant import Kind

_TEMPLATE: Final = "spec.template"
_DISRUPTED: Final = "DisruptionTarget"
"""The condition that an eviction sets on a pod (https://kubernetes.io/docs/concepts/workloads/pods/disruptions/)."""
_RULE: Final = {"action": "Ignore", "onPodConditions": [{"type": _DISRUPTED, "status": "True"}]}
_RULES_LIMIT: Final = 20
"""Rules that the API accepts in a podFailurePolicy."""


def translate_job(job: JsonObject, settings: WebhookSettings) -> Translation:
    """Return the Job as it should be created.

    The template stays as it is: every pod is translated when it is created.
    """
    template = object_at(object_at(job, "spec"), "template", "spec")
    metadata = f"{_TEMPLATE}.metadata"
    labels = object_at(object_at(template, "metadata", _TEMPLATE), "labels", metadata)
    if names.LABEL_CLAIM in labels:
        field = join_path(f"{metadata}.labels", names.LABEL_CLAIM)
        remedy = "would name the same claim in each pod of the Job; remove it, and each pod gets a claim of its own"
        raise ConfigError(field, labels[names.LABEL_CLAIM], remedy)
    request = read_request(template, settings, of_job=True, prefix=_TEMPLATE)
    if request is None:
        return Translation(job)
    warnings = tuple(size_warnings(request, settings, _TEMPLATE))
    if request.kind is Kind.ONLINE:
        return Translation(job, warnings)
    policy = text_at(object_at(template, "spec", _TEMPLATE), "restartPolicy", f"{_TEMPLATE}.spec")
    if policy != "Never":
        warning = (
            f"{_TEMPLATE}.spec.restartPolicy = {policy or 'Always'}: an eviction counts against spec.backoffLimit; "
            "write Never, so that it costs no retry"
        )
        return Translation(job, (*warnings, warning))
    translated: JsonObject = msgspec.json.decode(msgspec.json.encode(job))
    return Translation(translated, (*warnings, *_add_rule(translated["spec"])))


def _add_rule(spec: JsonObject) -> tuple[str, ...]:
    """Add the rule that ignores evictions in front of the others, unless the user has a rule about them."""
    path = "spec.podFailurePolicy"
    policy = object_at(spec, "podFailurePolicy", "spec")
    rules = list_at(policy, "rules", path)
    for index, rule in enumerate(rules):
        if any(_is_disruption(condition) for condition in list_at(rule, "onPodConditions", f"{path}.rules[{index}]")):
            if rule.get("action") == "Ignore":
                return ()
            action = f"{path}.rules[{index}].action = {rule.get('action')}"
            return (f"{action}: evictions of this Job are not ignored and may make it fail; write Ignore",)
    if len(rules) >= _RULES_LIMIT:
        remedy = (
            f"has {_RULES_LIMIT} rules, the most that the API accepts; remove one, so that evictions can be ignored"
        )
        raise ConfigError(f"{path}.rules", len(rules), remedy)
    spec["podFailurePolicy"] = {**policy, "rules": [_RULE, *rules]}
    # The API server has set the default of Jobs without a podFailurePolicy, which it refuses together with one.
    spec["podReplacementPolicy"] = "Failed"
    return ()


def _is_disruption(condition: dict[str, Any]) -> bool:
    return condition.get("type") == _DISRUPTED and condition.get("status", "True") == "True"
