"""What can be configured? One TOML file; every field is also a flag, and says in its own words what it is for."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from cotenant.domain.control import ControlLimits
from cotenant.domain.event import SLOTS_LIMIT, NodeSettings
from cotenant.domain.gate import GatePolicy, GateRules, Limit
from cotenant.domain.gpu import Gpu
from cotenant.domain.protect import OnPressure, ProtectLimits
from cotenant.domain.tenant import NAME_LIMIT, NAME_PATTERN, Kind
from cotenant.errors import ConfigError
from cotenant.format.config_agent import AgentConfig, validate_agent
from cotenant.format.config_cluster import ClusterConfig, validate_cluster
from cotenant.format.config_control import CONTROL, ControlConfig, validate_control
from cotenant.format.config_protect import PROTECT, ProtectConfig, validate_protection
from cotenant.format.quantity import format_duration, format_share, format_size
from cotenant.format.toml import DurationNs, Section, ShareOfWhole, SizeBytes, decode_toml

_GATE: Final = GateRules()


class DirectoriesConfig(Section, frozen=True):
    """Where things are kept."""

    runtime: Annotated[str, Meta(description="directory of the node's socket, lock and pages; empty: by XDG")] = ""
    state: Annotated[str, Meta(description="directory of the node's journal and log; empty: by XDG")] = ""


class NodeConfig(Section, frozen=True):
    """The daemon of one machine."""

    slots: Annotated[int, Meta(ge=1, le=SLOTS_LIMIT, description="how many tenants there can be at once")] = 64
    grace: Annotated[DurationNs, Meta(description="how long a restarted node waits for its tenants")] = DurationNs(
        10_000_000_000
    )
    idle_exit: Annotated[DurationNs, Meta(description="stop after this long without a tenant; 0s: never")] = DurationNs(
        0
    )
    group: Annotated[str, Meta(description="group whose members may connect; empty: only the owner")] = ""
    place: Annotated[
        str,
        Meta(
            pattern=r"^(spread|pack|predict)\Z",
            description="which GPU first: the emptiest (spread), the fullest (pack), the best by prediction (predict)",
        ),
    ] = "spread"
    admit: Annotated[str, Meta(pattern=r"^(reserve|overcommit)\Z", description="promises: reserve or overcommit")] = (
        "reserve"
    )
    gate: Annotated[
        str,
        Meta(
            pattern=r"^(fill|strict|open)\Z",
            description="below an active tenant passes: what fits its gaps (fill), nobody (strict), all (open)",
        ),
    ] = _GATE.policy.value
    bound: Annotated[
        DurationNs,
        Meta(description="device time a lower tenant may have submitted and not confirmed, while it is quiet"),
    ] = DurationNs(_GATE.bound_ns)
    delay: Annotated[ShareOfWhole, Meta(description="of its time, what a tenant may lose to those below it")] = (
        ShareOfWhole(_GATE.delay_ppm)
    )
    patience: Annotated[DurationNs, Meta(description="a tenant this long past its expected launch is quiet")] = (
        DurationNs(_GATE.patience_ns)
    )
    switch: Annotated[
        DurationNs, Meta(description="cost of changing the process on the device and back; about 10us without MPS")
    ] = DurationNs(_GATE.switch_ns)
    spin: Annotated[ShareOfWhole, Meta(description="of a processor, what a waiting tenant may spin away")] = (
        ShareOfWhole(_GATE.spin_ppm)
    )
    find: Annotated[
        str, Meta(pattern=r"^(yes|no)\Z", description="where no GPU is named, look which there are: yes or no")
    ] = "yes"
    journal_limit: Annotated[SizeBytes, Meta(description="size at which the journal begins a new segment")] = SizeBytes(
        64 << 20
    )
    mps: Annotated[
        str, Meta(pattern=r"^(off|on)\Z", description="start and supervise an MPS daemon for the tenants: on or off")
    ] = "off"
    log: Annotated[str, Meta(pattern=r"^(text|json)\Z", description="lines of the log: text or json")] = "text"
    metrics: Annotated[str, Meta(description="HOST:PORT at which to serve /metrics for Prometheus; empty: nowhere")] = (
        ""
    )

    unmet: Annotated[
        str,
        Meta(
            pattern=r"^(warn|refuse)\Z",
            description="an objective that no GPU keeps, by prediction: take the tenant and warn, or refuse it",
        ),
    ] = "warn"

    def settings(
        self, gpus: tuple[Gpu, ...], limits: ProtectLimits = PROTECT, control: ControlLimits = CONTROL
    ) -> NodeSettings:
        """The part that the machine decides by, in plain integers."""
        times = (int(self.grace), int(self.idle_exit))
        flags = (self.mps == "on", self.unmet == "refuse")
        return NodeSettings(self.slots, *times, self.place, self.admit, gpus, self.rules(), limits, control, *flags)

    def rules(self) -> GateRules:
        """By which the tenants of a device let each other pass."""
        times = (int(self.patience), int(self.switch))
        return GateRules(GatePolicy(self.gate), int(self.bound), int(self.delay), *times, int(self.spin))


class GpuConfig(Section, frozen=True):
    """A device to share; may be given several times."""

    name: Annotated[str, Meta(min_length=1, max_length=NAME_LIMIT, description="what to call it")]
    memory: Annotated[SizeBytes, Meta(description="its device memory")]

    def gpu(self) -> Gpu:
        """The device it describes."""
        return Gpu(self.name, int(self.memory))


class RunConfig(Section, frozen=True):
    """What `cotenant run` asks for unless told otherwise."""

    kind: Annotated[Kind, Meta(description="online (has a latency objective) or offline (takes what is left)")] = (
        Kind.OFFLINE
    )
    priority: Annotated[
        Annotated[int, Meta(ge=0, le=9)] | None, Meta(description="0 highest to 9; by default 2 online and 7 offline")
    ] = None
    slo: Annotated[DurationNs, Meta(description="latency objective of an online tenant; 0s: none")] = DurationNs(0)
    memory: Annotated[
        SizeBytes, Meta(description="device memory to reserve, which is also the most it gets; 0B: neither")
    ] = SizeBytes(0)
    share: Annotated[ShareOfWhole, Meta(description="guaranteed share of the GPU; 0%: none")] = ShareOfWhole(0)
    limit: Annotated[
        str,
        Meta(
            pattern=r"^(conserving|static|off)\Z",
            description="held to its share: unless others leave some (conserving), always (static), never (off)",
        ),
    ] = "conserving"
    name: Annotated[
        str,
        Meta(
            max_length=NAME_LIMIT,
            pattern=NAME_PATTERN,
            description="name of the tenant, letters, digits and ._-; empty: from its program",
        ),
    ] = ""
    task: Annotated[str, Meta(description="task key; empty: the program and its arguments")] = ""
    gpu: Annotated[str, Meta(description="soft:N for a software GPU, N for a real one; empty: as CUDA finds it")] = ""
    hook: Annotated[
        str, Meta(pattern=r"^(shim|preload|off)\Z", description="how the hook gets in: shim, preload or off")
    ] = "shim"
    measure: Annotated[
        str,
        Meta(
            pattern=r"^(auto|always|never|[0-9]{1,6})\Z",
            description="time every kernel: auto (a task's first 3 runs), always, never, or its first N runs",
        ),
    ] = "auto"
    sample: Annotated[int, Meta(ge=0, le=1_000_000, description="else time one launch in so many; 0: none")] = 64
    unknown: Annotated[
        str, Meta(pattern=r"^(pass|refuse)\Z", description="driver calls newer than the hook: pass or refuse")
    ] = "pass"
    trace: Annotated[
        str, Meta(pattern=r"^(on|off)\Z", description="keep the latest launches for `cotenant trace`: on or off")
    ] = "on"
    grace: Annotated[
        DurationNs, Meta(description="between the request to end and the kill, how long the program has")
    ] = DurationNs(10_000_000_000)
    on_pressure: Annotated[
        str,
        Meta(
            pattern=r"^(evict|suspend)\Z",
            description="where an online tenant needs an offline one's memory: evict it, or suspend it if possible",
        ),
    ] = "evict"
    restart: Annotated[
        str,
        Meta(
            pattern=r"^(no|(on-failure|always)(:[1-9][0-9]{0,5})?)\Z",
            description="start it again: no, on-failure or always, at most N times in a row with :N",
        ),
    ] = "no"
    restart_delay: Annotated[
        DurationNs, Meta(description="before it is started again; twice as long each time, at most 5min")
    ] = DurationNs(1_000_000_000)
    restart_well: Annotated[
        DurationNs, Meta(description="a program that ran this long ran well: waits and counts begin anew")
    ] = DurationNs(60_000_000_000)
    start_node: Annotated[
        str, Meta(pattern=r"^(yes|no)\Z", description="where no node answers, start one: yes or no")
    ] = "yes"
    variables: Annotated[
        str, Meta(description="file with more variables for the program's environment, as a JSON object; empty: none")
    ] = ""
    outcome: Annotated[
        str, Meta(description="file for how it ended and whose doing that was, as JSON; empty: none")
    ] = ""


class Config(Section, frozen=True):
    """Everything."""

    directories: DirectoriesConfig = DirectoriesConfig()
    node: NodeConfig = NodeConfig()
    run: RunConfig = RunConfig()
    protect: ProtectConfig = ProtectConfig()
    gpu: tuple[GpuConfig, ...] = ()
    control: ControlConfig = ControlConfig()
    agent: AgentConfig = AgentConfig()
    cluster: ClusterConfig = ClusterConfig()


def decode_config(text: str, where: str) -> Config:
    """Read a config file; every mistake names its line and field."""
    return decode_toml(text, Config, where)


def validate(config: Config) -> None:
    """Refuse what no single field shows: values that contradict each other."""
    if config.run.slo and config.run.kind is Kind.OFFLINE:
        remedy = "an offline tenant has no latency objective; add --online or leave --slo away"
        raise ConfigError("run.slo", format_duration(config.run.slo), remedy)
    if config.run.on_pressure != OnPressure.EVICT.value and config.run.kind is Kind.ONLINE:
        remedy = "an online tenant never gives way; add --offline or leave --on-pressure away"
        raise ConfigError("run.on_pressure", config.run.on_pressure, remedy)
    if config.node.unmet == "refuse" and config.node.place != "predict":
        remedy = f"nothing is predicted with node.place {config.node.place!r}; add --place predict"
        raise ConfigError("node.unmet", config.node.unmet, remedy)
    if config.control.mps_share == "on" and config.node.mps != "on":
        remedy = f"there are no SMs to deal out with node.mps {config.node.mps!r}; add --mps on"
        raise ConfigError("control.mps_share", config.control.mps_share, remedy)
    validate_protection(config.protect)
    validate_control(config.control)
    validate_agent(config.agent)
    validate_cluster(config.cluster)
    names = [gpu.name for gpu in config.gpu]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("gpu.name", name, "two GPUs have this name, give each its own")


def validate_limit(run: RunConfig) -> None:
    """Refuse to hold a tenant to nothing. Not for every command: the share may come from elsewhere, as with `set`."""
    if run.limit == Limit.STATIC.value and not run.share:
        raise ConfigError("run.limit", run.limit, "there is no share to hold it to; add --share or leave --limit away")


def plain(value: object) -> Any:
    """The value as TOML and JSON would have it, quantities with their units."""
    if isinstance(value, DurationNs):
        return format_duration(value)
    if isinstance(value, SizeBytes):
        return format_size(value)
    if isinstance(value, ShareOfWhole):
        return format_share(value)
    if isinstance(value, Kind):
        return value.value
    if isinstance(value, Section):
        return {field: plain(getattr(value, field)) for field in value.__struct_fields__}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def encode_config(config: Config, sources: dict[str, str] | None = None) -> str:
    """The config as TOML that reads back to the same; a comment says where each value came from."""
    lines: list[str] = []
    for section in ("directories", "node", "run", "protect", "control", "agent", "cluster"):
        lines.append(f"[{section}]")
        part = getattr(config, section)
        for field in part.__struct_fields__:
            value = plain(getattr(part, field))
            text = f"# {field}: not set" if value is None else f"{field} = {toml_value(value)}"
            source = (sources or {}).get(f"{section}.{field}")
            lines.append(f"{text}  # {source}" if source else text)
        lines.append("")
    for gpu in config.gpu:
        lines += ["[[gpu]]", f"name = {toml_value(gpu.name)}", f"memory = {toml_value(plain(gpu.memory))}", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def toml_value(value: object) -> str:
    """One value in TOML; JSON strings and integers are TOML too, once DEL is escaped."""
    if isinstance(value, str):  # a path may hold bytes that are no text, which TOML cannot say
        value = value.encode("utf-8", "replace").decode()
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007F")
