"""The configuration file: TOML, in which every field has a command-line flag of the same name."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from cotenant.errors import ConfigError
from cotenant.gate.grant import Kind
from cotenant.gate.rules import GatePolicy, GateRules, Limit
from cotenant.node.config.access import LimitsConfig, OperatorsConfig, validate_access
from cotenant.node.config.control import CONTROL, ControlConfig, validate_control
from cotenant.node.config.protection import PROTECT, ProtectConfig, validate_protection
from cotenant.node.model.control import ControlLimits
from cotenant.node.model.event import SLOTS_LIMIT, NodeSettings
from cotenant.node.model.gang import GANG_RANKS
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import OnBypass, OnPressure, ProtectLimits
from cotenant.node.model.tenant import GPU_LIMIT, NAME_LIMIT, NAME_PATTERN
from cotenant.units.text import format_duration, format_share, format_size
from cotenant.units.toml import DurationNs, Section, ShareOfWhole, SizeBytes, decode_toml

_GATE: Final = GateRules()


class DirectoriesConfig(Section, frozen=True):
    """Directories of the node's files."""

    runtime: Annotated[
        str, Meta(description="directory of the node's sockets and lock; default: from XDG_RUNTIME_DIR")
    ] = ""
    state: Annotated[str, Meta(description="directory of the node's journal and log; default: from XDG_STATE_HOME")] = (
        ""
    )


class NodeConfig(Section, frozen=True):
    """The daemon of one machine."""

    slots: Annotated[int, Meta(ge=1, le=SLOTS_LIMIT, description="maximum number of tenants at a time")] = 64
    grace: Annotated[
        DurationNs, Meta(description="how long a restarted node keeps the slots of tenants that have not reconnected")
    ] = DurationNs(10_000_000_000)
    idle_exit: Annotated[DurationNs, Meta(description="stop after this time without tenants; 0s: never")] = DurationNs(
        0
    )
    place: Annotated[
        str,
        Meta(
            pattern=r"^(spread|pack|predict)\Z",
            description="GPU for a new tenant: the emptiest (spread), the fullest (pack), the best predicted (predict)",
        ),
    ] = "spread"
    admit: Annotated[
        str,
        Meta(
            pattern=r"^(reserve|overcommit)\Z",
            description="refuse tenants whose memory or share exceeds the GPU (reserve), or admit them (overcommit)",
        ),
    ] = "reserve"
    gate: Annotated[
        str,
        Meta(
            pattern=r"^(fill|strict|open)\Z",
            description="launches of lower-priority tenants while a higher one is active: "
            "those that fit its idle gaps (fill), none (strict), all (open)",
        ),
    ] = _GATE.policy.value
    time_slice: Annotated[
        str,
        Meta(
            pattern=r"^(default|short|medium|long)\Z",
            description="time slices between processes on the GPUs, while the node runs: short, medium, long, "
            "or those that the GPUs have (default)",
        ),
    ] = "default"
    bound: Annotated[
        DurationNs,
        Meta(description="device time that a lower-priority tenant may have in flight while higher ones are idle"),
    ] = DurationNs(_GATE.bound_ns)
    delay: Annotated[
        ShareOfWhole,
        Meta(
            description="delay that lower-priority tenants may cause a higher one, as a percentage of its active time"
        ),
    ] = ShareOfWhole(_GATE.delay_ppm)
    patience: Annotated[
        DurationNs, Meta(description="a tenant that is this late with its next expected launch counts as idle")
    ] = DurationNs(_GATE.patience_ns)
    calibrate: Annotated[
        str,
        Meta(
            pattern=r"^(yes|no)\Z",
            description="measure what sharing a GPU costs, while no tenant uses it, and use that instead of `switch`: "
            "yes or no",
        ),
    ] = "yes"
    switch: Annotated[
        DurationNs, Meta(description="cost of a context switch to another process and back; about 10us without MPS")
    ] = DurationNs(_GATE.switch_ns)
    spin: Annotated[ShareOfWhole, Meta(description="fraction of a CPU that a waiting tenant may use for spinning")] = (
        ShareOfWhole(_GATE.spin_ppm)
    )
    sms: Annotated[
        ShareOfWhole,
        Meta(
            description="part of the SMs that lower-priority tenants may occupy next to an active higher one "
            "under MPS, and at all times with an open gate; 0%: as much as the measured loss of the higher one permits"
        ),
    ] = ShareOfWhole(0)
    find: Annotated[
        str,
        Meta(pattern=r"^(yes|no)\Z", description="discover the GPUs of the machine if none is configured: yes or no"),
    ] = "yes"
    journal_limit: Annotated[SizeBytes, Meta(description="size at which a new journal segment begins")] = SizeBytes(
        64 << 20
    )
    mps: Annotated[
        str,
        Meta(
            pattern=r"^(off|on)\Z", description="start and supervise an MPS control daemon for the tenants: on or off"
        ),
    ] = "off"
    log: Annotated[str, Meta(pattern=r"^(text|json)\Z", description="format of the log: text or json")] = "text"
    metrics: Annotated[str, Meta(description="HOST:PORT of the Prometheus endpoint /metrics; empty: none")] = ""
    web: Annotated[str, Meta(description="HOST:PORT of the web console, which only shows the node; empty: none")] = ""

    unmet: Annotated[
        str,
        Meta(
            pattern=r"^(warn|refuse)\Z",
            description="a tenant whose objective no GPU is predicted to meet: admit it and warn, or refuse it",
        ),
    ] = "warn"
    pods: Annotated[
        str,
        Meta(
            pattern=r"^(any|granted)\Z",
            description="processes in Kubernetes pods may join like all others (any), or only with a claim (granted)",
        ),
    ] = "any"

    def settings(
        self,
        gpus: tuple[Gpu, ...],
        limits: ProtectLimits = PROTECT,
        control: ControlLimits = CONTROL,
        on_bypass: OnBypass = OnBypass.EVICT,
    ) -> NodeSettings:
        """Return the settings that decisions depend on, as integers."""
        times = (int(self.grace), int(self.idle_exit))
        flags = (self.mps == "on", self.unmet == "refuse")
        return NodeSettings(
            *(self.slots, *times, self.place, self.admit, gpus, self.rules(), limits, control, *flags, on_bypass),
            uses_calibration=self.calibrate == "yes",
        )

    def rules(self) -> GateRules:
        """Return the gate rules."""
        times = (int(self.patience), int(self.switch))
        return GateRules(
            *(GatePolicy(self.gate), int(self.bound), int(self.delay), *times, int(self.spin)),
            sm_ppm=int(self.sms) or None,
        )


