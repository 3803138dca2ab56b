"""Do models run on a GPU in workers held to their part of it, and does the server outlive what becomes of them?

All of it on a software GPU, with its MPS: the workers are real processes and the device's own counters are the judge.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cotenant.live.clock import pause
from cotenant.live.softgpu import manage
from tests.live.servers import Server, identity

TENSORS = """
[[input]]
name = "IN"
datatype = "FP32"
shape = [4]
[[output]]
name = "OUT"
datatype = "INT32"
shape = [2]
"""
WIDE = f"""
max_batch = 4
rounds = 4
weights = "2MiB"
{TENSORS}
[[kernel]]
name = "wide"
block_time = "100us"
blocks = 400
per_sm = 1
"""
QUICK = f"""
max_batch = 4
{TENSORS}
[[kernel]]
name = "narrow"
block_time = "50us"
blocks_per_row = 1
"""
LONG = f"""
{TENSORS}
[[kernel]]
name = "long"
block_time = "1500ms"
blocks = 1
"""
ENDLESS = LONG.replace("1500ms", "600s")


class Place:
    """Directories, a software GPU, and models."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.gpus = home / "run" / "softgpu"
        self.flags = ("--directories-runtime", str(home / "run"), "--directories-state", str(home / "state"))
        (home / "run").mkdir(mode=0o700)
        manage.create(self.gpus, "v100", 1)

    def folder(self, name: str, **models: str) -> Path:
        folder = self.home / name
        folder.mkdir()
        for model, text in models.items():
            (folder / f"{model}.replay.toml").write_text(text)
        return folder

    def serve(self, folder: Path, *arguments: str, tenants: str = "no") -> Server:
        return Server(folder, "--runtime", "replay", "--tenants", tenants, *self.flags, *arguments)

    def clients(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = manage.inspect(self.gpus, 0)["clients"]
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("gpu"))
    yield made
    manage.destroy(made.gpus)


def ask(server: Server, model: str, rows: int | None = 1) -> tuple[int, Any]:
    """The status and the body of an answer."""
    shape = [4] if rows is None else [rows, 4]
    data = [1.0] * (4 * (rows or 1))
    body = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": shape, "data": data}]}).encode()
    url = f"http://{server.http}/v2/models/{model}/infer"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def until(found: Callable[[], Any]) -> Any:
    """What it is once it is something."""
    for _ in range(1500):
        value = found()
        if value:
            return value
        pause(0.02)
    raise AssertionError("it never came")


def test_a_run_keeps_to_its_width(place: Place) -> None:
    """By the device's own counters: never more SMs at once than the share, and all of those."""
    folder = place.folder("width", wide=WIDE, quick=QUICK)
    (folder / "wide.toml").write_text("share = 30\n")
    server = place.serve(folder)
    try:
        status, answer = ask(server, "wide", 3)
        assert status == 200, answer
        assert answer["outputs"] == [{"name": "OUT", "datatype": "INT32", "shape": [3, 2], "data": [0] * 6}]
        wide = max((one["counters"] for one in place.clients()), key=lambda one: int(one["sm_ns"]))
        assert 20 * wide["busy_ns"] < wide["sm_ns"] <= 24 * wide["busy_ns"]  # of 80: the last wave is not full
        with ThreadPoolExecutor(8) as senders:
            told = list(senders.map(lambda rows: ask(server, "quick", rows), [1, 2, 3, 4] * 4))
        for (status, answer), rows in zip(told, [1, 2, 3, 4] * 4, strict=True):
            assert status == 200, answer
            assert answer["outputs"][0]["shape"] == [rows, 2]
    finally:
        server.stop()
    assert not place.clients()


def test_a_run_whose_worker_dies_is_tried_once_more_and_all_come_back(place: Place) -> None:
    """Under MPS its death with work in flight strikes the others as well, who are ready again by themselves."""
    server = place.serve(place.folder("death", long=LONG, quick=QUICK))
    try:
        before = {one["pid"] for one in place.clients()}
        with ThreadPoolExecutor(1) as sender:
            under_way = sender.submit(ask, server, "long", None)
            victim = until(lambda: [one["pid"] for one in place.clients() if one["counters"]["busy_ns"]])[0]
            os.kill(victim, signal.SIGKILL)
            status, answer = under_way.result()
        assert status == 200, answer
        assert ask(server, "quick")[0] == 200
        assert not before & {one["pid"] for one in place.clients()}
    finally:
        server.stop()


