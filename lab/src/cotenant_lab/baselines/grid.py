"""A limiter by grid size and utilization, as in the vcuda family: HAMi-core, Tencent's vcuda-controller.

The implementation is our own and shares its arithmetic with the live limiter of `bench limit`. Only offline tenants are
limited, to equal parts of the device's time, which an operator without further knowledge would set. A launch takes as
many tokens as its grid has blocks and sleeps while there are none; utilization is sampled every 120 ms.
"""

from __future__ import annotations

from typing import Final

from cotenant.simulate.sharing import RunSpec, SharingOutcome, clients_of, simulate_run, simulation_of
from cotenant.softgpu.sim.host import LaunchGate, OpenGate
from cotenant.softgpu.sim.kernels import DeviceSimulation
from cotenant.units.instant import SECOND_NS
from cotenant_lab.programs.grid_limiter import PERIOD_S, SLEEP_S, Tokens

PERIOD_NS: Final = round(PERIOD_S * SECOND_NS)
_SLEEP_NS: Final = round(SLEEP_S * SECOND_NS)


class GridLimit(OpenGate):
    """Admission of the launches of one tenant."""

    sleeps = True

    def __init__(self, blocks: list[int], tokens: Tokens) -> None:
        """Take the number of blocks of each launch; a graph has those of its kernels."""
        self._blocks = blocks
        self._tokens = tokens
        self._used_ns = 0

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """Admit while there are tokens; otherwise ask again after a wait."""
        del since_ns
        return now_ns if self._tokens.take(self._blocks[step]) else now_ns + _SLEEP_NS

    def update(self, used_ns: int) -> None:
        """Update the tokens with the device time that the tenant has used so far."""
        self._tokens.update(round(100 * (used_ns - self._used_ns) / PERIOD_NS))
        self._used_ns = used_ns


def grid(run: RunSpec) -> SharingOutcome:
    """Limit under time slices."""
    return _limited("grid", run, sliced=True)


def grid_mps(run: RunSpec) -> SharingOutcome:
    """Limit under MPS."""
    return _limited("grid-mps", run, sliced=False)


def _limited(mode: str, run: RunSpec, *, sliced: bool) -> SharingOutcome:
    device, percent = run.setting.device, 100 // len(run.guests)
    gates: list[LaunchGate] = []
    limits: dict[int, GridLimit] = {}
    for index, guest in enumerate(run.guests):
        if guest.online:
            gates.append(OpenGate())
            continue
        blocks = [max(launch.kernel.blocks, 1) for launch in guest.load.launches]
        tokens = Tokens(percent, device.sm_count, device.threads_per_sm)
        limits[index] = GridLimit([sum(blocks)] if guest.load.graph else blocks, tokens)
        gates.append(limits[index])
    simulation = simulation_of(run, clients_of(run, sliced=sliced), gates)
    simulation.every(PERIOD_NS, lambda _: _update(simulation, limits))
    return simulate_run(mode, run, simulation)


def _update(simulation: DeviceSimulation, limits: dict[int, GridLimit]) -> None:
    for index, gate in limits.items():
        gate.update(simulation.busy_ns(index))
