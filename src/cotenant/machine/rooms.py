"""Where is room for whom? What the promises leave of each device, and which device a newcomer gets."""

from __future__ import annotations

from collections.abc import Iterable

from cotenant.domain.event import NodeSettings
from cotenant.domain.gate import SEATS_LIMIT
from cotenant.domain.gpu import WHOLE_PPM, Gpu, GpuRoom
from cotenant.domain.plan import Reason, Reject
from cotenant.domain.tenant import Tenant, TenantSpec
from cotenant.errors import InvariantError
from cotenant.policy import admit, place


class Rooms:
    """One room per device, and its rank by the place policy: only a change is ranked anew."""

    __slots__ = ("_judge", "_rank", "_ranks", "rooms")

    def __init__(self, settings: NodeSettings, tenants: Iterable[Tenant]) -> None:
        """Derive the rooms from the devices and from who is there."""
        for verb, policies, name in (
            ("place", place.POLICIES, settings.place),
            ("admit", admit.POLICIES, settings.admit),
        ):
            if name not in policies:
                raise InvariantError(f"the journal names the {verb} policy {name!r}, which this version does not have")
        self._judge = admit.POLICIES[settings.admit]
        self._rank = place.POLICIES[settings.place]
        self.rooms = [_whole(index, gpu) for index, gpu in enumerate(settings.gpus)]
        self._ranks = [self._rank(room) for room in self.rooms]
        for tenant in tenants:
            self.occupy(tenant.terms.gpu, tenant.spec, 1)

    def find(self, spec: TenantSpec, only: int | None = None) -> int | Reject:
        """Of the devices that have room, the one the place policy likes best; else what is against that one."""
        if only is not None:
            return self._objection(spec, self.rooms[only]) or only
        ranks, rooms = self._ranks, self.rooms
        best = ranks.index(min(ranks))
        objection = self._objection(spec, rooms[best])
        if objection is None:
            return best
        fitting = [ranks[room.index] for room in rooms if self._objection(spec, room) is None]
        return ranks.index(min(fitting)) if fitting else objection

    def occupy(self, gpu: int, spec: TenantSpec, sign: int) -> None:
        """Somebody comes (1) or goes (-1); a device that is none of ours any more has no room to keep."""
        if not 0 <= gpu < len(self.rooms):
            return
        room = self.rooms[gpu]
        room = GpuRoom(
            gpu,
            room.memory_free_bytes - sign * spec.memory_bytes,
            room.share_free_ppm - sign * spec.share_ppm,
            room.tenants + sign,
        )
        self.rooms[gpu] = room
        self._ranks[gpu] = self._rank(room)

    def _objection(self, spec: TenantSpec, room: GpuRoom) -> Reject | None:
        if room.tenants >= SEATS_LIMIT:
            detail = f"GPU {room.index} has {room.tenants} tenants, and {SEATS_LIMIT} is the most that can share one"
            return Reject(Reason.NO_SEAT, f"{detail}; wait for one to leave, or give the node another GPU")
        return self._judge(spec, room)


def _whole(index: int, gpu: Gpu) -> GpuRoom:
    return GpuRoom(index, gpu.memory_bytes, WHOLE_PPM, 0)
