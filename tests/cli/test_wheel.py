"""Test that an sdist of a clean copy has all that a wheel needs, and that the wheel runs in an empty environment."""

import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.lint.tree import tree_of
from tests.support.tools import ROOT, run_or_fail, tool

pytestmark = pytest.mark.live

PAGE = "cotenant/web/static/index.html"
# The build must not use this checkout: no path to it, no active environment.
CLEAN = {"PYTHONPATH": "", "VIRTUAL_ENV": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_from_an_sdist_runs_in_an_empty_environment(tmp_path: Path) -> None:
    copy, dist, venv = tmp_path / "copy", tmp_path / "dist", tmp_path / "venv"
    for path in tree_of(ROOT).paths:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, copy / path)
    (copy / "src" / PAGE).parent.mkdir()  # as `make web` builds it; no file of the repository
    (copy / "src" / PAGE).write_text("the page")
    run_or_fail([tool("python"), "-m", "build", "--sdist", "--outdir", dist, copy], tmp_path, CLEAN, 500)
    [sdist] = dist.glob("cotenant-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    assert any(name.endswith(f"src/{PAGE}") for name in names), "the page is part of the sdist"
    assert not any("/.git/" in name or "/build/" in name for name in names)
    # The build is isolated: its requirements come from the registry, as for a user.
    # Not optimized: the files of a wheel do not depend on it, and `make setup` has built it optimized.
    kind = ["--no-deps", "--config-settings=cmake.build-type=Debug"]
    run_or_fail([tool("python"), "-m", "pip", "wheel", *kind, "-w", dist, sdist], tmp_path, CLEAN, 500)
    [wheel] = dist.glob("cotenant-*.whl")
    assert "-cp311-abi3-" in wheel.name, "one wheel serves every Python from 3.11 on"
    assert PAGE in zipfile.ZipFile(wheel).namelist(), "the page is part of the wheel"

    run_or_fail([tool("python"), "-m", "venv", venv], tmp_path, CLEAN)
    run_or_fail([tool("python", venv / "bin"), "-m", "pip", "install", "--quiet", wheel], tmp_path, CLEAN, 500)
    program = "import cotenant, cotenant._native as n; print(cotenant.__file__); assert n.GRANT_BYTES == 16384"
    installed = run_or_fail([tool("python", venv / "bin"), "-c", program], tmp_path, CLEAN).strip()
    assert installed.startswith(str(venv))
    assert (Path(installed).parent / "include/cotenant/request.h").is_file(), "C programs include it to report requests"
    version = run_or_fail([tool("cotenant", venv / "bin"), "--version"], tmp_path, CLEAN)
    assert wheel.name.split("-")[1] in version