def test_a_run_that_does_not_end_is_given_up_and_harms_nobody(place: Place) -> None:
    server = place.serve(place.folder("hang", endless=ENDLESS, quick=QUICK), "--run-limit", "1s")
    try:
        before = {one["pid"] for one in place.clients()}
        status, answer = ask(server, "endless", None)
        assert status == 500
        assert "took longer than 1 s" in answer["error"]
        after = until(lambda: (now := {one["pid"] for one in place.clients()}) != before and len(now) == 2 and now)
        assert len(before & after) == 1, "the other model's worker was not struck"
        assert ask(server, "quick")[0] == 200
    finally:
        server.stop()


def test_workers_end_with_their_server(place: Place) -> None:
    server = place.serve(place.folder("killed", quick=QUICK))
    assert place.clients()
    server.process.kill()
    server.process.communicate()
    until(lambda: not place.clients())


def test_what_does_not_run_there_is_refused_in_a_sentence(place: Place) -> None:
    folder = place.folder("refused", quick=QUICK, damaged="rounds = 0\n")
    identity(folder / "onnx.onnx", "FP32")
    server = place.serve(folder)
    try:
        assert server.models == ["quick"]
    finally:
        server.terminate()
        code, said = server.ended()
    assert code == 0
    assert "only .replay.toml files do" in said
    assert "damaged.replay.toml" in said


def test_onnx_on_a_gpu_that_is_not_there_is_one_sentence(place: Place) -> None:
    folder = place.home / "cuda"
    identity(folder / "one.onnx", "FP32")
    server = Server(folder, "--runtime", "onnx-cuda", "--tenants", "no", *place.flags)
    try:
        assert server.models == []
    finally:
        server.terminate()
        code, said = server.ended()
    assert code == 0
    assert "has no CUDAExecutionProvider here" in said


def test_workers_are_tenants_and_pass_each_other_at_the_gate(place: Place) -> None:
    """With their quota, one of them too small; all online, all of one priority, so nobody waits for another."""
    where = ("--runtime", str(place.home / "run"), "--state", str(place.home / "state"))
    command = [sys.executable, "-m", "cotenant"]
    node = subprocess.Popen([*command, "node", *where, "--mps", "on"], stderr=subprocess.PIPE, text=True)
    try:
        assert node.stderr is not None
        for line in node.stderr:
            if "MPS serves" in line:
                break
        folder = place.folder("tenants", one=LONG, two=LONG, three=LONG, poor=WIDE)
        (folder / "poor.toml").write_text('memory = "1MiB"\n')
        for name in ("one", "two", "three"):
            (folder / f"{name}.toml").write_text("share = 30\n")
        server = place.serve(folder, tenants="yes")
        try:
            assert server.models == ["one", "three", "two"]
            listed = json.loads(subprocess.check_output([*command, "ps", *where, "--json"]))
            assert sorted(one["name"].partition(".")[0] for one in listed["tenants"]) == server.models
            with ThreadPoolExecutor(3) as senders:
                told = list(senders.map(lambda name: ask(server, name, None), server.models))
            assert [status for status, _ in told] == [200, 200, 200]
            books = manage.inspect(place.gpus, 0)
            alone_ns = sum(one["counters"]["busy_ns"] for one in books["clients"])
            assert alone_ns >= 3 * 1_500_000_000
            waited = subprocess.check_output([*command, "top", *where, "--once", "--json"])
            assert all(one["waits"] == 0 for one in json.loads(waited).get("tenants", []) if "waits" in one)
        finally:
            server.terminate()
            code, said = server.ended()
        assert code == 0
        assert "poor" in said
    finally:
        node.terminate()
        node.communicate()
