"""Model servers of tests: processes with generated models."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

ONNX_TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}

HELD = "held"
"""While this file exists next to the models, no run of the slow model ends."""
CALLABLES = '''
"""Models that are callables."""

import os
import time

import numpy as np

from cotenant.api import Model


def _slow(tensors):
    time.sleep(float(tensors["SECONDS"].max()))
    while os.path.exists(HELD):
        time.sleep(0.01)
    return {"SECONDS": tensors["SECONDS"]}


def _count(tensors):
    for number in range(int(tensors["UP_TO"][0])):
        yield {"NUMBER": np.array([number], np.int32)}


def _fails(tensors):
    raise RuntimeError("on purpose")


slow = Model(_slow, name="slow", inputs={"SECONDS": ("FP32", (1,))}, outputs={"SECONDS": ("FP32", (1,))}, max_batch=4)
count = Model(
    _count, name="count", inputs={"UP_TO": ("INT32", (1,))}, outputs={"NUMBER": ("INT32", (1,))}, decoupled=True
)
fails = Model(_fails, name="fails", inputs={"X": ("FP32", (1,))}, outputs={"X": ("FP32", (1,))})
'''


def identity(path: Path, datatype: str, shape: list[Any] | None = None) -> None:
    """Write a model that returns its inputs."""
    shape = ["N", 4] if shape is None else shape
    kind = ONNX_TYPES[datatype]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["IN"], ["OUT"])],
        "identity",
        [helper.make_tensor_value_info("IN", kind, shape)],
        [helper.make_tensor_value_info("OUT", kind, shape)],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, graph)


def save(path: Path, graph: Any) -> None:
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=9), str(path))


def add_and_subtract(path: Path) -> None:
    """Write a model with two inputs and two outputs."""
    both = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in ("A", "B", "SUM", "DIFFERENCE")
    ]
    nodes = [helper.make_node("Add", ["A", "B"], ["SUM"]), helper.make_node("Sub", ["A", "B"], ["DIFFERENCE"])]
    save(path, helper.make_graph(nodes, "both", both[:2], both[2:]))


def write_callables(folder: Path) -> None:
    """Write Python models; the slow one waits while a file exists."""
    (folder / "callables.py").write_text(f"{CALLABLES}HELD = {str(folder / HELD)!r}\n")


def make_models(folder: Path) -> None:
    """Write one model of each kind."""
    for datatype in ONNX_TYPES:
        identity(folder / f"id_{datatype.lower()}.onnx", datatype)
    identity(folder / "wide.onnx", "FP32", ["N", "M"])
    add_and_subtract(folder / "both.onnx")
    write_callables(folder)
    (folder / "slow.toml").write_text("queue = 8\n")
    (folder / "broken.onnx").write_bytes(b"no model at all")


TOKEN = "0123456789abcdef-token"
BEARER = {"authorization": f"Bearer {TOKEN}"}


def explicit_control(folder: Path) -> tuple[str, ...]:
    """Return the flags of a server whose admin listener accepts `TOKEN`."""
    path = folder.parent / f"{folder.name}-token"
    path.write_text(f"{TOKEN}\n")
    return "--model-control", "explicit", "--admin-port", "0", "--admin-token-file", str(path)


class Server:
    """A `cotenant serve run` process that is ready."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        """Start it and wait until it is ready."""
        self.folder = folder
        ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cotenant", "serve", "run", str(folder), *ports, "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"COTENANT_DIRECTORY": f"{folder}-node", **os.environ, "PYTHONDEVMODE": "1"},
        )
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(120), "the server does not get ready"
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1].decode()
        ports_and_models = json.loads(line)
        self.http = f"127.0.0.1:{ports_and_models['http']}"
        self.grpc = f"127.0.0.1:{ports_and_models['grpc']}"
        self.metrics = f"127.0.0.1:{ports_and_models['metrics']}"
        self.admin = f"127.0.0.1:{ports_and_models['admin']}"
        self.models: list[str] = ports_and_models["models"]

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def ended(self) -> tuple[int, str]:
        """Return its exit code and its output."""
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors.decode()

    def stop(self) -> None:
        self.terminate()
        code, errors = self.ended()
        assert code == 0, errors
        assert "Traceback" not in errors, errors
