"""What do nodes, users and the brain of a cluster say to each other? Length-prefixed msgpack, in docs/cluster-live.md.

The frames are those of a node's own socket (`wire.Frames`); the connection is TLS 1.3, and who speaks is what the
certificate says, never the message.
"""

from __future__ import annotations

import enum
import struct
from typing import Annotated, Final, TypeAlias, get_args

import msgspec

from cotenant.domain.cluster import JobSpec, JobTold, Name, Quota
from cotenant.domain.clusters import AckEnd, NodeTold, StartJob, StopJob
from cotenant.domain.instant import Duration
from cotenant.domain.plan import Reject
from cotenant.errors import PeerError
from cotenant.format.wire import Frames

VERSION: Final = 1
STRANGER_LIMIT_BYTES: Final = 16 << 10
"""What somebody without a certificate may send at once: a request to be given one."""
USER_LIMIT_BYTES: Final = 256 << 10
"""A job and its whole environment."""
NODE_LIMIT_BYTES: Final = 1 << 20
"""A report of as many GPUs, online tenants and attempts as there can be."""
ANSWER_LIMIT_BYTES: Final = 4 << 20
"""Of the brain."""
PAGE_BYTES: Final = 2 << 20
"""At which a page of jobs ends; one job more is smaller than what is left of an answer."""
PAGE_LIMIT: Final = 500
"""Jobs, or nodes, in one answer."""
SECRET_LIMIT: Final = 128
_LENGTH: Final = struct.Struct("<I")

Pem = Annotated[str, msgspec.Meta(max_length=8192)]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Role(enum.Enum):
    """What a certificate lets its holder be."""

    BRAIN = "brain"
    NODE = "node"
    USER = "user"
    OPERATOR = "operator"
    """Whoever may use the brain's state directory."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A map with a `type`: other languages read it easily, and an unknown field is an error."""


# -- from whoever has no certificate yet -----------------------------------------------------------------------------


class AskAuthority(Message, frozen=True, tag="ask-authority"):
    """Who signs here? The asker holds the answer against the fingerprint in its token before it says anything else."""

    version: int


class Enrol(Message, frozen=True, tag="enrol"):
    """Make me a node of this name; `secret` is what my token says besides the fingerprint."""

    version: int
    secret: Annotated[str, msgspec.Meta(max_length=SECRET_LIMIT)]
    name: Name
    request: Pem
    """A certificate signing request; of what it asks for, only the public key counts."""


# -- from a node -----------------------------------------------------------------------------------------------------


class Told(Message, frozen=True, tag="told"):
    """A node's report, numbered so that it knows which ones were taken note of."""

    version: int
    sequence: Sequence
    report: NodeTold


# -- from whoever has a certificate ----------------------------------------------------------------------------------


class Renew(Message, frozen=True, tag="renew"):
    """My certificate ends soon: sign this request, for the name that I have."""

    version: int
    request: Pem


class Submit(Message, frozen=True, tag="submit"):
    """Have this done. The user in it is the certificate's; an operator may name any."""

    version: int
    spec: JobSpec


class Cancel(Message, frozen=True, tag="cancel"):
    """I want this job no more."""

    version: int
    job: Name


class ListJobs(Message, frozen=True, tag="list-jobs"):
    """Which jobs are there? The first page of them, or (`more`) the next of the list that was begun."""

    version: int
    names: Annotated[tuple[Name, ...], msgspec.Meta(max_length=PAGE_LIMIT)] = ()
    """Only these; none: all."""
    user: str = ""
    """Only of this user; empty: all."""
    is_over: bool = True
    """Whether also those that are over."""
    more: bool = False


class ListNodes(Message, frozen=True, tag="list-nodes"):
    """Which nodes are there? The first page of them, or (`more`) the next of the list that was begun."""

    version: int
    more: bool = False


# -- from an operator ------------------------------------------------------------------------------------------------


class MakeToken(Message, frozen=True, tag="make-token"):
    """Make a join token that can be used so often, for so long; and, if a node is named, by that node only."""

    version: int
    uses: Annotated[int, msgspec.Meta(ge=1, le=100_000)]
    valid_ns: Annotated[int, msgspec.Meta(ge=1, le=10 * 366 * 86_400 * 10**9)]
    node: str = ""


class Issue(Message, frozen=True, tag="issue"):
    """Sign a request for a user."""

    version: int
    user: Name
    request: Pem


class Revoke(Message, frozen=True, tag="revoke"):
    """The certificates of this node or user count no more."""

    version: int
    role: Role
    name: Name


class Forget(Message, frozen=True, tag="forget"):
    """A node that is silent, and to whose jobs others see by now, will not come back: tell of it no more."""

    version: int
    node: Name


class Drain(Message, frozen=True, tag="drain"):
    """Have a node's jobs elsewhere, and nothing new on it; or take that back."""

    version: int
    node: Name
    on: bool


