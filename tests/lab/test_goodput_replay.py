"""Tests of the replay models of bench `goodput`."""

import subprocess
import sys

import pytest

from cotenant.serve.replay_model_format import decode_replay, encode_replay
from cotenant_lab.bench.goodput.models import MAX_BATCH
from cotenant_lab.bench.goodput.replay import KNEES, replay_model, run_ms_of

SMS = 80


@pytest.mark.parametrize("name", KNEES)
def test_runs_stop_getting_faster_at_the_knee_and_take_the_same_space_time(name: str) -> None:
    knee = KNEES[name]
    model = replay_model(knee, run_ms_of(name))
    at_knee = model.kernels_ns(MAX_BATCH, round(knee * SMS))
    assert model.kernels_ns(MAX_BATCH, SMS) == at_knee
    assert model.kernels_ns(MAX_BATCH, round(0.7 * knee * SMS)) > 1.3 * at_knee
    areas = [part * replay_model(part, run_ms_of(one)).kernels_ns(MAX_BATCH, SMS) for one, part in KNEES.items()]
    assert max(areas) < 1.01 * min(areas)


def test_demand_of_all_models_exceeds_the_device() -> None:
    assert sum(KNEES.values()) > 1.5


def test_replay_models_round_trip() -> None:
    model = replay_model(0.5, 10.0)
    assert decode_replay(encode_replay(model, "about"), "here") == model


RACE = """
import sys, threading
sys.setswitchinterval(1e-6)
from cotenant.serve.model_config_format import decode_model_config
from cotenant.serve.replay_model_format import decode_replay
begin = threading.Barrier(8)

def read():
    begin.wait()
    decode_replay(sys.argv[1], "here")
    decode_model_config('slo = "5ms"', "here")

threads = [threading.Thread(target=read) for _ in range(8)]
for one in threads:
    one.start()
for one in threads:
    one.join()
"""


def test_many_threads_may_read_models_at_once() -> None:
    """A server loads its models on several threads; the msgspec decoder must be built before."""
    text = encode_replay(replay_model(0.5, 10.0), "about")
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", RACE, text], check=False).returncode == 0
