"""What do a tenant and the node say to each other? Length-prefixed msgpack, described in docs/wire.md."""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

import msgspec

from cotenant.domain.action import SignalKind
from cotenant.domain.control import Dial
from cotenant.domain.event import Detail, Ending, GateChange
from cotenant.domain.gate import GateRules, Limit
from cotenant.domain.gpu import Gpu
from cotenant.domain.histogram import Histogram
from cotenant.domain.plan import Reject
from cotenant.domain.protect import GpuWatch
from cotenant.domain.tenant import Amount, Departure, Name, Priority, SharePpm, TenantSpec, TenantView, Terms
from cotenant.errors import PeerError

VERSION: Final = 7
FRAME_LIMIT_BYTES: Final = 64 << 10
"""What a peer may send at once; the node's own answers may be larger."""
ANSWER_LIMIT_BYTES: Final = 32 << 20
_LENGTH: Final = struct.Struct("<I")


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A map with a `type`: other languages read it easily, and an unknown field is an error."""


class Join(Message, frozen=True, tag="join"):
    """Make me a tenant."""

    version: int
    spec: TenantSpec


class Resume(Message, frozen=True, tag="resume"):
    """I hold this slot already; the connection broke."""

    version: int
    slot: int
    generation: int


class Leave(Message, frozen=True, tag="leave"):
    """My program ended."""

    ending: Ending


class List(Message, frozen=True, tag="list"):
    """Who is here?"""

    version: int


class Pause(Message, frozen=True, tag="pause"):
    """Let these tenants launch nothing, or (`paused` false) go on; or all that are offline and mine to change."""

    version: int
    names: list[Name]
    all_offline: bool
    paused: bool


class SetPriority(Message, frozen=True, tag="set-priority"):
    """Give this tenant another priority."""

    version: int
    name: Name
    priority: Priority


class SetShare(Message, frozen=True, tag="set-share"):
    """Give this tenant another share, or hold it to its share in another way; None: as it is."""

    version: int
    name: Name
    share_ppm: SharePpm | None = None
    limit: Limit | None = None


class SetObjective(Message, frozen=True, tag="set-objective"):
    """Give this online tenant another latency objective; 0: none."""

    version: int
    name: Name
    slo_ns: Amount


class SetRules(Message, frozen=True, tag="set-rules"):
    """Change the rules by which tenants let each other pass."""

    version: int
    change: GateChange


class EvictTenants(Message, frozen=True, tag="evict"):
    """Let these tenants end, gracefully; a grace of zero: as long as each has by itself."""

    version: int
    names: list[Name]
    grace_ns: Amount


class Quit(Message, frozen=True, tag="quit"):
    """I was told to end my program: let it end gracefully."""

    grace_ns: Amount


class Suspended(Message, frozen=True, tag="suspended"):
    """My program's device memory is on the host now, or (`ok` false) is not. No answer."""

    ok: bool
    detail: Detail


class Restored(Message, frozen=True, tag="restored"):
    """My program's memory is on the device again, or is not. No answer."""

    ok: bool
    detail: Detail


class Restarted(Message, frozen=True, tag="restarted"):
    """My program ended like this, and I started it again, so often by now. No answer."""

    ending: Ending
    restarts: Amount


class Welcome(Message, frozen=True, tag="welcome"):
    """You are a tenant.

    Descriptors come along: the terms page and, where there is a device, its gate's file to read and to write, and its
    ledger's likewise.
    """

    version: int
    tenant: str
    terms: Terms
    environment: dict[str, str]
    """What the program is to find in its environment."""


class Refused(Message, frozen=True, tag="refused"):
    """You are not, because."""

    reject: Reject


class Farewell(Message, frozen=True, tag="farewell"):
    """Your slot is free again."""

    ending: str


class Confirmed(Message, frozen=True, tag="confirmed"):
    """It is as you wished, for these tenants; these rules are in force."""

    tenants: list[str]
    rules: GateRules


class Tenants(Message, frozen=True, tag="tenants"):
    """Who is here, who was, and how the node is doing."""

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
    """How each device is doing, by its number."""
    dials: list[Dial] = []
    """What online tenants keep of the devices on which that is adjusted."""


class Wrong(Message, frozen=True, tag="wrong"):
    """You broke the protocol; the connection closes."""

    detail: str


class Signal(Message, frozen=True, tag="signal"):
    """Ask your program to end ("term"), or end it ("kill"). Comes by itself, as do the two below."""

    kind: SignalKind
    why: str
    again: bool
    """Whether you may join anew, by your own rule of restarting: nobody wanted your program gone for good."""


class Suspend(Message, frozen=True, tag="suspend"):
    """Move your program's device memory to the host."""

    why: str


class Restore(Message, frozen=True, tag="restore"):
    """Move your program's memory back to the device."""


Wish: TypeAlias = Pause | SetPriority | SetShare | SetObjective | SetRules | EvictTenants
"""What somebody wants changed while the node runs."""
Request: TypeAlias = Join | Resume | Leave | List | Wish | Quit | Suspended | Restored | Restarted
Push: TypeAlias = Signal | Suspend | Restore
"""What the node says to a tenant without being asked; it may come before an answer that is awaited."""
Answer: TypeAlias = Welcome | Refused | Farewell | Confirmed | Tenants | Wrong | Push


class _AnyVersion(msgspec.Struct, frozen=True):
    """The one field that messages of all versions have, or leave away."""

    version: int = VERSION


_versions = msgspec.msgpack.Decoder(_AnyVersion)
_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(message: Request | Answer) -> bytes:
    """One frame."""
    payload = _encoder.encode(message)
    return _LENGTH.pack(len(payload)) + payload


def decode_request(payload: bytes) -> Request:
    """What a peer asks; raises `PeerError` with the field that is wrong."""
    try:
        return _requests.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise PeerError(_newer(payload) or f"this message cannot be read: {error}") from None


def _newer(payload: bytes) -> str:
    """A message of another version is told so, rather than which of its fields is unknown here."""
    try:
        version = _versions.decode(payload).version
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ""
    return "" if version == VERSION else f"this node speaks version {VERSION} of the protocol, not {version}"


def decode_answer(payload: bytes) -> Answer:
    """What the node answers."""
    try:
        return _answers.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise PeerError(f"the node's answer cannot be read: {error}") from None


class Frames:
    """Cuts a stream of bytes into frames; holds at most one unfinished frame."""

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
        """The frames that are now complete; raises `PeerError` for one that is empty or too large."""
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
