"""Short run of bench `faults`: injected faults cost a service no unexcused request."""

from __future__ import annotations

import json

import pytest

from cotenant_lab.bench.faults.kinds import KINDS
from cotenant_lab.cli import main

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]


def test_service_continues_during_faults_of_its_neighbour(capfd: pytest.CaptureFixture[str]) -> None:
    only = ["--only", "kill-busy", "--only", "node-killed"]
    assert main(["bench", "faults", "--rounds", "1", *only, "--json"]) == 0
    found = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert found["met"] == {"unexcused_lost_requests": True, "state_after": True}
    assert found["state_after"] == "healthy"
    assert found["unexcused_lost_requests"] == 0
    expected = [(kind, sharing) for sharing in ("slices", "mps") for kind in ("kill-busy", "node-killed")]
    assert [(one["kind"], one["sharing"]) for one in found["results"]] == expected
    lost = {one["kind"]: one["online_lost_requests"] for one in found["results"] if one["sharing"] == "slices"}
    assert lost == {"kill-busy": 0, "node-killed": 0}


def test_fault_kinds_have_unique_names_and_excuses_only_for_hardware() -> None:
    names = [kind.name for kind in KINDS]
    assert len(names) == len(set(names)) >= 14
    by_slices = [kind.name for kind in KINDS if kind.excuse(mps=False)]
    assert by_slices == ["ecc", "device-lost"], "under time slices a fault affects its own tenant only"
