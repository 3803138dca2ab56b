"""Claims: parameters, quantities, and what a claim gives to its pod."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.cluster.kubernetes.plugin.claims import GpuClaim, decode_claim, parse_quantity, read_claim
from cotenant.cluster.kubernetes.plugin.parameters import TenantParameters, parse_parameters
from cotenant.cluster.kubernetes.plugin.pods import parameters_of_annotations
from cotenant.errors import ConfigError
from cotenant.gate.grant import Kind
from cotenant.gate.rules import Limit
from tests.support.plugin_api import CLAIM_UID, POD_UID, FakeApi


def test_parameters_are_parsed_with_units() -> None:
    given_parameters = {"kind": "online", "priority": 1, "slo": "50ms", "share": "30%", "task": "resnet"}
    expected = TenantParameters(Kind.ONLINE, 1, 50_000_000, 300_000, "resnet")
    assert parse_parameters(given_parameters) == expected


def test_kind_alone_suffices() -> None:
    assert parse_parameters({"kind": "offline"}) == TenantParameters(Kind.OFFLINE, 7)
    assert parse_parameters({"kind": "online"}).priority == 2


@pytest.mark.parametrize(
    "parameters, words",
    [
        ({}, ["kind = None", "online", "offline"]),
        ({"kind": "both"}, ["kind = 'both'", "online"]),
        ({"kind": "online", "slo": "50"}, ["slo = '50'", "50ms"]),
        ({"kind": "online", "slo": 50}, ["slo = 50", "50ms"]),
        ({"kind": "online", "slo": "0ms"}, ["slo", "above zero"]),
        ({"kind": "offline", "slo": "50ms"}, ["slo", "offline work has no latency objective"]),
        ({"kind": "offline", "share": "130%"}, ["share = '130%'", "100%"]),
        ({"kind": "offline", "share": 0.3}, ["share = 0.3", "30%"]),
        ({"kind": "offline", "priority": 10}, ["priority = 10", "from 0 (highest) to 9"]),
        ({"kind": "offline", "priority": "1"}, ["priority = '1'", "whole number"]),
        ({"kind": "offline", "priority": True}, ["priority = True", "whole number"]),
        ({"kind": "offline", "task": "x" * 600}, ["task", "512"]),
        ({"kind": "offline", "task": None}, ["task = None"]),
        ({"kind": "offline", "memory": "4Gi"}, ["memory = '4Gi'", "no such field", "kind, priority"]),
        ([], ["parameters = []", "kind"]),
        (None, ["parameters = None"]),
        ("online", ["parameters = 'online'"]),
    ],
)
def test_wrong_parameter_is_named_with_its_value_and_a_remedy(parameters: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        parse_parameters(parameters, "claim team/x")
    assert str(error.value).startswith("claim team/x: ")
    for word in words:
        assert word in str(error.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from(["kind", "priority", "slo", "share", "task", "x"]), json_values))
def test_any_parameters_are_accepted_or_refused_with_a_sentence(parameters: dict[str, Any]) -> None:
    outcome: TenantParameters | ConfigError
    try:
        outcome = parse_parameters({"kind": "online", **parameters})
    except ConfigError as error:
        outcome = error
    assert isinstance(outcome, TenantParameters) or outcome.field in parameters


@pytest.mark.parametrize(
    "text, number",
    [("0", 0), ("4Gi", 4 << 30), ("4G", 4 * 10**9), ("1500m", 2), ("1e3", 1000), ("16384Mi", 16 << 30), ("1k", 1000)],
)
def test_quantity_is_parsed_as_kubernetes_does(text: str, number: int) -> None:
    assert parse_quantity(text, "memory") == number


@pytest.mark.parametrize("text", ["", "x", "-1", "4GiB", "1e99", "NaN", "Infinity", "Gi"])
def test_wrong_quantity_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a Kubernetes quantity"):
        parse_quantity(text, "memory")


def claim(**fields: Any) -> GpuClaim:
    with FakeApi() as api:
        return read_claim(decode_claim(api.add_claim(**fields)), CLAIM_UID)


def test_offline_claim_has_memory_and_its_share_as_a_cap() -> None:
    found = claim(parameters={"kind": "offline", "share": "30%"})
    assert (found.pod_uid, found.memory_bytes, found.name) == (POD_UID, 4 << 30, "team.job-1-aaaaaaaa")
    spec = found.parameters.spec(found.name, f"{POD_UID}/{CLAIM_UID}", "GPU-0", found.memory_bytes)
    assert (spec.share_ppm, spec.limit, spec.pod_uid, spec.gpu) == (300_000, Limit.STATIC, POD_UID, "GPU-0")


def test_online_claim_reserves_the_share_that_the_scheduler_counted() -> None:
    found = claim(parameters={"kind": "online", "slo": "50ms"}, capacity={"memory": "2Gi", "share": "40"})
    assert (found.parameters.share_ppm, found.parameters.slo_ns) == (400_000, 50_000_000)


@pytest.mark.parametrize("parameters, reserved_ppm", [({}, 0), ({"share": "100%"}, 1_000_000)])
def test_a_whole_gpu_is_reserved_only_if_the_claim_says_so(parameters: dict[str, str], reserved_ppm: int) -> None:
    found = claim(parameters={"kind": "online", **parameters}, capacity={"memory": "2Gi", "share": "100"})
    assert found.parameters.share_ppm == reserved_ppm
    spec = found.parameters.spec(found.name, POD_UID, "GPU-0", found.memory_bytes)
    assert spec.limit is Limit.OFF


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"pods": []}, "exactly one pod"),
        ({"pods": [("a", "1"), ("b", "2")]}, "exactly one pod"),
        ({"devices": []}, "no GPU is allocated"),
        ({"capacity": {"memory": "much"}}, "is not a Kubernetes quantity"),
        ({"parameters": {"kind": "x"}}, "kind = 'x'"),
        ({"devices": ["gpu-0", "gpu-0"]}, "one GPU was allocated several times"),
        ({"adminAccess": True}, "a claim with admin access consumes nothing"),
        (
            {"parameters": {"kind": "online", "share": "30%"}, "capacity": {"memory": "1Gi", "share": "10"}},
            "share = '30%': is more than the claim consumes of the GPU, 10%",
        ),
    ],
)
def test_unusable_claim_is_refused_with_its_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        claim(**fields)
    assert "claim team/job-1-gpu-0" in str(error.value)


def test_the_limits_on_several_gpus_are_the_least_that_the_claim_consumes() -> None:
    with FakeApi() as api:
        tree = api.add_claim(devices=["gpu-0", "gpu-1"], parameters={"kind": "online"})
        results = tree["status"]["allocation"]["devices"]["results"]
        results[0]["consumedCapacity"] = {"memory": "16Gi", "share": "90"}
        results[1]["consumedCapacity"] = {"memory": "1Gi", "share": "20"}
        found = read_claim(decode_claim(tree), CLAIM_UID)
    assert (found.memory_bytes, found.parameters.share_ppm) == (1 << 30, 200_000)


def test_claim_of_another_uid_is_refused() -> None:
    with FakeApi() as api, pytest.raises(ConfigError, match="deleted and created again"):
        read_claim(decode_claim(api.add_claim()), "another")


@pytest.mark.parametrize("data", [b"", b"[]", b'{"metadata": 3}', b'{"metadata": {"uid": 1}}', b"\xff"])
def test_answer_that_is_no_claim_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match="is not a ResourceClaim"):
        decode_claim(data)


def test_annotations_are_parsed_like_parameters() -> None:
    annotations = {"cotenant.dev/kind": "online", "cotenant.dev/priority": "1", "cotenant.dev/memory": "2GiB"}
    parameters, memory_bytes = parameters_of_annotations(annotations, "pod a/b")
    assert (parameters.kind, parameters.priority, memory_bytes) == (Kind.ONLINE, 1, 2 << 30)
    assert parameters_of_annotations({}, "pod a/b")[0].kind is Kind.OFFLINE
    with pytest.raises(ConfigError, match=r"pod a/b: cotenant.dev/memory = '2'"):
        parameters_of_annotations({"cotenant.dev/memory": "2"}, "pod a/b")
    with pytest.raises(ConfigError, match="pod a/b: priority = 'high'"):
        parameters_of_annotations({"cotenant.dev/priority": "high"}, "pod a/b")
