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
    said = decode_toml(text, ReplaySection, where)
    front = (-1,) if said.max_batch else ()
    sides = []
    for side in (said.input, said.output):
        for one in side:
            if one.datatype is Datatype.BYTES:
                raise ConfigError(f"{where}: {one.name}", "BYTES", "choose a datatype with elements of fixed size")
        sides.append(tuple(TensorSpec(one.name, one.datatype, (*front, *one.shape)) for one in side))
    held = [sum(elements(one.shape) * one.datatype.width_bytes for one in side) for side in (said.input, said.output)]
    kernels = tuple(
        ReplayKernel(one.name, max(1, int(one.block_time)), one.blocks, one.blocks_per_row, one.threads, one.per_sm)
        for one in said.kernel
    )
    model = ReplayModel(
        inputs=sides[0],
        outputs=sides[1],
        kernels=kernels,
        rounds=said.rounds,
        max_batch=said.max_batch,
        weights_bytes=int(said.weights),
        copy_in_bytes=held[0] if said.copy_in is None else int(said.copy_in),
        copy_out_bytes=held[1] if said.copy_out is None else int(said.copy_out),
    )
    launches = len(model.batches) * (model.rounds * len(kernels) + 2)
    if launches > LAUNCHES_LIMIT:
        remedy = f"with max_batch and the kernels this makes {launches} launches; the limit is {LAUNCHES_LIMIT}"
        raise ConfigError(f"{where}: rounds", model.rounds, remedy)
    return model


def encode_replay(model: ReplayModel, about: str) -> str:
    """Encode a replay model; `about` becomes the first line, as a comment."""
    lines = [f"# {about}", f"max_batch = {model.max_batch}", f"rounds = {model.rounds}"]
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
    for one in model.kernels:
        lines += ["", "[[kernel]]", f'name = "{one.name}"', f'block_time = "{format_duration(one.block_ns)}"']
        lines += [f"blocks = {one.blocks}", f"blocks_per_row = {one.blocks_per_row!r}"]
        lines += [f"threads = {one.threads}", f"per_sm = {one.per_sm}"]
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
    names = [f"{one.name}.{place}" for place, one in enumerate(model.kernels)]
    for rows in model.batches:
        first = len(lines)
        lines += _copy("@htod", rows * model.copy_in_bytes)
        round_ = [
            f"{name} {one.blocks_of(rows)} {one.threads} {one.block_ns} 0"
            for name, one in zip(names, model.kernels, strict=True)
        ]
        lines += round_ * model.rounds
        lines += _copy("@dtoh", rows * model.copy_out_bytes)
        parts[rows] = (first, len(lines) - first)
    kernels = "".join(
        f"kernel {name}\n params 8\n block_ns {one.block_ns}\n blocks_per_sm {one.per_sm}\n"
        for name, one in zip(names, model.kernels, strict=True)
    )
    return PlayerScript("\n".join(lines) + "\n", f"softgpu-image 1\n{kernels}", parts)


def _copy(word: str, size_bytes: int) -> list[str]:
    return [f"{word} {size_bytes} 0"] if size_bytes else []
