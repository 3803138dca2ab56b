"""Decoding of large JSON in another process.

A decoder holds the interpreter lock until it is finished, so that a thread would stall all clients as well.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Final

from cotenant.serve.model.tensor import Datatype
from cotenant.serve.protocol.oip.infer import InferError, InferRequest, RequestInput
from cotenant.serve.protocol.oip.infer_json import read_request
from cotenant.serve.protocol.oip.tensor import TensorError, from_list, to_raw
from cotenant.units.instant import SECOND_NS

LARGE_JSON_BYTES: Final = 256 << 10
"""JSON above this size takes milliseconds to decode. Our choice."""
_ELEMENT_BYTES: Final = 40
"""Memory of a decoded number: its object and a place in a list."""


class LargeJsonDecoder:
    """One process that decodes requests, started when the first large one comes."""

    def __init__(self, memory_bytes: int) -> None:
        """The decoded form of one request may take this much memory."""
        self._memory_bytes = memory_bytes
        self._pool: ProcessPoolExecutor | None = None

    async def decode(self, model: str, version: str, body: bytes, json_length: int) -> InferRequest:
        """Return a request with raw tensors; raise `InferError`."""
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_ignore_signals)
        pool = self._pool
        loop = asyncio.get_running_loop()
        try:
            decoded = await loop.run_in_executor(pool, _decode, model, version, body, json_length, self._memory_bytes)
        except BrokenProcessPool:
            if self._pool is pool:
                self._pool = None
            raise InferError("the process that decodes large JSON ended: try again", "unavailable", SECOND_NS) from None
        if isinstance(decoded, InferRequest):
            return decoded
        text, kind, retry_after_ns = decoded
        raise InferError(text, kind, retry_after_ns)

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _ignore_signals() -> None:
    """Leave it to the server to end this process; a terminal sends its signals to both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _decode(
    model: str, version: str, body: bytes, json_length: int, memory_bytes: int
) -> InferRequest | tuple[str, str, int]:
    try:
        end = len(body) if json_length < 0 else min(json_length, len(body))
        if body.count(b",", 0, end) * _ELEMENT_BYTES > memory_bytes:
            text = f"the JSON takes more than the {memory_bytes} bytes of --request-memory: send binary tensors"
            raise InferError(text, "exhausted", SECOND_NS)
        request = read_request(model, version, memoryview(body), json_length)
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
