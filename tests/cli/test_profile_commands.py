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
def profiles(node_harness: NodeHarness) -> NodeHarness:
    for name, text in (("small", SMALL), ("later", LATER)):
        (node_harness.home / f"{name}.csv").write_text(text)
        done = node_harness.run("profile", "import", str(node_harness.home / f"{name}.csv"), "--device", "V100")
        assert done.returncode == 0, done.stderr
    return node_harness


def test_imported_profiles_are_listed_and_shown(profiles: NodeHarness) -> None:
    listed = profiles.json("profile", "list")["profiles"]
    assert [(profile["task"], profile["device"], profile["kernels"], profile["launches"]) for profile in listed] == [
        ("later", "V100", 3, 9),
        ("small", "V100", 2, 6),
    ]
    assert [profile["device_ns"] for profile in listed] == [201_000, 135_000]
    assert "small" in profiles.run("profile", "list").stdout
    shown = profiles.run("profile", "show", "small").stdout
    assert "conv<int, 3>" in shown
    assert "88.9%" in shown
    assert "idle time that a co-tenant could fill" in shown
    assert profiles.json("profile", "show", "small")["kernels"][0]["mean_device_ns"] == 40_000


def test_html_page_escapes_kernel_names(profiles: NodeHarness) -> None:
    page = profiles.home / "page.html"
    assert profiles.run("profile", "show", "small", "--html", str(page)).returncode == 0
    text = page.read_text()
    assert "conv&lt;int, 3&gt;" in text
    assert "<int" not in text
    assert "http" not in text


def test_diff_lists_changed_and_new_kernels(profiles: NodeHarness) -> None:
    changes = profiles.json("profile", "diff", "small", "later")["kernels"]
    times = {change["name"].split(" <")[0]: (change["before_ns"], change["after_ns"]) for change in changes}
    assert times == {"conv<int, 3>": (40_000, 60_000), "norm": (5_000, 5_000), "relu": (None, 2_000)}
    shown = profiles.run("profile", "diff", "small", str(profiles.home / "later.csv")).stdout
    assert "+50.0%" in shown
    assert "new" in shown
    assert "norm" not in [line.partition(" ")[0] for line in shown.splitlines()], "an unchanged kernel is listed"


def test_exported_profile_imports_unchanged(profiles: NodeHarness) -> None:
    file = profiles.home / "small.json"
    assert profiles.run("profile", "export", "small", "-o", str(file)).returncode == 0
    assert profiles.run("profile", "export", "small").stdout == file.read_text()
    before = profiles.json("profile", "show", "small")
    assert profiles.run("profile", "prune", "--task", "small").returncode == 0
    assert profiles.run("profile", "show", "small").returncode == 2
    assert profiles.run("profile", "import", str(file)).returncode == 0
    assert profiles.json("profile", "show", "small") == before


def test_recordings_are_merged_and_deleted(profiles: NodeHarness) -> None:
    assert profiles.run("profile", "import", str(profiles.home / "small.csv"), "--device", "V100").returncode == 0
    assert profiles.json("profile", "show", "small")["runs"] == 2
    assert profiles.json("profile", "prune", "--keep-latest", "1") == {"deleted": 1}
    assert profiles.json("profile", "prune", "--older-than", "1h") == {"deleted": 0}
    assert profiles.json("profile", "prune", "--all") == {"deleted": 2}
    done = profiles.run("profile", "show", "small")
    assert done.returncode == 69
    assert "profile record" in done.stderr


def test_ambiguous_task_is_rejected(profiles: NodeHarness) -> None:
    done = profiles.run("profile", "show", "l")
    assert done.returncode == 2
    assert "2 profiles match" in done.stderr
    assert profiles.run("profile", "import", str(profiles.home / "small.csv"), "--device", "A100").returncode == 0
    done = profiles.run("profile", "show", "small")
    assert done.returncode == 2
    assert "--device" in done.stderr
    assert profiles.json("profile", "show", "small", "--device", "A100")["device"] == "A100"


def test_image_and_script_run_on_a_software_gpu(profiles: NodeHarness) -> None:
    image, script = profiles.home / "net.image", profiles.home / "net.launches"
    done = profiles.run(
        *("profile", "import", str(profiles.home / "small.csv"), "--device", "V100"),
        *("--image", str(image), "--script", str(script)),
    )
    assert done.returncode == 0, done.stderr
    assert profiles.run("softgpu", "create", "--gpu", "v100").returncode == 0
    try:
        program = [sys.executable, str(ROOT / "examples" / "replay.py"), "--mode", "once", "--json"]
        done = profiles.run("run", "--gpu", "soft:0", "--", *program, "--image", str(image), "--script", str(script))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["kernels"] == 6
        assert profiles.json("softgpu", "inspect")["counters"]["kernels"] == 6
    finally:
        profiles.run("softgpu", "destroy")
