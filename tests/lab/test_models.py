"""Study `models`: networks of the catalogue, the split into fitted and judged cases, and the report."""

from __future__ import annotations

import msgspec
import pytest

from cotenant.profile.estimate.onnx_operators import model_operators
from cotenant.profile.estimate.operator import Family
from cotenant.profile.estimate.parameters import FITTED
from cotenant_lab.networks.catalogue import image_network
from cotenant_lab.networks.transformers import transformer
from cotenant_lab.study.models.cases import Case, HostTimes, read_cases, stream_of
from cotenant_lab.study.models.operators import operator_errors
from cotenant_lab.study.models.run import Prediction, report_of
from tests.support.measurements import DATA, needs_data

# Trainable parameters as torchvision's documentation lists them.
PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "resnet50": 25_557_032,
    "wide_resnet50_2": 68_883_240,
    "densenet121": 7_978_856,
    "squeezenet1_0": 1_248_424,
    "mobilenet_v2": 3_504_872,
    "mnasnet1_0": 4_383_312,
    "shufflenet_v2_x1_0": 2_278_604,
    "efficientnet_b0": 5_288_548,
    "regnet_y_400mf": 4_344_144,
    "convnext_tiny": 28_589_128,
}


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_networks_have_their_published_size_and_known_operators(name: str) -> None:
    model, parameters = image_network(name)
    assert parameters == PARAMETERS[name]
    operators = model_operators(model, 2, {}, name).operators
    assert not [operator.type for operator in operators if operator.family is Family.UNSUPPORTED]


def test_transformers_have_the_arithmetic_of_their_sizes() -> None:
    operators = model_operators(transformer("bert_large", 512, head=False), 8, {}, "bert").operators
    flops = sum(operator.flops for operator in operators if operator.gemm is not None)
    tokens, width, layers = 8 * 512, 1024, 24
    assert flops == pytest.approx(layers * tokens * (24 * width**2 + 4 * 512 * width), rel=0.01)


@needs_data
def test_judged_cases_are_other_models_and_other_boards() -> None:
    cases = read_cases(DATA)
    fit_models = {case.model for case in cases if case.source == "rapp" and case.fitted}
    judged_models = {case.model for case in cases if case.source == "rapp" and not case.fitted}
    assert not fit_models & judged_models
    assert len(judged_models) > 30
    fitted = {(case.model, case.gpu) for case in cases if case.source == "neusight" and case.fitted}
    judged = {(case.model, case.gpu) for case in cases if case.source == "neusight" and not case.fitted}
    assert not fitted & judged
    assert {"a100-pcie", "h100", "p100"} <= {gpu for _, gpu in judged} - {gpu for _, gpu in fitted}
    assert len({case.name for case in cases}) == len(cases)


def prediction(model: str, measured: float, predicted: float, *, fitted: bool) -> Prediction:
    case = Case(source="rapp", model=model, gpu="v100", batch=1, measured_ms=measured, fitted=fitted)
    return Prediction(case, predicted, 0.5 * predicted, 1.5 * predicted, 2.0, 4.0)


def test_the_report_counts_judged_cases_only() -> None:
    rows = [
        prediction("a", 10.0, 100.0, fitted=True),
        prediction("b", 10.0, 11.0, fitted=False),
        prediction("c", 10.0, 9.0, fitted=False),
        prediction("d", 10.0, 30.0, fitted=False),
    ]
    report = report_of(rows, operator_errors([]), {"rapp": HostTimes(1.0, 2.0)}, FITTED)
    assert (report.cases, report.fitted) == (3, 1)
    assert report.error_median == pytest.approx(0.1)
    assert report.coverage == pytest.approx(2 / 3, abs=1e-3)
    assert report.worst_case.startswith("rapp d")
    assert report.baselines["flops"].median == 0.0
    assert report.met == {"error_median": True, "error_p90": False, "coverage": False}


def test_a_smaller_part_of_the_board_is_slower() -> None:
    whole = Case(source="rapp", model="resnet50", gpu="v100", batch=8, measured_ms=1.0, fitted=False)
    part = msgspec.structs.replace(whole, share_pct=10)
    times = [stream_of(case).device_ns.point for case in (whole, part)]
    assert 5 * times[0] < times[1] < 15 * times[0]
