"""Scenario of kernel streams in TOML: one device, the loads of its tenants, and the sharing policies."""

from __future__ import annotations

import tomllib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from cotenant.errors import ConfigError
from cotenant.gate.grant import Kind
from cotenant.gate.rules import GateRules, Limit
from cotenant.node.model.tenant import Name, Priority
from cotenant.units.instant import MICROSECOND_NS, MILLISECOND_NS
from cotenant.units.toml import Count, DurationNs, Section, ShareOfWhole, decode_toml, line_of
from cotenant.workload.load import Arrival

_RULES = GateRules()
PolicyName = Literal["open-slice", "open-mps", "strict", "strict-slice", "fill", "fill-slice", "oracle", "oracle-slice"]
ArrivalName = Literal["back-to-back", "periodic", "poisson", "training"]


class DeviceConfig(Section, frozen=True):
    """The device, and its costs: of hardware, or none."""

    preset: str
    costs: Literal["ideal", "hardware"] = "ideal"


class GateConfig(Section, frozen=True):
    """Rules of the gate."""

    bound: DurationNs = DurationNs(_RULES.bound_ns)
    delay: ShareOfWhole = ShareOfWhole(_RULES.delay_ppm)
    patience: DurationNs = DurationNs(_RULES.patience_ns)
    spin: ShareOfWhole = ShareOfWhole(_RULES.spin_ppm)
    sms: ShareOfWhole = ShareOfWhole(0)

    def rules(self) -> GateRules:
        """Return the rules; policy, entries and switch cost are set for each run."""
        return GateRules(
            bound_ns=int(self.bound),
            delay_ppm=int(self.delay),
            patience_ns=int(self.patience),
            spin_ppm=int(self.spin),
            sm_ppm=int(self.sms) or None,
        )


class HostConfig(Section, frozen=True):
    """Costs and jitter of hosts."""

    jitter: ShareOfWhole = ShareOfWhole(50_000)
    wake: DurationNs = DurationNs(20 * MICROSECOND_NS)
    call: DurationNs = DurationNs(1500)


class GeneratorConfig(Section, frozen=True):
    """A generated load: kernels of one duration, launched at one interval."""

    kernels: Count
    kernel: DurationNs
    interval: DurationNs = DurationNs(0)
    blocks: Count = Count(80)


class TenantConfig(Section, frozen=True):
    """One program, with a load from a file or a generator."""

    name: Annotated[Name, Meta(min_length=1)]
    kind: Kind
    priority: Priority
    file: str = ""
    generator: GeneratorConfig | None = None
    host: DurationNs = DurationNs(0)
    scale: ShareOfWhole = ShareOfWhole(1_000_000)
    ptx: Literal["recorded", "all", "none"] = "recorded"
    """Which of its kernels the program has PTX of: as its file states, or by name where it does not; all; or none."""
    graph: bool = False
    batch: Count = Count(1)
    """Batch size of a model; so are the following, which recordings do not have."""
    sizes: dict[str, Count] = msgspec.field(default_factory=dict)
    """Sizes that the model leaves open, by name."""
    mode: Literal["eager", "fused"] = "eager"
    train: bool = False
    arrival: ArrivalName = "back-to-back"
    period: DurationNs = DurationNs(0)
    requests: Count = Count(0)
    share: ShareOfWhole = ShareOfWhole(0)
    limit: Limit = Limit.OFF

    def arrivals(self, seed: int) -> Arrival:
        """Return the arrival process of its requests."""
        if self.arrival == "periodic":
            return Arrival("periodic", period_ns=int(self.period))
        if self.arrival == "poisson":
            return Arrival("poisson", rate_per_s=1e9 / int(self.period), seed=seed)
        return Arrival("training" if self.arrival == "training" else "back_to_back")


class KernelScenario(Section, frozen=True):
    """A device and its tenants. Results refer to the first tenant."""

    seed: int
    device: DeviceConfig
    policies: tuple[PolicyName, ...]
    tenant: tuple[TenantConfig, ...]
    duration: DurationNs = DurationNs(300 * MILLISECOND_NS)
    """Approximate duration of the first tenant alone, if the number of its requests is not set."""
    gate: GateConfig = GateConfig()
    host: HostConfig = HostConfig()


def is_of_kernels(text: str) -> bool:
    """Return whether the text is a scenario of kernel streams: it has a device."""
    try:
        return "device" in tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return False


def decode_kernels(text: str, where: str) -> KernelScenario:
    """Return the scenario; an error names its line and field."""
    scenario = decode_toml(text, KernelScenario, where)

    def refuse(path: list[str | int], field: str, value: object, remedy: str) -> ConfigError:
        return ConfigError(field, value, remedy, where=f"{where}:{line_of(text, path)}")

    if not scenario.policies:
        raise refuse(["policies"], "policies", [], 'name at least one, as ["open-slice", "open-mps", "fill", "oracle"]')
    if len(scenario.tenant) < 2:
        raise refuse(["tenant"], "tenant", len(scenario.tenant), "two tenants or more share a device: add a [[tenant]]")
    for index, tenant in enumerate(scenario.tenant):
        field = f"tenant[{index}]"
        tenant_path: list[str | int] = ["tenant", index]
        if bool(tenant.file) == (tenant.generator is not None):
            remedy = "give it a load: either file, or a [tenant.generator] with kernels, kernel and interval"
            raise refuse([*tenant_path, "file"], f"{field}.file", tenant.file, remedy)
        has_period = tenant.arrival in ("periodic", "poisson")
        if has_period != bool(tenant.period):
            remedy = "periodic and poisson arrivals need a period, others have none"
            raise refuse([*tenant_path, "period"], f"{field}.period", int(tenant.period), remedy)
        is_model = tenant.file.endswith(".onnx")
        if not is_model and (tenant.train or tenant.sizes or tenant.mode != "eager" or int(tenant.batch) != 1):
            remedy = "batch, sizes, mode and train are for models: name an .onnx file, or omit them"
            raise refuse([*tenant_path, "batch"], f"{field}.batch", int(tenant.batch), remedy)
        if tenant.generator is not None and not (tenant.generator.kernels and tenant.generator.kernel):
            remedy = "a load has at least one kernel, of at least a nanosecond"
            raise refuse([*tenant_path, "generator", "kernels"], f"{field}.generator.kernels", 0, remedy)
        if index == 0 and tenant.arrival == "training":
            remedy = "the first tenant is measured and must end; list the training after it"
            raise refuse([*tenant_path, "arrival"], f"{field}.arrival", tenant.arrival, remedy)
        if index and tenant.priority < scenario.tenant[0].priority:
            remedy = "the first tenant is measured: no other one may have a higher priority"
            raise refuse([*tenant_path, "priority"], f"{field}.priority", tenant.priority, remedy)
    with_oracle = [policy for policy in scenario.policies if policy.startswith("oracle")]
    if with_oracle and len(scenario.tenant) > 2:
        remedy = "the oracle supports two tenants: remove it, or the other tenants"
        raise refuse(["policies"], "policies", with_oracle[0], remedy)
    return msgspec.structs.replace(scenario, policies=tuple(dict.fromkeys(scenario.policies)))
