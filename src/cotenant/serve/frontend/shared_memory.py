"""Shared memory regions that clients registered, opened once each.

Regions are read and written through their descriptors, not mapped: a client that shrinks its memory would otherwise end
the server with SIGBUS.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Final, NamedTuple

from cotenant.serve.model.tensor import TensorSpec, elements
from cotenant.serve.protocol.oip.infer import CheckedRequest, InferError, InferRequest, RegionSlice, quoted
from cotenant.serve.protocol.oip.infer_json import ResponseOutput
from cotenant.serve.protocol.oip.tensor import TensorError, from_raw, to_raw

REGIONS_LIMIT: Final = 1024
_KEY: Final = re.compile(r"/?[A-Za-z0-9._][A-Za-z0-9._-]{0,250}\Z")
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  the directory of POSIX shared memory on Linux


class Region(NamedTuple):
    """A registered range of a shared memory object."""

    key: str
    offset: int
    size: int
    descriptor: int


class SharedMemoryRegions:
    """All registered regions."""

    def __init__(self, tensor_limit_bytes: int = 1 << 30, texts_limit_bytes: int = 256 << 20) -> None:
        """Start without regions. The limits bound the size of a tensor.

        A tensor of strings has a lower one, since its length depends on its contents.
        """
        self._tensor_limit_bytes = tensor_limit_bytes
        self._texts_limit_bytes = texts_limit_bytes
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, size: int) -> None:
        """Open a range of a shared memory object and register it under a name."""
        if name in self._regions:
            raise InferError(f"shared memory region {quoted(name)} is registered already, unregister it first")
        if len(self._regions) >= REGIONS_LIMIT:
            raise InferError(f"{REGIONS_LIMIT} shared memory regions are registered, which is the limit", "exhausted")
        if not name or not _KEY.match(key) or set(key.strip("/")) == {"."}:
            raise InferError(f"shared memory key {quoted(key)} is not a name of a shared memory object")
        if offset < 0 or size <= 0:
            raise InferError(
                f"region {quoted(name)}: offset {offset} and byte_size {size}, expected offset >= 0 and byte_size > 0"
            )
        self._regions[name] = Region(key, offset, size, _open_object(name, key, offset + size))

    def unregister(self, name: str) -> None:
        """Unregister a region, or all if the name is empty."""
        for region_name in [name] if name else list(self._regions):
            region = self._regions.pop(region_name, None)
            if region is not None:
                os.close(region.descriptor)

    def status(self, name: str) -> dict[str, Region]:
        """Return a region, or all if the name is empty."""
        if not name:
            return dict(self._regions)
        if name not in self._regions:
            raise InferError(f"no shared memory region {quoted(name)} is registered", "not-found")
        return {name: self._regions[name]}

    def read(self, tensor: str, range_: RegionSlice) -> bytes:
        """Read a range; the result is shorter if the memory was shrunk."""
        descriptor, begin = self._locate(tensor, range_)
        return os.pread(descriptor, range_.size, begin)

    def read_texts(self, tensor: str, range_: RegionSlice) -> bytes:
        """Read a range with BYTES."""
        if range_.size > self._texts_limit_bytes:
            raise InferError(
                f"input {tensor!r} has {range_.size} bytes in shared memory, {self._texts_limit_bytes} are the limit"
            )
        return self.read(tensor, range_)

    def write(self, tensor: str, range_: RegionSlice, content: bytes) -> None:
        """Write to a range that is large enough."""
        descriptor, begin = self._locate(tensor, range_)
        if len(content) > range_.size:
            available = f"its range in shared memory has {range_.size}"
            raise InferError(f"output {tensor!r} has {len(content)} bytes, {available}")
        try:
            written = os.pwrite(descriptor, content, begin)
        except OSError as error:
            raise InferError(f"output {tensor!r} cannot be written to shared memory: {error.strerror}") from None
        if written != len(content):
            raise InferError(f"output {tensor!r} has {len(content)} bytes, shared memory took {written}")

    def filled(self, specs: tuple[TensorSpec, ...], request: InferRequest, checked: CheckedRequest) -> CheckedRequest:
        """Return the request's tensors, with those in shared memory read."""
        for array in checked.arrays:
            if type(array) is RegionSlice:
                break
        else:
            return checked
        shapes = {tensor.name: tensor.shape for tensor in request.inputs}
        arrays = []
        for spec, array in zip(specs, checked.arrays, strict=True):
            if isinstance(array, RegionSlice):
                shape = shapes[spec.name]
                self._check_size(spec, shape, array)
                try:
                    array = from_raw(spec.datatype, shape, self.read(spec.name, array))  # noqa: PLW2901
                except TensorError as error:
                    raise InferError(f"input {spec.name!r}: {error}") from None
            arrays.append(array)
        return CheckedRequest(tuple(arrays), checked.rows, checked.shapes)

    def _check_size(self, spec: TensorSpec, shape: tuple[int, ...], range_: RegionSlice) -> None:
        """Check the size before reading: a sparse object may claim any size."""
        width_bytes = spec.datatype.width_bytes
        expected_bytes = elements(shape) * width_bytes
        if width_bytes and range_.size != expected_bytes:
            kind = f"{spec.datatype.value} of shape {list(shape)}"
            raise InferError(f"input {spec.name!r}: {kind} takes {expected_bytes} bytes, its range has {range_.size}")
        limit_bytes = self._tensor_limit_bytes if width_bytes else self._texts_limit_bytes
        if range_.size > limit_bytes:
            raise InferError(
                f"input {spec.name!r} has {range_.size} bytes in shared memory, {limit_bytes} are the limit"
            )

    def put(self, output: ResponseOutput) -> ResponseOutput:
        """Write an output to the range that its request names."""
        assert output.location is not None
        raw = to_raw(output.datatype, output.array)
        self.write(output.name, output.location, raw)
        return output._replace(location=output.location._replace(size=len(raw)))

    def _locate(self, tensor: str, range_: RegionSlice) -> tuple[int, int]:
        region = self._regions.get(range_.region)
        if region is None:
            raise InferError(f"tensor {tensor!r}: no shared memory region {quoted(range_.region)} is registered")
        if range_.offset + range_.size > region.size:
            limit = f"expected at most {region.size}, the size of region {quoted(range_.region)}"
            raise InferError(f"tensor {tensor!r} ends at byte {range_.offset + range_.size}, {limit}")
        return region.descriptor, region.offset + range_.offset


def _open_object(name: str, key: str, end: int) -> int:
    path = os.path.join(_SHARED_MEMORY, key.lstrip("/"))  # noqa: PTH118  a validated name, not a path
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InferError(f"region {quoted(name)}: cannot open shared memory {quoted(key)}: {reason}") from None
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size >= end:
        return descriptor
    os.close(descriptor)
    raise InferError(f"region {quoted(name)} ends at byte {end}, shared memory {quoted(key)} has {status.st_size}")
