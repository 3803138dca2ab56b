"""The protocol between tenants and the node: length-prefixed msgpack, described in docs/reference/wire.md."""

from __future__ import annotations

import functools
import struct
import typing
from typing import Annotated, Final, TypeAlias

import msgspec

from cotenant.errors import PeerError
from cotenant.gate.activity import DeviceSnapshot
from cotenant.gate.grant import Grant
from cotenant.gate.hold_reason import HeldLaunch
from cotenant.gate.ledger import LedgerSnapshot
from cotenant.gate.rules import GateRules, Limit
from cotenant.node.model.action import SignalKind
from cotenant.node.model.admission import Reject
from cotenant.node.model.control import OnlineShareSetpoint
from cotenant.node.model.event import Detail, Ending, GateChange, GpuCalibrated
from cotenant.node.model.gang import GANG_RANKS
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import GpuWatch
from cotenant.node.model.tenant import (
    GPU_LIMIT,
    Amount,
    Departure,
    Name,
    PodText,
    Priority,
    SharePpm,
    TenantSpec,
    TenantView,
)
from cotenant.units.histogram import Histogram

VERSION: Final = 10
HOOK_VERSION: Final = 1
"""Version of the hook's request `attach`, its answer and the shared pages. It is separate because the hook in a running
program outlives an upgrade of the node: change it only if the two can no longer understand each other."""
FRAME_LIMIT_BYTES: Final = 64 << 10
"""The largest frame that a peer may send; the node's answers may be larger."""
ANSWER_LIMIT_BYTES: Final = 32 << 20
_LENGTH: Final = struct.Struct("<I")
_FIELDS_LIMIT: Final = 16
_TEXT_LIMIT: Final = 4096
_GANG_NAME_LIMIT: Final = 256
_GRANT_FILE_LIMIT: Final = 16384
Text = Annotated[str, msgspec.Meta(max_length=_TEXT_LIMIT)]
GangName = Annotated[str, msgspec.Meta(max_length=_GANG_NAME_LIMIT)]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A msgpack map with a `type` field, easy to read in other languages; unknown fields are errors."""


class Join(Message, frozen=True, tag="join"):
    """Request to become a tenant."""

    version: int
    spec: TenantSpec


class Resume(Message, frozen=True, tag="resume"):
    """Request to resume a slot after the connection broke."""

    version: int
    slot: int
    generation: int


class Attach(Message, frozen=True, tag="attach"):
    """Request of the hook in a process to become a process of a tenant, which may have to join first.

    One file descriptor accompanies it: the pages of the process. No other message of a peer may carry one.
    """

    version: int
    fields: Annotated[dict[Text, Text], msgspec.Meta(max_length=_FIELDS_LIMIT)]
    """The texts of the variables COTENANT_KIND, _PRIORITY, _SLO, _MEMORY, _SHARE, _TASK and _NAME that are set."""
    grant: Annotated[str, msgspec.Meta(max_length=_GRANT_FILE_LIMIT)]
    """The text of the file that COTENANT_GRANT names, or empty."""
    token: Text
    command: Text
    visible: Text
    """CUDA_VISIBLE_DEVICES of the process, or empty."""
    index: int = -1
    """After a reconnect, the index and the generation that the process had before; -1: it had none."""
    generation: int = 0
    gang: GangName = ""
    """What all ranks of the process's job on this machine have in common; empty: it belongs to no such job."""
    ranks: Annotated[int, msgspec.Meta(ge=0, le=GANG_RANKS)] = 0
    """The number of these ranks."""
    ordinal: Annotated[int, msgspec.Meta(ge=0, lt=GPU_LIMIT)] = 0
    """The device for which the process attaches, as it numbers it; it attaches once per device that it uses."""


class OwnGrant(Message, frozen=True, tag="own-grant"):
    """Request for the grant of the tenant that the calling process belongs to."""

    version: int


class GetSnapshot(Message, frozen=True, tag="snapshot"):
    """Request for the counters of gates and ledgers, of the tenants that the caller may see."""

    version: int


class IssueToken(Message, frozen=True, tag="issue-token"):
    """Request for a token with which one program may join with this spec, within this time."""

    version: int
    spec: TenantSpec
    valid_ns: Amount


