"""The causes of a wait that a tenant's gate page and ledger account show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, TypeAlias

from cotenant.gate.activity import GateCounts
from cotenant.gate.grant import Grant
from cotenant.gate.hold_reason import HeldLaunch
from cotenant.gate.ledger import LedgerSnapshot
from cotenant.node import wire
from cotenant.node.client.connection import read_activity
from cotenant.node.client.explain_text import describe_hold, describe_whole
from cotenant.node.client.tenants import NodeSnapshot
from cotenant.node.directories import Directories
from cotenant.node.model.tenant import Tenant
from cotenant.runner.clock import pause
from cotenant.units.text import round_duration, round_size

CHECKS: Final = 20
CHECK_PERIOD_S: Final = 0.01
GateCause: TypeAlias = tuple[str, str, tuple[str, ...]]
"""The kind of cause, the sentence, and details."""


def gate_causes(directories: Directories, snapshot: NodeSnapshot, tenant: Tenant) -> Iterator[GateCause]:
    """Yield the causes for which a tenant waits at its devices, or one per device that says that it does not wait."""
    if tenant.grant.more_gpus and snapshot.is_served:
        for gpu in tenant.grant.gpus:
            for kind, text, details in _causes_on(directories, snapshot, tenant.grant.on(gpu)):
                yield kind, f"GPU {gpu}: {text}", details
    else:
        yield from _causes_on(directories, snapshot, tenant.grant)


def _causes_on(directories: Directories, snapshot: NodeSnapshot, grant: Grant) -> Iterator[GateCause]:
    """Yield the causes on the first device of a grant."""
    if grant.gpu < 0:
        yield "free", "nothing holds it back: the node has no GPU, so no tenant waits", ()
        return
    if not snapshot.is_served:
        yield "unknown", "what it waits for is not known while the node is down", ()
        return
    first = _read_gpu(directories, grant.gpu)
    yield from _ledger_causes(first.ledger, grant)
    counts = GateCounts() if first.gate is None else first.gate.counts.get(grant.slot, GateCounts())
    if first.gate is None or counts.generation != grant.generation:
        yield "free", "nothing holds it back: it has launched nothing on its device yet", ()
        return
    holds = list(_check_repeatedly(directories, grant, first))
    details = _launch_counts(counts, first.gate.at_ns)
    if not holds:
        yield "free", f"nothing holds it back: it did not wait at the gate in any of {CHECKS} checks", details
    tenants = {
        (gpu, view.tenant.grant.slot): view.tenant for view in snapshot.tenants for gpu in view.tenant.grant.gpus
    }
    for number, (hold, count) in enumerate(Counter(held.hold for held in holds).most_common()):
        slots = sorted({slot for held in holds if held.hold is hold for slot in held.active_slots})
        higher_tenants = [tenants[grant.gpu, slot] for slot in slots if (grant.gpu, slot) in tenants]
        higher = ", ".join(f"{other.name} (priority {other.grant.priority})" for other in higher_tenants)
        frequency = f"in {count} of {CHECKS} checks within {CHECKS * CHECK_PERIOD_S:.1f} s"
        yield "gate", describe_hold(hold, higher), (frequency, *(() if number else details))
    yield from _part_causes(counts)


def _read_gpu(directories: Directories, gpu: int) -> wire.GpuActivity:
    activity = read_activity(directories)
    return activity.gpus[gpu] if gpu < len(activity.gpus) else wire.GpuActivity(None, None, {})


def _check_repeatedly(directories: Directories, grant: Grant, first: wire.GpuActivity) -> Iterator[HeldLaunch]:
    """Yield the launch that waited at each check; a single check would miss short waits."""
    for number in range(CHECKS):
        if number:
            pause(CHECK_PERIOD_S)
        held = (_read_gpu(directories, grant.gpu) if number else first).holds.get(grant.slot)
        if held is not None:
            yield held


def _ledger_causes(snapshot: LedgerSnapshot | None, grant: Grant) -> Iterator[GateCause]:
    account = None if snapshot is None else snapshot.accounts.get(grant.slot)
    if account is None or account.generation != grant.generation:
        return
    quota = f" of its quota of {round_size(grant.memory_bytes)}" if grant.memory_bytes else ", and has no quota"
    holds = f"it holds {round_size(account.held_bytes)} of device memory{quota}"
    if account.wanted_bytes:
        wanted = round_size(account.wanted_bytes)
        yield (
            "memory",
            f"an allocation of {wanted} waits: its quota allows it, but the device has not enough free memory",
            (holds,),
        )
    if account.denied:
        times = "once" if account.denied == 1 else f"{account.denied:,} times"
        denied = round_size(account.denied_bytes)
        yield "denied", f"it was denied device memory {times}, {denied} in total: that exceeds its quota", (holds,)


def _part_causes(counts: GateCounts) -> Iterator[GateCause]:
    """Yield whether long kernels are launched in parts next to tenants of higher priority."""
    whole = sorted(enumerate(counts.whole_launches), key=lambda item: -item[1])
    details = tuple(f"{count:,} long launches were whole: {describe_whole(reason)}" for reason, count in whole if count)
    if counts.cut_launches:
        launches = f"{counts.cut_launches:,} launches in {counts.parts:,} parts"
        yield "parts", f"next to tenants of higher priority its long kernels are launched in parts: {launches}", details
    elif details:
        yield "parts", "its long kernels are launched whole, also next to tenants of higher priority", details


def _launch_counts(counts: GateCounts, now: int) -> tuple[str, ...]:
    details = []
    if counts.launches:
        details.append(
            f"{counts.launches:,} launches so far, the last {round_duration(max(0, now - counts.at_ns))} ago"
        )
    if counts.waits:
        details.append(f"{counts.waits:,} of them waited, {round_duration(counts.waited_ns)} in total")
    return tuple(details)
