"""Decoding of requests that take long, away from the thread that serves all clients.

Decoders of JSON and protobuf hold the interpreter lock until they are finished, so that a thread would stall all
clients as well: such requests are decoded in another process, whose memory is limited. The elements of BYTES are
decoded one by one, which a thread can do.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final

from cotenant.serve.frontend.shared_memory import SharedMemoryRegions
from cotenant.serve.model.tensor import Datatype, elements
from cotenant.serve.protocol.oip import infer_json, infer_proto
from cotenant.serve.protocol.oip.infer import InferError, InferRequest, RequestInput
from cotenant.serve.protocol.oip.infer_json import ResponseOutput
from cotenant.serve.protocol.oip.tensor import OBJECT_BYTES, TensorError, from_list, from_raw, to_raw
from cotenant.units.instant import SECOND_NS

LARGE_JSON_BYTES: Final = 256 << 10
"""JSON above this size takes milliseconds to decode. Our choice."""
LARGE_MESSAGE_BYTES: Final = 64 << 10
"""Size of a gRPC message without raw tensors from which it is decoded in the other process. Our choice."""
MANY_TEXTS: Final = 4096
"""Elements of BYTES that take milliseconds to decode or encode. Our choice."""
MANY_JSON_ELEMENTS: Final = 16384
"""Elements that take milliseconds to encode as JSON. Our choice."""
_ELEMENT_BYTES: Final = 40
"""Memory of a decoded number: its object and a place in a list."""
_PROCESS_BYTES: Final = 1 << 30
"""Memory of the process in addition to twice the limit of one request: the interpreter, numpy, and the message."""


class LargeRequestDecoder:
    """One process that decodes requests, started when the first large one comes."""

    def __init__(self, memory_bytes: int) -> None:
        """The decoded form of one request may take this much memory."""
        self._memory_bytes = memory_bytes
        self._pool: ProcessPoolExecutor | None = None

    async def decode_json(self, model: str, version: str, body: bytes, json_length: int) -> InferRequest:
        """Return a request with raw tensors; raise `InferError`."""
        return await self._decode(_decode_json, model, version, body, json_length, self._memory_bytes)

    async def decode_message(self, message: bytes) -> InferRequest:
        """Return a request with raw tensors; raise `InferError`."""
        return await self._decode(_decode_message, message)

    async def _decode(self, work: Callable[..., InferRequest | tuple[str, str, int]], *arguments: Any) -> InferRequest:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            limit_bytes = 2 * self._memory_bytes + _PROCESS_BYTES
            self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(limit_bytes,))
        pool = self._pool
        loop = asyncio.get_running_loop()
        try:
            decoded = await loop.run_in_executor(pool, work, *arguments)
        except BrokenProcessPool:
            if self._pool is pool:
                self._pool = None
            raise InferError("the process that decodes large requests ended: try again", *_RETRY) from None
        except MemoryError:
            raise _too_large(self._memory_bytes) from None
        if isinstance(decoded, InferRequest):
            return decoded
        text, kind, retry_after_ns = decoded
        raise InferError(text, kind, retry_after_ns)

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


_RETRY: Final = ("unavailable", SECOND_NS)


def _too_large(memory_bytes: int) -> InferError:
    text = f"the request takes more than the {memory_bytes} bytes of --request-memory when it is decoded"
    return InferError(f"{text}: send binary tensors", "exhausted", SECOND_NS)


def _begin(limit_bytes: int) -> None:
    """Limit the memory, and leave it to the server to end this process: a terminal sends its signals to both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def _decode_json(
    model: str, version: str, body: bytes, json_length: int, memory_bytes: int
) -> InferRequest | tuple[str, str, int]:
    end = len(body) if json_length < 0 else min(json_length, len(body))
    if body.count(b",", 0, end) * _ELEMENT_BYTES > memory_bytes:
        error = _too_large(memory_bytes)
        return str(error), error.kind, error.retry_after_ns
    return _decoded(lambda: infer_json.read_request(model, version, memoryview(body), json_length))


def _decode_message(message: bytes) -> InferRequest | tuple[str, str, int]:
    return _decoded(lambda: infer_proto.read_request(message))


def _decoded(read: Callable[[], InferRequest]) -> InferRequest | tuple[str, str, int]:
    try:
        request = read()
        return request._replace(inputs=tuple(_with_raw_data(tensor) for tensor in request.inputs))
    except InferError as error:
        return str(error), error.kind, error.retry_after_ns


def _with_raw_data(tensor: RequestInput) -> RequestInput:
    """Replace lists and views, so that the tensor can be sent to the server's process quickly."""
    if tensor.raw is not None:
        return tensor._replace(raw=bytes(tensor.raw))
    if tensor.data is None:
        return tensor
    try:
        datatype = Datatype(tensor.datatype)
    except ValueError:
        return tensor._replace(data=[])  # the server rejects the datatype
    try:
        return tensor._replace(raw=to_raw(datatype, from_list(datatype, tensor.shape, tensor.data)), data=None)
    except TensorError as error:
        raise InferError(f"input {tensor.name!r}: {error}") from None


def has_many_texts(request: InferRequest) -> bool:
    """Return whether a thread should decode the BYTES of a request."""
    return any(_text_count(tensor) > MANY_TEXTS for tensor in request.inputs)


def _text_count(tensor: RequestInput) -> int:
    if tensor.datatype != Datatype.BYTES.value or tensor.array is not None:
        return 0
    if tensor.location is not None:
        return min(elements(tensor.shape), tensor.location.size // 4)
    return 0 if tensor.raw is None else min(elements(tensor.shape), len(tensor.raw) // 4)


async def with_texts(request: InferRequest, regions: SharedMemoryRegions, memory_bytes: int) -> InferRequest:
    """Return a request whose BYTES are decoded; raise `InferError`."""
    inputs = list(request.inputs)
    for index, tensor in enumerate(inputs):
        count = _text_count(tensor)
        if count <= MANY_TEXTS:
            continue
        if count * OBJECT_BYTES > memory_bytes:
            raise _too_large(memory_bytes)
        raw = tensor.raw if tensor.location is None else regions.read_texts(tensor.name, tensor.location)
        assert raw is not None
        try:
            array = await asyncio.to_thread(from_raw, Datatype.BYTES, tensor.shape, raw)
        except TensorError as error:
            raise InferError(f"input {tensor.name!r}: {error}") from None
        inputs[index] = tensor._replace(array=array, raw=None, location=None)
    return request._replace(inputs=tuple(inputs))


def take_long(outputs: Sequence[ResponseOutput]) -> bool:
    """Return whether a thread should encode these outputs of a response."""
    return any(
        array.size > MANY_TEXTS and (datatype is Datatype.BYTES or (not binary and array.size > MANY_JSON_ELEMENTS))
        for _, datatype, _, array, binary, _ in outputs
    )
