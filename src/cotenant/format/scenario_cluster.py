"""What is a scenario of a cluster? Nodes, online load, offline jobs or a trace, and what goes wrong, as TOML."""

from __future__ import annotations

import tomllib
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from cotenant.domain.cluster import GANG_LIMIT, GPUS_LIMIT, ClusterSettings, Name
from cotenant.domain.instant import SECOND_NS
from cotenant.errors import ConfigError
from cotenant.format.quantity import format_duration, format_share
from cotenant.format.toml import Count, DurationNs, Section, ShareOfWhole, SizeBytes, decode_toml, line_of

_SETTINGS = ClusterSettings()
_MINUTE_NS = 60 * SECOND_NS
_HOUR_NS = 60 * _MINUTE_NS
_GIB = 1 << 30
_Wrong: TypeAlias = tuple[list[str | int], object, str]
"""Where, what, and what to do."""
LEAST_STEP_NS = SECOND_NS
"""Reports that come more often than that are of no use to rounds, and cost."""


class BrainConfig(Section, frozen=True):
    """How the cluster decides."""

    round: DurationNs = DurationNs(_SETTINGS.round_ns)
    lease: DurationNs = DurationNs(_SETTINGS.lease_ns)
    grace: DurationNs = DurationNs(_SETTINGS.grace_ns)
    place: str = _SETTINGS.place
    switch: ShareOfWhole = ShareOfWhole(_SETTINGS.switch_ppm)
    fair: bool = _SETTINGS.fair

    def settings(self, jobs: int, report_ns: int) -> ClusterSettings:
        """As its machine is told; a lease is never shorter than three reports."""
        return ClusterSettings(
            round_ns=int(self.round),
            lease_ns=max(int(self.lease), 3 * report_ns),
            grace_ns=int(self.grace),
            place=self.place,
            switch_ppm=int(self.switch),
            fair=self.fair,
            remember=max(_SETTINGS.remember, jobs),
            waiting_limit=max(_SETTINGS.waiting_limit, jobs),
        )


class NodesConfig(Section, frozen=True):
    """Nodes of one sort."""

    count: Count
    name: Name = "node"
    gpus: Annotated[int, Meta(ge=1, le=GPUS_LIMIT)] = 8
    type: Name = "V100"
    memory: SizeBytes = SizeBytes(32 * _GIB)
    """Of each GPU."""


class OnlineConfig(Section, frozen=True):
    """The online work: on which part of the GPUs, and how its load goes through a day.

    A GPU's load swings once a day between its trough and its peak, which differ from GPU to GPU, with noise that keeps
    for a while and bursts now and then.
    """

    gpus: ShareOfWhole = ShareOfWhole(1_000_000)
    """On so many GPUs there is a service; of a trace that says so itself, those that it names."""
    peak: ShareOfWhole = ShareOfWhole(550_000)
    """Mean over the GPUs of their highest load."""
    trough: ShareOfWhole = ShareOfWhole(150_000)
    spread: ShareOfWhole = ShareOfWhole(300_000)
    """By how much of itself a GPU's peak differs from the mean, about."""
    noise: ShareOfWhole = ShareOfWhole(50_000)
    burst: ShareOfWhole = ShareOfWhole(2_000)
    """Of the reports: how often a GPU's load jumps to its peak and beyond for a while."""
    slower: ShareOfWhole = ShareOfWhole(200_000)
    """By so much of itself a request may take longer: a node keeps as many SMs for online work as that needs."""
    overlimit: ShareOfWhole = ShareOfWhole(900_000)
    """From this load on a node evicts offline work."""


class JobsConfig(Section, frozen=True):
    """Offline jobs of one sort, brought over a while."""

    name: Name
    count: Count
    users: Annotated[int, Meta(ge=1, le=10_000)] = 1
    gpus: Annotated[int, Meta(ge=1, le=GANG_LIMIT)] = 1
    work: DurationNs = DurationNs(2 * _HOUR_NS)
    """The median; how long one takes alone on whole GPUs."""
    spread: Annotated[float, Meta(ge=0, le=5)] = 1.0
    """Of the logarithm of the work."""
    over: DurationNs = DurationNs(0)
    """They come within so long, evenly; nothing: all the scenario."""
    profile: str = ""
    """A training of the catalogue of physics; nothing: any, by chance."""
    memory: SizeBytes = SizeBytes(0)
    """Nothing: what its profile needs."""
    types: tuple[Name, ...] = ()
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    known: ShareOfWhole = ShareOfWhole(1_000_000)
    """Of so many jobs it is known what they do with a GPU."""
    cancelled: ShareOfWhole = ShareOfWhole(0)
    """So many are cancelled at some instant."""