class IssuePodToken(Message, frozen=True, tag="issue-pod-token"):
    """Request for a token with which all processes of the pod in `spec.pod` belong to one tenant with this spec.

    It is valid until it is revoked, also over restarts of the node. The same spec always has the same token.
    """

    version: int
    spec: TenantSpec


class RevokePodToken(Message, frozen=True, tag="revoke-pod-token"):
    """Request that no process may join with this token of a pod any more; attached processes stay."""

    version: int
    token: Text


class AnswerPod(Message, frozen=True, tag="answer-pod"):
    """The spec with which the processes of a waiting pod join, or (`refusal` not empty) why they may not."""

    version: int
    pod: PodText
    spec: TenantSpec | None
    refusal: Detail = ""


class AnnounceDisruption(Message, frozen=True, tag="announce-disruption"):
    """The pod of a tenant that awaits a notice is being deleted, or (`is_deleted` false) the node may end it."""

    version: int
    slot: int
    generation: int
    is_deleted: bool
    grace_ns: Amount = 0
    """Time until the kubelet kills the program of a deleted pod."""


class Leave(Message, frozen=True, tag="leave"):
    """The tenant's program ended."""

    ending: Ending


class ListTenants(Message, frozen=True, tag="list-tenants"):
    """Request for the list of tenants."""

    version: int


class Pause(Message, frozen=True, tag="pause"):
    """Request to pause tenants, or to resume them (`paused` false): those named, or all offline ones of the user."""

    version: int
    names: list[Name]
    all_offline: bool
    paused: bool


class SetPriority(Message, frozen=True, tag="set-priority"):
    """Request to change a tenant's priority."""

    version: int
    name: Name
    priority: Priority


class SetShare(Message, frozen=True, tag="set-share", omit_defaults=True):
    """Request to change a tenant's share, its limit or its memory; None: unchanged."""

    version: int
    name: Name
    share_ppm: SharePpm | None = None
    limit: Limit | None = None
    memory_bytes: Amount | None = None


class SetObjective(Message, frozen=True, tag="set-objective"):
    """Request to change an online tenant's latency objective; 0: none."""

    version: int
    name: Name
    slo_ns: Amount


class SetRules(Message, frozen=True, tag="set-rules"):
    """Request to change the gate rules."""

    version: int
    change: GateChange


class EvictTenants(Message, frozen=True, tag="evict"):
    """Request to end tenants gracefully; a grace of 0 means each tenant's own."""

    version: int
    names: list[Name]
    grace_ns: Amount


class GetStatus(Message, frozen=True, tag="get-status"):
    """Request for the state of the daemon."""

    version: int


class Reload(Message, frozen=True, tag="reload"):
    """Request to read the config again."""

    version: int


class Quit(Message, frozen=True, tag="quit"):
    """The tenant's parent was asked to end its program and requests a graceful exit."""

    grace_ns: Amount


class SuspendResult(Message, frozen=True, tag="suspend-result"):
    """The program's device memory is on the host now, or (`ok` false) is not. Has no answer."""

    ok: bool
    detail: Detail


class RestoreResult(Message, frozen=True, tag="restore-result"):
    """The program's memory is on the device again, or is not. Has no answer."""

    ok: bool
    detail: Detail


class RestartReport(Message, frozen=True, tag="restart-report"):
    """The program ended and was started again. Has no answer."""

    ending: Ending
    restarts: Amount


class Welcome(Message, frozen=True, tag="welcome"):
    """The peer is a tenant now; the processes of its program attach by themselves."""

    version: int
    tenant: str
    grant: Grant
    environment: dict[str, str]
    """Variables for the program's environment."""


class AttachAnswer(Message, frozen=True, tag="attached"):
    """The peer is a process of a tenant now.

    File descriptors accompany it: the grant page and, where the tenant has a device, the device's tenant table and
    arbitration page.
    """

    version: int
    slot: int
    generation: int
    gpu: int
    index: int
    process_generation: int
    epoch: int
    environment: dict[str, str]
    devices: int = 1
    """The number of devices of the tenant; the process attaches for each that it uses."""


