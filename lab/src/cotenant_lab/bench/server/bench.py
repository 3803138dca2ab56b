"""Measure the cost of serving an identity model, compared with plain servers that only echo bytes.

Servers run on one core and load on another, with several requests at a time. All contenders are started first and then
take turns of a few seconds, in another order in every round, so that other load on the machine affects all of them
equally; a contender is idle outside its turn. Results are medians over the rounds. Where `wrk` and `h2load` are
installed, each contender is measured with them as well, in the same turns, at the highest concurrency.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from cotenant.errors import SetupError, WorldError
from cotenant.runner.clock import pause
from cotenant.serve.protocol.oip.proto import TYPES
from cotenant_lab.bench.server.load import OWN, TOOLS, generate, on_core, outside_tools
from cotenant_lab.errors import RunFailedError
from cotenant_lab.loadgen.closed_loop import LoadSpec

CONCURRENCIES: Final = (1, 8, 32)
_SECONDS: Final = 2.0
_ELEMENTS: Final = 16
_READY_TRIES: Final = 600
_COMPETITORS: Final = "cotenant_lab.competitors"
CALLABLE: Final = '''"""The identity as a callable."""

from cotenant.api import Model

identity = Model(
    lambda tensors: {"OUTPUT0": tensors["INPUT0"]},
    name="identity",
    inputs={"INPUT0": ("FP32", (16,))},
    outputs={"OUTPUT0": ("FP32", (16,))},
    max_batch=64,
    inline=True,
)
'''


class ServerMetrics(msgspec.Struct, frozen=True):
    """One contender at one concurrency."""

    name: str
    concurrency: int
    rps: float
    p50_us: float
    p99_us: float
    cpu_us_per_request: float


class ServerReport(msgspec.Struct, frozen=True):
    """All contenders, and ratios at the highest concurrency."""

    rounds: int
    metrics: list[ServerMetrics]
    """By our own load generator."""
    outside: dict[str, list[ServerMetrics]]
    """By each other load generator that is installed, at the highest concurrency."""
    vs_fastapi: float
    """HTTP with binary tensors, callable identity: requests per second over those of FastAPI."""
    vs_bare_echo: float
    """gRPC, callable identity: over those of grpc.aio on its own loop."""
    vs_bare_echo_uvloop: float
    vs_fastapi_onnx: float
    vs_bare_echo_onnx: float
    cpu_vs_fastapi: float
    """Ratio of CPU times per request instead of requests per second, which a busy machine changes less."""
    cpu_vs_bare_echo: float


class _Contender(msgspec.Struct, frozen=True):
    name: str
    kind: str
    model: str
    command: tuple[str, ...]
    """`{port}` stands for the port."""


def bench_server(rounds: int, report: Callable[[str], None], *, quick: bool = False) -> ServerReport:
    """Measure every contender at every concurrency."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SetupError("bench server needs two cores, one for the server and one for the load")
    tools = outside_tools()
    if missing := sorted(set(TOOLS.values()) - set(tools.values())):
        report(f"not installed, so not used: {', '.join(missing)}")
    seconds = _SECONDS / 4 if quick else _SECONDS
    samples: dict[tuple[str, str, int], list[ServerMetrics]] = {}
    with tempfile.TemporaryDirectory() as home, contextlib.ExitStack() as started:
        servers: list[_Running] = []
        for contender in _contenders(Path(home)):
            report(f"starting {contender.name}")
            servers.append(started.enter_context(_running(contender, cores[0])))
        for number in range(rounds):
            turn = servers[number % len(servers) :] + servers[: number % len(servers)]
            for concurrency in CONCURRENCIES:
                report(f"round {number + 1} of {rounds}, {concurrency} at a time")
                for server in turn:
                    outside = tools.get(server.contender.kind) if concurrency == CONCURRENCIES[-1] else None
                    for tool in (OWN, *([outside] if outside else [])):
                        sample = _measure(server, concurrency, seconds, cores[-1], tool)
                        samples.setdefault((tool, server.contender.name, concurrency), []).append(sample)
    order = [server.contender.name for server in servers]
    by_tool = {tool: _medians(samples, tool, order) for tool in (OWN, *tools.values())}
    return _report(rounds, by_tool.pop(OWN), by_tool)


def _medians(
    samples: dict[tuple[str, str, int], list[ServerMetrics]], tool: str, order: list[str]
) -> list[ServerMetrics]:
    medians = [_median(rounds_of_one) for (used, _, _), rounds_of_one in samples.items() if used == tool]
    return sorted(medians, key=lambda metrics: (order.index(metrics.name), metrics.concurrency))


def _contenders(home: Path) -> list[_Contender]:
    from onnx import TensorProto, helper, save  # noqa: PLC0415  only the bench makes models

    (home / "identity.py").write_text(CALLABLE)
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", _ELEMENTS]) for name in ("INPUT0", "OUTPUT0")
    ]
    graph = helper.make_graph([helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])], "i", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, str(home / "identity_onnx.onnx"))
    python = sys.executable
    serve = (python, "-m", "cotenant", "serve", "run", str(home), "--metrics-port", "-1")
    over_http = (*serve, "--grpc-port", "-1", "--http-port", "{port}")
    over_grpc = (*serve, "--http-port", "-1", "--grpc-port", "{port}")
    return [
        _Contender("http", "http", "identity", over_http),
        _Contender("fastapi", "http", "identity", (python, "-m", f"{_COMPETITORS}.plain_fastapi", "{port}")),
        _Contender("http onnx", "http", "identity_onnx", over_http),
        _Contender("grpc", "grpc", "identity", over_grpc),
        _Contender("grpc.aio echo", "grpc", "identity", (python, "-m", f"{_COMPETITORS}.bare_grpc", "{port}")),
        _Contender(
            "grpc.aio uvloop echo", "grpc", "identity", (python, "-m", f"{_COMPETITORS}.bare_grpc", "{port}", "uvloop")
        ),
        _Contender("grpc onnx", "grpc", "identity_onnx", over_grpc),
    ]


