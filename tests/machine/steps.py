"""Is each step of a tenant one of the known ones, and does whoever must act on it hear of it in the same turn?"""

from collections.abc import Mapping, Sequence

from cotenant.domain.action import NO_PEER, Action, Kill, Restore, Signal, Suspend, Watch
from cotenant.domain.event import Event, TenantHangs, TenantRestarted, TenantRestored
from cotenant.domain.protect import Standing
from cotenant.domain.tenant import Tenant
from tests.machine.protected_worlds import ASIDE, STEPS, B, D, F, G, K, R, S, T

OUT = (D, T, F, K)


def check_steps(
    event: Event,
    before: Mapping[int, Tenant],
    after: Mapping[int, Tenant],
    actions: Sequence[Action],
    peers: Mapping[int, int],
) -> None:
    """Look at every tenant that was there before and still is, and at those who came."""
    said = [action for action in actions if isinstance(action, Signal | Kill | Suspend | Restore)]
    for slot, tenant in after.items():
        was = before.get(slot)
        if was is None or was.terms.generation != tenant.terms.generation:
            assert tenant.standing.stage is R or any(isinstance(one, Watch) for one in actions)
            continue
        old, new = was.standing, tenant.standing
        assert old.stage is new.stage or _is_known(event, old, new), (old.stage, new.stage, event)
        assert old.stage in OUT or new.stage not in OUT or new.why
        told = [one for one in said if one.slot == slot]
        peer, generation = peers[slot], tenant.terms.generation
        if new.stage is T and old.stage is not T and peer != NO_PEER:
            assert told == [Signal(told[0].cause, peer, slot, generation, "term", new.why, new.again)]
        if new.stage is K and old.stage is not K:
            assert [type(one) for one in told] == [Kill if peer == NO_PEER else Signal]
        if new.stage in (R, D, F, S):
            assert told == []


def _is_known(event: Event, old: Standing, new: Standing) -> bool:
    step = (old.stage, new.stage)
    is_killed_at_once = new.stage is K and isinstance(event, TenantHangs)
    is_forgiven = isinstance(event, TenantRestarted) and step == (D, R) and old.firm
    is_turned_out = old.stage in (G, S, B) and new.stage in (D, T)
    # Whoever runs again on a device over its limit gives way in the same turn.
    is_turned_away = isinstance(event, TenantRestarted | TenantRestored) and new.stage in (D, G)
    return step in STEPS | ASIDE or is_killed_at_once or is_forgiven or is_turned_out or is_turned_away
