"""What may be said of a model beside its file? Its objective and its part, as TOML; and what that makes of its spec."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cotenant.domain.serving import ModelSpec
from cotenant.format.toml import DurationNs, Section, SizeBytes, decode_toml, prepare

BATCH_LIMIT: Final = 1 << 16


class ModelConfig(Section, frozen=True):
    """One model, as a file NAME.toml beside it says."""

    slo: Annotated[DurationNs, Meta(description='within which a request is to be answered, as in "50ms"; 0s: none')] = (
        DurationNs(0)
    )
    priority: Annotated[int, Meta(ge=1, le=1 << 20, description="of requests that name none; 1 is the highest")] = 1
    weight: Annotated[int, Meta(ge=1, le=1000, description="its part when there is not enough for all")] = 1
    max_batch: Annotated[
        Annotated[int, Meta(ge=0, le=BATCH_LIMIT)] | None, Meta(description="rows of a run; 0: a request is a run")
    ] = None
    wait: Annotated[
        DurationNs | None, Meta(description='how long a batch that is not full may wait, as in "500us"')
    ] = None
    share: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None, Meta(description="units of a run: cores, or percent of a GPU")
    ] = None
    memory: Annotated[SizeBytes, Meta(description='device memory of each of its workers, as in "2GiB"; 0B: any')] = (
        SizeBytes(0)
    )
    queue: Annotated[int, Meta(ge=1, le=1_000_000, description="requests that may wait")] = 1024


prepare(ModelConfig)


def decode_model_config(text: str, where: str) -> ModelConfig:
    """The config in a file's text."""
    return decode_toml(text, ModelConfig, where)


def configured(spec: ModelSpec, config: ModelConfig) -> ModelSpec:
    """A model's spec with what its owner says of it."""
    changed = msgspec.structs.replace(
        spec,
        slo_ns=int(config.slo),
        priority=config.priority,
        weight=config.weight,
        share=spec.share if config.share is None else config.share,
        queue_limit=config.queue,
    )
    return changed if config.wait is None else msgspec.structs.replace(changed, wait_ns=int(config.wait))
