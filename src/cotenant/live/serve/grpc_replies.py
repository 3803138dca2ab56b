"""Where do the answers to calls of gRPC go? One to a call of ModelInfer, any number to a stream."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from cotenant.domain.instant import Duration
from cotenant.domain.serving import ModelSpec
from cotenant.format import grpc_words as words
from cotenant.format.grpc_calls import Closed, Said
from cotenant.format.infer import InferError, InferRequest
from cotenant.format.infer_json import Output
from cotenant.format.infer_proto import write_answer, write_plain_answer, write_stream_answer, write_stream_error

STATUS: Final = {
    "invalid": words.INVALID_ARGUMENT,
    "not-found": words.NOT_FOUND,
    "exhausted": words.RESOURCE_EXHAUSTED,
    "fault": words.INTERNAL,
    "unsupported": words.UNIMPLEMENTED,
    "unavailable": words.UNAVAILABLE,
    "late": words.DEADLINE_EXCEEDED,
}


class Call:
    """One call: of ModelInfer one request, of ModelStreamInfer any number of them."""

    __slots__ = ("later", "message", "numbers", "path", "timeout_ns", "wants_end")

    def __init__(self, path: str, timeout_ns: Duration) -> None:
        self.path = path
        self.timeout_ns = timeout_ns
        self.message: bytes | None = None
        self.later: deque[Said | Closed] | None = None
        """What came behind a message that is being unpacked, while one is."""
        self.numbers: set[int] = set()
        self.wants_end = False
        """The client has said all; the call ends with its last answer."""


class Speaks(Protocol):
    """A connection, as far as answers go through it."""

    def answer(self, stream: int, message: bytes) -> None:
        """The one answer of a call."""
        ...

    def tell(self, stream: int, message: bytes) -> None:
        """One answer of a stream."""
        ...

    def end_if_last(self, stream: int, call: Call, number: int) -> None:
        """A request of a stream is answered."""
        ...

    def finish(self, stream: int, status: int = ..., text: str = ..., retry_after_ns: Duration = ...) -> None:
        """The end of a call."""
        ...


class Unary:
    """Where the answer to a call of ModelInfer goes."""

    __slots__ = ("_protocol", "_stream")
    streams = False

    def __init__(self, protocol: Speaks, stream: int) -> None:
        self._protocol = protocol
        self._stream = stream

    def done(self, request: InferRequest, spec: ModelSpec, outputs: list[Output]) -> None:
        self._protocol.answer(self._stream, write_plain_answer(spec.name, spec.version, request.id, outputs))

    def failed(self, error: InferError) -> None:
        self._protocol.finish(self._stream, STATUS[error.kind], str(error), error.retry_after_ns)

    def over(self) -> None:
        """Only streams end."""


class Streamed:
    """Where the answers to one request of a stream go."""

    __slots__ = ("_call", "_protocol", "_stream", "ended", "number", "request")
    streams = True

    def __init__(self, protocol: Speaks, stream: int, call: Call) -> None:
        self._protocol = protocol
        self._stream = stream
        self._call = call
        self.request: InferRequest | None = None
        self.number = 0
        self.ended = False

    def done(self, request: InferRequest, spec: ModelSpec, outputs: list[Output]) -> None:
        parameters = {"triton_final_response": not spec.decoupled} if request.final_response else None
        answer = write_answer(spec.name, spec.version, request.id, outputs, parameters)
        self._protocol.tell(self._stream, write_stream_answer(answer))
        if not spec.decoupled:
            self._end()

    def failed(self, error: InferError) -> None:
        request_id = "" if self.request is None else self.request.id
        self._protocol.tell(self._stream, write_stream_error(request_id, str(error)))
        self._end()

    def over(self) -> None:
        request = self.request
        assert request is not None
        if request.final_response:
            answer = write_answer(request.model, request.version, request.id, (), {"triton_final_response": True})
            self._protocol.tell(self._stream, write_stream_answer(answer))
        self._end()

    def _end(self) -> None:
        self.ended = True
        self._protocol.end_if_last(self._stream, self._call, self.number)
