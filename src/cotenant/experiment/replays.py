"""Which replay models can be had? Shapes of our own that need no data, and kernel lists that others measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cotenant.domain.instant import MICROSECOND_NS
from cotenant.domain.replay import ReplayKernel, ReplayModel
from cotenant.domain.tensor import Datatype, TensorSpec
from cotenant.errors import ConfigError
from cotenant.format.kernels import read_kernels

MAX_BATCH: Final = 16
_IMAGE_BYTES: Final = 3 * 224 * 224
_LISTS: Final = "orion/model_kernels"
_LIST: Final = re.compile(r"(?P<name>[a-z0-9_]+)_(?P<batch>[0-9]+)_fwd\.csv\Z")
_LIST_SMS: Final = 80
"""Of the V100 that the lists were measured on."""


class _Shape(NamedTuple):
    """Layers that get narrower from the first to the last, and one block that nothing makes faster."""

    layers: int
    widest: float
    """Blocks of a row in the first layer."""
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
"""Ours, like the models of those names only in their order: the later, the more of a GPU it can use and the longer it
takes. All figures are our choice; `weights_bytes` is about what the weights of the real one take."""


def built_in() -> list[str]:
    """The names of those that need no data."""
    return list(_BUILT_IN)


def built_in_model(name: str) -> ReplayModel:
    """One of them."""
    if name not in _BUILT_IN:
        raise ConfigError("NAME", name, f"there are {', '.join(_BUILT_IN)}; more by --data")
    shape = _BUILT_IN[name]
    narrower = (shape.narrowest / shape.widest) ** (1 / (shape.layers - 1))
    kernels = [
        ReplayKernel(
            f"layer{place}", shape.block_us * MICROSECOND_NS, blocks_per_row=round(shape.widest * narrower**place, 2)
        )
        for place in range(shape.layers)
    ]
    kernels.append(ReplayKernel("serial", shape.serial_us * MICROSECOND_NS, blocks=1))
    return _model(kernels, shape.rounds, shape.weights_bytes)


def listed(data: Path) -> dict[str, Path]:
    """The kernel lists of inference that are there, by model."""
    found = {}
    for path in sorted((data / _LISTS).glob("*_fwd.csv")):
        match = _LIST.match(path.name)
        if match:
            found[match["name"]] = path
    return found


def listed_model(path: Path) -> ReplayModel:
    """A kernel list as a model: a grid is taken to grow with the batch, and each block to take what it took there."""
    match = _LIST.match(path.name)
    assert match is not None
    batch = int(match["batch"])
    kernels = []
    for one in read_kernels(path.read_bytes(), match["name"], str(path)).activities:
        sms = one.kernel.grid[0]
        block_ns = max(1, (one.end_ns - one.start_ns) // -(-sms // _LIST_SMS))
        kernels.append(ReplayKernel("kernel", block_ns, blocks_per_row=sms / batch, threads=256, per_sm=1))
    return _model(kernels, 1, 0)


def slowed(model: ReplayModel, times: float) -> ReplayModel:
    """The same in slow motion, for machines on which device, server and load share few cores."""
    kernels = tuple(msgspec.structs.replace(one, block_ns=max(1, round(one.block_ns * times))) for one in model.kernels)
    return msgspec.structs.replace(model, kernels=kernels)


def _model(kernels: list[ReplayKernel], rounds: int, weights_bytes: int) -> ReplayModel:
    """The tensors are small, so that the way to the server is not what is measured; the copies are an image's."""
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
