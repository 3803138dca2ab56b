"""The protocol between tenants and the node: length-prefixed msgpack, described in docs/reference/wire.md."""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

import msgspec

from cotenant.errors import PeerError
from cotenant.gate.grant import Grant
from cotenant.gate.rules import GateRules, Limit
from cotenant.node.model.action import SignalKind
from cotenant.node.model.admission import Reject
from cotenant.node.model.control import OnlineShareSetpoint
from cotenant.node.model.event import Detail, Ending, GateChange
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import GpuWatch
from cotenant.node.model.tenant import Amount, Departure, Name, Priority, SharePpm, TenantSpec, TenantView
from cotenant.units.histogram import Histogram

VERSION: Final = 8
FRAME_LIMIT_BYTES: Final = 64 << 10
"""The largest frame that a peer may send; the node's answers may be larger."""
ANSWER_LIMIT_BYTES: Final = 32 << 20
_LENGTH: Final = struct.Struct("<I")


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


class SetShare(Message, frozen=True, tag="set-share"):
    """Request to change a tenant's share or its limit; None: unchanged."""

    version: int
    name: Name
    share_ppm: SharePpm | None = None
    limit: Limit | None = None


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
    """The peer is a tenant now.

    File descriptors accompany it: the grant page and, where the tenant has a device, its gate file and its ledger file,
    each once for reading and once for writing.
    """

    version: int
    tenant: str
    grant: Grant
    environment: dict[str, str]
    """Variables for the program's environment."""


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


Command: TypeAlias = Pause | SetPriority | SetShare | SetObjective | SetRules | EvictTenants
"""A request that changes something while the node runs."""
Request: TypeAlias = (
    Join | Resume | Leave | ListTenants | Command | Quit | SuspendResult | RestoreResult | RestartReport
)
Push: TypeAlias = Signal | Suspend | Restore
"""Messages that the node sends unasked; one may arrive before an expected answer."""
Answer: TypeAlias = Welcome | Refusal | SlotReleased | Confirmation | TenantList | ProtocolViolation | Push


class _AnyVersion(msgspec.Struct, frozen=True):
    """The one field that messages of all versions have or omit."""

    version: int = VERSION


_versions = msgspec.msgpack.Decoder(_AnyVersion)
_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(message: Request | Answer) -> bytes:
    """Return the message as one frame."""
    payload = _encoder.encode(message)
    return _LENGTH.pack(len(payload)) + payload


def decode_request(payload: bytes) -> Request:
    """Decode a peer's request; raise `PeerError` that names the wrong field."""
    try:
        return _requests.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise PeerError(_version_error(payload) or f"this message cannot be read: {error}") from None


def _version_error(payload: bytes) -> str:
    """Return an error about the protocol version, if that differs, or an empty string."""
    try:
        version = _versions.decode(payload).version
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ""
    return "" if version == VERSION else f"this node speaks version {VERSION} of the protocol, not {version}"


def decode_answer(payload: bytes) -> Answer:
    """Decode the node's answer."""
    try:
        return _answers.decode(payload)
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