class TraceConfig(Section, frozen=True):
    """Jobs and nodes of a trace, read beside the scenario or in the directory of measurements."""

    format: Literal["csv", "philly", "openb"]
    """Of the jobs, and of the nodes unless `nodes_format` says otherwise."""
    jobs: str = ""
    nodes: str = ""
    nodes_format: Literal["", "csv", "openb"] = ""
    services: str = ""
    """The pods of openb whose services are on its nodes; nothing: those of `jobs`, if that is of openb."""
    begin: DurationNs = DurationNs(0)
    """Only what came from here on, and within the scenario's duration."""
    compress: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Jobs come so many times as fast as in the trace, and take as long."""
    limit: Count = Count(0)
    """At most so many jobs; nothing: all."""
    known: ShareOfWhole = ShareOfWhole(1_000_000)


class FailuresConfig(Section, frozen=True):
    """What goes wrong: each is a mean interval for one node or GPU; nothing: never."""

    node_crash: DurationNs = DurationNs(0)
    node_away: DurationNs = DurationNs(20 * _MINUTE_NS)
    node_cut: DurationNs = DurationNs(0)
    """A node runs on, but the cluster does not hear of it, nor it of the cluster."""
    cut_lasts: DurationNs = DurationNs(10 * _MINUTE_NS)
    gpu_fault: DurationNs = DurationNs(0)
    gpu_away: DurationNs = DurationNs(_HOUR_NS)
    job_failure: ShareOfWhole = ShareOfWhole(0)
    """Of the attempts."""
    brain_kills: Count = Count(0)
    """At instants of chance; it is back after `brain_away`, from its journal."""
    brain_away: DurationNs = DurationNs(_MINUTE_NS)


class ClusterScenario(Section, frozen=True):
    """A whole cluster; what happens in it is a function of this and the seed."""

    kind: Literal["cluster"]
    seed: Annotated[int, Meta(ge=0)]
    duration: DurationNs
    report: DurationNs = DurationNs(5 * _MINUTE_NS)
    """How often nodes report, and the world's step."""
    way: str = ""
    """How a GPU is shared, by a name of the physics; nothing: as the way of placing means it."""
    checkpoint: DurationNs = DurationNs(30 * _MINUTE_NS)
    """Of its own work: after so much of it a job saves what it did; a crash loses what came since."""
    saves: bool = True
    """Whether a job that is told to stop, by its node or by the cluster, saves its work first."""
    drain: DurationNs = DurationNs(0)
    """After the duration no job comes; what is there may go on for at most so long."""
    cluster: BrainConfig = BrainConfig()
    nodes: tuple[NodesConfig, ...] = ()
    online: OnlineConfig = OnlineConfig()
    jobs: tuple[JobsConfig, ...] = ()
    trace: TraceConfig | None = None
    failures: FailuresConfig = FailuresConfig()


def is_of_cluster(text: str) -> bool:
    """Whether this is a scenario of a cluster: it says so."""
    try:
        return tomllib.loads(text).get("kind") == "cluster"
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return False


def decode_cluster(text: str, where: str) -> ClusterScenario:
    """Read a scenario; every mistake names its line and field."""
    scenario = decode_toml(text, ClusterScenario, where)
    for check in (_wrong_time, _wrong_trace, _wrong_sorts):
        found = check(scenario)
        if found is not None:
            path, value, remedy = found
            field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
            line = line_of(text, path)
            raise ConfigError(field, value, remedy, where=f"{where}:{line}" if line else where)
    return scenario


def _wrong_time(scenario: ClusterScenario) -> _Wrong | None:
    failures = scenario.failures
    if scenario.report < LEAST_STEP_NS:
        return ["report"], format_duration(scenario.report), 'choose "1s" or more, as in "5min"'
    if scenario.cluster.round < LEAST_STEP_NS:
        return ["cluster", "round"], format_duration(scenario.cluster.round), 'choose "1s" or more, as in "5min"'
    if scenario.duration < scenario.report:
        return ["duration"], format_duration(scenario.duration), "choose at least as long as `report`"
    if not scenario.checkpoint:
        return ["checkpoint"], "0s", "choose how much work a job does before it saves it"
    for name, value in (("node_away", failures.node_away), ("gpu_away", failures.gpu_away)):
        if not value:
            return ["failures", name], "0s", "choose how long it is away, as in 20min"
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


def _wrong_sorts(scenario: ClusterScenario) -> _Wrong | None:
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
