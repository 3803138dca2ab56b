"""Profile and plan of models from the command line, and their use by a server."""

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


def command_output(capsys: Capture, *arguments: str, code: int = 0) -> str:
    """Return the output of a command."""
    assert main(["serve", *arguments]) == code, capsys.readouterr().err
    return capsys.readouterr().out


def test_profiles_are_cached_and_used_by_plan_and_server(models: Path, tmp_path: Path, capsys: Capture) -> None:
    profiled = json.loads(
        command_output(capsys, "profile", str(models), "--budget", "150ms", "--shape", "wide=IN:5", "--json")
    )
    both, broken, wide = sorted(profiled["models"], key=lambda model: model["model"])
    assert "refused" in broken
    assert {time["rows"] for time in both["times"]} == {1, 2}
    assert all(0 < time["typical_ns"] <= time["high_ns"] for time in both["times"])
    assert wide["inputs"] == {"IN": [5]}
    assert {"curve_units", "model_units", "distance_units"} <= both["knee"].keys()
    second_output = command_output(capsys, "profile", str(models), "--plot", str(tmp_path / "curves.svg"))
    assert second_output.count("(stored)") == 2
    assert second_output.count("knee at") == 2
    assert "<svg" in (tmp_path / "curves.svg").read_text()

    arguments = ("plan", str(models), "--rate", "both=50", "--what-if", "both.slo=1s", "--json")
    plan = json.loads(command_output(capsys, *arguments))
    assert [model["model"] for model in plan["now"]["plan"]["models"]] == ["both", "wide"]
    assert (plan["now"]["slos_ns"]["both"], plan["then"]["slos_ns"]["both"]) == (20_000_000, 10**9)
    assert "wide: removed" in command_output(capsys, "plan", str(models), "--what-if", "without=wide")
    unknown = command_output(capsys, "plan", str(models), "--profiles", str(tmp_path / "nothing"), code=1)
    assert "cotenant serve profile" in " ".join(unknown.split())

    server = Server(models)
    try:
        with urllib.request.urlopen(f"http://{server.http}/v2/cotenant/plan") as answer:
            report = json.load(answer)
        assert [model["profiled"] for model in report["models"]] == [True, True]
        assert "run times relative to the profiles" in command_output(capsys, "plan", "--url", f"http://{server.http}")
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
def test_invalid_arguments_are_reported_in_one_line(
    models: Path, capsys: Capture, words: str, names: tuple[str, ...]
) -> None:
    arguments = [str(models) if word == "MODELS" else word for word in words.split()]
    assert main(["serve", *arguments]) == 2
    last_line = capsys.readouterr().err.strip().splitlines()[-1]
    assert all(name in last_line for name in names), last_line


def test_folder_named_like_a_command_can_be_served(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "profile"
    folder.mkdir()
    assert main(["serve", "run", str(folder), "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {}
