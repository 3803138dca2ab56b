"""Do a program's requests reach its page: told in Python and in C, and seen where nobody tells them?"""

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
from tests.live.gates import ONLINE, Gate
from tests.live.hooks import NATIVE, WAYS, Hook, compiled, hook_before, run
from tests.live.softgpus import PROGRAMS

pytestmark = pytest.mark.timeout(240)
INCLUDE = Path(cotenant.__file__).parent / "include"
SERVED, SPIN_NS = 60, 500_000
TRIES = 5


class Seat:
    """An online tenant of one soft GPU, and what its page says of its requests."""

    def __init__(self, softgpu: Path, home: Path) -> None:
        self.gate = Gate(home / "gates")
        self.hook: Hook = hook_before(softgpu, home / "hook")

    def run(self, way: str, *command: str | Path) -> str:
        done = run(command, self.gate.environ(self.hook.environ(way), self.hook.records, ONLINE))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def word(self, name: str) -> int:
        found = self.gate.page(ONLINE)[name]
        assert isinstance(found, int)
        return found

    def buckets(self) -> dict[int, int]:
        found = self.gate.page(ONLINE)["request_buckets"]
        assert isinstance(found, list)
        return {bucket: many for bucket, many in enumerate(found) if many}


@pytest.fixture
def seat(softgpu: Path, tmp_path: Path) -> Iterator[Seat]:
    made = Seat(softgpu, tmp_path)
    yield made
    made.gate.close()


@pytest.mark.parametrize("way", WAYS)
def test_requests_told_in_python_are_counted_one_by_one(seat: Seat, way: str) -> None:
    many, heard = seat.run(way, sys.executable, PROGRAMS / "teller.py").split()
    assert heard == "True"
    assert seat.word("requests_ended") == sum(seat.buckets().values()) == int(many)
    assert seat.word("requests_sum_ns") >= 57_000_000, "one arrived 50 ms before it was begun, one took 7 ms"
    assert seat.buckets()[_native.request_bucket(7_000_000)] >= 1
    assert seat.word("requests_told") == 1
    assert seat.word("requests_began_ns") == 0, "none is under way any more"


