"""Programs in the background: `cotenant run --detach` and `cotenant logs`."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.support.node_processes import BOUND_S, NodeHarness, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

WAITS_FOR_FILES = """
import pathlib, sys, time
home = pathlib.Path(sys.argv[1])
print("began", flush=True)
for name in ("one", "two"):
    while not (home / name).exists():
        time.sleep(0.02)
    print("saw", name, flush=True)
print("an error", file=sys.stderr, flush=True)
"""


def detach(harness: NodeHarness, name: str, *command: str) -> tuple[int, str]:
    done = harness.run("run", "--detach", "--name", name, "--", *command)
    return done.returncode, done.stdout + done.stderr


def test_a_detached_program_outlives_its_command_and_its_output_is_kept(node_harness: NodeHarness) -> None:
    node_harness.node()
    code, said = detach(node_harness, "job", sys.executable, "-c", WAITS_FOR_FILES, str(node_harness.home))
    assert code == 0, said
    assert "job runs in the background; its output: cotenant logs job" in said
    until(lambda: "began" in node_harness.run("logs", "job").stdout)
    assert node_harness.names() == ["job"]
    for name in ("one", "two"):
        (node_harness.home / name).touch()
    until(lambda: node_harness.names() == [])
    shown = node_harness.run("logs", "job")
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert [line for line in lines if line.startswith(("began", "saw", "an error"))] == [
        "began",
        "saw one",
        "saw two",
        "an error",
    ]
    assert node_harness.run("logs", "job", "--lines", "1").stdout.splitlines() == lines[-1:]
    assert node_harness.run("logs", "job", "--lines", "0").stdout == ""


def test_logs_follows_the_output_until_the_program_ends(node_harness: NodeHarness) -> None:
    node_harness.node()
    code, said = detach(node_harness, "job", sys.executable, "-c", WAITS_FOR_FILES, str(node_harness.home))
    assert code == 0, said
    follower = node_harness.start("logs", "job", "-f")
    interrupted = node_harness.start("logs", "job", "--follow", "--lines", "0")
    assert follower.stdout is not None
    assert interrupted.stdout is not None
    found: list[str] = []

    def read_until(text: str) -> None:
        while text not in found:
            assert follower.stdout is not None
            line = follower.stdout.readline()
            assert line, f"the output ended before {text!r}: {found}"
            found.append(line.rstrip("\n"))

    read_until("began")
    (node_harness.home / "one").touch()
    read_until("saw one")
    assert follower.poll() is None, "it follows while the program runs"
    while interrupted.stdout.readline() != "saw one\n":
        assert interrupted.poll() is None
    interrupted.send_signal(signal.SIGINT)
    assert interrupted.wait(BOUND_S) == 128 + signal.SIGINT
    assert node_harness.names() == ["job"], "the program continues after an interrupt of `logs`"
    (node_harness.home / "two").touch()
    read_until("an error")
    assert follower.wait(BOUND_S) == 0


def test_a_detached_program_that_cannot_start_is_reported_at_once(node_harness: NodeHarness) -> None:
    node_harness.node()
    code, said = detach(node_harness, "job", "no-such-program-of-this-test")
    assert code == 127
    assert "no-such-program-of-this-test" in said
    assert node_harness.names() == []


@pytest.mark.parametrize(
    "words, texts",
    [
        (("logs", "none"), ("NAME = 'none'", "run --detach --name NAME")),
        (("logs", "../../etc/passwd"), ("../../etc/passwd",)),
        (("logs", "job", "--lines", "-1"), ("--lines = -1", "at least 0")),
        (("run", "--detach", "--", "true"), ("--name", "cotenant logs")),
    ],
)
def test_bad_input_is_refused_with_one_sentence(
    node_harness: NodeHarness, words: tuple[str, ...], texts: tuple[str, ...]
) -> None:
    done = node_harness.run(*words)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert all(text in done.stderr for text in texts), done.stderr
