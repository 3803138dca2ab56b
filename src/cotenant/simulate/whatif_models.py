"""Tenants of a what-if question from models, stored streams and measured profiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from cotenant.errors import ConfigError
from cotenant.profile.estimate.commands import (
    ModelRequest,
    estimate_model,
    measured_launches,
    parse_batches,
    parse_precision,
)
from cotenant.profile.estimate.devices import Gpu
from cotenant.profile.estimate.model_files import is_model, model_name
from cotenant.profile.estimate.stored import task_name
from cotenant.profile.estimate.stream import StreamOptions, launches_of_stream
from cotenant.profile.store import ProfileStore
from cotenant.simulate.whatif_tenants import WhatIfTenant, tenant_of_launches, tenant_of_stream
from cotenant.units.text import parse_duration


class TenantRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant as the user named it."""

    source: str
    fields: Mapping[str, str]
    flag: str
    gpu: Gpu
    dimensions: Mapping[str, int] = msgspec.field(default_factory=dict)
    host_ns: float = 0.0

    @property
    def online(self) -> bool:
        """Return whether it has an objective."""
        return self.flag == "--online"


def whatif_tenant(
    request: TenantRequest, store: ProfileStore, state: Path, report: Callable[[str], None]
) -> WhatIfTenant:
    """Return the tenant; a measured profile of the same task on this GPU is used instead of the estimate."""
    fields = request.fields
    rate = _rate(request) if request.online else 0.0
    slo_ns = parse_duration(fields["slo"], field="slo") if request.online else 0
    if request.online and slo_ns <= 0:
        raise ConfigError("slo", fields["slo"], "choose an objective of more than 0")
    load = {"rate_per_s": rate, "slo_ns": slo_ns, "online": request.online}
    if not is_model(request.source):
        launches = measured_launches(store, request.source, request.gpu)
        if launches is None:
            remedy = f"is neither a model file nor a task with a measured profile on {request.gpu.name}"
            raise ConfigError(request.flag, request.source, remedy)
        if unused := sorted(set(fields) - {"rate", "slo", "name"}):
            remedy = "is a setting of model files; a task was measured as it ran"
            raise ConfigError(unused[0], fields[unused[0]], remedy)
        return tenant_of_launches(fields.get("name", request.source), request.source, launches, **load)  # type: ignore[arg-type]
    options = _options(request)
    batches = parse_batches(fields.get("batch", "1"))
    if len(batches) != 1:
        raise ConfigError("batch", fields["batch"], "a tenant has one batch size; name the model twice for two")
    name = fields.get("name") or model_name(request.source)
    task = task_name(name, batches[0], train=options.train)
    measured = measured_launches(store, task, request.gpu)
    if measured is not None:
        report(f"{task}: a measured profile on {request.gpu.name} replaces the estimate")
        return tenant_of_launches(task, request.source, measured, **load)  # type: ignore[arg-type]
    model = ModelRequest(
        source=request.source,
        gpu=request.gpu,
        batches=batches,
        options=options,
        dimensions=request.dimensions,
        name=name,
    )
    (stream,) = estimate_model(model, state, report)
    return tenant_of_stream(stream, launches_of_stream(stream), request.source, **load)  # type: ignore[arg-type]


def _options(request: TenantRequest) -> StreamOptions:
    fields = request.fields
    mode = fields.get("mode", "eager")
    if mode not in {"eager", "fused"}:
        raise ConfigError("mode", mode, "choose eager or fused")
    for name in ("graph", "train"):
        if fields.get(name, "0") not in {"0", "1"}:
            raise ConfigError(name, fields[name], "choose 0 or 1")
    return StreamOptions(
        mode="fused" if mode == "fused" else "eager",
        precision=parse_precision(fields.get("precision", "")),
        train=fields.get("train", "0" if request.online else "1") == "1",
        graph=fields.get("graph", "0") == "1",
        host_ns=request.host_ns,
    )


def _rate(request: TenantRequest) -> float:
    text = request.fields["rate"].removesuffix("/s")
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= 1e6:
        raise ConfigError("rate", request.fields["rate"], "write requests per second, as in rate=80")
    return rate