class _Running(NamedTuple):
    contender: _Contender
    process: subprocess.Popen[bytes]
    port: int


@contextlib.contextmanager
def _running(contender: _Contender, core: int) -> Iterator[_Running]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [part.format(port=port) for part in contender.command]
    with on_core(core):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _until_ready(contender, process, port)
        yield _Running(contender, process, port)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_ready(contender: _Contender, process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until it answers one request: `cotenant serve` listens before its models are loaded."""
    for _ in range(_READY_TRIES):
        if process.poll() is not None:
            break
        try:
            generate(LoadSpec(contender.kind, port, 1, 0.001, _message(contender)), None)
        except (RunFailedError, WorldError, OSError):
            pause(0.1)
        else:
            return
    raise RunFailedError(f"the contender {contender.name!r} does not become ready")


def _message(contender: _Contender) -> bytes:
    if contender.kind == "grpc":
        asked = TYPES["ModelInferRequest"](model_name=contender.model)
        asked.inputs.add(name="INPUT0", datatype="FP32", shape=[1, _ELEMENTS])
        asked.outputs.add(name="OUTPUT0")
        asked.raw_input_contents.append(bytes(4 * _ELEMENTS))
        packed: bytes = asked.SerializeToString()
        return packed
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, _ELEMENTS]}
    sized: dict[str, Any] = {**tensor, "parameters": {"binary_data_size": 4 * _ELEMENTS}}
    wanted = {"name": "OUTPUT0", "parameters": {"binary_data": True}}
    front = msgspec.json.encode({"inputs": [sized], "outputs": [wanted]})
    lines = (
        f"POST /v2/models/{contender.model}/infer HTTP/1.1",
        "Host: localhost",
        f"Inference-Header-Content-Length: {len(front)}",
        "Content-Type: application/octet-stream",
        f"Content-Length: {len(front) + 4 * _ELEMENTS}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + front + bytes(4 * _ELEMENTS)


def _measure(server: _Running, concurrency: int, seconds: float, core: int, tool: str) -> ServerMetrics:
    contender = server.contender
    load = LoadSpec(contender.kind, server.port, concurrency, seconds, _message(contender))
    before_s = _cpu_s(server.process.pid)
    answers = generate(load, core, tool)
    used_s = _cpu_s(server.process.pid) - before_s
    rps = answers.requests * 1e9 / answers.took_ns
    cpu_us = used_s * 1e6 / max(answers.all_requests, 1)
    return ServerMetrics(contender.name, concurrency, rps, answers.p50_us, answers.p99_us, cpu_us)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _median(metrics: list[ServerMetrics]) -> ServerMetrics:
    names = ("rps", "p50_us", "p99_us", "cpu_us_per_request")
    middle = {name: round(statistics.median(getattr(metric, name) for metric in metrics), 1) for name in names}
    return msgspec.structs.replace(metrics[0], **middle)


def _report(rounds: int, metrics: list[ServerMetrics], outside: dict[str, list[ServerMetrics]]) -> ServerReport:
    top = {metric.name: metric.rps for metric in metrics if metric.concurrency == CONCURRENCIES[-1]}

    cpu = {metric.name: metric.cpu_us_per_request for metric in metrics if metric.concurrency == CONCURRENCIES[-1]}

    def ratio(ours: str, theirs: str) -> float:
        return round(top[ours] / top[theirs], 2)

    return ServerReport(
        rounds,
        metrics,
        outside,
        vs_fastapi=ratio("http", "fastapi"),
        vs_bare_echo=ratio("grpc", "grpc.aio echo"),
        vs_bare_echo_uvloop=ratio("grpc", "grpc.aio uvloop echo"),
        vs_fastapi_onnx=ratio("http onnx", "fastapi"),
        vs_bare_echo_onnx=ratio("grpc onnx", "grpc.aio echo"),
        cpu_vs_fastapi=round(cpu["fastapi"] / max(cpu["http"], 0.1), 2),
        cpu_vs_bare_echo=round(cpu["grpc.aio echo"] / max(cpu["grpc"], 0.1), 2),
    )


def show_server(console: Console, report: ServerReport) -> None:
    """Print a row for each contender and concurrency, and the ratios."""
    table = Table("contender", "by", "at a time", "rps", "p50 us", "p99 us", "cpu us/request", box=None)
    for tool, metrics in ((OWN, report.metrics), *report.outside.items()):
        for metric in metrics:
            numbers = (metric.rps, metric.p50_us, metric.p99_us, metric.cpu_us_per_request)
            table.add_row(metric.name, tool, str(metric.concurrency), *(f"{number:,.0f}" for number in numbers))
    console.print(table)
    console.print(f"HTTP over a plain FastAPI endpoint: {report.vs_fastapi} (ONNX: {report.vs_fastapi_onnx})")
    uvloop = f"under uvloop {report.vs_bare_echo_uvloop}"
    console.print(f"gRPC over a bare grpc.aio echo: {report.vs_bare_echo} ({uvloop}, ONNX: {report.vs_bare_echo_onnx})")