class Page(Message, frozen=True, tag="page"):
    """The pages of another process of the device; one file descriptor accompanies it. The node sends it unasked."""

    index: int
    generation: int
    epoch: int


class GangPage(Message, frozen=True, tag="gang"):
    """The page on which the ranks of the process's job agree on collectives; one file descriptor accompanies it.

    The node sends it before the answer to `attach`.
    """

    ranks: int


class OwnGrantAnswer(Message, frozen=True, tag="grant"):
    """The tenant that the calling process belongs to, and its grant."""

    tenant: str
    grant: Grant


class GpuActivity(msgspec.Struct, frozen=True):
    """What the shared pages of one device show."""

    gate: DeviceSnapshot | None
    ledger: LedgerSnapshot | None
    holds: dict[int, HeldLaunch]
    """The launches that wait now, by slot."""


class Activity(Message, frozen=True, tag="activity"):
    """The counters of gates and ledgers of all devices, by number."""

    version: int
    gpus: list[GpuActivity]
    is_restricted: bool = False
    """Whether only the tenants of the caller are shown."""


class Token(Message, frozen=True, tag="token"):
    """A token for one join."""

    token: str


class Done(Message, frozen=True, tag="done"):
    """The request was carried out."""


class Refusal(Message, frozen=True, tag="refusal"):
    """The request was refused."""

    reject: Reject


class SlotReleased(Message, frozen=True, tag="slot-released"):
    """The tenant's slot is free again."""

    ending: str


class Confirmation(Message, frozen=True, tag="confirmation"):
    """The command was carried out for these tenants; these rules are in force."""

    tenants: list[str]
    rules: GateRules


class TenantList(Message, frozen=True, tag="tenant-list"):
    """The tenants of the node, recent departures, and the state of its devices."""

    version: int
    node_version: str
    pid: int
    tenants: list[TenantView]
    departed: list[Departure]
    now_ns: int
    turns: int
    slots: int
    gpus: list[Gpu]
    turn_ns: Histogram
    rules: GateRules
    devices: list[GpuWatch]
    """Monitor state by device index."""
    setpoints: list[OnlineShareSetpoint] = []
    """Online shares of the devices on which they are adjusted."""
    is_restricted: bool = False
    """Whether only the tenants of the caller are listed."""
    waiting_pods: list[str] = []
    """The uids of pods whose processes wait for `answer-pod`; for operators only."""


class NodeStatus(Message, frozen=True, tag="node-status"):
    """The state of the daemon."""

    version: int
    node_version: str
    pid: int
    uptime_ns: int
    runtime: str
    state: str
    config: str
    """The config file, which need not exist; empty: unknown."""
    sockets: list[str]
    """The sockets that exist."""
    slots: int
    tenants: int
    disconnected: int
    """Tenants that have not reconnected yet."""
    gpus: list[Gpu]
    devices: list[GpuWatch]
    storage: str
    """Why nothing can be stored now, so that joins are refused; empty: storing works."""
    kept_turns: int
    """Turns that are in memory until storing works."""
    dropped: int
    """Requests that were refused or dropped without a record."""
    mps: str
    """"off", "ready" or "not ready"."""
    calibrations: list[GpuCalibrated] = []
    """What was measured of the devices."""


class ReloadResult(Message, frozen=True, tag="reload-result"):
    """What a reload changed, as section.field; with an error nothing changed."""

    config: str
    """The config file that was read; empty: none."""
    applied: list[str]
    needs_restart: list[str]
    error: str = ""


class ProtocolViolation(Message, frozen=True, tag="protocol-violation"):
    """The peer broke the protocol; the node closes the connection."""

    detail: str


class Signal(Message, frozen=True, tag="signal"):
    """Ask the program to exit ("term") or kill it ("kill"). The node sends this and the next two unasked."""

    kind: SignalKind
    why: str
    may_restart: bool
    """Whether the parent may join again under its own restart rule."""


class Suspend(Message, frozen=True, tag="suspend"):
    """Move the program's device memory to the host."""

    why: str


class Restore(Message, frozen=True, tag="restore"):
    """Move the program's memory back to the device."""


