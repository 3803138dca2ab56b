"""Tests of `cotenant profile`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.node_processes import NodeHarness

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
TABLE = "Name,Profile,Memory_footprint,SM_usage,Duration\n"
SMALL = TABLE + "conv<int, 3>,1,0,80,40000\nnorm,0,0,8,5000\n" * 3
LATER = TABLE + "conv<int, 3>,1,0,80,60000\nnorm,0,0,8,5000\nrelu,0,0,8,2000\n" * 3


@pytest.fixture
def kept(node_harness: NodeHarness) -> NodeHarness:
    for name, text in (("small", SMALL), ("later", LATER)):
        (node_harness.home / f"{name}.csv").write_text(text)
        done = node_harness.run("profile", "import", str(node_harness.home / f"{name}.csv"), "--device", "V100")
        assert done.returncode == 0, done.stderr
    return node_harness


def test_imported_profiles_are_listed_and_shown(kept: NodeHarness) -> None:
    listed = kept.json("profile", "list")["profiles"]
    assert [(one["task"], one["device"], one["kernels"], one["launches"]) for one in listed] == [
        ("later", "V100", 3, 9),
        ("small", "V100", 2, 6),
    ]
    assert [one["device_ns"] for one in listed] == [201_000, 135_000]
    assert "small" in kept.run("profile", "list").stdout
    shown = kept.run("profile", "show", "small").stdout
    assert "conv<int, 3>" in shown
    assert "88.9%" in shown
    assert "what a co-tenant could fill" in shown
    assert kept.json("profile", "show", "small")["kernels"][0]["mean_device_ns"] == 40_000


def test_the_page_escapes_kernel_names(kept: NodeHarness) -> None:
    page = kept.home / "page.html"
    assert kept.run("profile", "show", "small", "--html", str(page)).returncode == 0
    text = page.read_text()
    assert "conv&lt;int, 3&gt;" in text
    assert "<int" not in text
    assert "http" not in text


def test_a_difference_names_what_changed(kept: NodeHarness) -> None:
    changes = kept.json("profile", "diff", "small", "later")["kernels"]
    said = {change["name"].split(" <")[0]: (change["before_ns"], change["after_ns"]) for change in changes}
    assert said == {"conv<int, 3>": (40_000, 60_000), "norm": (5_000, 5_000), "relu": (None, 2_000)}
    shown = kept.run("profile", "diff", "small", str(kept.home / "later.csv")).stdout
    assert "+50.0%" in shown
    assert "new" in shown
    assert "norm" not in shown


def test_an_export_is_the_same_profile_elsewhere(kept: NodeHarness) -> None:
    file = kept.home / "small.json"
    assert kept.run("profile", "export", "small", "-o", str(file)).returncode == 0
    assert kept.run("profile", "export", "small").stdout == file.read_text()
    before = kept.json("profile", "show", "small")
    assert kept.run("profile", "prune", "--task", "small").returncode == 0
    assert kept.run("profile", "show", "small").returncode == 2
    assert kept.run("profile", "import", str(file)).returncode == 0
    assert kept.json("profile", "show", "small") == before


def test_recordings_are_merged_and_deleted(kept: NodeHarness) -> None:
    assert kept.run("profile", "import", str(kept.home / "small.csv"), "--device", "V100").returncode == 0
    assert kept.json("profile", "show", "small")["runs"] == 2
    assert kept.json("profile", "prune", "--keep-latest", "1") == {"deleted": 1}
    assert kept.json("profile", "prune", "--older-than", "1h") == {"deleted": 0}
    assert kept.json("profile", "prune", "--all") == {"deleted": 2}
    done = kept.run("profile", "show", "small")
    assert done.returncode == 75
    assert "profile record" in done.stderr


def test_an_ambiguous_task_lists_the_candidates(kept: NodeHarness) -> None:
    done = kept.run("profile", "show", "l")
    assert done.returncode == 2
    assert "2 profiles match" in done.stderr
    assert kept.run("profile", "import", str(kept.home / "small.csv"), "--device", "A100").returncode == 0
    done = kept.run("profile", "show", "small")
    assert done.returncode == 2
    assert "--device" in done.stderr
    assert kept.json("profile", "show", "small", "--device", "A100")["device"] == "A100"


def test_image_and_script_run_on_a_software_gpu(kept: NodeHarness) -> None:
    image, script = kept.home / "net.image", kept.home / "net.launches"
    done = kept.run(
        *("profile", "import", str(kept.home / "small.csv"), "--device", "V100"),
        *("--image", str(image), "--script", str(script)),
    )
    assert done.returncode == 0, done.stderr
    assert kept.run("softgpu", "create", "--gpu", "v100").returncode == 0
    try:
        program = [sys.executable, str(ROOT / "examples" / "replay.py"), "--mode", "once", "--json"]
        done = kept.run("run", "--gpu", "soft:0", "--", *program, "--image", str(image), "--script", str(script))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["kernels"] == 6
        assert kept.json("softgpu", "inspect")["counters"]["kernels"] == 6
    finally:
        kept.run("softgpu", "destroy")
