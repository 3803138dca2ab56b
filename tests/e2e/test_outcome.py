"""Does `cotenant run --outcome` say whose doing an end was, which the exit code does not?"""

from __future__ import annotations

import signal
import sys

import pytest

from cotenant.errors import ConfigError, PeerError
from cotenant.format import wire
from cotenant.format.outcome import Doing, Outcome, decode_outcome, encode_outcome
from cotenant.format.variables import decode_variables, encode_variables
from tests.e2e.puppets import PuppetNode
from tests.e2e.stage import BOUND_S, Stage, until

# Says that it runs, and ends with a code when it is told to, or at once.
PROGRAM = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(sys.argv[2])))
Path(sys.argv[1]).touch()
while len(sys.argv) < 4:
    time.sleep(0.02)
sys.exit(int(sys.argv[2]))
"""


def test_each_end_is_told_with_whose_doing_it_was(stage: Stage) -> None:
    file, runs = stage.home / "outcome", stage.home / "runs"
    options = ("run", "--hook", "off", "--start-node", "no", "--outcome", str(file))

    def program(code: int, *now: str) -> tuple[str, ...]:
        return ("--", sys.executable, "-c", PROGRAM, str(runs), str(code), *now)

    refused = stage.run(*options, *program(0, "now"))
    assert refused.returncode == 75
    told = decode_outcome(file.read_bytes())
    assert (told.code, told.doing) == (75, Doing.REFUSED)
    assert not runs.exists()
    assert stage.node_pid() is None, "no node was started"
    with PuppetNode(stage.places) as node:
        assert stage.run(*options, *program(3, "now")).returncode == 3
        assert decode_outcome(file.read_bytes()) == Outcome(3, Doing.OWN, "exit 3")
        for doing in (Doing.ASKED, Doing.NODE):
            runs.unlink(missing_ok=True)
            run = stage.start(*options, *program(0))
            until(runs.exists)
            if doing is Doing.ASKED:
                run.send_signal(signal.SIGTERM)
                until(lambda: isinstance(node.heard.get(timeout=BOUND_S), wire.Quit))
            node.push(wire.Signal("term", "memory for online work", again=True))
            run.communicate(timeout=BOUND_S)
            assert run.returncode == 0
            told = decode_outcome(file.read_bytes())
            assert (told.code, told.doing) == (0, doing)
    assert told.why == "memory for online work"


def test_variables_of_a_file_are_the_programs_alone(stage: Stage) -> None:
    """Not those of `cotenant run`: with this path it would not find itself."""
    file = stage.home / "variables"
    file.write_text('{"PYTHONPATH": "/mine", "PYTHONHOME": "/nowhere", "WORD": "two words"}')
    with PuppetNode(stage.places):
        done = stage.run("run", "--hook", "off", "--variables", str(file), "--", "sh", "-c", 'echo "$PYTHONPATH $WORD"')
    assert (done.returncode, done.stdout) == (0, "/mine two words\n")


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a=b": "c"}', '{"a": "b\\u0000c"}', '{"": "x"}'])
def test_variables_that_no_environment_can_have_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.variables"):
        decode_variables(text.encode(), "file")
    assert decode_variables(encode_variables({"a": "b"}), "file") == {"a": "b"}


def test_a_file_that_cannot_be_written_is_a_mistake_of_whoever_named_it(stage: Stage) -> None:
    done = stage.run("run", "--start-node", "no", "--outcome", "/nowhere/at/all", "--", "true")
    assert done.returncode == 2
    assert "run.outcome" in done.stderr


def test_a_long_reason_is_cut_and_nonsense_is_refused() -> None:
    assert len(decode_outcome(encode_outcome(Outcome(1, Doing.OWN, "x" * 10_000))).why) == 500
    for text in (b"", b"{}", b'{"code": 1, "doing": "mine"}', b"\xff"):
        with pytest.raises(PeerError):
            decode_outcome(text)
