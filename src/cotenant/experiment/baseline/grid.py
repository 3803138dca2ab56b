"""A limiter by grid size and utilization, as the vcuda family does it: HAMi-core, Tencent's vcuda-controller.

In our own words and with the arithmetic of the live one that `bench limit` is compared with. Offline tenants alone are
held: to an equal part of the device's time, which is what an operator without further knowledge would set. A launch
takes as many tokens as its grid has blocks and sleeps while there are none; utilization is looked at every 120 ms.
"""

from __future__ import annotations

from typing import Final

from cotenant.domain.instant import SECOND_NS
from cotenant.experiment.together import Outcome, Run, clients_of, live_through, world_of
from cotenant.live.soak.gridlimit import PERIOD_S, SLEEP_S, Tokens
from cotenant.sim.kernels import World
from cotenant.sim.kernels_host import Door, Open

PERIOD_NS: Final = round(PERIOD_S * SECOND_NS)
_SLEEP_NS: Final = round(SLEEP_S * SECOND_NS)


class GridDoor(Open):
    """Before the launches of one tenant."""

    sleeps = True

    def __init__(self, blocks: list[int], tokens: Tokens) -> None:
        """Of each launch of its load, how many blocks there are; a graph has those of its kernels."""
        self._blocks = blocks
        self._tokens = tokens
        self._used_ns = 0

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """Yes while there are tokens; otherwise after a nap."""
        del since_ns
        return now_ns if self._tokens.take(self._blocks[step]) else now_ns + _SLEEP_NS

    def look(self, used_ns: int) -> None:
        """Of the device's time, so much has been this tenant's so far."""
        self._tokens.look(round(100 * (used_ns - self._used_ns) / PERIOD_NS))
        self._used_ns = used_ns


def grid(run: Run) -> Outcome:
    """Where processes take turns by time slice, as without MPS."""
    return _limited("grid", run, sliced=True)


def grid_mps(run: Run) -> Outcome:
    """The same limiter under MPS."""
    return _limited("grid-mps", run, sliced=False)


def _limited(way: str, run: Run, *, sliced: bool) -> Outcome:
    device, percent = run.setting.device, 100 // len(run.guests)
    doors: list[Door] = []
    held: dict[int, GridDoor] = {}
    for place, guest in enumerate(run.guests):
        if guest.online:
            doors.append(Open())
            continue
        each = [max(launch.kernel.blocks, 1) for launch in guest.load.launches]
        tokens = Tokens(percent, device.sm_count, device.threads_per_sm)
        held[place] = GridDoor([sum(each)] if guest.load.graph else each, tokens)
        doors.append(held[place])
    world = world_of(run, clients_of(run, sliced=sliced), doors)
    world.every(PERIOD_NS, lambda _: _look(world, held))
    return live_through(way, run, world)


def _look(world: World, held: dict[int, GridDoor]) -> None:
    for place, door in held.items():
        door.look(world.busy_ns(place))
