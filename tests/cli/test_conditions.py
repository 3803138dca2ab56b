"""Every command under bad conditions: another user's node, a full disk, and Ctrl-C. None prints a traceback."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.cli import ENTRIES
from tests.support.node_processes import BOUND_S, COTENANT, NodeHarness
from tests.support.other_users import as_user, can_run_as_others

pytestmark = pytest.mark.live

STRANGER = 54321
SECONDS = (0.05, 0.2, 0.4, 0.8)
WORDS: dict[str, list[str]] = {
    "run": ["--name", "mine", "--", "true"],
    "ps": [],
    "logs": ["none"],
    "top": ["--once"],
    "pause": ["web"],
    "resume": ["web"],
    "evict": ["web"],
    "set": ["web", "--priority", "3"],
    "self": [],
    "events": [],
    "explain": ["web"],
    "node": [],
    "web": ["--listen", "nowhere"],
    "doctor": [],
    "selftest": [],
    "config": ["show"],
    "gpu": [],
    "softgpu": ["list"],
    "profile": ["list"],
    "advise": ["--", "true"],
    "play": ["none"],
    "trace": ["-o", "trace.json", "--seconds", "0.1"],
    "serve": ["plan", "none.toml"],
    "load": ["--url", "http://127.0.0.1:9", "--rate", "1", "--seconds", "1"],
    "kubernetes": ["check"],
    "jobs": [],
    "cluster": ["plan"],
    "simulate": ["none.toml"],
    "whatif": ["--online", "none.onnx:rate=80", "--gpu", "a100"],
    "replay": ["none"],
    "demo": ["--help"],
    "help": ["run"],
    "version": [],
    "completion": ["bash"],
    "man": ["man"],
}


def test_every_command_is_tried() -> None:
    assert list(WORDS) == list(ENTRIES)


@pytest.fixture(scope="module")
def harness() -> Iterator[NodeHarness]:
    with NodeHarness() as made:
        made.node("--gpu", "a=16GiB")
        made.tenant("web")
        yield made


def is_clean(stderr: str) -> bool:
    return "Traceback" not in stderr and "Exception ignored" not in stderr


@pytest.mark.parametrize("command", [name for name in WORDS if name != "node"])
def test_command_on_a_full_disk_says_so(harness: NodeHarness, command: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COTENANT, command, *WORDS[command]],
            stdout=full, stderr=subprocess.PIPE, text=True, env=harness.environ, cwd=harness.home, timeout=BOUND_S,
            check=False,
        )  # fmt: skip
    assert is_clean(done.stderr), done.stderr


@pytest.mark.parametrize("command", WORDS)
def test_interrupt_at_any_moment_prints_no_traceback(harness: NodeHarness, command: str) -> None:
    """The interpreter itself must have started: Python's own start is not the command's."""
    for seconds in SECONDS:
        started = subprocess.Popen(
            [sys.executable, "-c", START, command, *WORDS[command]],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=harness.environ, cwd=harness.home,
        )  # fmt: skip
        assert started.stdout is not None
        assert started.stdout.readline() == "begun\n"
        time.sleep(seconds)
        started.send_signal(signal.SIGINT)
        _, stderr = started.communicate(timeout=BOUND_S)
        assert is_clean(stderr), stderr


def test_interrupted_command_has_the_exit_code_of_an_interrupt(harness: NodeHarness) -> None:
    with subprocess.Popen(
        [*COTENANT, "top", "--json", "--seconds", "600"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=harness.environ,
    ) as started:  # fmt: skip
        assert started.stdout is not None
        assert started.stdout.readline().startswith("{")
        started.send_signal(signal.SIGINT)
        assert started.wait(BOUND_S) == 130
        assert started.stderr is not None
        assert started.stderr.read() == ""


START = """
import sys
from cotenant.__main__ import start
print("begun", flush=True)
sys.exit(start())
"""


@pytest.mark.skipif(not can_run_as_others(), reason="needs root, and a project that other users may read")
@pytest.mark.parametrize("command", WORDS)
def test_command_of_another_user_shows_its_own_tenants_or_one_sentence(
    harness: NodeHarness, command: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    hold = tmp_path_factory.mktemp("hold")
    home = Path(tempfile.mkdtemp(prefix="ct-home-", dir="/tmp"))
    os.chown(home, STRANGER, STRANGER)
    harness.home.chmod(0o755)
    environ = {**harness.environ, "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    environ.pop("XDG_RUNTIME_DIR", None)
    done = subprocess.run(
        as_user(STRANGER, [*COTENANT, command, *WORDS[command]], hold),
        capture_output=True, text=True, env=environ, cwd=home, timeout=BOUND_S, check=False,
    )  # fmt: skip
    shutil.rmtree(home)
    assert is_clean(done.stderr), done.stderr
    assert command not in ("ps", "top", "events", "explain") or "web" not in done.stdout, done.stdout
    if command in ("pause", "resume", "evict", "set"):
        assert done.returncode == 69
        assert "only operators" in done.stderr
    if command in ("run", "ps", "top"):
        assert done.returncode == 0, done.stderr
