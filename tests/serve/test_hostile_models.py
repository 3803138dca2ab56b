"""Models that misbehave: callables that exit, fork or hang, and folders with files that are none."""

import asyncio
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("google.protobuf")
from cotenant.serve.frontend.admin import AdminService
from cotenant.serve.frontend.engine import Engine
from cotenant.serve.frontend.server_settings import ServerLog
from cotenant.serve.runtime.model import ModelSource
from cotenant.serve.runtime.repository import Repository
from tests.support.model_servers import BEARER, HELD, Server, explicit_control, identity
from tests.support.node_in_process import until

pytestmark = pytest.mark.live

MISBEHAVIOUR = '''
"""Callables that do what a server must survive."""

import os
import time

import numpy as np

from cotenant.api import Model


class NoText(Exception):
    def __str__(self):
        raise RuntimeError


class Everything(dict):
    def __getitem__(self, name):
        raise SystemExit(4)


def _act(tensors):
    what = int(tensors["X"].flat[0])
    if what == 1:
        raise SystemExit(3)
    if what == 2:
        raise KeyboardInterrupt
    if what == 3:
        raise NoText
    if what == 4:
        return Everything()
    if what == 5:
        raise GeneratorExit
    if what == 6:
        os.fork()  # the child returns as well
    while what == 7 and os.path.exists(HELD):
        time.sleep(0.01)
    return {"X": tensors["X"]}


tensors = {"inputs": {"X": ("FP32", (1,))}, "outputs": {"X": ("FP32", (1,))}}
acts = Model(_act, name="acts", **tensors)
inline = Model(_act, name="inline", inline=True, **tensors)
same = Model(lambda tensors: tensors, name="same", **tensors)
'''
HANGING_IMPORT = "import os, time\nwhile os.path.exists({held!r}):\n    time.sleep(0.01)\n"
CORES = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "odd.py").write_text(f"{MISBEHAVIOUR}HELD = {str(folder / HELD)!r}\n")
    identity(folder / "good.onnx", "FP32")
    (folder / "link.py").symlink_to(folder / "nothing.py")
    (folder / "itself.onnx").symlink_to(folder / "itself.onnx")
    (folder / "zeros.onnx").symlink_to("/dev/zero")
    (folder / "folder.py").mkdir()
    for name in ("pipe.py", "pipe.onnx", "good.toml", "repository"):
        if name == "repository":
            (folder / name / "1").mkdir(parents=True)
            os.mkfifo(folder / name / "config.pbtxt")
            os.mkfifo(folder / name / "1" / "model.onnx")
        elif name != "good.toml":
            os.mkfifo(folder / name)
    identity(folder / "piped.onnx", "FP32")
    os.mkfifo(folder / "piped.toml")
    (folder / "deep.py").write_text("x = " + "-" * 100_000 + "1\n")
    (folder / "sparse.py").touch()
    os.truncate(folder / "sparse.py", 1 << 34)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    server = Server(folder, *explicit_control(folder), "--cores", str(CORES), "--run-limit", "1s")
    yield server
    server.stop()


def fetch(address: str, path: str, tree: object = None) -> tuple[int, str]:
    body = None if tree is None else json.dumps(tree).encode()
    request = urllib.request.Request(f"http://{address}/{path}", body, BEARER)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def act(server: Server, model: str, what: int) -> tuple[int, str]:
    tensor = {"name": "X", "shape": [1], "datatype": "FP32", "data": [what]}
    return fetch(server.http, f"v2/models/{model}/infer", {"inputs": [tensor]})


@pytest.mark.parametrize("model", ["acts", "inline"])
@pytest.mark.parametrize(
    "what, text",
    [(1, "SystemExit: 3"), (2, "KeyboardInterrupt"), (3, "NoText"), (4, "SystemExit: 4"), (5, "Generator")],
)
def test_callable_that_ends_its_thread_fails_its_request_only(server: Server, model: str, what: int, text: str) -> None:
    for _ in range(CORES + 1):  # more than there are threads
        status, answer = act(server, model, what)
        assert (status, f"model '{model}' failed" in answer, text in answer) == (500, True, True), answer
    assert act(server, "same", 0)[0] == 200


@pytest.mark.parametrize("model", ["acts", "inline"])
def test_fork_of_a_callable_ends(server: Server, model: str) -> None:
    assert act(server, model, 6)[0] == 200
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")

    def no_child_runs() -> bool:
        states = [
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in children.read_text().split()
        ]
        return set(states) <= {"Z"}

    until(no_child_runs)
    assert act(server, "same", 0)[0] == 200


def test_run_that_hangs_is_abandoned(server: Server, folder: Path) -> None:
    (folder / HELD).touch()
    try:
        for _ in range(4):  # more than there are cores
            status, answer = act(server, "acts", 7)
            assert (status, "--run-limit" in answer) == (500, True), answer
        assert act(server, "same", 0)[0] == 200
        status, answer = act(server, "acts", 0)
        assert (status, "hang" in answer) == (503, True), answer
        assert fetch(server.http, "v2/models/acts/ready")[0] == 503
    finally:
        (folder / HELD).unlink()
    until(lambda: act(server, "acts", 0)[0] == 200)
    assert fetch(server.http, "v2/models/acts/ready")[0] == 200


