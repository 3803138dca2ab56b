"""Programs of the test cluster: their versions, one build for several processes, and errors that name a remedy."""

from __future__ import annotations

import concurrent.futures
import os
from pathlib import Path

import pytest

from cotenant.errors import WorldError
from cotenant_lab.kubernetes import binaries

# Acts like `go build -v -o DIRECTORY/ PACKAGE...`: writes a file per package, and counts its runs.
FAKE_GO = r"""#!/bin/sh
echo run >> "$FAKE_GO_RUNS"
sleep 0.2
while [ "$1" != "-o" ]; do shift; done
directory=$2; shift 2
for package in "$@"; do
    name=${package##*/}
    case "$name" in v[0-9]) package=${package%/*}; name=${package##*/} ;; esac
    echo "$package"
    echo program > "$directory$name"
done
"""


@pytest.fixture
def fake_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program called go first on PATH and return its path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "go"
    program.write_text(FAKE_GO)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_GO_RUNS", str(tmp_path / "runs"))
    return program


def ignore(_: str) -> None:
    pass


def failing(program: Path, message: str) -> None:
    program.write_text(f"#!/bin/sh\necho '{message}'\nexit 1\n")


def test_versions_are_those_of_the_go_modules() -> None:
    assert {name: binaries.module_version(name)[:3] for name in binaries.MODULES} == {
        "kubernetes": "v1.",
        "containerd": "v2.",
        "runc": "v1.",
    }


def test_every_staging_module_is_replaced_by_the_release_of_the_same_version() -> None:
    text = (Path(binaries.__file__).parent / "go" / "kubernetes" / "go.mod").read_text()
    version = binaries.module_version("kubernetes").replace("v1.", "v0.")
    replaced = [line.split() for line in text.splitlines() if "=>" in line]
    assert len(replaced) >= 30
    assert all(source == target and release == version for source, _, target, release in replaced)


@pytest.mark.usefixtures("fake_go")
def test_programs_are_built_once_and_found_again(tmp_path: Path) -> None:
    lines: list[str] = []
    first = binaries.build(["kubernetes"], lines.append, tmp_path)
    assert {"etcd", "kubelet", "kube-apiserver", "kubectl"} <= set(first)
    assert all(path.is_file() for path in first.values())
    assert binaries.build(["kubernetes"], ignore, tmp_path) == first
    assert (tmp_path / "runs").read_text() == "run\n"
    assert any("v1." in line for line in lines)


@pytest.mark.usefixtures("fake_go")
def test_second_process_waits_for_the_build_of_the_first(tmp_path: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: binaries.build(["containerd"], ignore, tmp_path), range(3)))
    assert found[0] == found[1] == found[2]
    assert (tmp_path / "runs").read_text() == "run\n"


def test_missing_go_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorldError, match=r"Go is not installed: .* needs Go 1\.25"):
        binaries.build(["kubernetes"], ignore, tmp_path)


@pytest.mark.parametrize(
    "message, expected",
    [
        ("go: example.com/a@v1: Get: dial tcp: lookup example.com: no such host", "check the network and GOPROXY"),
        ("go: go.mod requires go >= 1.25.0 (running go 1.22.1)", "install Go 1.25.0 or newer"),
        ("write x: no space left on device", "disk is too full"),
        ("example.com/a: undefined: b", r"failed \(example.com/a: undefined: b\): .*log has its output"),
    ],
)
def test_failed_build_is_one_sentence_with_a_remedy(tmp_path: Path, fake_go: Path, message: str, expected: str) -> None:
    failing(fake_go, message)
    with pytest.raises(WorldError, match=expected) as caught:
        binaries.build(["kubernetes"], ignore, tmp_path)
    assert "\n" not in str(caught.value)
    assert not binaries.programs_directory("kubernetes", tmp_path).exists()


@pytest.mark.usefixtures("fake_go")
def test_build_after_a_failed_one_succeeds(tmp_path: Path, fake_go: Path) -> None:
    failing(fake_go, "broken")
    with pytest.raises(WorldError):
        binaries.build(["containerd"], ignore, tmp_path)
    fake_go.write_text(FAKE_GO)
    assert binaries.build(["containerd"], ignore, tmp_path)["ctr"].is_file()
