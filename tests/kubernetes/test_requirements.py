"""What a machine lacks for a test cluster is named before anything is built."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from cotenant_lab.kubernetes import binaries, cgroups, requirements


class Usage(NamedTuple):
    """What shutil.disk_usage returns."""

    total: int
    used: int
    free: int


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine allow everything: what it allows is not the subject of these tests."""
    monkeypatch.setattr(requirements, "require_root", lambda: None)
    monkeypatch.setattr(requirements, "_failure", lambda command, directory: "")
    monkeypatch.setattr(cgroups, "create", lambda name: None)
    monkeypatch.setattr(cgroups, "remove", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 1 << 40))


def fail_at(monkeypatch: pytest.MonkeyPatch, program: str, reason: str) -> None:
    monkeypatch.setattr(requirements, "_failure", lambda command, directory: reason if command[0] == program else "")


def test_a_machine_with_everything_lacks_nothing(tmp_path: Path) -> None:
    assert requirements.missing(tmp_path) == []


def test_each_thing_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, "unshare", "unshare failed: Operation not permitted")
    [text] = requirements.missing(tmp_path)
    assert "cannot create the namespaces of a node (unshare failed: Operation not permitted)" in text
    fail_at(monkeypatch, "go", "dial tcp: lookup proxy.golang.org: no such host")
    [text] = requirements.missing(tmp_path)
    assert "check the network and GOPROXY" in text
    fail_at(monkeypatch, "", "")

    def refuse(name: str) -> None:
        raise PermissionError(f"{name} is read-only")

    monkeypatch.setattr(cgroups, "create", refuse)
    [text] = requirements.missing(tmp_path)
    assert "cannot create control groups" in text


def test_programs_and_space_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 3 << 30))
    texts = " ".join(requirements.missing(tmp_path))
    assert "gcc is not installed" in texts
    assert "Go is not installed: the test cluster is built from Go modules and needs Go 1.25 or newer" in texts
    assert "has 3 GiB of free disk space: the test cluster needs 8 GiB there" in texts


def test_what_is_built_needs_no_go_and_less_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "go" else f"/usr/bin/{name}")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 3 << 30))
    for name in binaries.MODULES:
        binaries.programs_directory(name, tmp_path).mkdir()
    assert requirements.missing(tmp_path) == []
