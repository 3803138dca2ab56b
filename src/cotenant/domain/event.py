"""What can a node be told? Every event is a fact about the outside; nothing else moves its state."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from cotenant.domain.control import Adjustment, ControlLimits, Dial
from cotenant.domain.gate import GatePolicy, GateRules, Limit
from cotenant.domain.gpu import Gpu
from cotenant.domain.instant import Duration, Instant
from cotenant.domain.protect import WHY_LIMIT, GpuSample, GpuWatch, ProtectLimits
from cotenant.domain.tenant import ENDING_LIMIT, Amount, Departure, Name, Priority, SharePpm, Tenant, TenantSpec
from cotenant.domain.value import Value

SLOTS_LIMIT: Final = 1024
"""A snapshot of so many tenants, with the longest texts they may have, still fits into one turn of the journal."""
DEPARTED_LIMIT: Final = 64
Detail = Annotated[str, msgspec.Meta(max_length=WHY_LIMIT)]
Ending = Annotated[str, msgspec.Meta(max_length=ENDING_LIMIT)]


class NodeSettings(Value, frozen=True):
    """How a node is set up, as far as its decisions depend on it."""

    slots: int
    grace_ns: Duration
    idle_exit_ns: Duration = 0
    place: str = "spread"
    admit: str = "reserve"
    gpus: tuple[Gpu, ...] = ()
    gate: GateRules = GateRules()
    """By which the tenants of a device let each other pass, until somebody changes that while the node runs."""
    limits: ProtectLimits = ProtectLimits()
    control: ControlLimits = ControlLimits()
    is_mps: bool = False
    """Whether the kernels of tenants run side by side."""
    refuse_unmet: bool = False
    """Whether an online tenant is turned away whose objective, by prediction, is kept on no device."""


class NodeStarted(Value, frozen=True, tag="started"):
    """The daemon runs, for the first time or again; who was there before is now expected back."""

    settings: NodeSettings
    version: str
    unix_ns: int


class WaitingJoin(Value, frozen=True):
    """An online newcomer for which others make room on a device."""

    peer: int
    pid: int
    uid: int
    spec: TenantSpec
    gpu: int
    until_ns: Instant


class OnlineFirst(Value, frozen=True):
    """On this device, offline newcomers wait until these online tenants are back, and no longer than this."""

    gpu: int
    names: tuple[str, ...]
    until_ns: Instant


class NodeRestored(Value, frozen=True, tag="restored"):
    """The state at the head of a new journal segment: replaces all that was known."""

    settings: NodeSettings
    turn: int
    generations: tuple[int, ...]
    tenants: tuple[tuple[int, Tenant], ...]
    departed: tuple[Departure, ...]
    away_until_ns: Instant
    idle_since_ns: Instant
    gate: GateRules | None = None
    """The rules in force; a journal of an older version has none but those of the settings."""
    watches: tuple[GpuWatch, ...] = ()
    """Of each device, by its number."""
    waiting: tuple[WaitingJoin, ...] = ()
    online_first: tuple[OnlineFirst, ...] = ()
    dials: tuple[Dial, ...] = ()


class TenantJoined(Value, frozen=True, tag="joined"):
    """A peer asks to become a tenant; pid and uid come from the kernel, not from the peer."""

    peer: int
    pid: int
    uid: int
    spec: TenantSpec


class TenantResumed(Value, frozen=True, tag="resumed"):
    """A peer says that it holds this slot already: the node was away, not the tenant."""

    peer: int
    pid: int
    uid: int
    slot: int
    generation: int


class TenantLeft(Value, frozen=True, tag="left"):
    """A tenant's program ended and its parent says how."""

    peer: int
    ending: Ending


class PeerLost(Value, frozen=True, tag="lost"):
    """A connection closed without a word: the kernel's own crash report."""

    peer: int


class TenantsPaused(Value, frozen=True, tag="paused"):
    """Somebody wants tenants to launch nothing for a while, or to go on: those named, or all that are offline.

    `uid` is the kernel's word for who asks; `is_owner` says that the node itself is that user's.
    """

    peer: int
    uid: int
    is_owner: bool
    names: tuple[Name, ...]
    all_offline: bool
    paused: bool


class PriorityChanged(Value, frozen=True, tag="priority"):
    """Somebody wants a tenant to have another priority."""

    peer: int
    uid: int
    is_owner: bool
    name: Name
    priority: Priority


class ShareChanged(Value, frozen=True, tag="share"):
    """Somebody wants a tenant to have another share, or to be held to it in another way; None: as it is."""

    peer: int
    uid: int
    is_owner: bool
    name: Name
    share_ppm: SharePpm | None = None
    limit: Limit | None = None


class ObjectiveChanged(Value, frozen=True, tag="objective"):
    """Somebody wants an online tenant to have another latency objective; 0: none."""

    peer: int
    uid: int
    is_owner: bool
    name: Name
    slo_ns: Amount


