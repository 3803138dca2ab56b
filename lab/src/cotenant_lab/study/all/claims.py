"""Claims of four papers next to the results of our studies, how they were measured, and what they do not show.

Each study's report is read as JSON, whether it was just made or read from a file; only the fields that a claim needs
are decoded. Results are shown as they are, met or missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec

from cotenant.errors import ConfigError

LABS: Final = ("fikit", "arkgpu", "dstack", "muxflow")
_SIMULATED: Final = "simulated time; the product's own code decides, the device is the device model"
_NO_GPU: Final = "Nothing here has run on a GPU"


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One claim."""

    lab: str
    claim: str
    """As published."""
    ours: str
    measured: str
    """How it was measured."""
    does_not_show: str


class StudyClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims and targets of one study."""

    lab: str
    paper: str
    seed: int
    quick: bool
    claims: list[Claim]
    met: dict[str, bool]
    """The study's own targets."""


class AllReport(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of all studies."""

    lab: str = "all"
    labs: list[StudyClaims]


class _Of(msgspec.Struct):
    median: float
    max: float
    min: float = 0.0


class _Group(msgspec.Struct):
    metrics: dict[str, _Of]
    fast_fraction: dict[str, float]


class _Fikit(msgspec.Struct):
    seed: int
    quick: bool
    groups: dict[str, _Group]
    met: dict[str, bool]


class _ArkSimulation(msgspec.Struct):
    against: dict[str, _Of]
    attainable: int
    attained: dict[str, int]


class _Peaks(msgspec.Struct):
    peak_vs_mps_pct: _Of


class _Arkgpu(msgspec.Struct):
    seed: int
    quick: bool
    simulated: _ArkSimulation
    peaks: _Peaks
    met: dict[str, bool]


class _ModeComparison(msgspec.Struct):
    mode: str
    models: str
    throughput: _Of
    utilization: _Of


class _AtLoad(msgspec.Struct):
    mode: str
    load: float
    of_bound: _Of


class _Dstack(msgspec.Struct):
    seed: int
    quick: bool
    results: list[_ModeComparison]
    loads: list[_AtLoad]
    met: dict[str, bool]


class _PolicyOutcome(msgspec.Struct):
    policy: str
    utilization: tuple[float, float]
    sm_activity: tuple[float, float]
    memory: tuple[float, float]
    full: dict[str, float]
    online_slowdown: float
    online_slowdown_p99: float
    jct_h: float


class _Cluster(msgspec.Struct):
    name: str
    gpus: int
    jobs: int
    found: list[_PolicyOutcome]


class _Muxflow(msgspec.Struct):
    seed: int
    quick: bool
    clusters: list[_Cluster]
    met: dict[str, bool]


_Read = TypeVar("_Read")


def study_claims(lab: str, content: bytes, where: str) -> StudyClaims:
    """Return the claims of a study from its report as `--json` printed it."""
    return _READERS[lab](content, where)


def _decoded(content: bytes, kind: type[_Read], lab: str, where: str) -> _Read:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        remedy = f"is not a report of this version ({error}); run `cotenant-lab study {lab} --json` again"
        raise ConfigError("--reuse", lab, remedy, where=where) from None


def _fikit(content: bytes, where: str) -> StudyClaims:
    report = _decoded(content, _Fikit, "fikit", where)
    claims = []
    pairs = report.groups.get("pairs")
    if pairs is not None:
        speed, cost = (
            _ranges_by_sharing(pairs.metrics, "online_speedup_vs_sharing_"),
            _ranges_by_sharing(pairs.metrics, "online_delay_ratio_"),
        )
        offline = _ranges_by_sharing(pairs.metrics, "offline_ratio_vs_sharing_")
        fast = "; ".join(f"{part:.0%} of the pairs over 3.5 ({name})" for name, part in pairs.fast_fraction.items())
        hides = f"{_NO_GPU}; the paper's programs and GPUs are others"
        study = (
            ("high priority 1.33 to 14.87 times as fast as under default sharing, more than half over 3.5", speed),
            ("low priority at 0.84 to 1 of its speed under default sharing", offline),
            ("gap filling costs high priority less than 10 %", cost),
        )
        claims = [
            Claim(
                lab="fikit",
                claim=claim,
                ours=f"{ours}; {fast}" if ours is speed and fast else ours,
                measured=f"pairs of measured kernel lists, {_SIMULATED}",
                does_not_show=hides,
            )
            for claim, ours in study
            if ours
        ]
    return StudyClaims(
        lab="fikit",
        paper="FIKIT, arXiv 2311.10359",
        seed=report.seed,
        quick=report.quick,
        claims=claims,
        met=report.met,
    )


def _ranges_by_sharing(metrics: Mapping[str, _Of], prefix: str) -> str:
    by_sharing = {name.removeprefix(prefix): metric for name, metric in metrics.items() if name.startswith(prefix)}
    return "; ".join(
        f"median {metric.median:.2f}, {metric.min:.2f} to {metric.max:.2f} ({sharing})"
        for sharing, metric in by_sharing.items()
    )


def _arkgpu(content: bytes, where: str) -> StudyClaims:
    report = _decoded(content, _Arkgpu, "arkgpu", where)
    against, simulated = report.simulated.against, report.simulated
    kept = f"{simulated.attained.get('cotenant', 0)} of {simulated.attainable} objectives kept that a GPU alone keeps"
    measured = f"mixes of services and trainings, {_SIMULATED}"
    hides = f"{_NO_GPU}; the paper's mixes are not published, ours are others"
    lines = (
        ("throughput at the objective +584 % over MPS", "throughput_vs_mps_pct", report.peaks.peak_vs_mps_pct),
        ("goodput +95 % over a GPU for each", "goodput_vs_exclusive_pct", None),
        ("goodput +39 % over MPS", "goodput_vs_mps_pct", None),
    )
    claims = []
    for claim, name, peak in lines:
        distribution = against[name]
        ours = f"median {distribution.median:+.0f} %, {distribution.min:+.0f} to {distribution.max:+.0f} %"
        if peak is not None:
            ours += f"; at rising load median {peak.median:+.0f} %; {kept}"
        claims.append(Claim(lab="arkgpu", claim=claim, ours=ours, measured=measured, does_not_show=hides))
    return StudyClaims(
        lab="arkgpu", paper="ArkGPU", seed=report.seed, quick=report.quick, claims=claims, met=report.met
    )


def _dstack(content: bytes, where: str) -> StudyClaims:
    report = _decoded(content, _Dstack, "dstack", where)
    measured = "combinations of models by RaPP's measured latencies (V100); the product's own scheduler, simulated time"
    hides = f"{_NO_GPU}; concurrent runs follow a law over measured curves, which ParvaGPU's measurements check in part"
    with_all_models = [result for result in report.results if result.models == "all"]
    faster = "; ".join(
        f"over {result.mode} median {result.throughput.median:.2f}, max {result.throughput.max:.2f}"
        for result in with_all_models
    )
    busier = "; ".join(f"over {result.mode} median {result.utilization.median:.2f}" for result in with_all_models)
    full = [load for load in report.loads if load.mode == "dstack" and load.load == 1.0]
    ideal = "; ".join(f"median {result.of_bound.median:.2f}, least {result.of_bound.min:.2f}" for result in full[:1])
    study = (
        ("up to 4 times the throughput of temporal sharing", faster),
        ("utilization up to 1.6 times", busier),
        ("more than 0.9 of an ideal scheduler", f"of an upper bound at full load: {ideal}" if ideal else ""),
    )
    return StudyClaims(
        lab="dstack",
        paper="D-STACK, arXiv 2304.13541",
        seed=report.seed,
        quick=report.quick,
        claims=[
            Claim(lab="dstack", claim=claim, ours=ours, measured=measured, does_not_show=hides)
            for claim, ours in study
            if ours
        ],
        met=report.met,
    )


def _muxflow(content: bytes, where: str) -> StudyClaims:
    report = _decoded(content, _Muxflow, "muxflow", where)
    measured = "a trace's jobs and services in simulated time; the product's own cluster controller; measured curves"
    hides = f"{_NO_GPU}; loads are chosen to begin near the paper's utilization, services' memory near its memory"

    def ours(name: str) -> str:
        parts = []
        for cluster in report.clusters:
            match = next(outcome for outcome in cluster.found if outcome.policy == "match")
            before, after = getattr(match, name)
            full = f", {match.full[name]:.0%} while jobs wait" if name in match.full else ""
            where = f"{cluster.name}, {cluster.jobs} jobs, {cluster.gpus} GPUs"
            parts.append(f"{before:.0%} to {after:.0%}{full} ({where})")
        return "; ".join(parts)

    slowed, faster = [], []
    for cluster in report.clusters:
        by_policy = {outcome.policy: outcome for outcome in cluster.found}
        match = by_policy["match"]
        mean, p99 = match.online_slowdown - 1, match.online_slowdown_p99 - 1
        slowed.append(f"mean {mean:+.1%}, p99 {p99:+.0%} ({cluster.name})")
        rivals = ", ".join(
            f"{policy} {rival.jct_h / max(match.jct_h, 1e-9):.2f} times as long"
            for policy, rival in by_policy.items()
            if policy != "match"
        )
        faster.append(f"{cluster.name}: {match.jct_h:.1f} h; {rivals}")
    study = (
        ("GPU utilization 26 to 76 %", ours("utilization")),
        ("SM activity 16 to 33 %", ours("sm_activity")),
        ("GPU memory 42 to 48 %", ours("memory")),
        ("online work slowed by less than 20 %", "; ".join(slowed)),
        ("offline jobs end earlier than under other placement and sharing modes", "; ".join(faster)),
    )
    return StudyClaims(
        lab="muxflow",
        paper="MuxFlow, arXiv 2303.13803",
        seed=report.seed,
        quick=report.quick,
        claims=[
            Claim(lab="muxflow", claim=claim, ours=result, measured=measured, does_not_show=hides)
            for claim, result in study
        ],
        met=report.met,
    )


_READERS: Final[dict[str, Callable[[bytes, str], StudyClaims]]] = {
    "fikit": _fikit,
    "arkgpu": _arkgpu,
    "dstack": _dstack,
    "muxflow": _muxflow,
}