class Teller:
    """A process of the tenant that begins and ends requests as it is told."""

    def __init__(self, seat: Seat, way: str) -> None:
        environ = seat.gate.environ(seat.hook.environ(way), seat.hook.records, ONLINE)
        command = [sys.executable, str(PROGRAMS / "obedient.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(word, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == f"{word}\n"

    def close(self) -> None:
        self._process.communicate(timeout=60)


def test_a_request_under_way_is_shown_once_an_older_one_of_another_process_is_over(seat: Seat) -> None:
    """Whichever of the two came to the page first."""
    older, newer = Teller(seat, "shim"), Teller(seat, "shim")
    try:
        older.tell("begin")
        began_ns = seat.word("requests_began_ns")
        newer.tell("begin")
        assert seat.word("requests_began_ns") == began_ns > 0
        older.tell("end")
        assert seat.word("requests_began_ns") == 0
        newer.tell("pass")  # whatever it tells next
        assert seat.word("requests_began_ns") > began_ns
        older.tell("late")  # one that arrived long before it was begun
        older.tell("end")
        newer.tell("pass")
        assert seat.word("requests_began_ns") > began_ns
        newer.tell("end")
        assert seat.word("requests_began_ns") == 0
    finally:
        older.close()
        newer.close()


@pytest.mark.parametrize("way", WAYS)
def test_requests_told_in_c_are_counted_one_by_one(seat: Seat, tmp_path: Path, way: str) -> None:
    flags = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", "-ldl")
    program = compiled(tmp_path, "request_told.c", *flags)
    assert seat.run(way, program, "25") == "1"
    assert seat.word("requests_ended") == sum(seat.buckets().values()) == 27
    assert seat.buckets()[_native.request_bucket(3_000_000)] >= 1
    assert seat.word("requests_began_ns") == 0
    outside = {name: value for name, value in os.environ.items() if not name.startswith("COTENANT_")}
    assert run([program, "25"], outside).stdout == "0\n"


def test_the_header_is_c_plus_plus_too(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    command = ["g++", "-x", "c++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-c", "-o", str(tmp_path / "o")]
    subprocess.run([*command, f"-I{INCLUDE}", str(NATIVE / "request_told.c")], check=True)


def test_requests_that_nobody_tells_are_seen(seat: Seat) -> None:
    """Each is a burst of its own: none is shorter than its kernels, and none is counted twice.

    A program that has no processor just when it begins is taken for one with long pauses, for longer than this one is
    there: then another one is.
    """
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
    ran = ended = 0
    while not ended and ran < TRIES:
        seat.run("shim", sys.executable, PROGRAMS / "served.py", str(SERVED), str(SPIN_NS))
        ran, ended = ran + 1, seat.word("requests_ended")
    assert 0 < ended < ran * SERVED
    assert sum(seat.buckets().values()) == ended
    assert seat.word("requests_told") == 0
    assert min(seat.buckets()) >= _native.request_bucket(2 * SPIN_NS)
    assert seat.word("requests_sum_ns") >= ended * 2 * SPIN_NS


def test_what_is_seen_is_how_long_it_took(seat: Seat, tmp_path: Path) -> None:
    """A program with random arrivals, some of which wait for others: its own word against the hook's.

    Both are of a program that had its processor, which one of a few tries must be.
    """
    script = tmp_path / "serve.txt"
    script.write_text("conv 160 256 40000 18000\n" * 20)
    play = [sys.executable, "-m", "cotenant.live.player", str(script), "--detail"]

    def agree() -> bool:
        before = seat.buckets()
        said = seat.run("shim", *play, "--arrival", "poisson", "--period-us", "3000", "--requests", "400")
        took = sorted(end_ns - begin_ns for _, begin_ns, end_ns in json.loads(said.splitlines()[-1])["detail"])
        counts = {bucket: many - before.get(bucket, 0) for bucket, many in seat.buckets().items()}
        found = [bucket for bucket, many in sorted(counts.items()) for _ in range(many)]
        assert len(found) < len(took), "one was counted twice"
        middle = _native.request_bucket(took[len(took) // 2])
        is_near = middle - 1 <= found[len(found) // 2] <= middle + 1 if found else False
        return is_near and len(found) > len(took) // 2  # buckets are a sixteenth wide

    assert any(agree() for _ in range(TRIES))


def test_outside_of_a_tenant_nothing_happens_and_little_is_imported() -> None:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("COTENANT_")}
    heavy = "{'asyncio', 'ctypes', 'inspect', 'msgspec', 'rich', 'cotenant._native', 'cotenant.domain'}"
    lines = [
        "import sys, cotenant",
        "with cotenant.request(arrived_ns=5): pass",
        "cotenant.request.ended(1)",
        f"print(sorted({heavy} & set(sys.modules)), cotenant.request.is_heard())",
    ]
    done = run([sys.executable, "-c", "\n".join(lines)], outside)
    assert (done.stdout, done.stderr) == ("[] False\n", "")


def test_a_decorated_function_is_itself() -> None:
    @cotenant.request()
    def plain(one: int, *, two: int) -> int:
        """Add."""
        return one + two

    @cotenant.request()
    async def waiting(one: int) -> int:
        return one

    assert plain(1, two=2) == 3
    assert (plain.__name__, plain.__doc__) == ("plain", "Add.")
    assert asyncio.run(waiting(4)) == 4
    with pytest.raises(TypeError, match="stream is a generator"):

        @cotenant.request()
        def stream() -> Iterator[int]:
            yield 1


@pytest.mark.parametrize("wrong, error", [(-1, ValueError), (2**64, ValueError), (1.5, TypeError)])
def test_what_is_no_time_is_refused(wrong: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="arrived_ns is"):
        cotenant.request(arrived_ns=wrong)
    with pytest.raises(error, match="latency_ns is"):
        cotenant.request.ended(wrong)
