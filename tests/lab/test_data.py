"""Tests of the readers of published data: round trips, and errors that name the damaged row."""

import gzip
import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.errors import ConfigError
from cotenant.predict.curve import knee_pct
from cotenant_lab.data import disb, parvagpu, rapp

WORDS = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)
SURFACES = st.dictionaries(
    st.tuples(WORDS, st.integers(1, 64)),
    st.dictionaries(
        st.integers(1, 100),
        st.dictionaries(st.integers(1, 100), st.floats(0.001, 1e6), min_size=1, max_size=5),
        min_size=1,
        max_size=3,
    ),
    max_size=5,
)
RAPP_HEADER = "model,batch,sm_pct,time_quota_pct,latency_ms"
PARVA_HEADER = "model,mig_gpcs,batch,procs,throughput,latency_s"


@given(SURFACES)
@settings(max_examples=25)
def test_surface_round_trip(surface: rapp.Surface) -> None:
    rows = [
        f"{model},{batch},{share},{quota},{latency!r}"
        for (model, batch), quotas in surface.items()
        for quota, shares in quotas.items()
        for share, latency in shares.items()
    ]
    packed = gzip.compress("\n".join([RAPP_HEADER, *rows]).encode())
    assert rapp.read_surface(packed, "f") == surface


def test_profiles_omit_rows_that_were_not_measured() -> None:
    rows = ["net,1,8,1,100,0.08", "net,1,8,2,50,0.16", "net,1,8,3,50,0.16", "net,1,8,4,0,0", "big,7,1,1,0,0"]
    profiles = parvagpu.read_profiles("\n".join([PARVA_HEADER, *rows]).encode(), "f")
    assert profiles.latency_s == {("net", 1, 8): {1: 0.08, 2: 0.16}}
    assert (profiles.not_run, profiles.carried_over) == (2, 1)


def test_loads_of_every_kind_are_read() -> None:
    loads = [
        {"type": "continuous"},
        {"type": "periodic", "frequency": 20, "priority": 0},
        {"type": "poisson", "frequency": 5},
        {"type": "trace", "trace": [0, 150, 2000]},
    ]
    tasks = [{"id": f"c{i}", "load": load, "client": {"model_name": "m"}} for i, load in enumerate(loads)]
    clients = disb.read_workload(json.dumps({"tasks": tasks}).encode(), "f")
    assert [client.load.kind for client in clients] == ["continuous", "periodic", "poisson", "trace"]
    assert [client.load.rate_per_s for client in clients] == [0, 20, 5, 1.5]
    assert clients[3].load.arrivals_ns == (0, 150_000_000, 2_000_000_000)


def _surface(text: str) -> object:
    return rapp.read_surface(gzip.compress(text.encode()), "f")


def _profiles(text: str) -> object:
    return parvagpu.read_profiles(text.encode(), "f")


def _workload(text: str) -> object:
    return disb.read_workload(text.encode(), "f")


def _results(text: str) -> object:
    return disb.read_results(text.encode(), "f")


@pytest.mark.parametrize(
    "read, text, named",
    [
        (_surface, f"{RAPP_HEADER}\nm,1,5,100,nan", "f:2: latency_ms = 'nan'"),
        (_surface, f"{RAPP_HEADER}\nm,1,5,100,1\nm,1,5,100,2", "f:3: sm_pct = 5"),
        (_surface, f"{RAPP_HEADER}\nm,1,105,100,1", "f:2: sm_pct = '105'"),
        (_surface, f"{RAPP_HEADER}\nm,1,5,100", "f:2: row"),
        (_surface, "model,batch\n", "f:1: header"),
        (_profiles, f"{PARVA_HEADER}\nm,1,1,1,-5,0.1", "f:2: throughput = '-5'"),
        (_profiles, f"{PARVA_HEADER}\nm,1,1,1.5,5,0.1", "f:2: procs = '1.5'"),
        (_profiles, f"{PARVA_HEADER}\nm,1,1,2,5,0.1\nm,1,1,2,5,0.1", "f:3: procs = 2"),
        (_workload, "{", "f: file"),
        (
            _workload,
            '{"tasks": [{"id": "a", "load": {"type": "wave"}, "client": {"model_name": "m"}}]}',
            "a.load = 'wave'",
        ),
        (
            _workload,
            '{"tasks": [{"id": "a", "load": {"type": "poisson"}, "client": {"model_name": "m"}}]}',
            "a.frequency",
        ),
        (_results, '{"results": [{"clientName": "a", "analyzers": []}]}', "f: a = 0"),
        (_results, '{"results": [{"clientName": "a", "analyzers": [{"type": "basic"}]}]}', "standAlone"),
    ],
)
def test_damaged_files_are_reported(read: Callable[[str], object], text: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"not gzip", gzip.compress(b"abc" * 100)[:-9], gzip.compress(b"\xff\xfe\xfa")],
    ids=[
        "empty",
        "other",
        "cut",
        "binary",
    ],  # gzip output contains the time, and every worker must use the same test names
)
def test_truncated_file_is_reported(content: bytes) -> None:
    with pytest.raises(ConfigError):
        rapp.read_surface(content, "f")


@given(st.dictionaries(st.integers(1, 100), st.floats(0.01, 1e6), min_size=1), st.floats(1.01, 50))
def test_knee_is_the_least_sufficient_share_in_any_unit(curve: dict[int, float], unit: float) -> None:
    knee = knee_pct(curve)
    lowest = min(curve.values())
    assert curve[knee] <= 1.1 * lowest
    assert all(latency > 1.1 * lowest for share, latency in curve.items() if share < knee)
    assert knee_pct(curve, slack=1e9) == min(curve)
    assert knee_pct({**curve, 200: unit * max(curve.values())}) == knee


def test_empty_curve_has_no_knee() -> None:
    with pytest.raises(ValueError, match="no knee"):
        knee_pct({})
