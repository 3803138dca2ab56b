"""Commands about models: import, play on a software GPU, and what-if questions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cotenant_lab.bench.goodput.models import make_models
from tests.support.node_processes import NodeHarness
from tests.support.onnx_models import write_model

pytestmark = pytest.mark.live


@pytest.fixture
def models(tmp_path: Path) -> Path:
    make_models(tmp_path, small=True)
    return tmp_path


def test_models_pass_through_import_playback_and_whatif(node_harness: NodeHarness, models: Path) -> None:
    files = [str(models / f"{name}.onnx") for name in ("resnet", "mobilenet", "transformer")]
    imported = node_harness.json("profile", "import", *files, "--gpu", "v100", "--batch", "1,4")["imported"]
    assert [new["task"] for new in imported] == [
        f"{name}:b{batch}" for name in ("resnet", "mobilenet", "transformer") for batch in (1, 4)
    ]
    assert all(new["latency_ns"]["low"] < new["latency_ns"]["point"] < new["latency_ns"]["high"] for new in imported)
    assert not any(new["unsupported"] for new in imported)
    assert node_harness.run("softgpu", "create", "--gpu", "v100").returncode == 0
    play = [sys.executable, "-m", "cotenant", "play", "transformer", "--rate", "50", "--requests", "20", "--json"]
    done = node_harness.run("run", "--gpu", "soft:0", "--online", "--slo", "50ms", "--", *play)
    assert done.returncode == 0, done.stderr
    assert '"requests":20' in done.stdout
    assert "estimated kernel times" in done.stderr
    tenants = ["--online", f"{files[0]}:rate=40,slo=30ms", "--offline", f"{files[2]}:batch=8"]
    page = models / "page.html"
    report = node_harness.json("whatif", *tenants, "--gpu", "v100", "--seconds", "1", "--html", str(page))
    assert [tenant["name"] for tenant in report["tenants"]] == ["resnet:b1", "transformer:b8:train"]
    assert {mode["mode"] for mode in report["modes"]} == {"alone", "cotenant", "mps", "mps-priority", "slices"}
    assert report["one_gpu_is_enough"] is True
    assert "<svg" in page.read_text()


def test_unsupported_operators_and_bad_input_are_named(node_harness: NodeHarness, tmp_path: Path) -> None:
    path = str(write_model(tmp_path / "vendor.onnx", unknown=True))
    done = node_harness.run("profile", "import", path, "--gpu", "t4")
    assert done.returncode == 0, done.stderr
    assert "1 x VendorThing is not supported" in done.stdout
    for words, parts in (
        (("profile", "import", path), ("--gpu", "a100")),
        (("profile", "import", path, "--gpu", "b9"), ("--gpu", "'b9'", "v100")),
        (("whatif", "--online", path, "--gpu", "t4"), ("rate", "slo")),
        (("whatif", "--online", f"{path}:rate=0,slo=1ms", "--gpu", "t4"), ("rate",)),
        (("whatif", "--gpu", "t4"), ("--online",)),
        (("whatif", "--offline", f"{path}:rate=5", "--gpu", "t4"), ("no rate", "--online")),
        (("whatif", "--online", f"{path}:rate=5,slo=1s,dim.n=x", "--gpu", "t4"), ("n=x", "NAME=SIZE")),
        (("play", "nothing"), ("MODEL", "nothing", "profile import")),
        (("profile", "correct", "--gpu", "t4"), ("MEASUREMENT",)),
    ):
        refused = node_harness.run(*words)
        assert refused.returncode == 2, (words, refused.stderr)
        assert all(part in refused.stderr for part in parts), refused.stderr
        assert refused.stderr.count("\n") == 1, refused.stderr
