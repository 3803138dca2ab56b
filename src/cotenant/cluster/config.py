"""Configuration of the cluster controller."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from cotenant.cluster.model.cluster import ClusterSettings
from cotenant.errors import ConfigError
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from cotenant.units.text import format_duration
from cotenant.units.toml import DurationNs, Section, ShareOfWhole, SizeBytes

CLUSTER: Final = ClusterSettings()
_SHORTEST_NS: Final = 100 * MILLISECOND_NS
_SHORTEST_LEASE_NS: Final = SECOND_NS


class ClusterConfig(Section, frozen=True):
    """Settings of the controller daemon of one cluster."""

    listen: Annotated[
        str, Meta(description="HOST:PORT at which nodes and users reach the controller; port 0: a free one")
    ] = "127.0.0.1:9838"
    address: Annotated[
        str, Meta(description="HOST:PORT at which nodes and users connect; empty: the listen address")
    ] = ""
    round: Annotated[DurationNs, Meta(description="period of the placement rounds")] = DurationNs(CLUSTER.round_ns)
    lease: Annotated[DurationNs, Meta(description="a node without contact for this long ends its jobs by itself")] = (
        DurationNs(CLUSTER.lease_ns)
    )
    grace: Annotated[DurationNs, Meta(description="time after the lease before its jobs may be started elsewhere")] = (
        DurationNs(CLUSTER.grace_ns)
    )
    place: Annotated[str, Meta(description="placement policy, such as `match` or `first-fit`")] = CLUSTER.place
    switch: Annotated[
        ShareOfWhole, Meta(description="gain in speed, as a part of a GPU's, that a move of a running job must exceed")
    ] = ShareOfWhole(CLUSTER.switch_ppm)
    moves: Annotated[int, Meta(ge=0, le=100_000, description="running jobs that one round may move")] = (
        CLUSTER.moves_limit
    )
    slowdown: Annotated[ShareOfWhole, Meta(description="largest predicted slowdown of online work")] = ShareOfWhole(
        CLUSTER.slowdown_limit_ppm
    )
    fair: Annotated[
        str, Meta(pattern=r"^(yes|no)\Z", description="whether users who received less GPU time go first: yes or no")
    ] = "no"
    remember: Annotated[int, Meta(ge=0, le=1_000_000, description="number of finished jobs to remember")] = 10_000
    journal_limit: Annotated[SizeBytes, Meta(description="size at which the journal begins a new segment")] = SizeBytes(
        256 << 20
    )
    log: Annotated[str, Meta(pattern=r"^(text|json)\Z", description="lines of the log: text or json")] = "text"
    metrics: Annotated[str, Meta(description="HOST:PORT at which to serve /metrics for Prometheus; empty: nowhere")] = (
        ""
    )

    def settings(self) -> ClusterSettings:
        """Return the settings on which decisions depend."""
        return ClusterSettings(
            round_ns=int(self.round),
            lease_ns=int(self.lease),
            grace_ns=int(self.grace),
            place=self.place,
            switch_ppm=int(self.switch),
            fair=self.fair == "yes",
            remember=self.remember,
            slowdown_limit_ppm=int(self.slowdown),
            moves_limit=self.moves,
        )


def validate_cluster(cluster: ClusterConfig) -> None:
    """Reject intervals that would make the controller busy-loop or declare live nodes silent."""
    if cluster.round < _SHORTEST_NS:
        remedy = f"must be at least {format_duration(_SHORTEST_NS)}"
        raise ConfigError("cluster.round", format_duration(cluster.round), remedy)
    for field, value in (("cluster.lease", cluster.lease), ("cluster.grace", cluster.grace)):
        if value < _SHORTEST_LEASE_NS:
            remedy = f"must be at least {format_duration(_SHORTEST_LEASE_NS)}: nodes need that long to end their jobs"
            raise ConfigError(field, format_duration(value), remedy)
