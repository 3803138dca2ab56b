"""Import of models: estimate their kernel streams, and store profile, launch script and image of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from cotenant.errors import ConfigError
from cotenant.profile.estimate.corrections import (
    CorrectionRow,
    MeasuredLatency,
    learn_correction,
    read_correction,
    write_correction,
)
from cotenant.profile.estimate.devices import Gpu, find_gpu
from cotenant.profile.estimate.duration import Correction
from cotenant.profile.estimate.kernels import Precision
from cotenant.profile.estimate.model_files import model_name, read_model
from cotenant.profile.estimate.stored import ESTIMATED, StoredStream, stored_stream, task_name, write_stream
from cotenant.profile.estimate.stream import EstimatedStream, StreamOptions, estimate_stream, timeline_of_stream
from cotenant.profile.store import ProfileKey, ProfileStore
from cotenant.units.text import parse_duration
from cotenant.workload.load import Launch
from cotenant.workload.profile_launches import launches_of_profile
from cotenant.workload.timeline import profile_of

Report = Callable[[str], None]


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to import and how it runs."""

    source: str
    gpu: Gpu
    batches: tuple[int, ...] = (1,)
    options: StreamOptions = StreamOptions()
    dimensions: Mapping[str, int] = msgspec.field(default_factory=dict)
    name: str = ""


class ImportedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One stream that was stored."""

    stream: EstimatedStream
    task: str
    device: str
    path: str


def stream_directory(state: Path) -> Path:
    """Return the directory of stored streams."""
    return state / "streams"


def correction_file(state: Path) -> Path:
    """Return the file of correction factors."""
    return state / "corrections.json"


def estimate_model(request: ModelRequest, state: Path | None, report: Report) -> list[EstimatedStream]:
    """Return the streams of a model, one per batch size, with the stored corrections of the GPU."""
    correction = read_correction(correction_file(state), request.gpu.key) if state is not None else None
    streams = []
    for batch in request.batches:
        report(f"{request.source}: batch {batch} on {request.gpu.name}")
        model = read_model(request.source, batch, request.dimensions, train=request.options.train)
        name = request.name or model_name(request.source)
        streams.append(estimate_stream(name, model, request.gpu, request.options, correction=correction))
    return streams


def import_model(
    request: ModelRequest, store: ProfileStore, state: Path, at_ns: int, report: Report
) -> list[ImportedModel]:
    """Estimate all streams, then store them; an earlier import of the same task and GPU is replaced."""
    imported = []
    for stream in estimate_model(request, state, report):
        task = task_name(stream.name, stream.batch, train=stream.options.train)
        device = f"{stream.gpu.name}{ESTIMATED}"
        path = write_stream(stream_directory(state), stored_stream(task, stream))
        store.prune([ProfileKey(task, device)], 0, 0)
        store.add(profile_of(timeline_of_stream(stream, task, device)), at_ns)
        imported.append(ImportedModel(stream=stream, task=task, device=device, path=str(path)))
    return imported


def measured_launches(store: ProfileStore, task: str, gpu: Gpu) -> tuple[Launch, ...] | None:
    """Return the launches of a measured profile of this task on this GPU; None if it was never measured."""
    stored = store.get(ProfileKey(task, gpu.name))
    launches = launches_of_profile(stored.profile) if stored is not None else ()
    return launches or None


def playable_launches(stream: StoredStream, store: ProfileStore) -> tuple[tuple[Launch, ...], bool]:
    """Return the launches to play, and whether they were measured: a measurement overrides the estimate."""
    measured = measured_launches(store, stream.task, find_gpu(stream.gpu))
    return (stream.launches(), False) if measured is None else (measured, True)


def parse_batches(text: str) -> tuple[int, ...]:
    """Return the batch sizes of a list such as 1,8,32."""
    batches = []
    for word in text.split(","):
        if not word.strip().isdecimal() or not 1 <= int(word) <= 1 << 20:
            raise ConfigError("--batch", text, "write batch sizes of at least 1, as in --batch 1,8,32")
        batches.append(int(word))
    return tuple(dict.fromkeys(batches))


def parse_dimensions(words: Sequence[str]) -> dict[str, int]:
    """Return the sizes of words such as seq=128."""
    sizes = {}
    for word in words:
        name, equals, size = word.partition("=")
        if not equals or not name or not size.isdecimal() or int(size) < 1:
            raise ConfigError("--dim", word, "write NAME=SIZE, as in --dim sequence=128")
        sizes[name] = int(size)
    return sizes


def parse_precision(text: str) -> Precision | None:
    """Return the arithmetic of a name; None for an empty one: that of the model."""
    names = [precision.value for precision in Precision if precision is not Precision.FP16_SHORT]
    if text and text not in names:
        raise ConfigError("--precision", text, f"choose one of {', '.join(names)}")
    return Precision(text) if text else None


def learn_corrections(
    words: Sequence[str], request: ModelRequest, state: Path, report: Report
) -> tuple[Correction, list[CorrectionRow]]:
    """Learn the factors of a GPU from words such as resnet.onnx:batch=8,latency=12ms, and store them."""
    measured = []
    for word in words:
        source, _, settings = word.rpartition(":")
        fields = dict(part.partition("=")[::2] for part in settings.split(","))
        if not source or "latency" not in fields or set(fields) - {"batch", "latency"}:
            raise ConfigError("MEASUREMENT", word, "write FILE:batch=8,latency=12.3ms")
        batches = parse_batches(fields.get("batch", "1"))
        latency_ns = parse_duration(fields["latency"], field="latency")
        if latency_ns <= 0 or len(batches) != 1:
            raise ConfigError("MEASUREMENT", word, "give one batch size and a latency of more than 0")
        each = msgspec.structs.replace(request, source=source, batches=batches, name="")
        (stream,) = estimate_model(each, None, report)
        measured.append(MeasuredLatency(stream, latency_ns))
    factors, rows = learn_correction(measured)
    write_correction(correction_file(state), request.gpu.key, factors)
    return factors, rows
