"""Tests of the physical model of programs that share a GPU."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.cluster.sim.physics import parameters
from cotenant.cluster.sim.physics.colocated import (
    ABSENT,
    MODES,
    ColocationModel,
    Contention,
    Service,
    SharingResult,
    built_in,
)
from cotenant.cluster.sim.physics.parameters import FittedProgram, fitted_parameters
from cotenant.errors import InvariantError
from cotenant.softgpu.sim.device import preset
from cotenant.workload.kernel_table import read_kernels
from cotenant_lab.data.gavel import read_pairs
from cotenant_lab.data.miso import read_miso
from cotenant_lab.data.rapp import read_surface
from cotenant_lab.physics.catalogue import encode_parameters, service_rows, training_rows
from tests.support.effort import examples

DATA = Path(os.environ.get("COTENANT_DATA") or "no-data")
SERVICES, TRAININGS = parameters.services(), parameters.trainings()
TRUTH = built_in()
PAIRS = [np.array(indices).ravel() for indices in np.meshgrid(range(len(SERVICES)), range(len(TRAININGS)))]
"""Every service with every training."""


def together(load: float, share: float, mode: str = "space") -> SharingResult:
    services, trainings = PAIRS
    return TRUTH.evaluate(services, np.full(len(services), load), trainings, np.full(len(services), share), mode)


PARTS = st.floats(0.0, 1.0)
GIVEN = st.floats(0.001, 1.0)


@settings(max_examples=examples(15, 500))
@given(load=PARTS, share=PARTS, mode=st.sampled_from(MODES))
def test_no_program_is_faster_than_alone_and_no_gpu_exceeds_its_capacity(load: float, share: float, mode: str) -> None:
    reported, (services, trainings) = together(load, share, mode), PAIRS
    assert (reported.rate >= 0).all()
    assert (reported.rate <= 1).all()
    assert (reported.slowdown >= 1).all()
    assert (reported.sm_activity <= reported.utilization + 1e-6).all()
    assert (reported.utilization <= 1 + 1e-6).all()
    absent = np.full(len(services), ABSENT)
    alone = TRUTH.evaluate(services, np.full(len(services), load), absent, np.zeros(len(services)), mode)
    assert (alone.slowdown == 1).all()
    assert not alone.rate.any()
    keeps_up = load * reported.slowdown < 0.98  # an overloaded service answers fewer requests and does less
    assert (reported.sm_activity >= alone.sm_activity - 1e-6)[keeps_up].all()
    bare = TRUTH.evaluate(absent, np.zeros(len(services)), trainings, np.ones(len(services)), mode)
    assert np.allclose(bare.rate, 1)


@settings(max_examples=examples(15, 500))
@given(load=st.floats(0.0, 0.5), shares=st.tuples(GIVEN, GIVEN))
def test_larger_share_never_slows_a_training_within_bandwidth(load: float, shares: tuple[float, float]) -> None:
    low, high = sorted(shares)
    assert (together(0.0, low).rate <= together(0.0, high).rate + 1e-5).all()
    assert (together(load, low).rate <= together(0.0, low).rate + 1e-5).all()


def test_training_without_a_share_runs_while_no_request_is_active() -> None:
    """Requests wait for the rest of a kernel only, so that the training has the time without requests."""
    quiet, busy = together(0.1, 0.0), together(0.8, 0.0)
    assert np.allclose(quiet.rate, 0.9, atol=0.03)
    assert np.allclose(busy.rate, 0.2, atol=0.03)
    assert (busy.service >= 1).all()
    assert busy.service.mean() < 1.02
    assert (busy.service <= quiet.service).all()  # fewer requests arrive while the training's kernels run
    assert busy.service.mean() < together(0.8, 0.05).service.mean()


def test_mps_priorities_spare_services_a_part_of_their_waits() -> None:
    plain, prior = together(0.2, 1.0, "mps"), together(0.2, 1.0, "mps-priority")
    assert (prior.service <= plain.service).all()
    assert 1.05 < prior.service.mean() < plain.service.mean()
    without = built_in(Contention(priority_effect=0.0))
    services, trainings = PAIRS
    columns = (services, np.full(len(services), 0.2), trainings, np.ones(len(services)))
    assert (without.evaluate(*columns, "mps-priority").service == plain.service).all()


def test_training_on_a_share_has_the_measured_speed() -> None:
    absent = np.full(len(TRAININGS), ABSENT)
    for step in range(5):
        share = np.array([row.shares[step] for row in TRAININGS])
        reported = TRUTH.evaluate(absent, np.zeros(len(TRAININGS)), np.arange(len(TRAININGS)), share)
        measured = np.array([row.speeds[step] for row in TRAININGS])
        assert np.abs(reported.rate - measured).max() < 0.05  # steps of a twentieth, and slices of a seventh


def test_mps_service_slowdown_is_near_the_measured_one() -> None:
    """Orion measured ResNet-50 (batch 4) with its training (batch 32) under MPS: p50 64 ms, kernel time 6.5 ms.

    The nearest programs of the model are compared: MPS slows the service many times, shares of the SMs little.
    """
    service = next(index for index, row in enumerate(SERVICES) if row.name == "resnet101-b8")
    training = next(index for index, row in enumerate(TRAININGS) if row.name == "resnet-b512")
    services, load = np.array([service]), np.array([0.2])
    mps = TRUTH.evaluate(services, load, np.array([training]), np.ones(1), "mps").slowdown[0]
    parts = TRUTH.evaluate(services, load, np.array([training]), np.full(1, 0.5), "space").slowdown[0]
    assert 1.5 < mps < 10
    assert parts < 1.2


def test_unknown_sharing_mode_is_rejected() -> None:
    with pytest.raises(InvariantError, match="sideways"):
        together(0.5, 0.5, "sideways")


@pytest.mark.skipif(not (DATA / "gavel").is_dir(), reason="needs the data sets: set COTENANT_DATA")
def test_mean_speed_under_time_slices_matches_gavel() -> None:
    """Compare the mean over all pairs, because Gavel measured other trainings."""
    pairs = read_pairs((DATA / "gavel" / "pairs_simulation_throughputs.csv.gz").read_bytes(), "gavel").pairs
    measured = [1 / slower for pair in pairs if pair.gpu == "v100" for slower in pair.slowdowns]
    busy = np.array([row.busy for row in TRAININGS])
    both = ColocationModel(
        tuple(Service(training.name, training.use, 0, 0) for training in TRUTH.trainings),
        TRUTH.trainings,
        np.ones((2 * len(busy), 21)),
        [0.0] * (2 * len(busy)),
    )
    first, second = (np.array(indices).ravel() for indices in np.meshgrid(range(len(busy)), range(len(busy))))
    reported = both.evaluate(first, np.ones(len(first)), second, np.ones(len(first)), "time")
    assert reported.rate.mean() == pytest.approx(np.mean(measured), abs=0.03)


@pytest.mark.skipif(not (DATA / "miso").is_dir(), reason="needs the data sets: set COTENANT_DATA")
def test_parameters_are_fitted_to_the_measurements() -> None:
    folder = DATA / "orion" / "model_kernels"
    streams = {path.stem: read_kernels(path.read_bytes(), path.stem, str(path)) for path in folder.glob("*.csv")}
    surface = read_surface((DATA / "rapp" / "v100_latency_ms_by_sm_quota_batch.csv.gz").read_bytes(), "rapp")
    steps = (DATA / "miso" / "a100_mig_train_iter_time.csv").read_bytes()
    miso = read_miso(steps, (DATA / "miso" / "util_collection.txt").read_bytes(), "miso")
    stored = fitted_parameters()
    for computed, expected in (
        (service_rows(surface, streams, preset("v100")), stored.services),
        (training_rows(miso, streams), stored.trainings),
    ):
        for computed_program, stored_program in zip(computed, expected, strict=True):
            assert_same_program(computed_program, stored_program)


def assert_same_program(computed: FittedProgram, stored: FittedProgram) -> None:
    """Compare what the data determine.

    A program that is as fast on the smallest share as on the whole GPU fits any split of its latency between host and
    device: which part of it is on the device then depends on where the search begins and on the last bits of its steps.
    """
    undetermined = {"busy_pct"} if stored.speeds_pct[0] >= 99 else set()
    for field in FittedProgram.__struct_fields__:
        if field not in undetermined:
            found, expected = getattr(computed, field), getattr(stored, field)
            near = expected if isinstance(expected, str) else pytest.approx(expected, abs=1, rel=1e-3)
            assert found == near, (stored.name, field)


def test_parameter_file_is_what_the_lab_writes() -> None:
    content = (Path(parameters.__file__).parent / parameters.FILE).read_bytes()
    assert encode_parameters(fitted_parameters()) == content
    assert all(source.repository.startswith("https://") for source in fitted_parameters().sources)
