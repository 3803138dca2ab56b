"""Replay models: the file format, and monotonic run times in SMs and rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.cli.softgpu import write_models
from cotenant.errors import ConfigError
from cotenant.serve.model.replay import ReplayKernel, ReplayModel
from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.serve.replay_catalogue import built_in_model, built_in_names, slow_down
from cotenant.serve.replay_model_format import SUFFIX, decode_replay, encode_replay, player_script
from cotenant.serve.runtime.gpu.runtime import WIDTHS, runs_at_once, workers_for
from cotenant.serve.runtime.runtime import times_at

KERNELS = st.builds(
    ReplayKernel,
    name=st.sampled_from(["conv", "gemm", "tail"]),
    block_ns=st.integers(1, 10**9),
    blocks=st.integers(0, 1000),
    blocks_per_row=st.floats(0, 100).map(lambda value: round(value, 3)),
    threads=st.integers(1, 1024),
    per_sm=st.integers(1, 32),
)
MODELS = st.builds(
    ReplayModel,
    inputs=st.just((TensorSpec("IN", Datatype.INT8, (-1, 3)),)),
    outputs=st.just((TensorSpec("OUT", Datatype.FP64, (-1,)),)),
    kernels=st.lists(KERNELS, min_size=1, max_size=5).map(tuple),
    rounds=st.integers(1, 5),
    max_batch=st.integers(1, 20),
    weights_bytes=st.integers(0, 1 << 40),
    copy_in_bytes=st.integers(0, 1 << 20),
    copy_out_bytes=st.integers(0, 1 << 20),
)


@given(MODELS)
def test_replay_model_round_trip(model: ReplayModel) -> None:
    assert decode_replay(encode_replay(model, "any"), "x") == model


@given(MODELS, st.integers(1, 20), st.integers(1, 200))
def test_run_time_falls_with_sms_and_grows_with_rows(model: ReplayModel, rows: int, sms: int) -> None:
    assert model.kernels_ns(rows, sms + 1) <= model.kernels_ns(rows, sms) <= model.kernels_ns(rows + 1, sms)
    assert slow_down(model, 3).kernels_ns(rows, sms) == 3 * model.kernels_ns(rows, sms)


@given(MODELS)
def test_player_script_has_the_launches_of_every_batch(model: ReplayModel) -> None:
    script = player_script(model)
    lines = script.script.splitlines()
    end = 0
    for rows in model.batches:
        first_launch, count = script.parts[rows]
        assert first_launch == end
        end = first_launch + count
        kernels = [line.split() for line in lines[first_launch:end] if not line.startswith("@")]
        expected = [kernel.blocks_of(rows) for kernel in model.kernels] * model.rounds
        assert [int(words[1]) for words in kernels] == expected
    assert end == len(lines)
    for words in {line.split()[0] for line in lines if not line.startswith("@")}:
        assert f"kernel {words}\n" in script.image


@pytest.mark.parametrize(
    "change, message",
    [
        (("rounds = 1", "rounds = 0"), "rounds"),
        (('"INT8"', '"BYTES"'), "datatype with elements of fixed size"),
        (("blocks = 1", "blocks = -1"), "blocks"),
        (("max_batch = 2", "max_batch = 256\nrounds = 10000"), "launches"),
        (("per_sm = 1", "per_cm = 1"), "per_cm"),
    ],
)
def test_invalid_replay_model_error_names_the_field(change: tuple[str, str], message: str) -> None:
    text = (
        'max_batch = 2\nrounds = 1\n[[input]]\nname = "I"\ndatatype = "INT8"\nshape = []\n'
        '[[output]]\nname = "O"\ndatatype = "INT8"\nshape = []\n'
        '[[kernel]]\nname = "k"\nblock_time = "1us"\nblocks = 1\nper_sm = 1\n'
    )
    assert decode_replay(text, "x").max_batch == 2
    if "\n" in change[1]:
        text = text.replace("rounds = 1\n", "")
    with pytest.raises(ConfigError, match=message):
        decode_replay(text.replace(*change), "x")


def test_built_in_models_are_ordered_by_device_use(tmp_path: Path) -> None:
    """By the slowdown of a full batch on a fifth of a V100."""
    names = ["mobilenet", "alexnet", "resnet50", "vgg19"]
    assert sorted(built_in_names()) == sorted(names)
    models = [built_in_model(name) for name in names]
    slowdowns = [model.kernels_ns(16, 16) / model.kernels_ns(16, 80) for model in models]
    assert slowdowns == sorted(slowdowns)
    paths = write_models(tmp_path, [], None, 2.0, {})
    assert [path.name for path in paths] == [f"{name}{SUFFIX}" for name in built_in_names()]
    for name, path in zip(built_in_names(), paths, strict=True):
        assert decode_replay(path.read_text(), path.name) == slow_down(built_in_model(name), 2.0)
    with pytest.raises(ConfigError, match="--data"):
        write_models(tmp_path, ["bert"], None, 1.0, {})


@given(st.integers(0, 60), st.integers(0, 5))
def test_every_concurrent_run_has_a_worker_at_each_width(workers: int, limit: int) -> None:
    at_once = runs_at_once(workers)
    assert 1 <= at_once <= 3
    assert at_once == 1 or sum(workers_for(width, at_once) for width in WIDTHS) <= workers
    for width in WIDTHS:
        expected = min(limit or 100, 100 // width)
        assert workers_for(width, limit) == expected


@given(st.sets(st.integers(1, 100), min_size=1), st.sets(st.integers(1, 100)))
def test_run_times_are_limited_to_available_widths(measured: set[int], offered: set[int]) -> None:
    times = RunTimes(100, tuple(RunTime(units, 1, 10, 20) for units in sorted(measured)), knee_units=100)
    matching = times_at(times, sorted(offered))
    assert (() if matching is None else matching.widths()) == tuple(sorted(measured & offered))
