"""A program's requests reach its page: reported from Python, reported from C, or detected by the hook."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cotenant
from cotenant import _native
from tests.support.gate_files import ONLINE, Gate
from tests.support.hook_runs import HOOK_MODES, NATIVE, Hook, compiled, hook_before, run
from tests.support.software_gpus import PROGRAMS

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]
INCLUDE = Path(cotenant.__file__).parent / "include"
SERVED, SPIN_NS = 60, 500_000
TRIES = 5


class OnlineTenant:
    """An online tenant of one soft GPU, and what its page says of its requests."""

    def __init__(self, softgpu: Path, home: Path) -> None:
        self.gate = Gate()
        self.hook: Hook = hook_before(softgpu, home / "hook")

    def run(self, mode: str, *command: str | Path) -> str:
        done = run(command, self.gate.environ(self.hook.environ(mode), ONLINE))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def word(self, name: str) -> int:
        return self.gate.word(ONLINE, name)

    def buckets(self) -> dict[int, int]:
        return {bucket: count for bucket, count in enumerate(self.gate.buckets(ONLINE)) if count}


@pytest.fixture
def tenant(softgpu: Path, tmp_path: Path) -> Iterator[OnlineTenant]:
    online_tenant = OnlineTenant(softgpu, tmp_path)
    yield online_tenant
    online_tenant.gate.close()


@pytest.mark.parametrize("mode", HOOK_MODES)
def test_requests_reported_from_python_are_counted(tenant: OnlineTenant, mode: str) -> None:
    count, is_recorded = tenant.run(mode, sys.executable, PROGRAMS / "request_reporter.py").split()
    assert is_recorded == "True"
    assert tenant.word("requests_ended") == sum(tenant.buckets().values()) == int(count)
    assert tenant.word("requests_sum_ns") >= 57_000_000, "one arrived 50 ms before it was begun, one took 7 ms"
    assert tenant.buckets()[_native.request_bucket(7_000_000)] >= 1
    assert tenant.word("requests_reported") == 1
    assert tenant.word("requests_began_ns") == 0, "none is under way any more"


class RequestProcess:
    """A process of the tenant that begins and ends requests on command."""

    def __init__(self, tenant: OnlineTenant, mode: str) -> None:
        environ = tenant.gate.environ(tenant.hook.environ(mode), ONLINE)
        command = [sys.executable, str(PROGRAMS / "obedient.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(word, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == f"{word}\n"

    def close(self) -> None:
        self._process.communicate(timeout=60)


def test_oldest_request_of_all_processes_is_shown(tenant: OnlineTenant) -> None:
    older, newer = RequestProcess(tenant, "shim"), RequestProcess(tenant, "shim")
    try:
        older.tell("begin")
        began_ns = tenant.word("requests_began_ns")
        newer.tell("begin")
        assert tenant.word("requests_began_ns") == began_ns > 0
        older.tell("end")
        assert tenant.word("requests_began_ns") > began_ns
        newer.tell("pass")  # any further report
        assert tenant.word("requests_began_ns") > began_ns
        older.tell("late")  # one that arrived long before it was begun
        older.tell("end")
        newer.tell("pass")
        assert tenant.word("requests_began_ns") > began_ns
        newer.tell("end")
        assert tenant.word("requests_began_ns") == 0
    finally:
        older.close()
        newer.close()


@pytest.mark.parametrize("mode", HOOK_MODES)
def test_requests_reported_from_c_are_counted(tenant: OnlineTenant, tmp_path: Path, mode: str) -> None:
    flags = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", "-ldl")
    program = compiled(tmp_path, "request_header.c", *flags)
    assert tenant.run(mode, program, "25") == "1"
    assert tenant.word("requests_ended") == sum(tenant.buckets().values()) == 27
    assert tenant.buckets()[_native.request_bucket(3_000_000)] >= 1
    assert tenant.word("requests_began_ns") == 0
    outside = {name: value for name, value in os.environ.items() if not name.startswith("COTENANT_")}
    assert run([program, "25"], outside).stdout == "0\n"


def test_header_compiles_as_cpp(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    command = ["g++", "-x", "c++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-c", "-o", str(tmp_path / "o")]
    subprocess.run([*command, f"-I{INCLUDE}", str(NATIVE / "request_header.c")], check=True)


def test_unreported_requests_are_detected(tenant: OnlineTenant) -> None:
    """Each is a burst of its own: none is shorter than its kernels, and none is counted twice.

    A program that loses its processor at the start is taken for one with long pauses until it ends; then it is run
    again.
    """
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
    ran = ended = 0
    while not ended and ran < TRIES:
        tenant.run("shim", sys.executable, PROGRAMS / "unreported_requests.py", str(SERVED), str(SPIN_NS))
        ran, ended = ran + 1, tenant.word("requests_ended")
    assert 0 < ended < ran * SERVED
    assert sum(tenant.buckets().values()) == ended
    assert tenant.word("requests_reported") == 0
    assert min(tenant.buckets()) >= _native.request_bucket(2 * SPIN_NS)
    assert tenant.word("requests_sum_ns") >= ended * 2 * SPIN_NS


def test_detected_latency_equals_the_duration(tenant: OnlineTenant, tmp_path: Path) -> None:
    """Compare the player's own latencies with those of the hook, with random arrivals of which some wait for others.

    Repeated a few times, because the program must not have lost its processor.
    """
    script = tmp_path / "serve.txt"
    script.write_text("conv 160 256 40000 18000\n" * 20)
    play = [sys.executable, "-m", "cotenant.workload.player", str(script), "--detail"]

    def agree() -> bool:
        before = tenant.buckets()
        output = tenant.run("shim", *play, "--arrival", "poisson", "--period-us", "3000", "--requests", "400")
        durations = sorted(end_ns - begin_ns for _, begin_ns, end_ns in json.loads(output.splitlines()[-1])["detail"])
        counts = {bucket: count - before.get(bucket, 0) for bucket, count in tenant.buckets().items()}
        detected = [bucket for bucket, count in sorted(counts.items()) for _ in range(count)]
        assert len(detected) < len(durations), "one was counted twice"
        middle = _native.request_bucket(durations[len(durations) // 2])
        is_near = middle - 1 <= detected[len(detected) // 2] <= middle + 1 if detected else False
        return is_near and len(detected) > len(durations) // 2  # buckets are a sixteenth wide

    assert any(agree() for _ in range(TRIES))


def test_reporting_outside_a_tenant_does_nothing() -> None:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("COTENANT_")}
    heavy = "{'asyncio', 'ctypes', 'inspect', 'msgspec', 'rich', 'cotenant._native', 'cotenant.node'}"
    lines = [
        "import sys, cotenant",
        "with cotenant.request(arrived_ns=5): pass",
        "cotenant.request.ended(1)",
        f"print(sorted({heavy} & set(sys.modules)), cotenant.request.is_recorded())",
    ]
    done = run([sys.executable, "-c", "\n".join(lines)], outside)
    assert (done.stdout, done.stderr) == ("[] False\n", "")


def test_decorated_function_keeps_its_identity() -> None:
    @cotenant.request()
    def plain(first: int, *, second: int) -> int:
        """Add."""
        return first + second

    @cotenant.request()
    async def waiting(first: int) -> int:
        return first

    assert plain(1, second=2) == 3
    assert (plain.__name__, plain.__doc__) == ("plain", "Add.")
    assert asyncio.run(waiting(4)) == 4
    with pytest.raises(TypeError, match="stream is a generator"):

        @cotenant.request()
        def stream() -> Iterator[int]:
            yield 1


@pytest.mark.parametrize("wrong, error", [(-1, ValueError), (2**64, ValueError), (1.5, TypeError)])
def test_invalid_time_is_refused(wrong: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="arrived_ns is"):
        cotenant.request(arrived_ns=wrong)
    with pytest.raises(error, match="latency_ns is"):
        cotenant.request.ended(wrong)
