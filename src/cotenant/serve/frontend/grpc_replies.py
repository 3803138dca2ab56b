"""Replies to gRPC calls: one response to ModelInfer, any number to ModelStreamInfer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from cotenant.serve.frontend.large_requests import MANY_TEXTS, take_long
from cotenant.serve.model.event import ModelSpec
from cotenant.serve.protocol.grpc import status as status_codes
from cotenant.serve.protocol.grpc.calls import HalfClosed, MessageReceived
from cotenant.serve.protocol.oip.infer import InferError, InferRequest
from cotenant.serve.protocol.oip.infer_json import ResponseOutput
from cotenant.serve.protocol.oip.infer_proto import (
    write_response,
    write_stream_error,
    write_stream_response,
    write_unary_response,
)
from cotenant.units.instant import Duration

STATUS: Final = {
    "invalid": status_codes.INVALID_ARGUMENT,
    "unauthenticated": status_codes.UNAUTHENTICATED,
    "forbidden": status_codes.PERMISSION_DENIED,
    "not-found": status_codes.NOT_FOUND,
    "exhausted": status_codes.RESOURCE_EXHAUSTED,
    "fault": status_codes.INTERNAL,
    "unsupported": status_codes.UNIMPLEMENTED,
    "unavailable": status_codes.UNAVAILABLE,
    "late": status_codes.DEADLINE_EXCEEDED,
}


class PendingCall:
    """A call with its active requests: one of ModelInfer, any number of ModelStreamInfer."""

    __slots__ = ("began_ns", "held_events", "message", "numbers", "path", "request", "timeout_ns", "wants_end")

    def __init__(self, path: str, timeout_ns: Duration) -> None:
        self.path = path
        self.timeout_ns = timeout_ns
        self.began_ns = 0
        """Set if an access log is written."""
        self.message: bytes | None = None
        self.request: InferRequest | None = None
        """The decoded message, if another process decoded it."""
        self.held_events: deque[MessageReceived | HalfClosed] | None = None
        """Events that follow a message that is being decompressed or decoded."""
        self.numbers: set[int] = set()
        self.wants_end = False
        """The client half-closed the call; it ends with its last response."""


class ResponseWriter(Protocol):
    """The methods of a connection that replies use."""

    def answer(self, stream: int, message: bytes) -> None:
        """Send the response of a unary call."""
        ...

    def answer_later(self, stream: int, encode: Callable[[], bytes]) -> None:
        """Encode the response of a unary call in a thread, and send it."""
        ...

    def send(self, stream: int, message: bytes) -> None:
        """Send one response of a stream."""
        ...

    def end_if_last(self, stream: int, call: PendingCall, number: int) -> None:
        """Note that a request of a stream was answered."""
        ...

    def finish(self, stream: int, status: int = ..., text: str = ..., retry_after_ns: Duration = ...) -> None:
        """End a call with a status."""
        ...


class UnaryReply:
    """Reply to a ModelInfer call."""

    __slots__ = ("_protocol", "_stream")
    streams = False

    def __init__(self, protocol: ResponseWriter, stream: int) -> None:
        self._protocol = protocol
        self._stream = stream

    def send_response(self, request: InferRequest, spec: ModelSpec, outputs: list[ResponseOutput]) -> None:
        if take_long(outputs):
            self._protocol.answer_later(
                self._stream, lambda: write_unary_response(spec.name, spec.version, request.id, outputs)
            )
        else:
            self._protocol.answer(self._stream, write_unary_response(spec.name, spec.version, request.id, outputs))

    def send_error(self, error: InferError) -> None:
        self._protocol.finish(self._stream, STATUS[error.kind], str(error), error.retry_after_ns)

    def end(self) -> None:
        """Do nothing; a unary call ends with its response."""


class StreamReply:
    """Reply to one request of a stream."""

    __slots__ = ("_call", "_protocol", "_stream", "ended", "number", "request")
    streams = True

    def __init__(self, protocol: ResponseWriter, stream: int, call: PendingCall) -> None:
        self._protocol = protocol
        self._stream = stream
        self._call = call
        self.request: InferRequest | None = None
        self.number = 0
        self.ended = False

    def send_response(self, request: InferRequest, spec: ModelSpec, outputs: list[ResponseOutput]) -> None:
        if take_long(outputs):  # in a thread, later responses would overtake it
            text = f"a response of a stream may have at most {MANY_TEXTS} strings per output: send ModelInfer"
            raise InferError(text, "unsupported")
        parameters = {"triton_final_response": not spec.decoupled} if request.final_response else None
        answer = write_response(spec.name, spec.version, request.id, outputs, parameters)
        self._protocol.send(self._stream, write_stream_response(answer))
        if not spec.decoupled:
            self._end()

    def send_error(self, error: InferError) -> None:
        request_id = "" if self.request is None else self.request.id
        self._protocol.send(self._stream, write_stream_error(request_id, str(error)))
        self._end()

    def end(self) -> None:
        request = self.request
        assert request is not None
        if request.final_response:
            answer = write_response(request.model, request.version, request.id, (), {"triton_final_response": True})
            self._protocol.send(self._stream, write_stream_response(answer))
        self._end()

    def _end(self) -> None:
        self.ended = True
        self._protocol.end_if_last(self._stream, self._call, self.number)
