"""The webhook lets evictions of Jobs cost no retry, and refuses a bad template with the Job."""

from typing import Any

import pytest

from cotenant.cluster.kubernetes.webhook.pod_request import WebhookSettings
from cotenant.cluster.kubernetes.webhook.review import mutate, validate
from tests.support.admission_reviews import answer_of, mutated, patch_of, refusal_of, review_of

GIB = 1 << 30
RULE = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
FAIL_RULE = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [143]}}


def job(restart: str = "Never", annotations: dict[str, str] | None = None, **spec: Any) -> Any:
    given = {"kind": "offline"} if annotations is None else annotations
    template = {
        "metadata": {"annotations": {f"cotenant.dev/{name}": value for name, value in given.items()}},
        "spec": {"restartPolicy": restart, "containers": [{"name": "main"}]},
    }
    # The API server sets podReplacementPolicy before it calls the webhook.
    return {
        "metadata": {"name": "train"},
        "spec": {"podReplacementPolicy": "TerminatingOrFailed", "template": template, **spec},
    }


def test_evictions_of_an_offline_job_are_ignored() -> None:
    translated = mutated("Job", job())
    assert translated["spec"]["podFailurePolicy"] == {"rules": [RULE]}
    assert translated["spec"]["podReplacementPolicy"] == "Failed"
    assert translated["spec"]["template"] == job()["spec"]["template"]
    assert mutated("Job", translated) == translated
    assert answer_of(validate(review_of("Job", translated), WebhookSettings()))["allowed"]


def test_the_rule_goes_before_the_rules_of_the_user() -> None:
    translated = mutated("Job", job(podFailurePolicy={"rules": [FAIL_RULE]}))
    assert translated["spec"]["podFailurePolicy"]["rules"] == [RULE, FAIL_RULE]


def test_a_rule_of_the_user_about_evictions_stays_with_a_warning() -> None:
    rule = {"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    answer = answer_of(mutate(review_of("Job", job(podFailurePolicy={"rules": [rule]})), WebhookSettings()))
    assert patch_of(answer) == []
    assert "spec.podFailurePolicy.rules[0].action = Count" in answer["warnings"][0]


@pytest.mark.parametrize("restart", ["OnFailure", ""])
def test_a_job_that_restarts_its_containers_gets_a_warning(restart: str) -> None:
    answer = answer_of(mutate(review_of("Job", job(restart)), WebhookSettings()))
    assert answer["allowed"]
    assert patch_of(answer) == []
    assert "spec.template.spec.restartPolicy" in answer["warnings"][0]
    assert len(answer["warnings"][0]) <= 250


@pytest.mark.parametrize("kind", ["online", "offline"])
def test_a_job_that_needs_more_memory_than_any_gpu_has_gets_a_warning(kind: str) -> None:
    value = job(annotations={"kind": kind, "memory": "33GiB"})
    answer = answer_of(mutate(review_of("Job", value), WebhookSettings(memory_sizes=(32 * GIB,))))
    [warning] = answer["warnings"]
    assert warning.startswith("spec.template.metadata.annotations[cotenant.dev/memory] = 33GiB: ")


def test_a_job_whose_pods_would_share_a_claim_is_refused() -> None:
    value = job()
    value["spec"]["template"]["metadata"]["labels"] = {"cotenant.dev/claim": "train-gpu-0123456789"}
    message = refusal_of("Job", value)
    assert "spec.template.metadata.labels[cotenant.dev/claim] = 'train-gpu-0123456789': would name the same" in message


def test_a_job_without_a_free_rule_is_refused() -> None:
    message = refusal_of("Job", job(podFailurePolicy={"rules": [FAIL_RULE] * 20}))
    assert "spec.podFailurePolicy.rules = 20: has 20 rules" in message


def test_jobs_that_are_online_or_use_no_gpu_are_left_alone() -> None:
    for value in (job(annotations={}), job(annotations={"slo": "50ms"})):
        assert mutated("Job", value) == value


def test_hami_names_in_the_template_make_the_job_offline() -> None:
    value = job(annotations={})
    value["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpumem": "1k"}}
    assert mutated("Job", value)["spec"]["podFailurePolicy"] == {"rules": [RULE]}


def test_a_bad_template_is_refused_with_its_path() -> None:
    message = refusal_of("Job", job(annotations={"share": "lots"}))
    assert "spec.template.metadata.annotations[cotenant.dev/share] = 'lots'" in message
