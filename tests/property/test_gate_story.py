"""Does the gate still decide as it did? A story as a golden log, to be read when a rule changes."""

from tests.property.gate_story import told
from tests.tool import ROOT


# After a change of the rules that is meant:
#   .venv/bin/python -m tests.property.gate_story > scenarios/gate-fill.log
def test_the_story_is_told_as_before() -> None:
    golden = (ROOT / "scenarios" / "gate-fill.log").read_text(encoding="utf-8")
    assert "\n".join(told()) + "\n" == golden
