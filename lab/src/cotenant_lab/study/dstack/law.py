"""Check the law by which runs without shares divide a GPU, against measurements of concurrent processes."""

from __future__ import annotations

from typing import Final

from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant.serve.sim.device import even_shares
from cotenant.serve.sim.run_speed import RunSpeeds
from cotenant_lab.data.parvagpu import Profiles

GPCS: Final = 7
"""GPCs of a whole A100."""
_LEAST_WIDTHS: Final = 4


def evaluate_law(profiles: Profiles) -> dict[int, list[float]]:
    """Return, by number of processes of one model on the whole GPU under MPS, measured latencies over those of the law.

    The law uses latencies of one process by instance size, and no measurement of several processes.
    """
    alone: dict[tuple[str, int], list[RunTime]] = {}
    for (model, gpcs, batch), by_count in sorted(profiles.latency_s.items()):
        if 1 in by_count:
            alone.setdefault((model, batch), []).append(RunTime(gpcs, batch, round(by_count[1] * 1e9), 0))
    ratios: dict[int, list[float]] = {}
    for (model, batch), cells in alone.items():
        if len(cells) < _LEAST_WIDTHS:
            continue
        speeds = RunSpeeds(RunTimes(GPCS, tuple(cells), GPCS))
        for count, latency_s in sorted(profiles.latency_s.get((model, GPCS, batch), {}).items()):
            if count > 1:
                units = even_shares([speeds.max_units(batch)] * count, GPCS)[0]
                ratios.setdefault(count, []).append(latency_s * 1e9 / speeds.run_ns(batch, units))
    return ratios
