"""What happens on a connection of gRPC, and what is remembered of a call?"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from cotenant.domain.instant import Duration


class Called(NamedTuple):
    """A call has begun."""

    stream: int
    path: str
    timeout_ns: Duration
    """Zero: it did not say."""


class Said(NamedTuple):
    """A message of a call."""

    stream: int
    message: bytes


class Closed(NamedTuple):
    """The client has said all it will say in this call."""

    stream: int


class Abandoned(NamedTuple):
    """The client wants no answer any more."""

    stream: int


Happening: TypeAlias = Called | Said | Closed | Abandoned


class Call:
    """One call, as far as its bytes have come and gone."""

    __slots__ = ("answered", "began", "closed", "encoding", "held_bytes", "incoming", "inside", "outgoing", "window")

    def __init__(self, window: int) -> None:
        """It has begun; the client's window lets so many bytes out."""
        self.encoding = ""
        self.incoming = bytearray()
        self.inside = 0
        """Bytes of its receive window that were not given back."""
        self.began = False
        self.answered = False
        """Its status is among what goes out: nothing may follow."""
        self.closed = False
        """The client has said all it will say."""
        self.outgoing: list[bytes | memoryview] = []
        """Messages that a window holds back; the trailers, if any, are in the connection's `_trailers`."""
        self.held_bytes = 0
        """Of these."""
        self.window = window
