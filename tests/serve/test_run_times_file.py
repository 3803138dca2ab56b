"""File formats of profiles and plans: round trips, and rejection of other data."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.errors import ConfigError
from cotenant.serve.model.plan import ModelPlan, ServePlan
from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant.serve.model_profile_format import ModelProfile, decode_model_profile, encode_model_profile
from cotenant.serve.plan_format import plan_from_tree, plan_tree
from cotenant.serve.runtime.profiles import ProfileCache, model_hash

cells = st.builds(
    lambda units, rows, low, spread: RunTime(units, rows, low, low + spread),
    st.integers(1, 8),
    st.integers(1, 1 << 16),
    st.integers(1, 1 << 50),
    st.integers(0, 1 << 50),
)
counts = st.integers(0, 1 << 60)
profiles = st.builds(
    ModelProfile,
    model=st.text(max_size=20),
    model_hash=st.text("0123456789abcdef", min_size=64, max_size=64),
    device=st.text(max_size=40),
    times=st.builds(RunTimes, st.just(8), st.lists(cells, min_size=1, max_size=9).map(tuple), st.integers(1, 8)),
    alone=st.lists(cells, max_size=9).map(tuple),
    percent=st.booleans(),
    inputs=st.lists(st.tuples(st.text(max_size=9), st.lists(st.integers(1, 999), max_size=4).map(tuple))).map(tuple),
    runs=counts,
    spent_ns=counts,
    made_unix_ns=counts,
    knee_by_model_units=st.integers(1, 8),
    model_error=st.floats(0, 10),
)
plans = st.builds(
    ServePlan,
    counts,
    st.integers(1, 100),
    st.lists(
        st.builds(
            ModelPlan, st.text(max_size=9), counts, counts, counts, counts, st.floats(0, 1e9), st.text(), st.text()
        )
    ).map(tuple),
    st.floats(0, 10),
    st.text(),
)


@given(profiles)
def test_profile_round_trip(profile: ModelProfile) -> None:
    assert decode_model_profile(encode_model_profile(profile), "x.json") == profile


@given(
    st.binary(max_size=200) | profiles.map(encode_model_profile).flatmap(lambda data: st.just(data[: len(data) // 2]))
)
def test_invalid_profile_is_rejected_with_file_name(data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"x\.json"):
        decode_model_profile(data, "x.json")


@pytest.mark.parametrize("typical,high,units", [(0, 5, 1), (5, 4, 1), (5, 5, 9), (5, 5, 0)])
def test_profile_with_impossible_times_is_rejected(typical: int, high: int, units: int) -> None:
    times = RunTimes(8, (RunTime(units, 1, typical, high),), 1)
    damaged = ModelProfile("m", "h", "d", times, (), False, (), 1, 1, 1, 1, 0.0)
    with pytest.raises(ConfigError, match="damaged"):
        decode_model_profile(encode_model_profile(damaged), "x.json")


@given(plans | st.none())
def test_plan_round_trip(plan: ServePlan | None) -> None:
    assert plan_from_tree(plan_tree(plan)) == plan


def test_invalid_plan_is_rejected() -> None:
    trees: list[dict] = [{}, {"models": 3}, {"models": [{}]}]
    for tree in trees:
        with pytest.raises(ValueError, match="not a plan"):
            plan_from_tree(tree)


def test_cache_finds_profile_by_model_and_device_and_reports_damage(tmp_path: Path) -> None:
    reports: list[str] = []
    cache = ProfileCache(tmp_path / "kept", reports.append)
    times = RunTimes(2, (RunTime(1, 1, 5, 6),), 1)
    profile = ModelProfile("m", "a" * 64, "two cores", times, (), False, (), 1, 1, 1, 1, 0.0)
    assert cache.find(profile.model_hash, profile.device) is None
    path = cache.keep(profile)
    assert cache.find(profile.model_hash, profile.device) == profile
    assert cache.find(profile.model_hash, "four cores") is None
    assert cache.find("b" * 64, profile.device) is None
    assert not reports
    path.write_bytes(path.read_bytes()[:50])
    assert cache.find(profile.model_hash, profile.device) is None
    assert len(reports) == 1
    assert path.name in reports[0]


def test_model_hash_depends_on_file_contents(tmp_path: Path) -> None:
    first, second, code = tmp_path / "one.onnx", tmp_path / "two.onnx", tmp_path / "both.py"
    for path in (first, second, code):
        path.write_bytes(b"the same")
    assert model_hash(first, "one") == model_hash(second, "two")
    assert model_hash(code, "one") != model_hash(code, "two")
    second.write_bytes(b"another")
    assert model_hash(first, "one") != model_hash(second, "one")
