"""Configuration of a machine that runs jobs of a cluster."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from cotenant.errors import ConfigError
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from cotenant.units.text import format_duration
from cotenant.units.toml import DurationNs, Section

_SHORTEST_NS: Final = 20 * MILLISECOND_NS


class AgentConfig(Section, frozen=True):
    """The cluster that this machine joins, and how it runs jobs."""

    join: Annotated[
        str, Meta(description="HOST:PORT of the cluster's controller; empty: this machine is in no cluster")
    ] = ""
    join_token_file: Annotated[
        str, Meta(description="file with the output of `cotenant cluster token`; needed until the machine has joined")
    ] = ""
    node_name: Annotated[str, Meta(description="name of this machine in the cluster; empty: its host name")] = ""
    report_period: Annotated[DurationNs, Meta(description="how often this machine reports to the controller")] = (
        DurationNs(5 * SECOND_NS)
    )
    job_grace: Annotated[DurationNs, Meta(description="time between the request to end and the kill of a job")] = (
        DurationNs(10 * SECOND_NS)
    )


def validate_agent(config: AgentConfig) -> None:
    """Reject inconsistent settings."""
    if config.report_period < _SHORTEST_NS:
        remedy = f"must be at least {format_duration(_SHORTEST_NS)}"
        raise ConfigError("agent.report_period", format_duration(config.report_period), remedy)
    if not config.join and (config.join_token_file or config.node_name):
        named = "join_token_file" if config.join_token_file else "node_name"
        remedy = "has no effect without the controller's address; add --join HOST:PORT"
        raise ConfigError(f"agent.{named}", getattr(config, named), remedy)
