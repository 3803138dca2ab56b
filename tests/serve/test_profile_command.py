"""Profile and plan of models from the command line, and what a server makes of them."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("google.protobuf")
from cotenant.cli import main
from tests.support.model_servers import Server, add_and_subtract, identity

pytestmark = pytest.mark.live

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COTENANT_DIRECTORY", str(tmp_path / "own"))
    folder = tmp_path / "models"
    folder.mkdir()
    add_and_subtract(folder / "both.onnx")
    identity(folder / "wide.onnx", "FP32", ["N", "M"])
    (folder / "both.toml").write_text('slo = "20ms"\nmax_batch = 2\n')
    (folder / "broken.onnx").write_bytes(b"no model at all")
    return folder


def said(capsys: Capture, *words: str, code: int = 0) -> str:
    """Return the output of a command."""
    assert main(["serve", *words]) == code, capsys.readouterr().err
    return capsys.readouterr().out


def test_models_are_measured_once_and_the_server_and_the_plan_begin_with_it(
    models: Path, tmp_path: Path, capsys: Capture
) -> None:
    found = json.loads(said(capsys, "profile", str(models), "--budget", "150ms", "--shape", "wide=IN:5", "--json"))
    both, broken, wide = sorted(found["models"], key=lambda one: one["model"])
    assert "refused" in broken
    assert {one["rows"] for one in both["times"]} == {1, 2}
    assert all(0 < one["typical_ns"] <= one["high_ns"] for one in both["times"])
    assert wide["inputs"] == {"IN": [5]}
    assert {"curve_units", "model_units", "distance_units"} <= both["knee"].keys()
    again = said(capsys, "profile", str(models), "--plot", str(tmp_path / "curves.svg"))
    assert again.count("(stored)") == 2
    assert again.count("knee at") == 2
    assert "<svg" in (tmp_path / "curves.svg").read_text()

    words = ("plan", str(models), "--rate", "both=50", "--what-if", "both.slo=1s", "--json")
    planned = json.loads(said(capsys, *words))
    assert [one["model"] for one in planned["now"]["plan"]["models"]] == ["both", "wide"]
    assert (planned["now"]["slos_ns"]["both"], planned["then"]["slos_ns"]["both"]) == (20_000_000, 10**9)
    assert "wide: removed" in said(capsys, "plan", str(models), "--what-if", "without=wide")
    unknown = said(capsys, "plan", str(models), "--profiles", str(tmp_path / "nothing"), code=1)
    assert "cotenant serve profile" in " ".join(unknown.split())

    server = Server(models)
    try:
        with urllib.request.urlopen(f"http://{server.http}/v2/cotenant/plan") as answer:
            received = json.load(answer)
        assert [one["profiled"] for one in received["models"]] == [True, True]
        assert "run times relative to the profiles" in said(capsys, "plan", "--url", f"http://{server.http}")
    finally:
        server.stop()


@pytest.mark.parametrize(
    "words,names",
    [
        ("profile MODELS --budget 1ms", ("--budget", "100ms")),
        ("profile MODELS --shape X", ("--shape", "INPUT:3,224,224")),
        ("profile MODELS --shape wide=IN:1,2 --force", ("--shape", "does not fit")),
        ("profile MODELS --plot x.png", ("--plot", ".svg")),
        ("profile nowhere", ("MODELS", "nowhere")),
        ("plan", ("MODELS", "--url")),
        ("plan MODELS --rate both", ("--rate", "NAME=RPS")),
        ("plan MODELS --rate both=-1", ("--rate", "0 or more")),
        ("plan MODELS --rate none=1", ("--rate", "not one of the models")),
        ("plan MODELS --what-if both=3", ("--what-if", "MODEL.slo=50ms")),
        ("plan MODELS --what-if none.slo=3s", ("--what-if", "no profile of 'none'")),
        ("plan MODELS --what-if units=0", ("--what-if", "1 to 1024")),
        ("plan MODELS --url http://localhost:1", ("--url", "omit MODELS")),
        ("plan --url localhost:1", ("--url", "http://HOST:PORT")),
    ],
)
def test_bad_words_get_one_sentence(models: Path, capsys: Capture, words: str, names: tuple[str, ...]) -> None:
    given = [str(models) if word == "MODELS" else word for word in words.split()]
    assert main(["serve", *given]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert all(name in last for name in names), last


def test_a_folder_named_like_a_command_is_served_by_its_path(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "profile"
    folder.mkdir()
    assert main(["serve", "run", str(folder), "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {}
