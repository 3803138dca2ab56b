"""Load generators of bench `server`: our own, and `wrk` and `h2load` if they are installed.

All of them run on one core and send the next request of a client after its answer. If an installed tool fails, the
bench fails, because all contenders of a run must have the same load.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from cotenant.units.histogram import Recorder
from cotenant.units.instant import MICROSECOND_NS, SECOND_NS
from cotenant_lab.errors import RunFailedError
from cotenant_lab.loadgen.closed_loop import Answers, LoadSpec

OWN: Final = "own"
TOOLS: Final = {"http": "wrk", "grpc": "h2load"}
_CONNECTIONS: Final = 4
_WARM_UP: Final = 0.2
_PATH: Final = "/inference.GRPCInferenceService/ModelInfer"
_EXTRA_SECONDS: Final = 60
_WRK: Final = """
wrk.method = "{method}"
wrk.body = "{body}"
{headers}
done = function(summary, latency, requests)
  local errors = summary.errors
  local wrong = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format("\\ncotenant %d %d %d %f %f\\n", summary.requests, summary.duration, wrong,
    latency:percentile(50.0), latency:percentile(99.0)))
end
"""


def outside_tools() -> dict[str, str]:
    """Return the installed load generators by protocol, other than our own."""
    return {kind: tool for kind, tool in TOOLS.items() if shutil.which(tool)}


@contextlib.contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Start processes within this context on one core, including all their threads."""
    cores = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def generate(load: LoadSpec, core: int | None, tool: str = OWN) -> Answers:
    """Put a server under load."""
    if tool == "wrk":
        return _with_wrk(load, core)
    if tool == "h2load":
        return _with_h2load(load, core)
    command = [sys.executable, "-m", "cotenant_lab.loadgen.closed_loop"]
    output = _run(command, core, load.seconds, msgspec.json.encode(load))
    return msgspec.json.decode(output, type=Answers)


def _run(command: list[str], core: int | None, seconds: float, text: bytes = b"") -> bytes:
    with on_core(core):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output, errors = process.communicate(text, timeout=seconds + _EXTRA_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise RunFailedError(f"the load generator {command[0]} does not end") from None
    if process.returncode != 0:
        raise RunFailedError(f"the load generator failed: {errors.decode(errors='replace').strip()[-500:]}")
    return output


def wrk_script(request: bytes) -> tuple[str, str]:
    """Return the path of a request and the script with which `wrk` sends it and prints results."""
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split(" ")
    pairs = [line.split(": ", 1) for line in lines if not line.lower().startswith(("host:", "content-length:"))]
    headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in pairs)
    return path, _WRK.format(method=method, body="".join(f"\\{byte:03d}" for byte in body), headers=headers)


def _with_wrk(load: LoadSpec, core: int | None) -> Answers:
    path, script = wrk_script(load.message)
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "request.lua"
        file.write_text(script)
        seconds = max(round(load.seconds), 1)  # wrk takes whole seconds
        flags = ("-t1", f"-c{load.concurrency}", f"-d{seconds}s", "-s", str(file))
        output = _run(["wrk", *flags, f"http://127.0.0.1:{load.port}{path}"], core, seconds)
    return read_wrk(output.decode(errors="replace"))


def read_wrk(output: str) -> Answers:
    """Parse the line that our script makes `wrk` print at the end."""
    match = re.search(r"^cotenant (\d+) (\d+) (\d+) ([\d.]+) ([\d.]+)$", output, re.MULTILINE)
    if match is None or int(match[3]) or not int(match[1]):
        raise RunFailedError(f"wrk got errors or no answers: {output.strip()[-500:]}")
    requests = int(match[1])
    return Answers(requests, int(match[2]) * MICROSECOND_NS, float(match[4]), float(match[5]), requests)


def _with_h2load(load: LoadSpec, core: int | None) -> Answers:
    clients = min(load.concurrency, _CONNECTIONS)
    with tempfile.TemporaryDirectory() as home:
        file, log = Path(home) / "message", Path(home) / "log"
        file.write_bytes(b"\x00" + len(load.message).to_bytes(4, "big") + load.message)
        flags = ("-t1", f"-c{clients}", f"-m{load.concurrency // clients}", f"-D{max(round(load.seconds), 1)}")
        sends = ("-d", str(file), "-H", "content-type: application/grpc", "-H", "te: trailers")
        warm = f"--warm-up-time={max(round(load.seconds * _WARM_UP * 1000), 1)}ms"
        command = ["h2load", *flags, *sends, warm, f"--log-file={log}", f"http://127.0.0.1:{load.port}{_PATH}"]
        _run(command, core, load.seconds)
        return read_h2load(log.read_text())


def read_h2load(log: str) -> Answers:
    """Parse its log: for each request the start in us, the status and the duration in us."""
    recorder = Recorder()
    first = last = 0
    for line in log.splitlines():
        begin, status, took = (int(word) for word in line.split()[:3])
        if status != 200:
            raise RunFailedError(f"h2load got an answer with status {status}")
        first = min(first or begin, begin)
        last = max(last, begin + took)
        recorder.record(took * MICROSECOND_NS)
    histogram = recorder.histogram()
    if not histogram.count:
        raise RunFailedError("h2load got no answers")
    quantiles = (histogram.quantile(0.5) / MICROSECOND_NS, histogram.quantile(0.99) / MICROSECOND_NS)
    took_ns = max((last - first) * MICROSECOND_NS, SECOND_NS // 1000)
    return Answers(histogram.count, took_ns, *quantiles, round(histogram.count * (1 + _WARM_UP)))
