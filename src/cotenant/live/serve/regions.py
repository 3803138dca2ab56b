"""Which stretches of system shared memory do clients share with the server? Registered by name, opened once each.

Read and written through their descriptors rather than mapped: a client that makes its memory shorter meanwhile would
otherwise end the server with SIGBUS.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Final, NamedTuple

from cotenant.domain.tensor import TensorSpec, elements
from cotenant.format.infer import Checked, InferError, InferRequest, Place, shown
from cotenant.format.infer_json import Output
from cotenant.format.tensor import TensorError, from_raw, to_raw

REGIONS_LIMIT: Final = 1024
_KEY: Final = re.compile(r"/?[A-Za-z0-9._][A-Za-z0-9._-]{0,250}\Z")
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  where POSIX shared memory lives on Linux


class Region(NamedTuple):
    """A registered stretch of a shared-memory object."""

    key: str
    offset: int
    size: int
    descriptor: int


class Regions:
    """All that is registered."""

    def __init__(self, tensor_limit_bytes: int = 1 << 30, texts_limit_bytes: int = 256 << 20) -> None:
        """Nothing is; of one tensor no more is read than the limit, less where only its content tells its length."""
        self._tensor_limit_bytes = tensor_limit_bytes
        self._texts_limit_bytes = texts_limit_bytes
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, size: int) -> None:
        """Open a stretch of a shared-memory object under a name."""
        if name in self._regions:
            raise InferError(f"shared memory region {shown(name)} is registered already, unregister it first")
        if len(self._regions) >= REGIONS_LIMIT:
            raise InferError(f"{REGIONS_LIMIT} shared memory regions are registered, which is the limit", "exhausted")
        if not name or not _KEY.match(key) or set(key.strip("/")) == {"."}:
            raise InferError(f"shared memory key {shown(key)} is no name of a shared-memory object")
        if offset < 0 or size <= 0:
            raise InferError(f"region {shown(name)}: offset {offset} and byte_size {size}, expected a stretch that is")
        self._regions[name] = Region(key, offset, size, _opened(name, key, offset + size))

    def unregister(self, name: str) -> None:
        """Forget one, or all if the name is empty."""
        for one in [name] if name else list(self._regions):
            region = self._regions.pop(one, None)
            if region is not None:
                os.close(region.descriptor)

    def status(self, name: str) -> dict[str, Region]:
        """One of them, or all if the name is empty."""
        if not name:
            return dict(self._regions)
        if name not in self._regions:
            raise InferError(f"no shared memory region {shown(name)} is registered", "not-found")
        return {name: self._regions[name]}

    def read(self, tensor: str, place: Place) -> bytes:
        """What is at a place; shorter where the memory is shorter by now."""
        descriptor, begin = self._at(tensor, place)
        return os.pread(descriptor, place.size, begin)

    def write(self, tensor: str, place: Place, content: bytes) -> None:
        """Put this at a place, which has room for it."""
        descriptor, begin = self._at(tensor, place)
        if len(content) > place.size:
            have = f"its place in shared memory has {place.size}"
            raise InferError(f"output {tensor!r} has {len(content)} bytes, {have}")
        try:
            written = os.pwrite(descriptor, content, begin)
        except OSError as error:
            raise InferError(f"output {tensor!r} cannot be put into shared memory: {error.strerror}") from None
        if written != len(content):
            raise InferError(f"output {tensor!r} has {len(content)} bytes, shared memory took {written}")

    def filled(self, specs: tuple[TensorSpec, ...], request: InferRequest, checked: Checked) -> Checked:
        """A request's tensors, with those read that are in shared memory."""
        for one in checked.arrays:
            if type(one) is Place:
                break
        else:
            return checked
        shapes = {one.name: one.shape for one in request.inputs}
        arrays = []
        for spec, array in zip(specs, checked.arrays, strict=True):
            if isinstance(array, Place):
                shape = shapes[spec.name]
                self._check_size(spec, shape, array)
                try:
                    array = from_raw(spec.datatype, shape, self.read(spec.name, array))  # noqa: PLW2901
                except TensorError as error:
                    raise InferError(f"input {spec.name!r}: {error}") from None
            arrays.append(array)
        return Checked(tuple(arrays), checked.rows, checked.shapes)

    def _check_size(self, spec: TensorSpec, shape: tuple[int, ...], place: Place) -> None:
        """Before anything is read: an object without a page in it may be said to have any size."""
        width_bytes = spec.datatype.width_bytes
        wanted = elements(shape) * width_bytes
        if width_bytes and place.size != wanted:
            kind = f"{spec.datatype.value} of shape {list(shape)}"
            raise InferError(f"input {spec.name!r}: {kind} takes {wanted} bytes, its place has {place.size}")
        limit_bytes = self._tensor_limit_bytes if width_bytes else self._texts_limit_bytes
        if place.size > limit_bytes:
            raise InferError(
                f"input {spec.name!r} has {place.size} bytes in shared memory, {limit_bytes} are the limit"
            )

    def put(self, output: Output) -> Output:
        """Put an output where its request wants it."""
        assert output.place is not None
        raw = to_raw(output.datatype, output.array)
        self.write(output.name, output.place, raw)
        return output._replace(place=output.place._replace(size=len(raw)))

    def _at(self, tensor: str, place: Place) -> tuple[int, int]:
        region = self._regions.get(place.region)
        if region is None:
            raise InferError(f"tensor {tensor!r}: no shared memory region {shown(place.region)} is registered")
        if place.offset + place.size > region.size:
            want = f"expected at most {region.size}, the size of region {shown(place.region)}"
            raise InferError(f"tensor {tensor!r} ends at byte {place.offset + place.size}, {want}")
        return region.descriptor, region.offset + place.offset


def _opened(name: str, key: str, end: int) -> int:
    path = os.path.join(_SHARED_MEMORY, key.lstrip("/"))  # noqa: PTH118  a name that was checked, not a path
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        why = error.strerror or str(error)
        raise InferError(f"region {shown(name)}: cannot open shared memory {shown(key)}: {why}") from None
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_size >= end:
        return descriptor
    os.close(descriptor)
    raise InferError(f"region {shown(name)} ends at byte {end}, shared memory {shown(key)} has {found.st_size}")
