"""Short run of bench `memory`: no quota is exceeded and nothing remains."""

from __future__ import annotations

import json

import pytest

from cotenant_lab.cli import main
from cotenant_lab.programs.board import KINDS

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]


def test_no_quota_is_exceeded_and_nothing_remains(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "memory", "--quick", "--rounds", "1", "--json"]) == 0
    found = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert found["met"] == {"bypassed_bytes": True, "leaked_bytes": True}
    assert (found["bypassed_bytes"], found["leaked_bytes"], found["failed"]) == (0, 0, 0)
    assert all(found["peaks"][name] <= quota for name, quota in found["quotas"].items())
    assert (found["processes"], found["operations"]) == (8, 2400)
    assert found["kills"] > 0
    assert found["denied"] > 0
    assert all(found["allocations"][kind] > 0 for kind in KINDS)
