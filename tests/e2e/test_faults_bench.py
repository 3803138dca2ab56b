"""The bench of faults, short: what goes wrong beside a service takes nothing from it, and everything is well again."""

from __future__ import annotations

import pytest

from cotenant.experiment.faults.kinds import KINDS
from tests.e2e.stage import Stage

pytestmark = pytest.mark.timeout(240)


def test_a_service_goes_on_whatever_happens_beside_it(stage: Stage) -> None:
    found = stage.json("bench", "faults", "--rounds", "1", "--only", "kill-busy", "--only", "node-killed")
    assert found["state_after"] == "healthy"
    assert found["unexcused_lost_requests"] == 0
    expected = [(kind, sharing) for sharing in ("slices", "mps") for kind in ("kill-busy", "node-killed")]
    assert [(one["kind"], one["sharing"]) for one in found["figures"]] == expected
    lost = {one["kind"]: one["online_lost_requests"] for one in found["figures"] if one["sharing"] == "slices"}
    assert lost == {"kill-busy": 0, "node-killed": 0}


def test_every_kind_of_fault_has_its_own_name_and_an_excuse_only_where_hardware_has_one() -> None:
    names = [kind.name for kind in KINDS]
    assert len(names) == len(set(names)) >= 14
    by_slices = [kind.name for kind in KINDS if kind.excuse(mps=False)]
    assert by_slices == ["ecc", "device-lost"], "by time slices a neighbour's own fault is its own"
