"""The compose file in deploy/: commands that exist, and files that the images are built from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cotenant.cli import full_parser
from cotenant.node.config.file import DirectoriesConfig
from cotenant.node.directories import resolve_directories

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def test_every_service_runs_a_command_of_cotenant_from_an_image_of_the_project(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"node", "web"}
    for name, service in compose["services"].items():
        options = full_parser().parse_args([str(word) for word in service["command"]])
        assert options.command is not None, name
        context = DEPLOY / service["build"]["context"]
        assert (context / service["build"]["dockerfile"]).is_file()
    assert compose["services"]["node"]["healthcheck"]["test"][:2] == ["CMD", "cotenant"]
    full_parser().parse_args(compose["services"]["node"]["healthcheck"]["test"][2:])


def test_services_share_the_directories_of_a_node_that_root_runs(compose: dict[str, Any]) -> None:
    directories = resolve_directories(DirectoriesConfig(), {}, 0)
    for service in compose["services"].values():
        mounted = dict(volume.split(":")[:2] for volume in service["volumes"])
        assert {mounted["run"], mounted["state"]} == {str(directories.runtime), str(directories.state)}
    assert {"run", "state"} == set(compose["volumes"])


def test_the_console_is_published_on_loopback_alone(compose: dict[str, Any]) -> None:
    [port] = compose["services"]["web"]["ports"]
    assert port == "127.0.0.1:7070:7070"
