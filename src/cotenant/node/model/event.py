"""Events of the node: facts from outside. Its state changes only when it handles one."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from cotenant.gate.rules import GatePolicy, GateRules, Limit
from cotenant.node.model.calibration import Calibration
from cotenant.node.model.control import Adjustment, ControlLimits, OnlineShareSetpoint
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.log_event import LogEventKind, LogLevel
from cotenant.node.model.protection import WHY_LIMIT, GpuSample, GpuWatch, OnBypass, ProtectLimits
from cotenant.node.model.tenant import ENDING_LIMIT, Amount, Departure, Name, Priority, SharePpm, Tenant, TenantSpec
from cotenant.units.instant import Duration, Instant
from cotenant.units.value import Value

SLOTS_LIMIT: Final = 1024
"""A snapshot of this many tenants with texts of maximum length still fits into one turn of the journal."""
DEPARTED_LIMIT: Final = 64
Detail = Annotated[str, msgspec.Meta(max_length=WHY_LIMIT)]
Ending = Annotated[str, msgspec.Meta(max_length=ENDING_LIMIT)]


class NodeSettings(Value, frozen=True):
    """The settings that the node's decisions depend on."""

    slots: int
    grace_ns: Duration
    idle_exit_ns: Duration = 0
    place: str = "spread"
    admit: str = "reserve"
    gpus: tuple[Gpu, ...] = ()
    gate: GateRules = GateRules()
    """The gate rules until an operator changes them at run time."""
    limits: ProtectLimits = ProtectLimits()
    control: ControlLimits = ControlLimits()
    is_mps: bool = False
    """Whether the tenants' kernels run concurrently under MPS."""
    refuse_unmet: bool = False
    """Whether an online tenant is refused if no device is predicted to meet its objective."""
    on_bypass: OnBypass = OnBypass.EVICT
    uses_calibration: bool = False
    """Whether measured costs of a device replace those of the gate rules."""


class NodeStarted(Value, frozen=True, tag="started"):
    """The daemon started; tenants of an earlier run count as disconnected until they resume."""

    settings: NodeSettings
    version: str
    unix_ns: int


class WaitingJoin(Value, frozen=True):
    """An online tenant that waits to join until offline tenants have freed memory."""

    peer: int
    pid: int
    uid: int
    spec: TenantSpec
    gpu: int
    until_ns: Instant
    more_gpus: tuple[int, ...] = ()

    @property
    def gpus(self) -> tuple[int, ...]:
        """Return all devices for which it waits."""
        return (self.gpu, *self.more_gpus)


class OnlineFirst(Value, frozen=True):
    """Offline tenants may not join this device until these online tenants have returned or the time is over."""

    gpu: int
    names: tuple[str, ...]
    until_ns: Instant


class GpuCalibrated(Value, frozen=True, tag="gpu-calibrated"):
    """The node has measured what sharing a device costs, now or earlier with the same driver."""

    gpu: int
    calibration: Calibration


class NodeRestored(Value, frozen=True, tag="restored"):
    """A snapshot of the whole state at the head of a journal segment; it replaces the state."""

    settings: NodeSettings
    turn: int
    generations: tuple[int, ...]
    tenants: tuple[tuple[int, Tenant], ...]
    departed: tuple[Departure, ...]
    disconnected_until_ns: Instant
    idle_since_ns: Instant
    gate: GateRules | None = None
    """The rules in force; journals of older versions have only those of the settings."""
    watches: tuple[GpuWatch, ...] = ()
    """Monitor state by device index."""
    waiting: tuple[WaitingJoin, ...] = ()
    online_first: tuple[OnlineFirst, ...] = ()
    setpoints: tuple[OnlineShareSetpoint, ...] = ()
    calibrations: tuple[GpuCalibrated, ...] = ()


class TenantJoined(Value, frozen=True, tag="joined"):
    """A peer asks to become a tenant; the kernel supplied pid and uid."""

    peer: int
    pid: int
    uid: int
    spec: TenantSpec


class TenantResumed(Value, frozen=True, tag="resumed"):
    """A peer claims the slot that it held before the connection broke."""

    peer: int
    pid: int
    uid: int
    slot: int
    generation: int


