"""Stored kernel streams of models: one file per task and GPU, with the launch script and the image of its kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

import msgspec

from cotenant.errors import ConfigError
from cotenant.profile.estimate.stream import EstimatedStream, UnsupportedOperator, launches_of_stream
from cotenant.units.estimate import Estimate
from cotenant.workload.launch_files import image_text, script_text
from cotenant.workload.launch_script import read_script
from cotenant.workload.load import Launch

VERSION: Final = 1
ESTIMATED: Final = " (estimated)"
"""The end of the device's name in a profile that was not measured."""


class StoredStream(msgspec.Struct, frozen=True, kw_only=True):
    """One request or training step of a model on a GPU, ready to be played."""

    format: Literal["cotenant-stream"] = "cotenant-stream"
    version: int = VERSION
    task: str
    model: str
    gpu: str
    batch: int
    train: bool
    mode: str
    graph: bool
    latency_ns: Estimate
    device_ns: Estimate
    memory_bytes: int
    unsupported: tuple[UnsupportedOperator, ...]
    script: str
    image: str

    def launches(self) -> tuple[Launch, ...]:
        """Return the launches of the script."""
        return read_script(self.script.encode(), self.task)


def task_name(name: str, batch: int, *, train: bool) -> str:
    """Return the task of a model at a batch size."""
    return f"{name}:b{batch}{':train' if train else ''}"


def stored_stream(task: str, stream: EstimatedStream) -> StoredStream:
    """Return a stream as it is stored."""
    launches = launches_of_stream(stream)
    return StoredStream(
        task=task,
        model=stream.name,
        gpu=stream.gpu.key,
        batch=stream.batch,
        train=stream.options.train,
        mode=stream.options.mode,
        graph=stream.options.graph,
        latency_ns=stream.latency_ns,
        device_ns=stream.device_ns,
        memory_bytes=stream.memory_bytes,
        unsupported=stream.unsupported,
        script=script_text(task, launches),
        image=image_text(launches),
    )


def write_stream(directory: Path, stream: StoredStream) -> Path:
    """Write a stream in place of an earlier one of the same task and GPU."""
    path = directory / f"{quote(stream.task, safe='')}@{stream.gpu}.json"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".new")
        partial.write_bytes(msgspec.json.encode(stream))
        partial.replace(path)
    except OSError as error:
        raise ConfigError("--state-dir", str(directory), f"cannot be written: {error.strerror}") from None
    return path


def read_streams(directory: Path) -> list[StoredStream]:
    """Return all readable streams, by name of their file."""
    streams = []
    for path in sorted(directory.glob("*@*.json")) if directory.is_dir() else ():
        try:
            streams.append(msgspec.json.decode(path.read_bytes(), type=StoredStream))
        except (OSError, msgspec.DecodeError):
            continue  # written by another version, or damaged: importing the model again replaces it
    return streams


def find_stream(directory: Path, name: str, gpu: str, batch: int | None, *, train: bool | None) -> StoredStream:
    """Return the one stream of a model or task; raise `ConfigError` that says what to choose from."""
    streams = read_streams(directory)
    matches = [
        stream
        for stream in streams
        if name in (stream.task, stream.model)
        and gpu in ("", stream.gpu)
        and batch in (None, stream.batch)
        and train in (None, stream.train)
    ]
    if not matches:
        known = ", ".join(sorted({stream.model for stream in streams})) or "none yet"
        remedy = (
            f"no stream of this name is stored ({known}); create one with: cotenant profile import FILE.onnx --gpu GPU"
        )
        raise ConfigError("MODEL", name, remedy)
    if len({stream.gpu for stream in matches}) > 1:
        keys = ", ".join(sorted({stream.gpu for stream in matches}))
        raise ConfigError("MODEL", name, f"it was imported for {keys}; choose one with --for-gpu")
    if len(matches) > 1 and batch is None:
        matches = [min(matches, key=lambda stream: (stream.train, stream.batch))]
    return matches[0]
