"""Do runs without shares divide a GPU as the simulated device has it? By processes measured beside each other."""

from __future__ import annotations

from typing import Final

from cotenant.domain.runtimes import RunTime, RunTimes
from cotenant.format.measured.parvagpu import Profiles
from cotenant.sim.physics.runs import RunSpeeds
from cotenant.sim.serve_device import even_parts

GPCS: Final = 7
"""Of a whole A100."""
_LEAST_WIDTHS: Final = 4


def judge_law(profiles: Profiles) -> dict[int, list[float]]:
    """By how many processes of one model share the whole GPU under MPS: measured latencies over those of the law.

    The law is given latencies of one process by the size of its instance, and nothing of several.
    """
    alone: dict[tuple[str, int], list[RunTime]] = {}
    for (model, gpcs, batch), by_count in sorted(profiles.latency_s.items()):
        if 1 in by_count:
            alone.setdefault((model, batch), []).append(RunTime(gpcs, batch, round(by_count[1] * 1e9), 0))
    found: dict[int, list[float]] = {}
    for (model, batch), cells in alone.items():
        if len(cells) < _LEAST_WIDTHS:
            continue
        speeds = RunSpeeds(RunTimes(GPCS, tuple(cells), GPCS))
        for count, latency_s in sorted(profiles.latency_s.get((model, GPCS, batch), {}).items()):
            if count > 1:
                units = even_parts([speeds.most_units(batch)] * count, GPCS)[0]
                found.setdefault(count, []).append(latency_s * 1e9 / speeds.took_ns(batch, units))
    return found
