"""Tests that output of `wrk` and `h2load` is parsed, with programs that print the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("google.protobuf")
from cotenant_lab.bench.server.bench import _Contender, _message
from cotenant_lab.bench.server.load import generate, on_core, outside_tools, read_h2load, read_wrk, wrk_script
from cotenant_lab.errors import RunFailedError
from cotenant_lab.loadgen.closed_loop import LoadSpec

pytestmark = pytest.mark.live

WRK = """#!/bin/sh
test "$1 $2 $3" = "-t1 -c8 -d1s" || exit 1
grep -q 'wrk.method = "POST"' "$5" || exit 1
test "$6" = "http://127.0.0.1:7/v2/models/identity/infer" || exit 1
echo "Running 1s test"
echo "cotenant 3000 1500000 ${WRONG:-0} 250.5 900.0"
"""
H2LOAD = """#!/bin/sh
for word in "$@"; do case "$word" in --log-file=*) log="${word#*=}";; esac; done
test "$1 $2 $3 $4" = "-t1 -c4 -m2 -D1" || exit 1
printf '1000\\t200\\t100\\n2000\\t200\\t300\\n11000\\t200\\t100\\n' > "$log"
"""


def make(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def load_of(kind: str) -> LoadSpec:
    return LoadSpec(kind, 7, 8, 0.5, _message(_Contender("", kind, "identity", ())))


def test_installed_tools_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert outside_tools() == {}
    make(tmp_path / "wrk", WRK)
    make(tmp_path / "h2load", H2LOAD)
    assert outside_tools() == {"http": "wrk", "grpc": "h2load"}
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    core = min(os.sched_getaffinity(0))
    over_http = generate(load_of("http"), core, "wrk")
    assert (over_http.requests, over_http.took_ns, over_http.p50_us, over_http.p99_us) == (3000, 1.5e9, 250.5, 900.0)
    over_grpc = generate(load_of("grpc"), core, "h2load")
    assert (over_grpc.requests, over_grpc.took_ns) == (3, 10_100_000)
    assert over_grpc.p50_us == pytest.approx(100, rel=0.05)
    monkeypatch.setenv("WRONG", "3")
    with pytest.raises(RunFailedError, match="errors"):
        generate(load_of("http"), core, "wrk")


def test_failed_load_has_no_result() -> None:
    with pytest.raises(RunFailedError, match="503"):
        read_h2load("1000\t200\t5\n1000\t503\t5\n")
    with pytest.raises(RunFailedError, match="no answers"):
        read_h2load("")
    with pytest.raises(RunFailedError, match="no answers"):
        read_wrk("cotenant 0 1000 0 0.0 0.0")


def test_wrk_script_contains_the_exact_request() -> None:
    path, script = wrk_script(b'POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nA-B: c\r\n\r\n"\x00\xff')
    assert path == "/x"
    assert 'wrk.body = "\\034\\000\\255"' in script
    assert 'wrk.headers["A-B"] = "c"' in script
    assert "Host" not in script


def test_process_started_on_a_core_stays_there() -> None:
    core = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    with on_core(core):
        program = "import os; print(sorted(os.sched_getaffinity(0)))"
        output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert output.stdout.strip() == str([core])
    assert os.sched_getaffinity(0) == before
