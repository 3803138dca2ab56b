"""Every attack of bench `attack`, once under each sharing mode: the node, the online tenant and others are unharmed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cotenant_lab.bench.attack.attacks import ATTACKS, Attack, Start
from cotenant_lab.bench.attack.bench import MODES, AttackSites, Phases

pytestmark = pytest.mark.attack  # not retried: an attack that succeeds once is a failure

PHASES = Phases(baseline_s=0.1, attack_s=1.0, bypass_s=8.0, may_end_early=True)
CASES = [pytest.param(mode, attack, id=f"{attack.name}-{mode}") for mode in MODES for attack in ATTACKS]


@pytest.fixture(scope="session")
def sites() -> Iterator[dict[str, AttackSites]]:
    """Return one setup per sharing mode; it is replaced when an attack has damaged it."""
    made = {mode: AttackSites(mode, PHASES) for mode in MODES}
    yield made
    for site in made.values():
        site.close()


@pytest.mark.parametrize("mode, attack", CASES)
def test_attack_harms_its_own_tenant_at_most(sites: dict[str, AttackSites], mode: str, attack: Attack) -> None:
    run = sites[mode].run_once(attack, 0)
    assert run.started, run.ended
    assert not run.node_died
    assert not run.foreign_kill
    assert run.bytes_past_quota == 0, "the attacker holds more than its quota, and was not evicted"
    if attack.is_bypass:
        assert run.detected_s is not None or run.refused
    if attack.reason(mps=mode == "mps"):
        assert run.recovered
    else:
        assert run.failed_requests == 0
        assert not run.change


def test_attacks_have_unique_names_and_every_start() -> None:
    names = [attack.name for attack in ATTACKS]
    assert len(names) == len(set(names)) >= 44
    assert {attack.start for attack in ATTACKS} == set(Start)


def test_only_unhooked_and_long_work_is_uncontained_under_time_slices() -> None:
    uncontained = [attack.name for attack in ATTACKS if attack.reason(mps=False)]
    long_work = [f"work-{name}" for name in ("long", "longer", "durations", "shapes", "graphs", "collective")]
    assert uncontained == ["bypass-launch", *long_work]
