"""Scenario of a simulated cluster in TOML: nodes, online load, offline jobs or a trace, and faults."""

from __future__ import annotations

import tomllib
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from cotenant.cluster.model.cluster import GANG_LIMIT, GPUS_LIMIT, ClusterSettings, Name
from cotenant.errors import ConfigError
from cotenant.units.instant import SECOND_NS
from cotenant.units.text import format_duration, format_share
from cotenant.units.toml import Count, DurationNs, Section, ShareOfWhole, SizeBytes, decode_toml, line_of

_SETTINGS = ClusterSettings()
_MINUTE_NS = 60 * SECOND_NS
_HOUR_NS = 60 * _MINUTE_NS
_GIB = 1 << 30
_Wrong: TypeAlias = tuple[list[str | int], object, str]
"""Path of the field, value, and remedy."""
MIN_STEP_NS = SECOND_NS
"""Shorter report periods cost time and change no round."""


class ControllerConfig(Section, frozen=True):
    """Settings of the controller."""

    round: DurationNs = DurationNs(_SETTINGS.round_ns)
    lease: DurationNs = DurationNs(_SETTINGS.lease_ns)
    grace: DurationNs = DurationNs(_SETTINGS.grace_ns)
    place: str = _SETTINGS.place
    switch: ShareOfWhole = ShareOfWhole(_SETTINGS.switch_ppm)
    fair: bool = _SETTINGS.fair

    def settings(self, jobs: int, report_ns: int) -> ClusterSettings:
        """Return the settings of the state machine; a lease is at least three report periods."""
        return ClusterSettings(
            round_ns=int(self.round),
            lease_ns=max(int(self.lease), 3 * report_ns),
            grace_ns=int(self.grace),
            place=self.place,
            switch_ppm=int(self.switch),
            fair=self.fair,
            remember=max(_SETTINGS.remember, jobs),
        )


class NodesConfig(Section, frozen=True):
    """Identical nodes."""

    count: Count
    name: Name = "node"
    gpus: Annotated[int, Meta(ge=1, le=GPUS_LIMIT)] = 8
    type: Name = "V100"
    memory: SizeBytes = SizeBytes(32 * _GIB)
    """Memory of each GPU."""


class OnlineConfig(Section, frozen=True):
    """Online work: on which part of the GPUs, and its daily load.

    The load of a GPU varies once a day between its trough and its peak, which differ from GPU to GPU, with
    correlated noise and occasional bursts.
    """

    gpus: ShareOfWhole = ShareOfWhole(1_000_000)
    """Part of the GPUs that have a service; a trace with services overrides it."""
    peak: ShareOfWhole = ShareOfWhole(550_000)
    """Mean over the GPUs of their highest load."""
    trough: ShareOfWhole = ShareOfWhole(150_000)
    spread: ShareOfWhole = ShareOfWhole(300_000)
    """Relative standard deviation of the peaks."""
    noise: ShareOfWhole = ShareOfWhole(50_000)
    burst: ShareOfWhole = ShareOfWhole(2_000)
    """Probability per report that a GPU's load jumps to its peak or beyond."""
    slower: ShareOfWhole = ShareOfWhole(200_000)
    """Relative increase of a request's duration that is acceptable; a node keeps enough SMs for online work."""
    overlimit: ShareOfWhole = ShareOfWhole(900_000)
    """Load from which a node evicts offline work."""


class JobsConfig(Section, frozen=True):
    """Offline jobs of one kind, submitted over a time."""

    name: Name
    count: Count
    users: Annotated[int, Meta(ge=1, le=10_000)] = 1
    gpus: Annotated[int, Meta(ge=1, le=GANG_LIMIT)] = 1
    work: DurationNs = DurationNs(2 * _HOUR_NS)
    """Median duration alone on whole GPUs."""
    spread: Annotated[float, Meta(ge=0, le=5)] = 1.0
    """Standard deviation of the logarithm of the work."""
    over: DurationNs = DurationNs(0)
    """Time over which they are submitted, evenly; 0: the whole scenario."""
    profile: str = ""
    """Name of a training of the physical model; empty: random."""
    memory: SizeBytes = SizeBytes(0)
    """0: the memory of its training."""
    types: tuple[Name, ...] = ()
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    known: ShareOfWhole = ShareOfWhole(1_000_000)
    """Part of the jobs whose GPU use is known."""
    cancelled: ShareOfWhole = ShareOfWhole(0)
    """Part of the jobs that are cancelled at a random instant."""


