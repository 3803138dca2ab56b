"""MPS's text protocol: an exact transcript, and arbitrary input that ends neither daemon nor front end."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tests.support.mps_daemons import MpsHarness, SteeredMps

pytestmark = pytest.mark.live

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")

TRANSCRIPT = Path(__file__).parent / "transcripts" / "mps.txt"


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MpsHarness]:
    harness = MpsHarness(tmp_path)
    yield harness
    harness.close()


class Names:
    """Names of pids, identities and user ids in the transcript."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def substitute(self, command: str) -> str:
        for name, value in self.values.items():
            command = re.sub(rf"\b{name}\b", value, command)
        return command

    def anonymize(self, text: str) -> str:
        for name, value in self.values.items():
            text = re.sub(rf"\b{value}\b", name, text)
        text = re.sub(r"GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}(-[0-9a-f]{4}-[0-9a-f]{12})?", "GPU-IDENTITY", text)
        text = re.sub(rf"user {os.getuid()}\b", "user UID", text)
        text = re.sub(r"(GPU-IDENTITY) [0-9]+ .*", r"\1 NAMESPACE COMMAND", text)
        return re.sub(" +", " ", text)


def play(harness: MpsHarness, script: list[str]) -> list[str]:
    """Return the steps of a transcript with their present output."""
    names, lines = Names(), []
    client: SteeredMps | None = None
    for step in script:
        lines.append(step)
        if step == "(a client initialises CUDA)":
            client = harness.client("init", "context")
            names.values["CLIENT"] = str(client.pid)
        elif step == "(the client ends)":
            assert client is not None
            harness.gone(client)
        else:
            done = subprocess.run(
                ["sh", "-c", names.substitute(step.removeprefix("$ "))],
                env=harness.environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=60,
                check=False,
            )
            if step.startswith("$ echo get_server_list") and re.fullmatch(r"[0-9]+\n", done.stdout):
                names.values["SERVER"] = done.stdout.strip()
            lines += names.anonymize(done.stdout).splitlines()
    return lines


def test_output_equals_the_transcript(harness: MpsHarness) -> None:
    expected = TRANSCRIPT.read_text().splitlines()
    script = [line for line in expected if line.startswith(("$ ", "(a client", "(the client"))]
    assert len(script) > 30
    assert play(harness, script) == expected


def test_foreground_daemon_prints_its_log_and_front_end_prompts_on_a_terminal(harness: MpsHarness) -> None:
    foreground = subprocess.Popen(
        ["nvidia-cuda-mps-control", "-f"], env=harness.environment(), stdout=subprocess.PIPE, text=True
    )
    assert foreground.stdout is not None
    assert "Starting control daemon using socket" in foreground.stdout.readline()
    ours, theirs = os.openpty()
    typed = subprocess.Popen(
        ["nvidia-cuda-mps-control"], env=harness.environment(), stdin=theirs, stdout=subprocess.PIPE
    )
    os.write(ours, b"get_default_client_priority\nquit\n")
    assert typed.communicate(timeout=60)[0] == b"> 0\n> "
    assert typed.returncode == 0
    out, _ = foreground.communicate(timeout=60)
    assert foreground.returncode == 0
    assert out.endswith("Exit\n")
    assert not (harness.pipe / "control").exists()
    for descriptor in (ours, theirs):
        os.close(descriptor)


def test_processes_have_the_names_of_nvidias_programs(harness: MpsHarness) -> None:
    assert harness.control("-d").returncode == 0
    assert harness.command(f"start_server -uid {os.getuid()}") == ""
    daemon = (harness.pipe / "nvidia-cuda-mps-control.pid").read_text().strip()
    for pid, name in ((daemon, "nvidia-cuda-mps-control"), (harness.server(), "nvidia-cuda-mps-server")):
        assert name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert Path(f"/proc/{pid}/comm").read_text() == name[:15] + "\n"


def answers_to(harness: MpsHarness, messages: list[bytes]) -> list[bytes]:
    """Return the daemon's answers to messages on a new connection; b"" once it is closed."""
    answers = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.settimeout(30)
        line.connect(str(harness.pipe / "control"))
        for message in messages:
            try:
                line.send(message)
                answers.append(line.recv(65536))
            except OSError:
                answers.append(b"")
    return answers


WORDS = st.sampled_from(
    [
        *("get_server_list", "get_client_list", "ps", "-p", "set_active_thread_percentage", "terminate_client", "help"),
        *("set_default_device_pinned_mem_limit", "get_device_client_list", "shutdown_server", "get_server_status"),
        *("0", "1", "-1", "99999999999999999999", "1e309", "nan", "10G", "0G", "9" * 400 + "G", "GPU-", "quit -x"),
        *("set_default_active_thread_percentage", "start_server -uid", "\0", "²", "=", "\x1b[2J", "ui", "client"),
    ]
)
COMMANDS = st.one_of(
    st.lists(WORDS, max_size=5).map(lambda words: " ".join(words).encode()),
    st.binary(max_size=300),
    st.text(max_size=80).map(lambda text: text.encode("utf-8", "surrogatepass")),
).filter(lambda command: command.split()[:1] != [b"quit"] or b"-x" in command)


def test_daemon_survives_arbitrary_input(harness: MpsHarness) -> None:
    assert harness.control("-d").returncode == 0

    @settings(max_examples=examples(60, 1500), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(COMMANDS, min_size=1, max_size=4))
    def fuzz(commands: list[bytes]) -> None:
        for answer in answers_to(harness, [b"ui\n" + command for command in commands]):
            assert answer.startswith(b"=")
            text = answer[1:].decode()
            assert "Traceback" not in text
            if " = " in text or "Unknown" in text:
                assert text.count("\n") == 1  # one sentence

    @settings(max_examples=examples(50, 1000), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(min_size=1, max_size=400).filter(lambda message: not message.startswith((b"ui\n", b"client\n"))))
    def hostile(message: bytes) -> None:
        assert answers_to(harness, [message, b"ui\nget_server_list"]) == [b"", b""]

    fuzz()
    hostile()
    for settings_ in (b"X", b"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=nan\nCUDA_MPS_PINNED_DEVICE_MEM_LIMIT=,,=\n\xff=\0"):
        assert answers_to(harness, [b"client\n" + settings_])[0].startswith(b"welcome ")
    daemon = int((harness.pipe / "nvidia-cuda-mps-control.pid").read_text())
    os.kill(daemon, 0)
    garbage = b"\xff\xfe\n" + b"x" * 100000 + b"\nget_default_client_priority\n"
    assert harness.control(input_text=garbage).stdout.endswith("0\n")