class GpuConfig(Section, frozen=True):
    """A device to share; may be given several times."""

    name: Annotated[str, Meta(min_length=1, max_length=NAME_LIMIT, description="name of the GPU")]
    memory: Annotated[SizeBytes, Meta(description="device memory of the GPU")]

    def gpu(self) -> Gpu:
        """Return the device."""
        return Gpu(self.name, int(self.memory))


class RunConfig(Section, frozen=True):
    """Defaults of `cotenant run`."""

    kind: Annotated[
        Kind, Meta(description="online (may have a latency objective) or offline (uses the remaining capacity)")
    ] = Kind.OFFLINE
    priority: Annotated[
        Annotated[int, Meta(ge=0, le=9)] | None,
        Meta(description="priority from 0 (highest) to 9; default: 2 for online, 7 for offline tenants"),
    ] = None
    slo: Annotated[DurationNs, Meta(description="latency objective of an online tenant; 0s: none")] = DurationNs(0)
    memory: Annotated[
        SizeBytes, Meta(description="device memory to reserve, which is also the tenant's limit; 0B: neither")
    ] = SizeBytes(0)
    share: Annotated[ShareOfWhole, Meta(description="guaranteed share of the GPU's compute; 0%: none")] = ShareOfWhole(
        0
    )
    limit: Annotated[
        str,
        Meta(
            pattern=r"^(conserving|static|off)\Z",
            description="limit to the share: unless others leave some (conserving), always (static), or not (off)",
        ),
    ] = "conserving"
    name: Annotated[
        str,
        Meta(
            max_length=NAME_LIMIT,
            pattern=NAME_PATTERN,
            description="name of the tenant: letters, digits and ._-; empty: derived from its program",
        ),
    ] = ""
    task: Annotated[str, Meta(description="key of the task's profile; empty: the program and its arguments")] = ""
    gpu: Annotated[
        str,
        Meta(
            description="devices, separated by commas: soft:N for a software GPU, N or UUID for a real one; "
            "empty: the node chooses"
        ),
    ] = ""
    hook: Annotated[
        str,
        Meta(
            pattern=r"^(shim|preload|off)\Z",
            description="how the hook is loaded: as libcuda.so.1 (shim), by LD_PRELOAD (preload), or not (off)",
        ),
    ] = "shim"
    measure: Annotated[
        str,
        Meta(
            pattern=r"^(auto|always|never|[0-9]{1,6})\Z",
            description="measure every kernel: in a task's first 3 runs (auto), always, never, or in the first N",
        ),
    ] = "auto"
    sample: Annotated[int, Meta(ge=0, le=1_000_000, description="otherwise measure one launch in N; 0: none")] = 64
    unknown: Annotated[
        str, Meta(pattern=r"^(pass|refuse)\Z", description="driver calls that the hook does not know: pass or refuse")
    ] = "pass"
    trace: Annotated[
        str, Meta(pattern=r"^(on|off)\Z", description="record recent launches for `cotenant trace`: on or off")
    ] = "on"
    grace: Annotated[DurationNs, Meta(description="time between SIGTERM and SIGKILL when the program is ended")] = (
        DurationNs(10_000_000_000)
    )
    on_pressure: Annotated[
        str,
        Meta(
            pattern=r"^(evict|suspend)\Z",
            description="when an online tenant needs this offline tenant's memory: evict it, or suspend it if possible",
        ),
    ] = "evict"
    restart: Annotated[
        str,
        Meta(
            pattern=r"^(no|(on-failure|always)(:[1-9][0-9]{0,5})?)\Z",
            description="restart the program: no, on-failure or always; with :N at most N times in a row",
        ),
    ] = "no"
    restart_delay: Annotated[DurationNs, Meta(description="wait before a restart; doubles each time, at most 5min")] = (
        DurationNs(1_000_000_000)
    )
    restart_well: Annotated[
        DurationNs, Meta(description="a run of this length resets the wait and the count of restarts")
    ] = DurationNs(60_000_000_000)
    start_node: Annotated[
        str, Meta(pattern=r"^(yes|no)\Z", description="start a node if none is running: yes or no")
    ] = "yes"
    variables: Annotated[
        str, Meta(description="JSON file with further environment variables of the program; empty: none")
    ] = ""
    outcome: Annotated[str, Meta(description="file to write the program's outcome to, as JSON; empty: none")] = ""
    gang: Annotated[
        str,
        Meta(
            max_length=NAME_LIMIT,
            pattern=NAME_PATTERN,
            description="job of which the program is one rank, for collectives over several GPUs; empty: as its "
            "launcher says (torchrun, Open MPI, Slurm)",
        ),
    ] = ""
    ranks: Annotated[
        int, Meta(ge=0, le=GANG_RANKS, description="ranks of the job of --gang on this machine; 0: no job is named")
    ] = 0
    gpus: Annotated[
        int,
        Meta(ge=1, le=GPU_LIMIT, description="number of GPUs that the node chooses, if --gpu names none"),
    ] = 1