@pytest.mark.parametrize(
    "name, reason",
    [
        ("link", "cannot be read"),
        ("itself", "cannot be read"),
        ("zeros", "not a regular file"),
        ("pipe", "not a regular file"),
        ("piped", "not a regular file"),
        ("repository", "has no model.onnx"),
        ("deep", "deep.py fails"),
        ("sparse", "are the limit"),
    ],
)
def test_entry_that_is_no_model_is_listed_with_its_reason(server: Server, name: str, reason: str) -> None:
    status, text = fetch(server.http, "v2/repository/index", {})
    assert status == 200
    (entry,) = [model for model in json.loads(text) if model["name"] == name]
    assert (entry["state"], reason in entry["reason"]) == ("UNAVAILABLE", True), entry
    status, text = fetch(server.admin, f"v2/repository/models/{name}/load", {})
    assert (status, "failed to load" in text) == (400, True), text
    assert "good" in server.models


def test_model_that_vanishes_is_served_until_it_is_unloaded(server: Server, folder: Path) -> None:
    identity(folder / "brief.onnx", "FP32")
    assert fetch(server.admin, "v2/repository/models/brief/load", {})[0] == 200
    (folder / "brief.onnx").unlink()
    status, text = fetch(server.admin, "v2/repository/models/brief/load", {})
    assert (status, "there is no such model" in text) == (404, True)
    tensor = {"name": "IN", "shape": [1, 4], "datatype": "FP32", "data": [1.0] * 4}
    assert fetch(server.http, "v2/models/brief/infer", {"inputs": [tensor]})[0] == 200


def test_server_whose_folder_vanishes_keeps_its_models(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    identity(folder / "good.onnx", "FP32")
    server = Server(folder, "--model-control", "poll", "--poll-interval", "20ms")
    folder.rename(tmp_path / "moved")
    status, text = fetch(server.http, "v2/repository/index", {})
    assert (status, "cannot be listed" in text) == (500, True)
    time.sleep(0.2)  # several polls
    (tmp_path / "moved").rename(folder)
    identity(folder / "other.onnx", "FP32")
    until(lambda: fetch(server.http, "v2/models/other/ready")[0] == 200)
    assert fetch(server.http, "v2/models/good/ready")[0] == 200
    server.stop()


def test_file_replaced_by_something_else_while_polling_affects_no_model(tmp_path: Path) -> None:
    """Each replacement is seen by several polls: the loaded version answers until a good file is there again."""
    folder = tmp_path / "models"
    identity(folder / "good.onnx", "FP32")
    identity(folder / "changed.onnx", "FP32")
    path, hidden = folder / "changed.onnx", folder / ".changed"
    server = Server(folder, "--model-control", "poll", "--poll-interval", "20ms")
    replacements: list[Callable[[], object]] = [
        lambda: os.mkfifo(hidden),
        lambda: hidden.symlink_to("/dev/zero"),
        lambda: hidden.symlink_to(path),
        lambda: hidden.symlink_to("/proc/self/mem"),
        lambda: hidden.write_bytes(b"\x08" * 10_000),
    ]
    tensor = {"name": "IN", "shape": [1, 4], "datatype": "FP32", "data": [1.0] * 4}
    for replace in replacements:
        replace()
        hidden.rename(path)  # at once: a model whose file is missing at a poll is unloaded
        identity(folder / "marker.onnx", "FP32")  # two polls later it is served, so the polls do not hang
        until(lambda: fetch(server.http, "v2/models/marker/ready")[0] == 200)
        for model in ("good", "changed"):
            assert fetch(server.http, f"v2/models/{model}/infer", {"inputs": [tensor]})[0] == 200
        (folder / "marker.onnx").unlink()
        until(lambda: fetch(server.http, "v2/models/marker/ready")[0] != 200)
    identity(hidden, "INT64")
    hidden.rename(path)
    until(lambda: "INT64" in fetch(server.http, "v2/models/changed")[1])
    server.stop()


def test_import_that_hangs_does_not_keep_the_server(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    identity(folder / "good.onnx", "FP32")
    server = Server(folder, "--model-control", "poll", "--poll-interval", "20ms")
    held = tmp_path / HELD
    held.touch()
    (folder / "hangs.py").write_text(HANGING_IMPORT.format(held=str(held)))
    time.sleep(0.3)  # until a poll executes the file
    assert fetch(server.http, "v2/models/good/ready")[0] == 200
    server.terminate()
    code, log = server.ended()
    assert (code, "Traceback" in log) == (0, False), log


class ListedModels:
    """A repository and an engine that count how often models are listed and served."""

    all_units = 1

    def __init__(self, count: int) -> None:
        self.scans = 0
        self.served = 0
        self._sources = {
            f"m{number}": ModelSource(f"m{number}", "1", Path("/none"), Path("/none")) for number in range(count)
        }

    def scan(self, *, run_code: bool = False) -> dict[str, ModelSource]:
        del run_code
        self.scans += 1
        return dict(self._sources)

    def load(self, source: ModelSource) -> object:
        return source

    def serve(self, model: object, times: object) -> None:
        del model, times
        self.served += 1

    async def settled(self) -> None:
        return


def test_thousands_of_models_are_listed_once() -> None:
    """Listing parses every Python file: once per model, the start would take time that grows with the square."""
    models = ListedModels(1000)
    admin = AdminService(cast("Engine", models), cast("Repository", models), ServerLog(lambda text: None))
    assert asyncio.run(admin.load_all()) == {}
    assert (models.scans, models.served) == (1, 1000)
