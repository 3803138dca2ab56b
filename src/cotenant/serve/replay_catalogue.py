"""Catalogue of replay models: synthetic shapes that need no data, and kernel lists of published measurements."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cotenant.errors import ConfigError
from cotenant.serve.model.replay import ReplayKernel, ReplayModel
from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.units.instant import MICROSECOND_NS
from cotenant.workload.kernel_table import read_kernels

MAX_BATCH: Final = 16
_IMAGE_BYTES: Final = 3 * 224 * 224
_LISTS: Final = "orion/model_kernels"
_LIST: Final = re.compile(r"(?P<name>[a-z0-9_]+)_(?P<batch>[0-9]+)_fwd\.csv\Z")
_LIST_SMS: Final = 80
"""Number of SMs of the V100 on which the lists were measured."""


class _Shape(NamedTuple):
    """Layers whose width falls from the first to the last, and one kernel of a single block that limits scaling."""

    layers: int
    widest: float
    """Blocks per row in the first layer."""
    narrowest: float
    block_us: int
    serial_us: int
    rounds: int
    weights_bytes: int


_BUILT_IN: Final = {
    "alexnet": _Shape(8, 8, 1.5, 800, 240, 1, 233 << 20),
    "mobilenet": _Shape(10, 4, 0.6, 480, 240, 2, 14 << 20),
    "resnet50": _Shape(12, 12, 2, 1200, 320, 2, 98 << 20),
    "vgg19": _Shape(10, 24, 5, 2000, 320, 2, 548 << 20),
}
"""Synthetic models.

They resemble the models of those names in their order only: each one can use more of a GPU and takes longer than the
one before. All values are our choice; `weights_bytes` is about the size of the real model's weights.
"""


def built_in_names() -> list[str]:
    """Return the names of the synthetic models."""
    return list(_BUILT_IN)


def built_in_model(name: str) -> ReplayModel:
    """Return a synthetic model."""
    if name not in _BUILT_IN:
        raise ConfigError("NAME", name, f"choose one of {', '.join(_BUILT_IN)}, or add kernel lists with --data")
    shape = _BUILT_IN[name]
    narrower = (shape.narrowest / shape.widest) ** (1 / (shape.layers - 1))
    kernels = [
        ReplayKernel(
            f"layer{index}", shape.block_us * MICROSECOND_NS, blocks_per_row=round(shape.widest * narrower**index, 2)
        )
        for index in range(shape.layers)
    ]
    kernels.append(ReplayKernel("serial", shape.serial_us * MICROSECOND_NS, blocks=1))
    return _model(kernels, shape.rounds, shape.weights_bytes)


def kernel_lists(data: Path) -> dict[str, Path]:
    """Return the kernel lists for inference in the data directory, by model."""
    lists = {}
    for path in sorted((data / _LISTS).glob("*_fwd.csv")):
        match = _LIST.match(path.name)
        if match:
            lists[match["name"]] = path
    return lists


def kernel_list_model(path: Path) -> ReplayModel:
    """Convert a kernel list to a replay model. The grid is assumed to grow with the batch.

    Each block takes the measured time.
    """
    match = _LIST.match(path.name)
    assert match is not None
    batch = int(match["batch"])
    kernels = []
    for activity in read_kernels(path.read_bytes(), match["name"], str(path)).activities:
        sms = activity.kernel.grid[0]
        block_ns = max(1, (activity.end_ns - activity.start_ns) // -(-sms // _LIST_SMS))
        kernels.append(ReplayKernel("kernel", block_ns, blocks_per_row=sms / batch, threads=256, per_sm=1))
    return _model(kernels, 1, 0)


def slow_down(model: ReplayModel, factor: float) -> ReplayModel:
    """Return the model with block times multiplied, for machines where device, server and load share few cores."""
    kernels = tuple(
        msgspec.structs.replace(kernel, block_ns=max(1, round(kernel.block_ns * factor))) for kernel in model.kernels
    )
    return msgspec.structs.replace(model, kernels=kernels)


def _model(kernels: list[ReplayKernel], rounds: int, weights_bytes: int) -> ReplayModel:
    """Build a model with small tensors, so that the transport to the server does not dominate.

    The copies have an image's size.
    """
    return ReplayModel(
        inputs=(TensorSpec("IN", Datatype.UINT8, (-1, 64)),),
        outputs=(TensorSpec("OUT", Datatype.FP32, (-1, 4)),),
        kernels=tuple(kernels),
        rounds=rounds,
        max_batch=MAX_BATCH,
        weights_bytes=weights_bytes,
        copy_in_bytes=_IMAGE_BYTES,
        copy_out_bytes=4000,
    )