class Config(Section, frozen=True):
    """The whole configuration."""

    directories: DirectoriesConfig = DirectoriesConfig()
    node: NodeConfig = NodeConfig()
    operators: OperatorsConfig = OperatorsConfig()
    run: RunConfig = RunConfig()
    protect: ProtectConfig = ProtectConfig()
    gpu: tuple[GpuConfig, ...] = ()
    limits: tuple[LimitsConfig, ...] = ()
    control: ControlConfig = ControlConfig()


def decode_config(text: str, where: str) -> Config:
    """Decode a config file; each error names its line and field."""
    return decode_toml(text, Config, where)


def validate(config: Config) -> None:
    """Reject values that contradict each other."""
    if config.run.slo and config.run.kind is Kind.OFFLINE:
        remedy = "an offline tenant has no latency objective; add --online or omit --slo"
        raise ConfigError("run.slo", format_duration(config.run.slo), remedy)
    if config.run.on_pressure != OnPressure.EVICT.value and config.run.kind is Kind.ONLINE:
        remedy = "an online tenant is never evicted or suspended for memory; add --offline or omit --on-pressure"
        raise ConfigError("run.on_pressure", config.run.on_pressure, remedy)
    if bool(config.run.gang) != bool(config.run.ranks):
        field, value = ("gang", config.run.gang) if config.run.gang else ("ranks", str(config.run.ranks))
        raise ConfigError(f"run.{field}", value, "name the job and the number of its ranks: --gang NAME --ranks N")
    if config.run.ranks == 1:
        raise ConfigError("run.ranks", "1", "a job of one rank has no collectives; omit --gang and --ranks")
    if config.node.unmet == "refuse" and config.node.place != "predict":
        remedy = f"node.place {config.node.place!r} makes no predictions; add --place predict"
        raise ConfigError("node.unmet", config.node.unmet, remedy)
    if config.control.mps_share == "on" and config.node.mps != "on":
        remedy = f"SMs are assigned only under MPS and node.mps is {config.node.mps!r}; add --mps on"
        raise ConfigError("control.mps_share", config.control.mps_share, remedy)
    validate_access(config.operators, config.limits)
    validate_protection(config.protect)
    validate_control(config.control)
    names = [gpu.name for gpu in config.gpu]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("gpu.name", name, "two GPUs have this name; give each its own name")


def validate_limit(run: RunConfig) -> None:
    """Reject a static limit without a share. Not part of `validate`: with `set`, the share may already exist."""
    if run.limit == Limit.STATIC.value and not run.share:
        raise ConfigError("run.limit", run.limit, "a static limit needs a share; add --share or omit --limit")


def plain(value: object) -> Any:
    """Return a value as TOML and JSON represent it, quantities with their units."""
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
    """Return the configuration as TOML that decodes to the same; a comment names the source of each value."""
    lines: list[str] = []
    for section in ("directories", "node", "operators", "run", "protect", "control"):
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
    for table in config.limits:
        fields = {field: plain(getattr(table, field)) for field in table.__struct_fields__}
        named = {field: value for field, value in fields.items() if value not in (None, "")}
        lines += ["[[limits]]", *(f"{field} = {toml_value(value)}" for field, value in named.items()), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def toml_value(value: object) -> str:
    """Return one value in TOML; JSON strings and integers are valid TOML once DEL is escaped."""
    if isinstance(value, str):  # a path may contain bytes that are not text, which TOML cannot represent
        value = value.encode("utf-8", "replace").decode()
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007F")
