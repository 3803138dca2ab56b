"""File format of replay models (TOML), and the launch script and image that the player takes."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from cotenant.errors import ConfigError
from cotenant.serve.model.replay import ReplayKernel, ReplayModel
from cotenant.serve.model.tensor import Datatype, TensorSpec, elements
from cotenant.units.text import format_duration, format_size
from cotenant.units.toml import DurationNs, Section, SizeBytes, decode_toml, prepare

SUFFIX: Final = ".replay.toml"
BATCH_LIMIT: Final = 256
LAUNCHES_LIMIT: Final = 100_000
"""Limit over all batch sizes together, because the player holds the launches of each of them."""
_NAME: Final = r"^[A-Za-z_][A-Za-z0-9_.]{0,63}$"


class TensorSection(Section, frozen=True):
    """An input or an output tensor."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    datatype: Datatype
    shape: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=1 << 24)], ...],
        Meta(max_length=8, description="shape of one row, without the batch"),
    ]


class KernelSection(Section, frozen=True):
    """One kernel of a round."""

    name: Annotated[str, Meta(pattern=_NAME)]
    block_time: Annotated[DurationNs, Meta(description='time of one block, for example "20us"')]
    blocks: Annotated[int, Meta(ge=0, le=1 << 20, description="blocks that do not depend on the batch")] = 0
    blocks_per_row: Annotated[float, Meta(ge=0, le=1 << 20)] = 0.0
    threads: Annotated[int, Meta(ge=1, le=1024)] = 256
    per_sm: Annotated[int, Meta(ge=1, le=32, description="blocks that fit on an SM")] = 2


class ReplaySection(Section, frozen=True):
    """The whole file."""

    input: Annotated[tuple[TensorSection, ...], Meta(min_length=1, max_length=64)]
    output: Annotated[tuple[TensorSection, ...], Meta(min_length=1, max_length=64)]
    kernel: Annotated[tuple[KernelSection, ...], Meta(min_length=1, max_length=10_000)]
    max_batch: Annotated[
        int, Meta(ge=0, le=BATCH_LIMIT, description="maximum rows of a run; 0: each request is a run of its own")
    ] = 0
    rounds: Annotated[int, Meta(ge=1, le=10_000, description="how often the kernels are launched per run")] = 1
    weights: Annotated[SizeBytes, Meta(description='device memory for the weights, for example "98MiB"')] = SizeBytes(0)
    copy_in: Annotated[
        SizeBytes | None, Meta(description="bytes copied to the device per row (default: the size of its inputs)")
    ] = None
    copy_out: Annotated[
        SizeBytes | None, Meta(description="bytes copied back per row (default: the size of its outputs)")
    ] = None


prepare(ReplaySection)


def decode_replay(text: str, where: str) -> ReplayModel:
    """Decode a replay model."""
    section = decode_toml(text, ReplaySection, where)
    front = (-1,) if section.max_batch else ()
    sides = []
    for side in (section.input, section.output):
        for tensor in side:
            if tensor.datatype is Datatype.BYTES:
                raise ConfigError(f"{where}: {tensor.name}", "BYTES", "choose a datatype with elements of fixed size")
        sides.append(tuple(TensorSpec(tensor.name, tensor.datatype, (*front, *tensor.shape)) for tensor in side))
    sizes_bytes = [
        sum(elements(tensor.shape) * tensor.datatype.width_bytes for tensor in side)
        for side in (section.input, section.output)
    ]
    kernels = tuple(
        ReplayKernel(
            kernel.name,
            max(1, int(kernel.block_time)),
            kernel.blocks,
            kernel.blocks_per_row,
            kernel.threads,
            kernel.per_sm,
        )
        for kernel in section.kernel
    )
    model = ReplayModel(
        inputs=sides[0],
        outputs=sides[1],
        kernels=kernels,
        rounds=section.rounds,
        max_batch=section.max_batch,
        weights_bytes=int(section.weights),
        copy_in_bytes=sizes_bytes[0] if section.copy_in is None else int(section.copy_in),
        copy_out_bytes=sizes_bytes[1] if section.copy_out is None else int(section.copy_out),
    )
    launches = len(model.batches) * (model.rounds * len(kernels) + 2)
    if launches > LAUNCHES_LIMIT:
        remedy = f"with max_batch and the kernels this makes {launches} launches; the limit is {LAUNCHES_LIMIT}"
        raise ConfigError(f"{where}: rounds", model.rounds, remedy)
    return model


def encode_replay(model: ReplayModel, comment: str) -> str:
    """Encode a replay model; `comment` becomes the first line, as a comment."""
    lines = [f"# {comment}", f"max_batch = {model.max_batch}", f"rounds = {model.rounds}"]
    lines.append(f'weights = "{format_size(model.weights_bytes)}"')
    lines += [f'copy_in = "{model.copy_in_bytes}B"', f'copy_out = "{model.copy_out_bytes}B"']
    front = 1 if model.max_batch else 0
    for side, specs in (("input", model.inputs), ("output", model.outputs)):
        for spec in specs:
            shape = list(spec.shape[front:])
            lines += [
                "",
                f"[[{side}]]",
                f'name = "{spec.name}"',
                f'datatype = "{spec.datatype.value}"',
                f"shape = {shape}",
            ]
    for kernel in model.kernels:
        lines += ["", "[[kernel]]", f'name = "{kernel.name}"', f'block_time = "{format_duration(kernel.block_ns)}"']
        lines += [f"blocks = {kernel.blocks}", f"blocks_per_row = {kernel.blocks_per_row!r}"]
        lines += [f"threads = {kernel.threads}", f"per_sm = {kernel.per_sm}"]
    return "\n".join(lines) + "\n"


class PlayerScript(NamedTuple):
    """Input of the player: the launches of all batch sizes in one script."""

    script: str
    image: str
    parts: dict[int, tuple[int, int]]
    """By number of rows: the index of the first launch and the number of launches."""


def player_script(model: ReplayModel) -> PlayerScript:
    """Return the launches of every batch size."""
    lines: list[str] = []
    parts = {}
    names = [f"{kernel.name}.{index}" for index, kernel in enumerate(model.kernels)]
    for rows in model.batches:
        first_launch = len(lines)
        lines += _copy("@htod", rows * model.copy_in_bytes)
        round_ = [
            f"{name} {kernel.blocks_of(rows)} {kernel.threads} {kernel.block_ns} 0"
            for name, kernel in zip(names, model.kernels, strict=True)
        ]
        lines += round_ * model.rounds
        lines += _copy("@dtoh", rows * model.copy_out_bytes)
        parts[rows] = (first_launch, len(lines) - first_launch)
    kernels = "".join(
        f"kernel {name}\n params 8\n block_ns {kernel.block_ns}\n blocks_per_sm {kernel.per_sm}\n"
        for name, kernel in zip(names, model.kernels, strict=True)
    )
    return PlayerScript("\n".join(lines) + "\n", f"softgpu-image 1\n{kernels}", parts)


def _copy(word: str, size_bytes: int) -> list[str]:
    return [f"{word} {size_bytes} 0"] if size_bytes else []
