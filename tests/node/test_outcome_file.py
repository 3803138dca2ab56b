"""`cotenant run --outcome` records who ended the program, which the exit code does not show."""

from __future__ import annotations

import signal
import sys

import msgspec
import pytest

from cotenant.errors import ConfigError
from cotenant.node import wire
from cotenant.node.client.outcome import EndedBy, RunOutcome, encode_outcome
from cotenant.node.client.variables import decode_variables
from tests.support.node_processes import BOUND_S, NodeHarness, until
from tests.support.tenant_programs import ScriptedTenants

pytestmark = pytest.mark.live

# Prints that it runs, and exits with a code when its input says so, or at once.
PROGRAM = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(sys.argv[2])))
Path(sys.argv[1]).touch()
while len(sys.argv) < 4:
    time.sleep(0.02)
sys.exit(int(sys.argv[2]))
"""


def decode_outcome(text: bytes) -> RunOutcome:
    return msgspec.json.decode(text, type=RunOutcome)


def test_outcome_names_who_ended_the_program(node_harness: NodeHarness) -> None:
    file, runs = node_harness.home / "outcome", node_harness.home / "runs"
    options = ("run", "--hook", "off", "--start-node", "no", "--outcome", str(file))

    def program(code: int, *now: str) -> tuple[str, ...]:
        return ("--", sys.executable, "-c", PROGRAM, str(runs), str(code), *now)

    refused = node_harness.run(*options, *program(0, "now"))
    assert refused.returncode == 75
    outcome = decode_outcome(file.read_bytes())
    assert (outcome.code, outcome.doing) == (75, EndedBy.REFUSED)
    assert not runs.exists()
    assert node_harness.node_pid() is None, "no node was started"
    with ScriptedTenants(node_harness.directories) as node:
        assert node_harness.run(*options, *program(3, "now")).returncode == 3
        assert decode_outcome(file.read_bytes()) == RunOutcome(3, EndedBy.OWN, "exit 3")
        for doing in (EndedBy.ASKED, EndedBy.NODE):
            runs.unlink(missing_ok=True)
            run = node_harness.start(*options, *program(0))
            until(runs.exists)
            if doing is EndedBy.ASKED:
                run.send_signal(signal.SIGTERM)
                until(lambda: isinstance(node.received.get(timeout=BOUND_S), wire.Quit))
            node.push(wire.Signal("term", "memory for online work", may_restart=True))
            run.communicate(timeout=BOUND_S)
            assert run.returncode == 0
            outcome = decode_outcome(file.read_bytes())
            assert (outcome.code, outcome.doing) == (0, doing)
    assert outcome.why == "memory for online work"


def test_variables_of_a_file_reach_the_program_only(node_harness: NodeHarness) -> None:
    """Not those of `cotenant run`: with this path it would not find itself."""
    file = node_harness.home / "variables"
    file.write_text('{"PYTHONPATH": "/mine", "PYTHONHOME": "/nowhere", "WORD": "two words"}')
    with ScriptedTenants(node_harness.directories):
        done = node_harness.run(
            "run", "--hook", "off", "--variables", str(file), "--", "sh", "-c", 'echo "$PYTHONPATH $WORD"'
        )
    assert (done.returncode, done.stdout) == (0, "/mine two words\n")


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a=b": "c"}', '{"a": "b\\u0000c"}', '{"": "x"}'])
def test_invalid_environment_variables_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.variables"):
        decode_variables(text.encode(), "file")
    assert decode_variables(b'{"a": "b"}', "file") == {"a": "b"}


def test_unwritable_outcome_file_is_a_config_error(node_harness: NodeHarness) -> None:
    done = node_harness.run("run", "--start-node", "no", "--outcome", "/nowhere/at/all", "--", "true")
    assert done.returncode == 2
    assert "run.outcome" in done.stderr


def test_long_reason_is_cut() -> None:
    assert len(decode_outcome(encode_outcome(RunOutcome(1, EndedBy.OWN, "x" * 10_000))).why) == 500
