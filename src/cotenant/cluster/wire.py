"""Messages between nodes, users and the cluster controller: length-prefixed msgpack over TLS 1.3.

Frames are those of a node's own socket (`node.wire.Frames`). The certificate identifies the peer; no message does.
"""

from __future__ import annotations

import enum
import struct
from typing import Annotated, Final, TypeAlias, get_args

import msgspec

from cotenant.cluster.model.cluster import JobReport, JobSpec, Name, Quota
from cotenant.cluster.model.event import AckEnd, NodeReport, StartJob, StopJob
from cotenant.errors import PeerError
from cotenant.node.model.admission import Reject
from cotenant.node.wire import Frames
from cotenant.units.instant import Duration

VERSION: Final = 2
UNAUTHENTICATED_LIMIT_BYTES: Final = 16 << 10
"""Largest frame from a peer without a certificate."""
USER_LIMIT_BYTES: Final = 256 << 10
"""Largest frame from a user: a job with its environment."""
NODE_LIMIT_BYTES: Final = 1 << 20
"""Largest frame from a node: a report with the most GPUs, online tenants and attempts."""
ANSWER_LIMIT_BYTES: Final = 4 << 20
"""Largest frame from the controller."""
PAGE_BYTES: Final = 2 << 20
"""Size at which a page of jobs ends; one more job still fits into an answer."""
PAGE_LIMIT: Final = 500
"""Jobs or nodes in one answer."""
SECRET_LIMIT: Final = 128
_LENGTH: Final = struct.Struct("<I")

Pem = Annotated[str, msgspec.Meta(max_length=8192)]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Role(enum.Enum):
    """Role that a certificate grants."""

    CONTROLLER = "controller"
    NODE = "node"
    USER = "user"
    OPERATOR = "operator"
    """A user with access to the controller's state directory."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all messages: a map with a `type`; an unknown field is an error."""


# -- from a peer without a certificate -------------------------------------------------------------------------------


class GetAuthority(Message, frozen=True, tag="get-authority"):
    """Request the authority's certificate, which the peer compares with the fingerprint in its token."""

    version: int


class Enrol(Message, frozen=True, tag="enrol"):
    """Request a node certificate for this name; `secret` is the secret part of the join token."""

    version: int
    secret: Annotated[str, msgspec.Meta(max_length=SECRET_LIMIT)]
    name: Name
    request: Pem
    """A certificate signing request; only its public key is used."""


# -- from a node -----------------------------------------------------------------------------------------------------


class ReportNode(Message, frozen=True, tag="report-node"):
    """The numbered report of a node."""

    version: int
    sequence: Sequence
    report: NodeReport


# -- from a peer with a certificate ----------------------------------------------------------------------------------


class Renew(Message, frozen=True, tag="renew"):
    """Request a new certificate for the peer's own name."""

    version: int
    request: Pem


class Submit(Message, frozen=True, tag="submit"):
    """Submit a job. The user must be the certificate's; an operator may name any."""

    version: int
    spec: JobSpec


class Cancel(Message, frozen=True, tag="cancel"):
    """Cancel a job."""

    version: int
    job: Name


class ListJobs(Message, frozen=True, tag="list-jobs"):
    """Request the first page of the jobs, or with `more` the next page."""

    version: int
    names: Annotated[tuple[Name, ...], msgspec.Meta(max_length=PAGE_LIMIT)] = ()
    """Names to include; empty: all."""
    user: str = ""
    """User whose jobs to include; empty: all."""
    is_over: bool = True
    """Whether to include finished jobs."""
    more: bool = False


class ListNodes(Message, frozen=True, tag="list-nodes"):
    """Request the first page of the nodes, or with `more` the next page."""

    version: int
    more: bool = False


# -- from an operator ------------------------------------------------------------------------------------------------


class MakeToken(Message, frozen=True, tag="make-token"):
    """Request a join token with a number of uses and a validity, optionally for one node only."""

    version: int
    uses: Annotated[int, msgspec.Meta(ge=1, le=100_000)]
    valid_ns: Annotated[int, msgspec.Meta(ge=1, le=10 * 366 * 86_400 * 10**9)]
    node: str = ""


class Issue(Message, frozen=True, tag="issue"):
    """Sign a certificate request for a user."""

    version: int
    user: Name
    request: Pem


class Revoke(Message, frozen=True, tag="revoke"):
    """Revoke the certificates of a node or user."""

    version: int
    role: Role
    name: Name


class Forget(Message, frozen=True, tag="forget"):
    """Forget a silent node whose jobs have been released."""

    version: int
    node: Name


class Drain(Message, frozen=True, tag="drain"):
    """Drain a node, or end its draining."""

    version: int
    node: Name
    on: bool


class SetQuota(Message, frozen=True, tag="set-quota"):
    """Set the quota of a user."""

    version: int
    quota: Quota


# -- from the controller ---------------------------------------------------------------------------------------------


class AuthorityCertificate(Message, frozen=True, tag="authority"):
    """The authority's certificate."""

    version: int
    certificate: Pem