class TenantLeft(Value, frozen=True, tag="left"):
    """A tenant's program ended; its parent reports how."""

    peer: int
    ending: Ending


class PeerLost(Value, frozen=True, tag="lost"):
    """A connection closed without a leave message."""

    peer: int


class TenantsPaused(Value, frozen=True, tag="paused"):
    """A peer asks to pause or resume tenants: those named, or all offline tenants.

    The kernel supplied `uid`; `is_owner` says whether the daemon runs as that user.
    """

    peer: int
    uid: int
    is_owner: bool
    names: tuple[Name, ...]
    all_offline: bool
    paused: bool


class PriorityChanged(Value, frozen=True, tag="priority"):
    """A peer asks for another priority of a tenant."""

    peer: int
    uid: int
    is_owner: bool
    name: Name
    priority: Priority


class ShareChanged(Value, frozen=True, tag="share"):
    """A peer asks for another share of a tenant, another limit or other memory; None: unchanged."""

    peer: int
    uid: int
    is_owner: bool
    name: Name
    share_ppm: SharePpm | None = None
    limit: Limit | None = None
    memory_bytes: Amount | None = None


class ObjectiveChanged(Value, frozen=True, tag="objective"):
    """A peer asks for another latency objective of an online tenant; 0: none."""

    peer: int
    uid: int
    is_owner: bool
    name: Name
    slo_ns: Amount


class GateChange(Value, frozen=True):
    """New values for some gate rules; None: unchanged."""

    policy: GatePolicy | None = None
    bound_ns: Amount | None = None
    delay_ppm: SharePpm | None = None
    patience_ns: Amount | None = None
    switch_ns: Amount | None = None
    spin_ppm: SharePpm | None = None
    sm_ppm: SharePpm | None = None
    """0: as much as the measured loss of holders permits."""

    def applied(self, rules: GateRules) -> GateRules:
        """Return the rules with this change applied."""
        return GateRules(
            rules.policy if self.policy is None else self.policy,
            rules.bound_ns if self.bound_ns is None else self.bound_ns,
            rules.delay_ppm if self.delay_ppm is None else self.delay_ppm,
            rules.patience_ns if self.patience_ns is None else self.patience_ns,
            rules.switch_ns if self.switch_ns is None else self.switch_ns,
            rules.spin_ppm if self.spin_ppm is None else self.spin_ppm,
            sm_ppm=rules.sm_ppm if self.sm_ppm is None else self.sm_ppm or None,
        )


class RulesChanged(Value, frozen=True, tag="rules"):
    """A peer asks for other gate rules on all devices."""

    peer: int
    is_owner: bool
    change: GateChange


class OnlineShareProposed(Value, frozen=True, tag="online-share-proposed"):
    """The control loop proposes a new online share for a device."""

    adjustment: Adjustment


class GpusFound(Value, frozen=True, tag="gpus-found"):
    """The machine has devices that the node did not know; they follow the known ones."""

    gpus: tuple[Gpu, ...]


class GpuSampled(Value, frozen=True, tag="gpu-sampled"):
    """A device was sampled."""

    gpu: int
    sample: GpuSample


class GpuFaulted(Value, frozen=True, tag="gpu-faulted"):
    """The driver reported an Xid error of a device; slot -1: the tenant is unknown."""

    gpu: int
    xid: int
    slot: int = -1
    generation: int = 0


class GpuLost(Value, frozen=True, tag="gpu-lost"):
    """A device does not respond any more."""

    gpu: int
    detail: Detail = ""


class GpuRecovered(Value, frozen=True, tag="gpu-recovered"):
    """A lost device responds again."""

    gpu: int


class TenantFaulted(Value, frozen=True, tag="faulted"):
    """A process of a tenant met a fatal error; `source` is a value of `Source` in model/fault.py."""

    slot: int
    generation: int
    source: Detail
    code: int
    gpu: int = -1
    """The device on which it happened; -1: the first device of the tenant."""


class TenantHung(Value, frozen=True, tag="hung"):
    """A kernel of a tenant runs far longer than its profile predicts."""

    slot: int
    generation: int
    kernel: Detail
    expected_ns: Duration
    waited_ns: Duration
    gpu: int = -1
    """The device on which the kernel runs; -1: the first device of the tenant."""


