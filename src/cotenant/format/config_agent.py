"""What can be configured of a machine that takes jobs of a cluster? Each field says in its own words what it is for."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from cotenant.domain.instant import MILLISECOND_NS, SECOND_NS
from cotenant.errors import ConfigError
from cotenant.format.quantity import format_duration
from cotenant.format.toml import DurationNs, Section

_SHORTEST_NS: Final = 20 * MILLISECOND_NS


class AgentConfig(Section, frozen=True):
    """Of which cluster this machine is a node, and how it runs jobs of it."""

    join: Annotated[str, Meta(description="HOST:PORT of the cluster's brain; empty: this machine is in no cluster")] = (
        ""
    )
    join_token_file: Annotated[
        str, Meta(description="file with what `cotenant cluster token` printed; needed until the machine has joined")
    ] = ""
    node_name: Annotated[str, Meta(description="name of this machine in the cluster; empty: its host name")] = ""
    report_period: Annotated[DurationNs, Meta(description="how often the brain is told how things are here")] = (
        DurationNs(5 * SECOND_NS)
    )
    job_grace: Annotated[
        DurationNs, Meta(description="between the request to end and the kill, how long a job has at most")
    ] = DurationNs(10 * SECOND_NS)


def validate_agent(config: AgentConfig) -> None:
    """Refuse what cannot be."""
    if config.report_period < _SHORTEST_NS:
        remedy = f"must be at least {format_duration(_SHORTEST_NS)}"
        raise ConfigError("agent.report_period", format_duration(config.report_period), remedy)
    if not config.join and (config.join_token_file or config.node_name):
        named = "join_token_file" if config.join_token_file else "node_name"
        remedy = "says nothing without the brain's address; add --join HOST:PORT"
        raise ConfigError(f"agent.{named}", getattr(config, named), remedy)
