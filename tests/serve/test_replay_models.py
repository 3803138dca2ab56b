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
    blocks_per_row=st.floats(0, 100).map(lambda one: round(one, 3)),
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
def test_what_is_written_is_read_again(model: ReplayModel) -> None:
    assert decode_replay(encode_replay(model, "any"), "x") == model


@given(MODELS, st.integers(1, 20), st.integers(1, 200))
def test_more_sms_and_fewer_rows_never_take_longer(model: ReplayModel, rows: int, sms: int) -> None:
    assert model.kernels_ns(rows, sms + 1) <= model.kernels_ns(rows, sms) <= model.kernels_ns(rows + 1, sms)
    assert slow_down(model, 3).kernels_ns(rows, sms) == 3 * model.kernels_ns(rows, sms)


@given(MODELS)
def test_every_batch_has_its_launches_and_no_other(model: ReplayModel) -> None:
    script = player_script(model)
    lines = script.script.splitlines()
    end = 0
    for rows in model.batches:
        first, count = script.parts[rows]
        assert first == end
        end = first + count
        kernels = [line.split() for line in lines[first:end] if not line.startswith("@")]
        wanted = [one.blocks_of(rows) for one in model.kernels] * model.rounds
        assert [int(words[1]) for words in kernels] == wanted
    assert end == len(lines)
    for words in {line.split()[0] for line in lines if not line.startswith("@")}:
        assert f"kernel {words}\n" in script.image


@pytest.mark.parametrize(
    "change, why",
    [
        (("rounds = 1", "rounds = 0"), "rounds"),
        (('"INT8"', '"BYTES"'), "datatype with elements of fixed size"),
        (("blocks = 1", "blocks = -1"), "blocks"),
        (("max_batch = 2", "max_batch = 256\nrounds = 10000"), "launches"),
        (("per_sm = 1", "per_cm = 1"), "per_cm"),
    ],
)
def test_a_file_that_is_none_is_refused_by_name(change: tuple[str, str], why: str) -> None:
    text = (
        'max_batch = 2\nrounds = 1\n[[input]]\nname = "I"\ndatatype = "INT8"\nshape = []\n'
        '[[output]]\nname = "O"\ndatatype = "INT8"\nshape = []\n'
        '[[kernel]]\nname = "k"\nblock_time = "1us"\nblocks = 1\nper_sm = 1\n'
    )
    assert decode_replay(text, "x").max_batch == 2
    if "\n" in change[1]:
        text = text.replace("rounds = 1\n", "")
    with pytest.raises(ConfigError, match=why):
        decode_replay(text.replace(*change), "x")


def test_the_built_in_ones_use_more_of_a_device_the_later_they_come(tmp_path: Path) -> None:
    """By the slowdown of a full batch on a fifth of a V100."""
    names = ["mobilenet", "alexnet", "resnet50", "vgg19"]
    assert sorted(built_in_names()) == sorted(names)
    models = [built_in_model(name) for name in names]
    slowdowns = [one.kernels_ns(16, 16) / one.kernels_ns(16, 80) for one in models]
    assert slowdowns == sorted(slowdowns)
    written = write_models(tmp_path, [], None, 2.0, {})
    assert [path.name for path in written] == [f"{name}{SUFFIX}" for name in built_in_names()]
    for name, path in zip(built_in_names(), written, strict=True):
        assert decode_replay(path.read_text(), path.name) == slow_down(built_in_model(name), 2.0)
    with pytest.raises(ConfigError, match="--data"):
        write_models(tmp_path, ["bert"], None, 1.0, {})


@given(st.integers(0, 60), st.integers(0, 5))
def test_a_worker_is_there_for_every_run_that_may_be_at_once(workers: int, wanted: int) -> None:
    at_once = runs_at_once(workers)
    assert 1 <= at_once <= 3
    assert at_once == 1 or sum(workers_for(width, at_once) for width in WIDTHS) <= workers
    for width in WIDTHS:
        beside = min(wanted or 100, 100 // width)
        assert workers_for(width, wanted) == beside


@given(st.sets(st.integers(1, 100), min_size=1), st.sets(st.integers(1, 100)))
def test_a_policy_sees_only_widths_for_which_workers_are_made(measured: set[int], offered: set[int]) -> None:
    times = RunTimes(100, tuple(RunTime(one, 1, 10, 20) for one in sorted(measured)), knee_units=100)
    kept = times_at(times, sorted(offered))
    assert (() if kept is None else kept.widths()) == tuple(sorted(measured & offered))
