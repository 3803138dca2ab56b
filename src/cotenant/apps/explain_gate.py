"""What do a tenant's own pages say about why it waits? Its gate's page and its account in the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, TypeAlias

from cotenant.apps.explain_words import hold_words
from cotenant.apps.roll import Roll
from cotenant.domain.pace import GateCounts
from cotenant.domain.tenant import Tenant, Terms
from cotenant.format.quantity import round_duration, round_size
from cotenant.live.clock import monotonic_ns, pause
from cotenant.live.directory import Places
from cotenant.live.gate import copy_of, look_at
from cotenant.live.ledger import look_at as look_at_ledger
from cotenant.policy.schedule.held import Held, held_at

LOOKS: Final = 20
LOOK_S: Final = 0.01
Said: TypeAlias = tuple[str, str, tuple[str, ...]]
"""What kind of reason it is, the reason, and figures beside it."""


def gate_causes(places: Places, roll: Roll, tenant: Tenant) -> Iterator[Said]:
    """What holds it back at its device; one cause that says so where nothing does."""
    terms = tenant.terms
    if terms.gpu < 0:
        yield "free", "nothing holds it back: the node knows no GPU, so nobody waits for anybody", ()
        return
    yield from _ledger_causes(places, terms)
    now = monotonic_ns()
    look = look_at(places.pages, terms.gpu, now)
    counts = GateCounts() if look is None else look.counts.get(terms.slot, GateCounts())
    if counts.generation != terms.generation:
        yield "free", "nothing holds it back: it has launched nothing on its device yet", ()
        return
    holds = list(_looks(places, terms))
    details = _figures(counts, now)
    if not holds:
        yield "free", f"nothing holds it back: it did not wait at the gate in any of {LOOKS} looks", details
        return
    names = {(view.tenant.terms.gpu, view.tenant.terms.slot): view.tenant for view in roll.tenants}
    for number, (hold, count) in enumerate(Counter(held.hold for held in holds).most_common()):
        slots = sorted({slot for held in holds if held.hold is hold for slot in held.above})
        above = [names[terms.gpu, slot] for slot in slots if (terms.gpu, slot) in names]
        said = ", ".join(f"{other.name} (priority {other.terms.priority})" for other in above)
        often = f"so in {count} of {LOOKS} looks within {LOOKS * LOOK_S:.1f} s"
        yield "gate", hold_words(hold, said), (often, *(() if number else details))


def _looks(places: Places, terms: Terms) -> Iterator[Held]:
    """What held it back, look by look: one alone would mostly miss one that waits a millisecond in ten."""
    for number in range(LOOKS):
        if number:
            pause(LOOK_S)
        held = held_at(copy_of(places.pages, terms.gpu), terms.slot, terms.generation, monotonic_ns())
        if held is not None:
            yield held


def _ledger_causes(places: Places, terms: Terms) -> Iterator[Said]:
    look = look_at_ledger(places.pages, terms.gpu)
    account = None if look is None else look.accounts.get(terms.slot)
    if account is None or account.generation != terms.generation:
        return
    quota = f" of its quota of {round_size(terms.memory_bytes)}" if terms.memory_bytes else ", and has no quota"
    holds = f"it holds {round_size(account.held_bytes)} of device memory{quota}"
    if account.wanted_bytes:
        wanted = round_size(account.wanted_bytes)
        yield "memory", f"an allocation of {wanted} waits: its quota allows it, but the device has no room", (holds,)
    if account.denied:
        times = "once" if account.denied == 1 else f"{account.denied:,} times"
        asked = round_size(account.denied_bytes)
        yield "denied", f"it was denied device memory {times}, {asked} in all: that is past its quota", (holds,)


def _figures(counts: GateCounts, now: int) -> tuple[str, ...]:
    details = []
    if counts.launches:
        details.append(
            f"{counts.launches:,} launches so far, the last {round_duration(max(0, now - counts.at_ns))} ago"
        )
    if counts.waits:
        details.append(f"{counts.waits:,} of them waited, {round_duration(counts.waited_ns)} in all")
    return tuple(details)
