"""Free capacity of each device, and the choice of a device for a new tenant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from cotenant.errors import InvariantError
from cotenant.gate.rules import ENTRIES_LIMIT, GateRules
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.event import NodeSettings
from cotenant.node.model.gpu import Gpu, GpuCapacity
from cotenant.node.model.tenant import Tenant, TenantSpec
from cotenant.node.policy import admit, place
from cotenant.node.policy.limit.share import share_of
from cotenant.node.policy.place.choice import DeviceScore
from cotenant.predict.co_location import forecast_sharing
from cotenant.predict.sharing_forecast import Sharing, SharingForecast
from cotenant.units.instant import NEVER
from cotenant.units.share import WHOLE_PPM


class Choice(NamedTuple):
    """The devices chosen for a tenant; `why` is empty if the policy did not compare predictions."""

    gpu: int
    why: str = ""
    shortfall_ppm: int = 0
    """Predicted share beyond the whole device that online tenants need for their objectives."""
    more_gpus: tuple[int, ...] = ()
    """Its further devices, in the order of its program."""

    @property
    def gpus(self) -> tuple[int, ...]:
        """Return all devices."""
        return (self.gpu, *self.more_gpus)


class Capacity:
    """Free capacity and rank of each device; the rank is recomputed only when the capacity changes.

    The specs of the tenants on each device are kept as well, unordered, for policies that predict.
    """

    __slots__ = ("_admit", "_policy", "_predicted", "_ranks", "_sharing", "_specs", "devices")

    def __init__(self, settings: NodeSettings, tenants: Iterable[Tenant], rules: GateRules) -> None:
        """Derive the capacity from the devices, the tenants on them and the rules in force."""
        for verb, policies, name in (
            ("place", place.POLICIES, settings.place),
            ("admit", admit.POLICIES, settings.admit),
        ):
            if name not in policies:
                raise InvariantError(f"the journal names the {verb} policy {name!r}, which this version lacks")
        self._admit = admit.POLICIES[settings.admit]
        self._policy = place.POLICIES[settings.place]
        control = settings.control
        self._sharing = Sharing(
            is_mps=settings.is_mps, quantile_ppm=control.quantile_ppm, headroom_ppm=control.headroom_ppm
        )
        self.devices = [_unreserved(index, gpu) for index, gpu in enumerate(settings.gpus)]
        self._ranks = [self._policy.rank(capacity) for capacity in self.devices]
        self._specs: list[list[TenantSpec]] = [[] for _ in self.devices]
        self._predicted: dict[int, SharingForecast] = {}  # by device, until its tenants change
        self.set_rules(rules)
        for tenant in tenants:
            self.occupy(tenant.grant.gpus, tenant.spec, 1)
            if tenant.lifecycle.suspended:
                self.reserve(tenant.grant.gpus, tenant.spec, -1)

    def find(self, spec: TenantSpec, barred: dict[int, Reject]) -> Choice | Reject:
        """Return the admissible devices that the place policy prefers, or the objection to the best one."""
        if spec.gpu_count > len(self.devices):
            detail = f"it requests {spec.gpu_count} GPUs, and the node has {len(self.devices)}"
            return Reject(Reason.UNKNOWN_GPU, f"{detail}; request fewer")
        if spec.gpu_count > 1:
            return self._find_several(spec, barred)
        ranks = self._ranks
        best = ranks.index(min(ranks))
        if self._policy.score is None or len(ranks) == 1:
            objection = self.objection(spec, best, barred)
            if objection is None:
                return self._choice_of(spec, (best,), is_chosen=False)
            fitting = [rank for index, rank in enumerate(ranks) if self.objection(spec, index, barred) is None]
            return Choice(ranks.index(min(fitting))) if fitting else objection
        scores = {
            index: self._score(spec, index)
            for index in range(len(ranks))
            if self.objection(spec, index, barred) is None
        }
        if not scores:
            return self.objection(spec, best, barred) or Choice(best)
        chosen, *rest = sorted(scores, key=lambda index: (scores[index].cost, ranks[index]))
        why = f"GPU {chosen}: {scores[chosen].why}"
        why += f"; next best GPU {rest[0]}: {scores[rest[0]].why}" if rest else ""
        return Choice(chosen, why, scores[chosen].shortfall_ppm)

    def _find_several(self, spec: TenantSpec, barred: dict[int, Reject]) -> Choice | Reject:
        """Return as many admissible devices as the tenant requests, the best ones by index, or the first objection."""
        objections = [self.objection(spec, gpu, barred) for gpu in range(len(self.devices))]
        admissible = [gpu for gpu, objection in enumerate(objections) if objection is None]
        if len(admissible) < spec.gpu_count:
            found = [objection for objection in objections if objection is not None]
            # Memory first, because offline tenants can free it; then the one that lapses first.
            first = min(found, key=lambda one: (one.reason is not Reason.NO_MEMORY, one.retry_after_ns or NEVER))
            counted = f"{len(admissible)} of {spec.gpu_count} requested GPUs are free for it"
            return Reject(first.reason, f"{counted}; {first.detail}", first.retry_after_ns)
        scores = {gpu: self._score(spec, gpu) for gpu in admissible} if self._policy.score is not None else {}
        admissible.sort(key=lambda gpu: (scores[gpu].cost if scores else 0, self._ranks[gpu]))
        chosen = sorted(admissible[: spec.gpu_count])
        return self._choice_of(spec, chosen, is_chosen=True)

    def choice_on_all(self, spec: TenantSpec, gpus: Sequence[int], barred: dict[int, Reject]) -> Choice | Reject:
        """Return the choice of given devices, or the first objection to one of them."""
        for gpu in gpus:
            objection = self.objection(spec, gpu, barred)
            if objection is not None:
                return objection
        return self._choice_of(spec, gpus, is_chosen=False)

    def _choice_of(self, spec: TenantSpec, gpus: Sequence[int], *, is_chosen: bool) -> Choice:
        """Return a choice with the predictions for devices that the policy chose, or that are predicted to miss."""
        if self._policy.score is None:
            return Choice(gpus[0], more_gpus=tuple(gpus[1:]))
        scores = {gpu: self._score(spec, gpu) for gpu in gpus}
        shown = [gpu for gpu in gpus if is_chosen or scores[gpu].shortfall_ppm]
        why = "; ".join(f"GPU {gpu}: {scores[gpu].why}" for gpu in shown)
        return Choice(gpus[0], why, max(score.shortfall_ppm for score in scores.values()), tuple(gpus[1:]))

    def _score(self, spec: TenantSpec, gpu: int) -> DeviceScore:
        assert self._policy.score is not None
        specs = self._specs[gpu]
        if gpu not in self._predicted:
            self._predicted[gpu] = forecast_sharing(specs, self._sharing)
        return self._policy.score(self._predicted[gpu], forecast_sharing((*specs, spec), self._sharing))

    def objection(self, spec: TenantSpec, gpu: int, barred: dict[int, Reject]) -> Reject | None:
        """Return why a tenant cannot join this device: barred, full, or too little capacity."""
        capacity = self.devices[gpu]
        if gpu in barred:
            return barred[gpu]
        if capacity.tenants >= ENTRIES_LIMIT:
            detail = f"GPU {capacity.index} has {capacity.tenants} tenants, the maximum per GPU"
            return Reject(Reason.GPU_FULL, f"{detail}; wait for one to leave or add a GPU to the node")
        return self._admit(spec, capacity)

    def has_capacity(self, gpus: Iterable[int], spec: TenantSpec) -> bool:
        """Return whether a suspended tenant's reservation fits again; true for a device that was removed."""
        return all(not gpu < len(self.devices) or self._admit(spec, self.devices[gpu]) is None for gpu in gpus)

    def would_fit(self, gpu: int, spec: TenantSpec, memory_bytes: int, share_ppm: int) -> bool:
        """Return whether a tenant would be admitted if this much more memory and share were free."""
        capacity = self.devices[gpu]
        freed = (capacity.memory_free_bytes + memory_bytes, capacity.share_free_ppm + share_ppm)
        return self._admit(spec, GpuCapacity(gpu, *freed, capacity.tenants)) is None

    def objection_to_change(self, gpus: Iterable[int], before: TenantSpec, after: TenantSpec) -> Reject | None:
        """Return why a tenant cannot change its reservation; a smaller one is always possible."""
        if after.share_ppm <= before.share_ppm and after.memory_bytes <= before.memory_bytes:
            return None
        for capacity in (self.devices[gpu] for gpu in gpus if gpu < len(self.devices)):
            freed = (capacity.memory_free_bytes + before.memory_bytes, capacity.share_free_ppm + before.share_ppm)
            objection = self._admit(after, GpuCapacity(capacity.index, *freed, capacity.tenants))
            if objection is not None:
                return objection
        return None

    def set_rules(self, rules: GateRules) -> None:
        """Apply other gate rules to the predictions."""
        kept_ppm = share_of(rules.delay_ppm)
        self._sharing = msgspec.structs.replace(self._sharing, policy=rules.policy, kept_ppm=kept_ppm)
        self._predicted.clear()

    def occupy(self, gpus: Iterable[int], spec: TenantSpec, sign: int) -> None:
        """Add (1) or remove (-1) a tenant with its reservation on each of its devices."""
        for gpu in gpus:
            self._change(gpu, spec, sign, sign)
            if gpu < len(self.devices):
                specs = self._specs[gpu]
                specs.append(spec) if sign > 0 else specs.remove(spec)
                self._predicted.pop(gpu, None)

    def reserve(self, gpus: Iterable[int], spec: TenantSpec, sign: int) -> None:
        """Restore (1) or release (-1) the reservation of a tenant that stays on its devices."""
        for gpu in gpus:
            self._change(gpu, spec, sign, 0)

    def _change(self, gpu: int, spec: TenantSpec, sign: int, tenants: int) -> None:
        """Update a device's capacity; a device that was removed has none."""
        if gpu >= len(self.devices):
            return
        capacity = self.devices[gpu]
        capacity = GpuCapacity(
            gpu,
            capacity.memory_free_bytes - sign * spec.memory_bytes,
            capacity.share_free_ppm - sign * spec.share_ppm,
            capacity.tenants + tenants,
        )
        self.devices[gpu] = capacity
        self._ranks[gpu] = self._policy.rank(capacity)


def _unreserved(index: int, gpu: Gpu) -> GpuCapacity:
    return GpuCapacity(index, gpu.memory_bytes, WHOLE_PPM, 0)
