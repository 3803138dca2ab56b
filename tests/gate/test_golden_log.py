"""The gate's decisions in a fixed scenario equal the golden log; review the log when a rule changes."""

from tests.support.gate_log import log_lines
from tests.support.tools import ROOT


# After a change of the rules that is meant:
#   .venv/bin/python -m tests.support.gate_log > scenarios/gate-fill.log
def test_scenario_produces_the_golden_log() -> None:
    golden = (ROOT / "scenarios" / "gate-fill.log").read_text(encoding="utf-8")
    assert "\n".join(log_lines()) + "\n" == golden
