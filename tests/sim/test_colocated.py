"""Does what a service and a training make of one GPU follow from what was measured of each, whatever the pair?"""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.errors import InvariantError
from cotenant.experiment.lab.catalogue import service_rows, training_rows
from cotenant.format.kernels import read_kernels
from cotenant.format.measured.gavel import read_pairs
from cotenant.format.measured.miso import read_miso
from cotenant.format.measured.rapp import read_surface
from cotenant.sim.device import preset
from cotenant.sim.physics.catalogue import SERVICE_ROWS, SERVICES, TRAINING_ROWS, TRAININGS
from cotenant.sim.physics.colocated import NOBODY, WAYS, Colocated, Service, Together, built_in
from tests.effort import examples
from tests.tool import ROOT

DATA = Path(os.environ.get("COTENANT_DATA", ROOT.parent / "shared" / "data"))
TRUTH = built_in()
PAIRS = [np.array(one).ravel() for one in np.meshgrid(range(len(SERVICES)), range(len(TRAININGS)))]
"""Every service with every training."""


def together(load: float, share: float, way: str = "space") -> Together:
    services, trainings = PAIRS
    return TRUTH.together(services, np.full(len(services), load), trainings, np.full(len(services), share), way)


PARTS = st.floats(0.0, 1.0)


@settings(max_examples=examples(15, 500))
@given(load=PARTS, share=PARTS, way=st.sampled_from(WAYS))
def test_nobody_gets_more_than_alone_and_no_gpu_does_more_than_it_can(load: float, share: float, way: str) -> None:
    told, (services, trainings) = together(load, share, way), PAIRS
    assert (told.rate >= 0).all()
    assert (told.rate <= 1).all()
    assert (told.slowdown >= 1).all()
    assert (told.sm_activity <= told.utilization + 1e-6).all()
    assert (told.utilization <= 1 + 1e-6).all()
    nobody = np.full(len(services), NOBODY)
    alone = TRUTH.together(services, np.full(len(services), load), nobody, np.zeros(len(services)), way)
    assert (alone.slowdown == 1).all()
    assert not alone.rate.any()
    keeps_up = load * told.slowdown < 0.98  # one that cannot answers fewer requests, and does less
    assert (told.sm_activity >= alone.sm_activity - 1e-6)[keeps_up].all()
    bare = TRUTH.together(nobody, np.zeros(len(services)), trainings, np.ones(len(services)), way)
    assert np.allclose(bare.rate, 1)


@settings(max_examples=examples(15, 500))
@given(load=st.floats(0.0, 0.5), shares=st.tuples(PARTS, PARTS))
def test_a_larger_part_never_slows_a_training_that_has_the_bandwidth(load: float, shares: tuple[float, float]) -> None:
    low, high = sorted(shares)
    assert (together(0.0, low).rate <= together(0.0, high).rate + 1e-5).all()
    assert (together(load, low).rate <= together(0.0, low).rate + 1e-5).all()


def test_no_part_is_no_training() -> None:
    told = together(0.5, 0.0)
    assert not told.rate.any()
    assert (told.slowdown == 1).all()


def test_a_training_on_a_part_is_as_fast_as_was_measured_there() -> None:
    nobody = np.full(len(TRAININGS), NOBODY)
    for place in range(5):
        share = np.array([row.shares[place] for row in TRAININGS])
        told = TRUTH.together(nobody, np.zeros(len(TRAININGS)), np.arange(len(TRAININGS)), share)
        measured = np.array([row.speeds[place] for row in TRAININGS])
        assert np.abs(told.rate - measured).max() < 0.05  # steps of a twentieth, and slices of a seventh


def test_without_parts_a_service_waits_for_kernels_about_as_long_as_was_measured() -> None:
    """Orion measured ResNet-50 (4 images) beside its training (32) under MPS: p50 64 ms, its kernels take 6.5.

    Here beside each other are what comes nearest to them: many times as slow, where a part of the SMs costs little.
    """
    service = next(place for place, row in enumerate(SERVICES) if row.name == "resnet101-b8")
    training = next(place for place, row in enumerate(TRAININGS) if row.name == "resnet-b512")
    one, load = np.array([service]), np.array([0.2])
    mps = TRUTH.together(one, load, np.array([training]), np.ones(1), "mps").slowdown[0]
    parts = TRUTH.together(one, load, np.array([training]), np.full(1, 0.5), "space").slowdown[0]
    assert 1.5 < mps < 10
    assert parts < 1.2


def test_an_unknown_way_is_named() -> None:
    with pytest.raises(InvariantError, match="sideways"):
        together(0.5, 0.5, "sideways")


@pytest.mark.skipif(not (DATA / "gavel").is_dir(), reason=f"no measurements in {DATA}: set COTENANT_DATA")
def test_trainings_that_take_time_slices_are_as_fast_as_gavel_measured_in_the_mean() -> None:
    """Other trainings and another way to know them: what is compared is the mean over all pairs."""
    pairs = read_pairs((DATA / "gavel" / "pairs_simulation_throughputs.csv.gz").read_bytes(), "gavel").pairs
    measured = [1 / slower for pair in pairs if pair.gpu == "v100" for slower in pair.slowdowns]
    busy = np.array([row.busy for row in TRAININGS])
    both = Colocated(
        tuple(Service(one.name, one.use, 0, 0) for one in TRUTH.trainings),
        TRUTH.trainings,
        np.ones((2 * len(busy), 21)),
        [0.0] * (2 * len(busy)),
    )
    first, second = (np.array(one).ravel() for one in np.meshgrid(range(len(busy)), range(len(busy))))
    told = both.together(first, np.ones(len(first)), second, np.ones(len(first)), "time")
    assert told.rate.mean() == pytest.approx(np.mean(measured), abs=0.03)


@pytest.mark.skipif(not (DATA / "miso").is_dir(), reason=f"no measurements in {DATA}: set COTENANT_DATA")
def test_the_catalogue_is_what_was_measured() -> None:
    folder = DATA / "orion" / "model_kernels"
    streams = {path.stem: read_kernels(path.read_bytes(), path.stem, str(path)) for path in folder.glob("*.csv")}
    surface = read_surface((DATA / "rapp" / "v100_latency_ms_by_sm_quota_batch.csv.gz").read_bytes(), "rapp")
    steps = (DATA / "miso" / "a100_mig_train_iter_time.csv").read_bytes()
    miso = read_miso(steps, (DATA / "miso" / "util_collection.txt").read_bytes(), "miso")
    assert service_rows(surface, streams, preset("v100")) == SERVICE_ROWS.split("\n")[1:-1]
    assert training_rows(miso, streams) == TRAINING_ROWS.split("\n")[1:-1]
