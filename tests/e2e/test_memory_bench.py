"""The bench of memory, short: whatever is allocated and whoever is killed, no quota is passed and nothing is left."""

from __future__ import annotations

import pytest

from cotenant.live.soak.board import KINDS
from tests.e2e.stage import Stage

pytestmark = pytest.mark.timeout(240)


def test_no_quota_is_passed_and_nothing_is_left(stage: Stage) -> None:
    found = stage.json("bench", "memory", "--quick", "--rounds", "1")
    assert (found["bypassed_bytes"], found["leaked_bytes"], found["failed"]) == (0, 0, 0)
    assert all(found["peaks"][name] <= quota for name, quota in found["quotas"].items())
    assert (found["processes"], found["operations"]) == (8, 2400)
    assert found["kills"] > 0
    assert found["denied"] > 0
    assert all(found["allocations"][kind] > 0 for kind in KINDS)
