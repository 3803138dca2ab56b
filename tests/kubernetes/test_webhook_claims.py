"""The webhook validates claims and claim templates of the driver."""

from typing import Any

import pytest

from cotenant.cluster.kubernetes.webhook.pod_request import WebhookSettings
from cotenant.cluster.kubernetes.webhook.review import mutate, validate
from tests.support.admission_reviews import answer_of, patch_of, refusal_of, review_of

ONLINE = {"kind": "online", "slo": "50ms"}
OFFLINE_CAPACITY = {"offlinePlaces": "1", "share": "0"}


def claim(parameters: Any = None, capacity: Any = None, driver: str = "gpu.cotenant.dev", **config: Any) -> Any:
    exact = {"deviceClassName": "gpu.cotenant.dev", "capacity": {"requests": capacity or {}}}
    opaque = {"driver": driver, "parameters": ONLINE if parameters is None else parameters}
    devices = {"requests": [{"name": "gpu", "exactly": exact}], "config": [{"opaque": opaque, **config}]}
    return {"spec": {"devices": devices}}


def is_allowed(kind: str, value: Any) -> bool:
    allowed: bool = answer_of(validate(review_of(kind, value), WebhookSettings()))["allowed"]
    return allowed


def test_claims_with_valid_parameters_pass_unchanged() -> None:
    for value in (claim(), claim({"kind": "offline"}, OFFLINE_CAPACITY), claim(requests=["gpu"])):
        assert is_allowed("ResourceClaim", value)
        assert is_allowed("ResourceClaimTemplate", {"spec": value})
        assert patch_of(answer_of(mutate(review_of("ResourceClaim", value), WebhookSettings()))) == []


def test_several_gpus_of_a_claim_must_differ() -> None:
    value = claim()
    value["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2
    assert "exactly.count = 2: may be allocated the same GPU 2 times" in refusal_of("ResourceClaim", value)
    for constraint, allowed in (
        ({"distinctAttribute": "gpu.cotenant.dev/uuid"}, True),
        ({"distinctAttribute": "gpu.cotenant.dev/uuid", "requests": ["gpu"]}, True),
        ({"distinctAttribute": "gpu.cotenant.dev/uuid", "requests": ["other"]}, False),
        ({"distinctAttribute": "gpu.cotenant.dev/productName"}, False),
        ({"matchAttribute": "gpu.cotenant.dev/uuid"}, False),
    ):
        value["spec"]["devices"]["constraints"] = [constraint]
        assert is_allowed("ResourceClaim", value) is allowed


def test_the_share_of_the_parameters_may_be_all_that_the_claim_consumes() -> None:
    for capacity in ({"share": "30"}, {}):
        assert is_allowed("ResourceClaim", claim({**ONLINE, "share": "30%"}, capacity))


def test_claims_of_other_drivers_pass() -> None:
    value = claim({"anything": 1}, driver="gpu.nvidia.com")
    value["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "gpu.nvidia.com"
    assert is_allowed("ResourceClaim", value)


def test_an_alternative_of_a_request_is_validated() -> None:
    value = claim(requests=["gpu/small"])
    alternative = {"name": "small", "deviceClassName": "gpu.cotenant.dev"}
    value["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": [alternative]}]
    assert is_allowed("ResourceClaim", value)
    alternative["name"] = "large"
    assert "firstAvailable[0].deviceClassName" in refusal_of("ResourceClaim", value)


@pytest.mark.parametrize(
    "value, message",
    [
        (claim({"kind": "x"}), "spec.devices.config[0].opaque.parameters.kind = 'x'"),
        (claim({}), "spec.devices.config[0].opaque.parameters.kind"),
        (claim({"kind": "online", "colour": 1}), "spec.devices.config[0].opaque.parameters.colour = 1"),
        (claim(driver="other"), "add at least"),
        (claim(requests=["other"]), "add at least"),
        (claim({"kind": "offline"}), "capacity.requests.offlinePlaces = 0: write 1"),
        (claim({"kind": "offline"}, {"offlinePlaces": "1"}), "capacity.requests.share = '(not set)': write \"0\""),
        (
            claim(ONLINE, {"memorry": "1Gi"}),
            "capacity.requests.memorry = '1Gi': is not a capacity of a GPU",
        ),
        (claim(ONLINE, {"offlinePlaces": "1"}), "capacity.requests.offlinePlaces = 1: write 0"),
        (
            claim({**ONLINE, "share": "30%"}, {"share": "10"}),
            "share = '10': is less than the share of the parameters, 30%",
        ),
        (claim(ONLINE, {"share": "1500m"}), "write a whole number of percent"),
    ],
)
def test_bad_claims_are_refused_with_the_field(value: Any, message: str) -> None:
    assert message in refusal_of("ResourceClaim", value)
    nested = refusal_of("ResourceClaimTemplate", {"spec": value})
    assert "spec.spec.devices" in nested
