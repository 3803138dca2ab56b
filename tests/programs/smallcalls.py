"""Batched copies, tensor maps and other rare calls: performed, or refused as a driver refuses them."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from cuda.bindings import driver
from cuda_helpers import IMAGE, Gpu, code, ok

has_tensor_maps = sys.argv[1] == "tensors"
gpu = Gpu()
stream = ok(driver.cuStreamCreate(1))
library = ctypes.CDLL("libcuda.so.1")

# A batch equals the same number of copies; attributes set the access order, and every copy has some.
pointers = [int(ok(driver.cuMemAlloc(64))) for _ in range(4)]
sources = [np.full(16, index, np.uint32) for index in range(4)]
U64, SIZE = ctypes.c_uint64 * 4, ctypes.c_size_t * 4
to, sizes = U64(*pointers), SIZE(64, 64, 64, 64)
origins = U64(*(source.ctypes.data for source in sources))
orders, starts = np.zeros((2, 6), np.uint32), (ctypes.c_size_t * 2)(0, 2)  # an order, two locations, flags
orders[:, 0] = (1, 3)


def batch(count: int, attributes: int, on: object = stream) -> tuple[int, int]:
    failed = ctypes.c_size_t(77)
    answer = library.cuMemcpyBatchAsync(
        to, origins, sizes, ctypes.c_size_t(count), ctypes.c_void_p(orders.ctypes.data), starts,
        ctypes.c_size_t(attributes), ctypes.byref(failed), ctypes.c_void_p(int(on)),
    )  # fmt: skip
    return answer, failed.value


assert batch(4, 2)[0] == 0
ok(driver.cuStreamSynchronize(stream))
for pointer, source in zip(pointers, sources, strict=True):
    back = np.zeros(16, np.uint32)
    ok(driver.cuMemcpyDtoH(back, pointer, 64))
    assert (back == source).all()
assert batch(2, 2)[0] == 1  # the second entry begins behind the last copy
assert batch(4, 0)[0] == 1
assert batch(4, 2, 0)[0] == 1  # not in the legacy stream
to[2] = 0x1000
assert batch(4, 2) == (1, 2)  # the third copy was invalid, and its index is returned

# A tensor map is checked and kept on devices that have them, and refused on others.
matrix = int(ok(driver.cuMemAlloc(1 << 16)))
buffer = ctypes.create_string_buffer(256)
aligned = (ctypes.addressof(buffer) + 127) // 128 * 128
FLOAT32 = 7


def encode(address: int, *, columns: int = 32, stride: int = 256, swizzle: int = 0, where: int = aligned) -> int:
    return int(
        library.cuTensorMapEncodeTiled(
            ctypes.c_void_p(where),
            FLOAT32,
            2,
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * 2)(64, 64),
            (ctypes.c_uint64 * 1)(stride),
            (ctypes.c_uint32 * 2)(columns, 8),
            (ctypes.c_uint32 * 2)(1, 1),
            0,
            swizzle,
            0,
            0,
        )
    )


if has_tensor_maps:
    assert encode(matrix) == 0
    first = ctypes.string_at(aligned, 128)
    assert encode(matrix + 128) == 0
    assert ctypes.string_at(aligned, 128) != first
    assert library.cuTensorMapReplaceAddress(ctypes.c_void_p(aligned), ctypes.c_void_p(matrix)) == 0
    assert ctypes.string_at(aligned, 128) == first
    assert encode(matrix + 8) == 1
    assert encode(matrix, columns=300) == 1
    assert encode(matrix, columns=3) == 1
    assert encode(matrix, stride=200) == 1
    assert encode(matrix, swizzle=1) == 1  # 128 bytes in a row are more than such a swizzle spans
    assert encode(matrix, columns=8, swizzle=1) == 0
    assert encode(matrix, where=aligned + 8) == 1
else:
    assert encode(matrix) == 801

# Attributes can be copied between streams of one context; a library has no unified functions and says so.
other = ok(driver.cuStreamCreate(1))
ok(driver.cuStreamCopyAttributes(other, stream))
assert code(driver.cuStreamCopyAttributes(other, driver.CUstream(0x33))) == "CUDA_ERROR_INVALID_HANDLE"
loaded = ok(driver.cuLibraryLoadData(IMAGE, [], [], 0, [], [], 0))
assert code(driver.cuLibraryGetUnifiedFunction(loaded, b"fill")) == "CUDA_ERROR_NOT_FOUND"
ok(driver.cuLibraryUnload(loaded))
ok(driver.cuCtxDestroy(gpu.context))
print("small calls")