class SetQuota(Message, frozen=True, tag="set-quota"):
    """How much a user may have."""

    version: int
    quota: Quota


# -- from the brain --------------------------------------------------------------------------------------------------


class Authority(Message, frozen=True, tag="authority"):
    """This signs here."""

    version: int
    certificate: Pem


class Enrolled(Message, frozen=True, tag="enrolled"):
    """You are who you asked to be."""

    certificate: Pem
    brain: str
    """HOST:PORT by which this brain is reached, as far as it knows."""


class Heard(Message, frozen=True, tag="heard"):
    """Your report of this sequence was taken note of. From when you sent it, your lease is this long."""

    sequence: Sequence
    lease_ns: Duration
    grace_ns: Duration


class Order(Message, frozen=True, tag="order"):
    """Do this. Nothing is kept for a node that is away: the brain repeats itself when the node reports."""

    action: StartJob | StopJob | AckEnd


class Done(Message, frozen=True, tag="done"):
    """It is so."""


class Refused(Message, frozen=True, tag="refused"):
    """It is not, because."""

    reject: Reject


class Jobs(Message, frozen=True, tag="jobs"):
    """A page of jobs, without their environments; of those of others also without what they run."""

    jobs: list[JobTold]
    is_last: bool
    now_ns: int
    """By the clock of the instants in it."""


class NodeLine(Message, frozen=True):
    """A node, for people."""

    node: str
    gpus: int
    types: list[str]
    running: int
    """Jobs of the cluster that are there."""
    offering: int
    """GPUs that take offline work."""
    is_connected: bool
    is_drained: bool
    is_silent: bool
    heard_ns: int


class Nodes(Message, frozen=True, tag="nodes"):
    """A page of nodes."""

    nodes: list[NodeLine]
    is_last: bool
    now_ns: int


class TokenMade(Message, frozen=True, tag="token-made"):
    """The secret of a token: it is told once and not kept."""

    secret: str
    brain: str


class Wrong(Message, frozen=True, tag="wrong"):
    """You broke the protocol, or may not be here; the connection closes."""

    detail: str


FromStranger: TypeAlias = AskAuthority | Enrol
FromNode: TypeAlias = Told | Renew
FromUser: TypeAlias = Submit | Cancel | ListJobs | ListNodes | Renew
FromOperator: TypeAlias = FromUser | MakeToken | Issue | Revoke | Forget | Drain | SetQuota
Request: TypeAlias = FromStranger | FromNode | FromOperator
Answer: TypeAlias = Authority | Enrolled | Heard | Order | Done | Refused | Jobs | Nodes | TokenMade | Wrong


class _AnyVersion(msgspec.Struct, frozen=True):
    """The one field that requests of all versions have."""

    version: int = VERSION


_versions = msgspec.msgpack.Decoder(_AnyVersion)
_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_LIMITS: Final = {
    None: STRANGER_LIMIT_BYTES,
    Role.NODE: NODE_LIMIT_BYTES,
    Role.USER: USER_LIMIT_BYTES,
    Role.OPERATOR: USER_LIMIT_BYTES,
}
_ALLOWED: Final[dict[Role | None, tuple[type, ...]]] = {
    None: get_args(FromStranger),
    Role.NODE: get_args(FromNode),
    Role.USER: get_args(FromUser),
    Role.OPERATOR: get_args(FromOperator),
}


def frames_from(role: Role | None) -> Frames:
    """Cuts what comes from a peer of this role into frames; None: it has no certificate."""
    return Frames(_LIMITS[role])


def answer_frames() -> Frames:
    """Cuts what comes from the brain into frames."""
    return Frames(ANSWER_LIMIT_BYTES)


def encode(message: Request | Answer) -> bytes:
    """One frame."""
    payload = _encoder.encode(message)
    return _LENGTH.pack(len(payload)) + payload


def decode_request(payload: bytes, role: Role | None) -> Request:
    """What a peer of this role asks; raises `PeerError` for what cannot be read or is not this role's to ask."""
    try:
        request: Request = _requests.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise PeerError(_newer(payload) or f"this message cannot be read: {error}") from None
    if request.version != VERSION:
        raise PeerError(_other(request.version))
    if not isinstance(request, _ALLOWED[role]):
        whose = "somebody without a certificate" if role is None else f"the certificate of a {role.value}"
        raise PeerError(f"{whose} may not say {type(request).__struct_config__.tag!r}")
    return request


def decode_answer(payload: bytes) -> Answer:
    """What the brain says."""
    try:
        return _answers.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise PeerError(f"what the brain says cannot be read: {error}; are both of one version?") from None


def _newer(payload: bytes) -> str:
    """A message of another version is told so, rather than which of its fields is unknown here."""
    try:
        version = _versions.decode(payload).version
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ""
    return "" if version == VERSION else _other(version)


def _other(version: int) -> str:
    return f"this brain speaks version {VERSION} of the cluster's protocol, not {version}"