class TraceConfig(Section, frozen=True):
    """Jobs and nodes of a trace; files are next to the scenario or in the data directory."""

    format: Literal["csv", "philly", "openb"]
    """Format of the jobs, and of the nodes unless `nodes_format` is set."""
    jobs: str = ""
    nodes: str = ""
    nodes_format: Literal["", "csv", "openb"] = ""
    services: str = ""
    """Pods of openb whose services are on the nodes; empty: those of `jobs`, if that is openb."""
    begin: DurationNs = DurationNs(0)
    """Start of the window; it lasts as long as the scenario."""
    compress: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Factor by which submissions are faster than in the trace; durations stay."""
    limit: Count = Count(0)
    """Largest number of jobs; 0: all."""
    known: ShareOfWhole = ShareOfWhole(1_000_000)


class FailuresConfig(Section, frozen=True):
    """Faults: each is a mean interval for one node or GPU; 0: never."""

    node_crash: DurationNs = DurationNs(0)
    node_downtime: DurationNs = DurationNs(20 * _MINUTE_NS)
    node_cut: DurationNs = DurationNs(0)
    """Interval between network cuts of a node, which keeps running without a connection to the controller."""
    cut_duration: DurationNs = DurationNs(10 * _MINUTE_NS)
    gpu_fault: DurationNs = DurationNs(0)
    gpu_downtime: DurationNs = DurationNs(_HOUR_NS)
    job_failure: ShareOfWhole = ShareOfWhole(0)
    """Part of the attempts that fail."""
    controller_kills: Count = Count(0)
    """Number of kills at random instants; the controller restarts from its journal after `controller_downtime`."""
    controller_downtime: DurationNs = DurationNs(_MINUTE_NS)


class ClusterScenario(Section, frozen=True):
    """A simulated cluster; the run is a function of this and the seed."""

    kind: Literal["cluster"]
    seed: Annotated[int, Meta(ge=0)]
    duration: DurationNs
    report: DurationNs = DurationNs(5 * _MINUTE_NS)
    """Report period of nodes, and step of the simulation."""
    mode: str = ""
    """Sharing mode of the physical model; empty: the mode of the placement policy."""
    checkpoint: DurationNs = DurationNs(30 * _MINUTE_NS)
    """Work after which a job saves its progress; a crash loses what was done since."""
    saves: bool = True
    """Whether a job that is stopped saves its progress first."""
    drain: DurationNs = DurationNs(0)
    """Time after the duration in which running jobs may finish; no job is submitted then."""
    cluster: ControllerConfig = ControllerConfig()
    nodes: tuple[NodesConfig, ...] = ()
    online: OnlineConfig = OnlineConfig()
    jobs: tuple[JobsConfig, ...] = ()
    trace: TraceConfig | None = None
    failures: FailuresConfig = FailuresConfig()


def is_of_cluster(text: str) -> bool:
    """Return whether the text is a scenario of a cluster."""
    try:
        return tomllib.loads(text).get("kind") == "cluster"
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return False


def decode_cluster(text: str, where: str) -> ClusterScenario:
    """Return the scenario; an error names its line and field."""
    scenario = decode_toml(text, ClusterScenario, where)
    for check in (_wrong_time, _wrong_trace, _wrong_groups):
        problem = check(scenario)
        if problem is not None:
            path, value, remedy = problem
            field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
            line = line_of(text, path)
            raise ConfigError(field, value, remedy, where=f"{where}:{line}" if line else where)
    return scenario


def _wrong_time(scenario: ClusterScenario) -> _Wrong | None:
    failures = scenario.failures
    if scenario.report < MIN_STEP_NS:
        return ["report"], format_duration(scenario.report), 'choose "1s" or more, as in "5min"'
    if scenario.cluster.round < MIN_STEP_NS:
        return ["cluster", "round"], format_duration(scenario.cluster.round), 'choose "1s" or more, as in "5min"'
    if scenario.duration < scenario.report:
        return ["duration"], format_duration(scenario.duration), "choose at least as long as `report`"
    if not scenario.checkpoint:
        return ["checkpoint"], "0s", "choose how much work a job does before it saves it"
    for name, value in (("node_downtime", failures.node_downtime), ("gpu_downtime", failures.gpu_downtime)):
        if not value:
            return ["failures", name], "0s", "choose how long it is down, as in 20min"
    return None


def _wrong_trace(scenario: ClusterScenario) -> _Wrong | None:
    trace = scenario.trace
    if trace is None:
        remedy = "a cluster has nodes: add a [[nodes]] with a count, or a [trace] with nodes"
        return None if scenario.nodes else (["nodes"], 0, remedy)
    if bool(scenario.nodes) == bool(trace.nodes):
        return ["trace", "nodes"], trace.nodes, "nodes come either from [[nodes]] or from [trace]: write one of them"
    if not trace.jobs and not trace.nodes:
        return ["trace", "jobs"], "", "a trace brings jobs, nodes or both: name a file"
    if trace.nodes and (trace.nodes_format or trace.format) == "philly":
        remedy = "the table of Philly has no nodes: write [[nodes]], or a nodes_format"
        return ["trace", "nodes"], trace.nodes, remedy
    if trace.services and (trace.nodes_format or trace.format) != "openb":
        return ["trace", "services"], trace.services, "only nodes of openb have them: leave it out"
    return None


def _wrong_groups(scenario: ClusterScenario) -> _Wrong | None:
    if scenario.online.trough > scenario.online.peak:
        remedy = f"choose at most the peak, {format_share(scenario.online.peak)}"
        return ["online", "trough"], format_share(scenario.online.trough), remedy
    for table, names in (
        ("jobs", [sort.name for sort in scenario.jobs]),
        ("nodes", [sort.name for sort in scenario.nodes]),
    ):
        for index, name in enumerate(names):
            if name in names[:index]:
                return [table, index, "name"], name, f"is the name of others of [[{table}]]: choose another"
    return None