Command: TypeAlias = Pause | SetPriority | SetShare | SetObjective | SetRules | EvictTenants | AnnounceDisruption
"""A request that changes something while the node runs."""
ServiceRequest: TypeAlias = GetStatus | Reload
"""A request about the daemon itself."""
ParentReport: TypeAlias = Leave | Quit | SuspendResult | RestoreResult | RestartReport
"""A message of a tenant's parent about its own tenant."""
TenantRequest: TypeAlias = Join | Resume | Attach | OwnGrant | ListTenants | GetSnapshot | GetStatus | ParentReport
"""A message that every peer may send."""
OperatorRequest: TypeAlias = Command | IssueToken | IssuePodToken | RevokePodToken | AnswerPod | Reload
"""A request that only operators may send."""
Request: TypeAlias = TenantRequest | OperatorRequest
Push: TypeAlias = Signal | Suspend | Restore
"""Messages to a tenant's parent that the node sends unasked; one may arrive before an expected answer."""
Answer: TypeAlias = (
    Welcome
    | AttachAnswer
    | Page
    | GangPage
    | OwnGrantAnswer
    | Activity
    | Token
    | Done
    | Refusal
    | SlotReleased
    | Confirmation
    | TenantList
    | NodeStatus
    | ReloadResult
    | ProtocolViolation
    | Push
)


class _AnyVersion(msgspec.Struct, frozen=True):
    """The fields that messages of all versions have or omit."""

    type: str = ""
    version: int = VERSION


_versions = msgspec.msgpack.Decoder(_AnyVersion)
_encoder = msgspec.msgpack.Encoder()


@functools.cache
def _requests() -> msgspec.msgpack.Decoder[Request]:
    """Return the decoder of requests, whose construction takes milliseconds: clients need only that of answers."""
    return msgspec.msgpack.Decoder(Request)


_ANSWER_TYPES: Final = {kind.__struct_config__.tag: kind for kind in typing.get_args(Answer)}


@functools.cache
def _answers(kind: type[Answer] | None) -> msgspec.msgpack.Decoder[Answer]:
    """Return the decoder of one type of answers, or of all: that takes milliseconds, and a client needs few types."""
    return msgspec.msgpack.Decoder(Answer if kind is None else kind)


def encode(message: Request | Answer) -> bytes:
    """Return the message as one frame."""
    payload = _encoder.encode(message)
    return _LENGTH.pack(len(payload)) + payload


def decode_request(payload: bytes) -> Request:
    """Decode a peer's request; raise `PeerError` that names the wrong field."""
    try:
        return _requests().decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise PeerError(_version_error(payload) or f"this message cannot be read: {error}") from None


def _version_error(payload: bytes) -> str:
    """Return an error about the protocol version, if that differs, or an empty string."""
    try:
        found = _versions.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ""
    return version_error(found.version, is_hook=found.type == "attach")


def version_error(version: int, *, is_hook: bool) -> str:
    """Return an error about the version of a request, or an empty string."""
    expected = HOOK_VERSION if is_hook else VERSION
    name = "hook protocol" if is_hook else "protocol"
    return "" if version == expected else f"this node speaks version {expected} of the {name}, not {version}"


def decode_answer(payload: bytes) -> Answer:
    """Decode the node's answer."""
    try:
        return _answers(_ANSWER_TYPES.get(_versions.decode(payload).type)).decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise PeerError(f"the node's answer cannot be read: {error}") from None


class Frames:
    """Splits a byte stream into frames; buffers at most one unfinished frame."""

    __slots__ = ("_buffer", "_limit_bytes")

    def __init__(self, limit_bytes: int = FRAME_LIMIT_BYTES) -> None:
        """Accept frames up to this size."""
        self._buffer = bytearray()
        self._limit_bytes = limit_bytes

    @property
    def partial(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that are complete now; raise `PeerError` for one that is empty or too large."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if not 0 < length <= self._limit_bytes:
                raise PeerError(f"a frame has 1 to {self._limit_bytes} bytes, this one announces {length}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            frames.append(bytes(self._buffer[_LENGTH.size : end]))
            del self._buffer[:end]
        return frames