class EnrolledIdentity(Message, frozen=True, tag="enrolled"):
    """The certificate that was requested."""

    certificate: Pem
    controller: str
    """HOST:PORT of the controller, as far as it knows."""


class GrantLease(Message, frozen=True, tag="lease"):
    """Acknowledges a report. The lease starts when the node sent that report."""

    sequence: Sequence
    lease_ns: Duration
    grace_ns: Duration


class NodeOrder(Message, frozen=True, tag="order"):
    """An order to a node.

    Orders to a disconnected node are dropped; the controller repeats them after the next report.
    """

    action: StartJob | StopJob | AckEnd


class Success(Message, frozen=True, tag="success"):
    """The request was accepted."""


class Refusal(Message, frozen=True, tag="refusal"):
    """The request was rejected."""

    reject: Reject


class JobPage(Message, frozen=True, tag="jobs"):
    """A page of jobs without their environments, and without the commands of other users' jobs."""

    jobs: list[JobReport]
    is_last: bool
    now_ns: int
    """The controller's clock, to which the instants in the page refer."""


class NodeLine(Message, frozen=True):
    """A node in a list for people."""

    node: str
    gpus: int
    types: list[str]
    running: int
    """Jobs of the cluster on the node."""
    offering: int
    """GPUs that accept offline work."""
    is_connected: bool
    is_drained: bool
    is_silent: bool
    last_report_ns: int


class NodePage(Message, frozen=True, tag="nodes"):
    """A page of nodes."""

    nodes: list[NodeLine]
    is_last: bool
    now_ns: int


class NewToken(Message, frozen=True, tag="new-token"):
    """The secret of a new token, which the controller does not keep."""

    secret: str
    controller: str


class ProtocolFault(Message, frozen=True, tag="protocol-fault"):
    """The peer violated the protocol or is not permitted; the connection closes."""

    detail: str


FromUnauthenticated: TypeAlias = GetAuthority | Enrol
FromNode: TypeAlias = ReportNode | Renew
FromUser: TypeAlias = Submit | Cancel | ListJobs | ListNodes | Renew
FromOperator: TypeAlias = FromUser | MakeToken | Issue | Revoke | Forget | Drain | SetQuota
Request: TypeAlias = FromUnauthenticated | FromNode | FromOperator
Answer: TypeAlias = (
    AuthorityCertificate
    | EnrolledIdentity
    | GrantLease
    | NodeOrder
    | Success
    | Refusal
    | JobPage
    | NodePage
    | NewToken
    | ProtocolFault
)


class _AnyVersion(msgspec.Struct, frozen=True):
    """The field that requests of every version have."""

    version: int = VERSION


_versions = msgspec.msgpack.Decoder(_AnyVersion)
_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_LIMITS: Final = {
    None: UNAUTHENTICATED_LIMIT_BYTES,
    Role.NODE: NODE_LIMIT_BYTES,
    Role.USER: USER_LIMIT_BYTES,
    Role.OPERATOR: USER_LIMIT_BYTES,
}
_ALLOWED: Final[dict[Role | None, tuple[type, ...]]] = {
    None: get_args(FromUnauthenticated),
    Role.NODE: get_args(FromNode),
    Role.USER: get_args(FromUser),
    Role.OPERATOR: get_args(FromOperator),
}


def frames_from(role: Role | None) -> Frames:
    """Return a frame decoder for a peer of this role; None: a peer without a certificate."""
    return Frames(_LIMITS[role])


def answer_frames() -> Frames:
    """Return a frame decoder for messages from the controller."""
    return Frames(ANSWER_LIMIT_BYTES)


def encode(message: Request | Answer) -> bytes:
    """Return a message as one frame."""
    payload = _encoder.encode(message)
    return _LENGTH.pack(len(payload)) + payload


def decode_request(payload: bytes, role: Role | None) -> Request:
    """Return a request; raises `PeerError` if it is invalid or not permitted for the role."""
    try:
        request: Request = _requests.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise PeerError(_version_error(payload) or f"this message cannot be read: {error}") from None
    if request.version != VERSION:
        raise PeerError(_wrong_version(request.version))
    if not isinstance(request, _ALLOWED[role]):
        whose = "a peer without a certificate" if role is None else f"the certificate of a {role.value}"
        raise PeerError(f"{whose} may not send {type(request).__struct_config__.tag!r}")
    return request


def decode_answer(payload: bytes) -> Answer:
    """Return a message from the controller; raises `PeerError` if it is invalid."""
    try:
        return _answers.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise PeerError(
            f"a message from the controller cannot be decoded: {error}; do both run the same version?"
        ) from None


def _version_error(payload: bytes) -> str:
    """Return an error about another protocol version, which is more useful than one about an unknown field."""
    try:
        version = _versions.decode(payload).version
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ""
    return "" if version == VERSION else _wrong_version(version)


def _wrong_version(version: int) -> str:
    return f"this controller speaks version {VERSION} of the cluster's protocol, not {version}"