class TenantDrained(Value, frozen=True, tag="drained"):
    """A tenant that may not launch has no work left on the device."""

    slot: int
    generation: int


class MemoryRequested(Value, frozen=True, tag="memory-requested"):
    """A tenant waits for an allocation that its quota allows and for which the device lacks free memory."""

    slot: int
    generation: int
    bytes: Amount
    held: tuple[tuple[int, int], ...] = ()
    """Slot and allocated device memory of all tenants of the device, from the ledger."""
    free_bytes: Amount = 0
    """The device's free memory, which does not suffice."""
    gpu: int = -1
    """The device; -1: the first device of the tenant."""


class MemoryBypassed(Value, frozen=True, tag="memory-bypassed"):
    """The device reports memory of a tenant that its hook did not see, or more than its quota; both 0: no longer."""

    slot: int
    generation: int
    unseen_bytes: Amount
    """Memory of processes that did not attach, or that exceeds what the attached ones recorded."""
    over_bytes: Amount
    """Memory beyond the quota."""
    held_bytes: Amount
    """All memory that the device attributes to the tenant's processes."""


class EvictionRequested(Value, frozen=True, tag="eviction-requested"):
    """A peer asks to end tenants; `uid` and `is_owner` as in `TenantsPaused`. Grace 0: each tenant's own."""

    peer: int
    uid: int
    is_owner: bool
    names: tuple[Name, ...]
    grace_ns: Amount = 0


class DisruptionAnnounced(Value, frozen=True, tag="disruption-announced"):
    """An operator has announced that the pod of a tenant is disrupted; `uid` and `is_owner` as in `TenantsPaused`."""

    peer: int
    uid: int
    is_owner: bool
    slot: int
    generation: int
    is_deleted: bool
    """Whether the pod is being deleted, so that its kubelet sends the signals; else the node may send them."""
    grace_ns: Amount = 0
    """Time until the kubelet kills the program."""


class QuitRequested(Value, frozen=True, tag="quit-requested"):
    """A tenant's parent was asked to end its program."""

    peer: int
    grace_ns: Amount = 0


class TenantSuspended(Value, frozen=True, tag="suspended"):
    """The result of moving a tenant's device memory to the host."""

    peer: int
    ok: bool
    detail: Detail = ""


class TenantRestored(Value, frozen=True, tag="tenant-restored"):
    """The result of moving a tenant's memory back to the device."""

    peer: int
    ok: bool
    detail: Detail = ""


class TenantRestarted(Value, frozen=True, tag="restarted"):
    """A tenant's program ended and its parent started it again."""

    peer: int
    ending: Ending
    restarts: Amount


class MpsStatusChanged(Value, frozen=True, tag="mps-status"):
    """The MPS server of a device is ready, or has exited."""

    gpu: int
    is_ready: bool
    detail: Detail = ""


class TimerFired(Value, frozen=True, tag="timer-fired"):
    """The instant that the state machine asked for has come."""


class SettingsChanged(Value, frozen=True, tag="settings-changed"):
    """The settings changed while the node runs: the config was read again, or a device returned with other properties.

    The number of slots stays, and every known device keeps its index.
    """

    settings: NodeSettings
    detail: str


class NodeReported(Value, frozen=True, tag="reported"):
    """Something happened to the daemon itself that changes no decision, such as a full disk; recorded for its users."""

    what: LogEventKind
    text: str
    level: LogLevel = LogLevel.WARNING


class NodeStopping(Value, frozen=True, tag="stopping"):
    """The daemon was asked to stop; tenants continue under their last grants."""

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
    | OnlineShareProposed
    | GpusFound
    | GpuSampled
    | GpuFaulted
    | GpuLost
    | GpuRecovered
    | TenantFaulted
    | TenantHung
    | TenantDrained
    | MemoryRequested
    | MemoryBypassed
    | EvictionRequested
    | DisruptionAnnounced
    | QuitRequested
    | TenantSuspended
    | TenantRestored
    | TenantRestarted
    | MpsStatusChanged
    | GpuCalibrated
    | TimerFired
    | SettingsChanged
    | NodeReported
    | NodeStopping
)
