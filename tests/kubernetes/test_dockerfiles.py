"""The Dockerfiles without a container engine: their steps run with this machine's Python in place of the base image."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant import __version__
from tests.support.chart import ROOT

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]

INSTRUCTION = re.compile(r"(FROM|COPY|RUN|LABEL|ENV|USER|ENTRYPOINT|CMD) (.+)", re.DOTALL)
BASE = "python:3.11-slim-bookworm"


class Stage:
    """One stage of a build: a directory in place of the root file system, and what it configures."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.variables: dict[str, str] = {}
        self.words: dict[str, list[str]] = {}
        self.user = ""
        root.mkdir()

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def run(self, command: str) -> None:
        """Run a shell command whose absolute paths are those of the image."""
        moved = re.sub(r"(?<![\w./])/(?=opt/|wheel/)", f"{self.root}/", command)
        assert moved != command
        # The dependencies are those of this environment: nothing is downloaded.
        environment = {**os.environ, "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        directory = self.root / "bin"
        directory.mkdir(exist_ok=True)
        if not (directory / "python").exists():
            (directory / "python").symlink_to(Path(sys.executable).resolve())
        environment["PATH"] = f"{directory}:{os.environ['PATH']}"
        done = subprocess.run(["sh", "-c", moved], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile; fail on one that this test does not know."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    texts = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    found = [INSTRUCTION.fullmatch(text) for text in texts if text.strip()]
    assert all(found), texts
    return [(match[1], match[2]) for match in found if match is not None]


def build(path: Path, context: Path, directory: Path) -> Stage:
    """Execute a Dockerfile and return its last stage."""
    stages: dict[str, Stage] = {}
    stage = Stage(directory / "none")
    for verb, text in instructions(path):
        words = text.split()
        if verb == "FROM":
            assert words[0] == BASE
            name = words[2] if len(words) > 1 else "final"
            stage = stages[name] = Stage(directory / name)
        elif verb == "COPY" and words[0].startswith("--from="):
            origin = stages[words[0].removeprefix("--from=")]
            shutil.copytree(origin.path(words[1]), stage.path(words[2]), symlinks=True)
        elif verb == "COPY":
            sources = [found for word in words[:-1] for found in context.glob(word)]
            assert sources, text
            stage.path(words[-1]).mkdir(parents=True)
            for source in sources:
                shutil.copy(source, stage.path(words[-1]))
        elif verb == "RUN":
            stage.run(text)
        elif verb == "ENV":
            stage.variables |= dict(word.split("=", 1) for word in words)
        elif verb == "USER":
            stage.user = text
        elif verb in ("ENTRYPOINT", "CMD"):
            stage.words[verb] = json.loads(text)
    return stages["final"]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a build context with the wheel, as `make wheel` leaves it."""
    directory = tmp_path_factory.mktemp("context")
    flags = ["--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir", str(directory / "dist")]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *flags, str(ROOT)], check=True)
    return directory


@pytest.mark.parametrize("name, user", [("node", "0:0"), ("controller", "65532:65532")])
def test_the_image_has_the_wheel_with_its_extra_and_starts_its_command(
    name: str, user: str, context: Path, tmp_path: Path
) -> None:
    path = ROOT / "deploy" / "images" / f"{name}.Dockerfile"
    image = build(path, context, tmp_path)
    assert image.user == user
    assert "[kubernetes]" in path.read_text()
    [packages] = image.path("/opt/cotenant/lib").glob("python3*/site-packages")
    (packages / "this-environment.pth").write_text("\n".join(entry for entry in sys.path if "site-packages" in entry))
    directories = [str(image.path(part)) for part in image.variables["PATH"].split(":") if part.startswith("/")]
    command = [*image.words["ENTRYPOINT"], *image.words["CMD"], "--help"]
    program = shutil.which(command[0], path=":".join(directories))
    assert program is not None
    python = image.path("/opt/cotenant/bin/python")
    shown = subprocess.run([python, program, *command[1:]], capture_output=True, text=True, check=True).stdout
    assert "usage" in shown.lower()
    version = subprocess.run([python, program, "version"], capture_output=True, text=True, check=True).stdout
    assert __version__ in version
    libraries = {file.name for file in (packages / "cotenant").rglob("*.so*")}
    assert any(__version__ in library for library in libraries), "the hook is part of the wheel"
    assert not list(image.path("/opt/cotenant/lib").rglob("*.c"))
