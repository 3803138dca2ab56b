"""Configuration of one model: a TOML file beside the model's file, and its effect on the model's spec."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cotenant.serve.model.event import ModelSpec
from cotenant.units.toml import DurationNs, Section, SizeBytes, decode_toml, prepare

BATCH_LIMIT: Final = 1 << 16


class ModelConfig(Section, frozen=True):
    """The contents of the file NAME.toml beside a model."""

    slo: Annotated[DurationNs, Meta(description='latency objective of a request, for example "50ms"; 0s: none')] = (
        DurationNs(0)
    )
    priority: Annotated[
        int, Meta(ge=1, le=1 << 20, description="priority of requests that name none; 1 is the highest")
    ] = 1
    weight: Annotated[int, Meta(ge=1, le=1000, description="weight of the model when the device is overloaded")] = 1
    max_batch: Annotated[
        Annotated[int, Meta(ge=0, le=BATCH_LIMIT)] | None,
        Meta(description="maximum rows of a run; 0: each request is a run of its own"),
    ] = None
    wait: Annotated[
        DurationNs | None, Meta(description='maximum time that an incomplete batch waits, for example "500us"')
    ] = None
    share: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None, Meta(description="units of a run: cores, or percent of a GPU")
    ] = None
    memory: Annotated[SizeBytes, Meta(description='device memory of each worker, for example "2GiB"; 0B: no limit')] = (
        SizeBytes(0)
    )
    queue: Annotated[int, Meta(ge=1, le=1_000_000, description="maximum number of queued requests")] = 1024


prepare(ModelConfig)


def decode_model_config(text: str, where: str) -> ModelConfig:
    """Decode a configuration file."""
    return decode_toml(text, ModelConfig, where)


def with_config(spec: ModelSpec, config: ModelConfig) -> ModelSpec:
    """Return the spec with the configured values applied."""
    changed = msgspec.structs.replace(
        spec,
        slo_ns=int(config.slo),
        priority=config.priority,
        weight=config.weight,
        share=spec.share if config.share is None else config.share,
        queue_limit=config.queue,
    )
    return changed if config.wait is None else msgspec.structs.replace(changed, wait_ns=int(config.wait))
