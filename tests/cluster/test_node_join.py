"""Tests of configuration of a node that joins a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cotenant.cli import main
from cotenant.cluster.daemon.authority import make_request
from cotenant.cluster.daemon.identity import Identity, write_identity
from cotenant.cluster.wire import Role

pytestmark = pytest.mark.live

Asks = Callable[..., str]


@pytest.fixture
def asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Asks:
    """Runs a command that must be refused; the sentence."""
    monkeypatch.setenv("COTENANT_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("COTENANT_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()

    def ask(*words: str, code: int = 2) -> str:
        assert main(words) == code
        [line] = capsys.readouterr().err.splitlines()
        return line.removeprefix("cotenant: ")

    return ask


def test_agent_requires_a_controller_and_initially_a_token(asks: Asks, tmp_path: Path) -> None:
    assert asks("cluster", "agent").startswith("agent.join = '': say where the cluster's controller is")
    assert "name the file with a join token" in asks("cluster", "agent", "--join", "controller:1")
    token = tmp_path / "token"
    given = ("cluster", "agent", "--join", "127.0.0.1:1", "--join-token-file", str(token), "--node-name", "n")
    assert "cannot be read" in asks(*given)
    token.write_text("not a token")
    assert "this is no join token" in asks(*given)
    token.write_text(f"{'s' * 32}.{'0' * 64}")
    assert "127.0.0.1:1" in asks(*given, code=75), "there is nobody; it may be there later"


def test_joined_agent_keeps_its_name(asks: Asks, tmp_path: Path) -> None:
    path = tmp_path / "state" / "agent" / "identity.pem"
    path.parent.mkdir(parents=True, mode=0o700)
    key, _ = make_request()
    block = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
    write_identity(Identity(Role.NODE, "old", "controller:1", 0, 1, path, block), key, block)
    said = asks("cluster", "agent", "--join", "controller:1", "--node-name", "new")
    assert said.startswith("agent.node_name = 'new': this machine has joined as 'old'")


@pytest.mark.parametrize(
    "words, field",
    [
        (["--node-name", "x"], "agent.node_name"),
        (["--join-token-file", "x"], "agent.join_token_file"),
        (["--join", "b:1", "--report-period", "1ms"], "agent.report_period"),
    ],
)
def test_a_setting_without_effect_is_rejected(asks: Asks, words: list[str], field: str) -> None:
    assert asks("node", *words).startswith(f"{field} = ")
