"""A model is batched by default only if its file declares the first dimension as a batch."""

from typing import NamedTuple

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from pathlib import Path

from onnx import TensorProto, helper

from cotenant.serve.runtime.onnx import means_batches
from cotenant.serve.runtime.repository import Repository
from tests.support.model_servers import identity, save

pytestmark = pytest.mark.live


class Node(NamedTuple):
    shape: tuple[str | int | None, ...]


@pytest.mark.parametrize(
    "inputs, outputs, expected",
    [
        (["batch"], ["batch"], True),
        (["batch_size", "batch_size"], ["batch_size"], True),
        (["N"], ["N"], True),
        (["s0"], ["s0", "s0"], True),
        ([None], [None], True),
        (["unk__0"], ["unk__1"], True),
        (["unk__0"], [None], True),
        (["num_boxes"], ["num_selected"], False),
        (["batch"], [None], False),
        (["batch", "tokens"], ["batch"], False),
        (["seq_len"], ["seq_len"], False),
        (["Sequence"], ["Sequence"], False),
        ([1], [1], False),
        (["batch"], [1], False),
        ([], ["batch"], False),
    ],
)
def test_batch_requires_the_same_free_first_dimension_in_all_tensors(
    inputs: list[str | int | None], outputs: list[str | int | None], *, expected: bool
) -> None:
    assert (
        means_batches([Node((dimension, 4)) for dimension in inputs], [Node((dimension, 4)) for dimension in outputs])
        is expected
    )


def test_model_with_a_scalar_output_is_not_batched() -> None:
    assert not means_batches([Node(("batch", 4))], [Node(())])


def test_configured_max_batch_overrides_the_model_file(tmp_path: Path) -> None:
    boxes = helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["num_boxes", 4])
    selected = helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["num_selected", 4])
    graph = helper.make_graph([helper.make_node("Abs", ["IN"], ["OUT"])], "boxes", [boxes], [selected])
    save(tmp_path / "boxes.onnx", graph)
    identity(tmp_path / "rows.onnx", "FP32")
    identity(tmp_path / "asked.onnx", "FP32", ["seq_len", 4])
    (tmp_path / "asked.toml").write_text("max_batch = 3\n")
    repository = Repository([tmp_path], [0])
    batches = {}
    for name, source in repository.scan().items():
        model = repository.load(source)
        batches[name] = model.spec.max_batch
        model.close()
    assert batches == {"asked": 3, "boxes": 0, "rows": 8}


def test_folder_whose_name_is_no_number_is_no_version(tmp_path: Path) -> None:
    """`str.isdigit` is true for superscripts, which `int` rejects."""
    (tmp_path / "m" / "²").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text('name: "m"')
    (source,) = Repository([tmp_path], [0]).scan().values()
    assert source.broken == "it has no version directory such as 1/"
