"""What the shared pages of all devices show, for peers that ask."""

from __future__ import annotations

from cotenant.gate.live_ledgers import LiveLedgers
from cotenant.node import wire
from cotenant.node.daemon.tenant_pages import TenantPages
from cotenant.runner.clock import monotonic_ns


def read_activity(pages: TenantPages, ledgers: LiveLedgers, gpus: int) -> wire.Activity:
    """Return the counters of gates and ledgers, and the launches that wait now."""
    return wire.Activity(wire.VERSION, [_gpu_activity(pages, ledgers, gpu) for gpu in range(gpus)])


def _gpu_activity(pages: TenantPages, ledgers: LiveLedgers, gpu: int) -> wire.GpuActivity:
    now = monotonic_ns()
    snapshot = pages.snapshot(gpu, now)
    is_waiting = snapshot is not None and any(counts.wanted_ns for counts in snapshot.counts.values())
    holds = pages.holds(gpu, now) if is_waiting else {}
    return wire.GpuActivity(snapshot, ledgers.snapshot(gpu), holds)