class GateChange(Value, frozen=True):
    """Which of the rules become what; None: as it is."""

    policy: GatePolicy | None = None
    bound_ns: Amount | None = None
    delay_ppm: SharePpm | None = None
    patience_ns: Amount | None = None
    switch_ns: Amount | None = None
    spin_ppm: SharePpm | None = None

    def applied(self, rules: GateRules) -> GateRules:
        """The rules with the change in them."""
        return GateRules(
            rules.policy if self.policy is None else self.policy,
            rules.bound_ns if self.bound_ns is None else self.bound_ns,
            rules.delay_ppm if self.delay_ppm is None else self.delay_ppm,
            rules.patience_ns if self.patience_ns is None else self.patience_ns,
            rules.switch_ns if self.switch_ns is None else self.switch_ns,
            rules.spin_ppm if self.spin_ppm is None else self.spin_ppm,
        )


class RulesChanged(Value, frozen=True, tag="rules"):
    """Somebody wants other rules for all devices of the node."""

    peer: int
    is_owner: bool
    change: GateChange


class SharesAdjusted(Value, frozen=True, tag="adjusted"):
    """By what was measured, the online tenants of a device are to keep another part of it."""

    adjustment: Adjustment


class GpusFound(Value, frozen=True, tag="found"):
    """The machine has devices that the node did not know; they come after those that it knows."""

    gpus: tuple[Gpu, ...]


class GpuSeen(Value, frozen=True, tag="gpu-seen"):
    """A device was looked at."""

    gpu: int
    sample: GpuSample


class GpuFaulted(Value, frozen=True, tag="gpu-faulted"):
    """The driver reported an error of a device by its number (Xid); slot -1: nobody knows whose."""

    gpu: int
    xid: int
    slot: int = -1
    generation: int = 0


class GpuLost(Value, frozen=True, tag="gpu-lost"):
    """A device does not answer any more."""

    gpu: int
    detail: Detail = ""


class GpuBack(Value, frozen=True, tag="gpu-back"):
    """A device that was lost answers again."""

    gpu: int


class TenantFaulted(Value, frozen=True, tag="faulted"):
    """A process of a tenant met an error that it does not survive; `source` as domain/fault.py has it."""

    slot: int
    generation: int
    source: Detail
    code: int


class TenantHangs(Value, frozen=True, tag="hangs"):
    """A kernel of a tenant runs far longer than its profile says."""

    slot: int
    generation: int
    kernel: Detail
    expected_ns: Duration
    waited_ns: Duration


class TenantDrained(Value, frozen=True, tag="drained"):
    """A tenant that is held back has no announced work left on the device."""

    slot: int
    generation: int


class MemoryWanted(Value, frozen=True, tag="memory-wanted"):
    """An allocation waits that the tenant's quota allows and the device has no room for."""

    slot: int
    generation: int
    bytes: Amount
    held: tuple[tuple[int, int], ...] = ()
    """Slot and device memory of everybody on the device, by the ledger."""


class EvictAsked(Value, frozen=True, tag="evict"):
    """Somebody wants these tenants to end; `uid` and `is_owner` as for a pause. Grace zero: as they have it."""

    peer: int
    uid: int
    is_owner: bool
    names: tuple[Name, ...]
    grace_ns: Amount = 0


class QuitAsked(Value, frozen=True, tag="quit"):
    """A tenant's parent was told to end its program."""

    peer: int
    grace_ns: Amount = 0


class TenantSuspended(Value, frozen=True, tag="suspended"):
    """How it went to move a tenant's device memory to the host."""

    peer: int
    ok: bool
    detail: Detail = ""


class TenantRestored(Value, frozen=True, tag="tenant-restored"):
    """How it went to move a tenant's memory back to the device."""

    peer: int
    ok: bool
    detail: Detail = ""


class TenantRestarted(Value, frozen=True, tag="restarted"):
    """A tenant's program ended and its parent started it again."""

    peer: int
    ending: Ending
    restarts: Amount


class MpsSeen(Value, frozen=True, tag="mps"):
    """The MPS server of a device is there, or is gone."""

    gpu: int
    is_ready: bool
    detail: Detail = ""


class Woke(Value, frozen=True, tag="woke"):
    """The instant that was asked for has come."""


class NodeStopping(Value, frozen=True, tag="stopping"):
    """The daemon was told to stop; tenants go on under their last terms."""

    reason: str


Event: TypeAlias = (
    NodeStarted
    | NodeRestored
    | TenantJoined
    | TenantResumed
    | TenantLeft
    | PeerLost
    | TenantsPaused
    | PriorityChanged
    | ShareChanged
    | ObjectiveChanged
    | RulesChanged
    | SharesAdjusted
    | GpusFound
    | GpuSeen
    | GpuFaulted
    | GpuLost
    | GpuBack
    | TenantFaulted
    | TenantHangs
    | TenantDrained
    | MemoryWanted
    | EvictAsked
    | QuitAsked
    | TenantSuspended
    | TenantRestored
    | TenantRestarted
    | MpsSeen
    | Woke
    | NodeStopping
)
