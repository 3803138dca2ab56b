"""Arrays of every shape keep their content, reject invalid arguments, and release their memory."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

gpu = Gpu()
Format = driver.CUarray_format
TYPES: dict[Any, type[np.generic]] = {
    Format.CU_AD_FORMAT_UNSIGNED_INT8: np.uint8,
    Format.CU_AD_FORMAT_SIGNED_INT16: np.int16,
    Format.CU_AD_FORMAT_HALF: np.float16,
    Format.CU_AD_FORMAT_FLOAT: np.float32,
    Format.CU_AD_FORMAT_UNSIGNED_INT32: np.uint32,
}
HOST, DEVICE, ARRAY = (
    driver.CUmemorytype.CU_MEMORYTYPE_HOST,
    driver.CUmemorytype.CU_MEMORYTYPE_DEVICE,
    driver.CUmemorytype.CU_MEMORYTYPE_ARRAY,
)


def free_bytes() -> int:
    return int(ok(driver.cuMemGetInfo())[0])


def shape(width: int, height: int, depth: int, form: Any, channels: int, flags: int = 0) -> Any:
    descriptor = driver.CUDA_ARRAY3D_DESCRIPTOR()
    descriptor.Width, descriptor.Height, descriptor.Depth = width, height, depth
    descriptor.Format, descriptor.NumChannels, descriptor.Flags = form, channels, flags
    return descriptor


def create(*arguments: Any) -> Any:
    return ok(driver.cuArray3DCreate(shape(*arguments)))


def solid(size: tuple[int, int, int], **sides: Any) -> Any:
    copy = driver.CUDA_MEMCPY3D()
    copy.WidthInBytes, copy.Height, copy.Depth = size
    for name, value in sides.items():
        setattr(copy, name, value)
    return copy


start_bytes = free_bytes()
rng = np.random.default_rng(7)

# Every format and number of channels, in one, two and three dimensions: in from the host, across, and out again.
for (form, kind), channels, (width, height, depth) in itertools.product(
    TYPES.items(), (1, 2, 4), ((37, 0, 0), (19, 11, 0), (9, 7, 5))
):
    rows, slices = max(height, 1), max(depth, 1)
    data = rng.integers(0, 100, (slices, rows, width, channels)).astype(kind)
    row_bytes = width * channels * data.itemsize
    size = (row_bytes, rows, slices)
    first, second = create(width, height, depth, form, channels), create(width, height, depth, form, channels)
    back = np.zeros_like(data)
    source = solid(
        size, srcMemoryType=HOST, srcHost=data, srcPitch=row_bytes, srcHeight=rows, dstMemoryType=ARRAY, dstArray=first
    )
    ok(driver.cuMemcpy3D(source))
    ok(driver.cuMemcpy3D(solid(size, srcMemoryType=ARRAY, srcArray=first, dstMemoryType=ARRAY, dstArray=second)))
    target = solid(
        size, srcMemoryType=ARRAY, srcArray=second, dstMemoryType=HOST, dstHost=back, dstPitch=row_bytes, dstHeight=rows
    )
    ok(driver.cuMemcpy3D(target))
    assert (back == data).all(), (form, channels, width, height, depth)
    description = ok(driver.cuArray3DGetDescriptor(first))
    assert (description.Width, description.Height, description.Depth, description.Format, description.NumChannels) == (
        width,
        height,
        depth,
        form,
        channels,
    )
    flat = ok(driver.cuArrayGetDescriptor(first))
    assert (flat.Width, flat.Height, flat.NumChannels) == (width, height, channels)
    ok(driver.cuArrayDestroy(first))
    ok(driver.cuArrayDestroy(second))
    assert code(driver.cuArrayDestroy(first)) == "CUDA_ERROR_INVALID_HANDLE"
assert free_bytes() == start_bytes

# A part of an array, by two-dimensional copies, through pitched device memory; in stream order.
stream = ok(driver.cuStreamCreate(0))
picture = create(64, 32, 0, Format.CU_AD_FORMAT_FLOAT, 1)
pointer, pitch = ok(driver.cuMemAllocPitch(64 * 4, 32, 4))
image = np.arange(64 * 32, dtype=np.float32).reshape(32, 64)
into = driver.CUDA_MEMCPY2D()
into.srcMemoryType, into.srcHost, into.srcPitch = HOST, image, 256
into.dstMemoryType, into.dstArray = ARRAY, picture
into.WidthInBytes, into.Height = 256, 32
gpu.spin(5_000_000, stream)
ok(driver.cuMemcpy2DAsync(into, stream))
across = driver.CUDA_MEMCPY2D()
across.srcMemoryType, across.srcArray, across.srcXInBytes, across.srcY = ARRAY, picture, 40, 3
across.dstMemoryType, across.dstDevice, across.dstPitch = DEVICE, pointer, pitch
across.WidthInBytes, across.Height = 80, 7
ok(driver.cuMemcpy2DAsync(across, stream))
part = np.zeros((7, 20), np.float32)
out = driver.CUDA_MEMCPY2D()
out.srcMemoryType, out.srcDevice, out.srcPitch = DEVICE, pointer, pitch
out.dstMemoryType, out.dstHost, out.dstPitch = HOST, part, 80
out.WidthInBytes, out.Height = 80, 7
ok(driver.cuStreamSynchronize(stream))
ok(driver.cuMemcpy2DUnaligned(out))
assert (part == image[3:10, 10:30]).all()
across.srcXInBytes = 42  # in the middle of an element
assert code(driver.cuMemcpy2D(across)) == "CUDA_ERROR_INVALID_VALUE"
across.srcXInBytes, across.WidthInBytes = 240, 80  # past the end of the row
assert code(driver.cuMemcpy2D(across)) == "CUDA_ERROR_INVALID_VALUE"
across.srcXInBytes, across.srcY = 0, 26  # past the last row
assert code(driver.cuMemcpy2D(across)) == "CUDA_ERROR_INVALID_VALUE"

# Lines: the older calls, from and to the host, the device and another array.
line_a, line_b = (
    create(100, 0, 0, Format.CU_AD_FORMAT_UNSIGNED_INT32, 1),
    create(100, 0, 0, Format.CU_AD_FORMAT_FLOAT, 1),
)
numbers = np.arange(100, dtype=np.uint32)
back = np.zeros(100, np.uint32)
ok(driver.cuMemcpyHtoA(line_a, 0, numbers, 400))
ok(driver.cuMemcpyAtoA(line_b, 40, line_a, 0, 360))
ok(driver.cuMemcpyAtoD(pointer, line_b, 40, 200))
ok(driver.cuMemcpyDtoA(line_a, 200, pointer, 200))
ok(driver.cuMemcpyAtoHAsync(back, line_a, 0, 400, stream))
ok(driver.cuStreamSynchronize(stream))
assert (back == np.concatenate([numbers[:50], numbers[:50]])).all()
ok(driver.cuMemcpyHtoAAsync(line_a, 4, numbers, 8, stream))
ok(driver.cuMemcpyAtoH(back, line_a, 0, 16))
assert list(back[:4]) == [0, 0, 1, 3]
assert code(driver.cuMemcpyAtoH(back, line_a, 0, 404)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuMemcpyAtoH(back, line_a, 2, 4)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuMemcpyAtoH(back, picture, 0, 4)) == "CUDA_ERROR_INVALID_VALUE"  # not a line

# Mipmaps: each level half as large, all of them in one allocation.
mipmap = ok(driver.cuMipmappedArrayCreate(shape(32, 16, 0, Format.CU_AD_FORMAT_UNSIGNED_INT8, 4), 99))
sizes = []
for level in itertools.count():
    answer = driver.cuMipmappedArrayGetLevel(mipmap, level)
    if code(answer) == "CUDA_ERROR_INVALID_VALUE":
        break
    description = ok(driver.cuArrayGetDescriptor(ok(answer)))
    sizes.append((description.Width, description.Height))
assert sizes == [(32, 16), (16, 8), (8, 4), (4, 2), (2, 1), (1, 1)], sizes
level_one = ok(driver.cuMipmappedArrayGetLevel(mipmap, 1))
assert code(driver.cuArrayDestroy(level_one)) == "CUDA_ERROR_INVALID_HANDLE"

# Invalid arguments are rejected.
layered, surface, cube, gather, sparse, deferred = 1, 2, 4, 8, 0x40, 0x80
float1 = (Format.CU_AD_FORMAT_FLOAT, 1)
for bad in [
    (0, 0, 0, *float1),
    (4, 0, 4, *float1),
    (4, 4, 0, Format.CU_AD_FORMAT_FLOAT, 3),
    (4, 4, 0, *float1, layered),
    (4, 8, 6, *float1, cube),
    (4, 4, 5, *float1, cube),
    (4, 4, 8, *float1, cube | layered),
    (4, 4, 4, *float1, gather),
    (1 << 20, 0, 0, *float1),
    (4, 1 << 17, 0, *float1),
    (4, 4, 4096, *float1, layered),
    (60000, 0, 0, *float1, surface),
    (4, 4, 0, *float1, 0x1000),
]:
    assert code(driver.cuArray3DCreate(shape(*bad))) == "CUDA_ERROR_INVALID_VALUE", bad
for later in (sparse, deferred):
    assert code(driver.cuArray3DCreate(shape(4, 4, 0, *float1, later))) == "CUDA_ERROR_NOT_SUPPORTED"
assert code(driver.cuArrayGetMemoryRequirements(line_a, gpu.device)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuArrayGetSparseProperties(line_a)) == "CUDA_ERROR_INVALID_VALUE"
huge = shape(16384, 16384, 16384, Format.CU_AD_FORMAT_FLOAT, 4)
assert code(driver.cuArray3DCreate(huge)) == "CUDA_ERROR_OUT_OF_MEMORY"
assert code(driver.cuArray3DGetDescriptor(driver.CUarray(0x1234))) == "CUDA_ERROR_INVALID_HANDLE"
ok(driver.cuArrayDestroy(create(8, 8, 12, *float1, cube | layered)))

# The descriptions of textures and surfaces are returned as they were given.
resource, texture = driver.CUDA_RESOURCE_DESC(), driver.CUDA_TEXTURE_DESC()
resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_ARRAY
resource.res.array.hArray = picture
texture.filterMode = driver.CUfilter_mode.CU_TR_FILTER_MODE_LINEAR
texture.flags, texture.maxAnisotropy = 2, 40
texture_object = ok(driver.cuTexObjectCreate(resource, texture, None))
assert int(ok(driver.cuTexObjectGetResourceDesc(texture_object)).res.array.hArray) == int(picture)
description = ok(driver.cuTexObjectGetTextureDesc(texture_object))
assert (description.flags, description.maxAnisotropy, description.filterMode) == (2, 16, texture.filterMode)
assert code(driver.cuTexObjectGetResourceViewDesc(texture_object)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuSurfObjectCreate(resource)) == "CUDA_ERROR_INVALID_VALUE"  # not made for surfaces
drawing = create(16, 16, 0, *float1, surface)
resource.res.array.hArray = drawing
surface_object = ok(driver.cuSurfObjectCreate(resource))
assert int(ok(driver.cuSurfObjectGetResourceDesc(surface_object)).res.array.hArray) == int(drawing)
assert code(driver.cuTexObjectDestroy(surface_object)) == "CUDA_ERROR_INVALID_VALUE"
resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_LINEAR
resource.res.linear.devPtr, resource.res.linear.sizeInBytes = int(pointer), 256
resource.res.linear.format, resource.res.linear.numChannels = float1
linear_object = ok(driver.cuTexObjectCreate(resource, texture, None))
resource.res.linear.devPtr = int(pointer) + 4
assert code(driver.cuTexObjectCreate(resource, texture, None)) == "CUDA_ERROR_INVALID_VALUE"  # not aligned
assert ok(driver.cuDeviceGetTexture1DLinearMaxWidth(*float1, gpu.device)) == 1 << 28
resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
resource.res.mipmap.hMipmappedArray = mipmap
view = driver.CUDA_RESOURCE_VIEW_DESC()
view.lastMipmapLevel, view.width, view.height = 5, 32, 16
view_object = ok(driver.cuTexObjectCreate(resource, texture, view))
assert ok(driver.cuTexObjectGetResourceViewDesc(view_object)).lastMipmapLevel == 5
view.lastMipmapLevel = 6
assert code(driver.cuTexObjectCreate(resource, texture, view)) == "CUDA_ERROR_INVALID_VALUE"
for made in (texture_object, linear_object, view_object):
    ok(driver.cuTexObjectDestroy(made))
ok(driver.cuSurfObjectDestroy(surface_object))


# Used memory always equals the sum of the shapes: rows of 64 bytes, 8 rows, units of 512 bytes.
def array_bytes(width: int, height: int, depth: int, texel_bytes: int) -> int:
    pitch = -(-width * texel_bytes // 64) * 64
    rows = -(-height // 8) * 8 if height > 1 else 1
    return -(-pitch * rows * max(depth, 1) // 512) * 512


def mipmap_bytes(width: int, height: int, levels: int) -> int:
    total = 0
    for _ in range(min(levels, max(width, height).bit_length())):
        rows = -(-height // 8) * 8 if height > 1 else 1
        total += -(-width // 64) * 64 * rows
        width, height = max(width // 2, 1), max(height // 2, 1)
    return -(-total // 512) * 512


live: list[tuple[bool, Any, int]] = []
base_bytes = free_bytes()
for _ in range(300):
    width, height, depth, levels = (int(number) for number in rng.integers(1, 100, 4))
    choice = rng.integers(3)
    if choice == 0 and live:
        is_mipmap, handle, _ = live.pop(int(rng.integers(len(live))))
        ok(driver.cuMipmappedArrayDestroy(handle) if is_mipmap else driver.cuArrayDestroy(handle))
    elif choice == 1:
        bytes1 = shape(width, height, 0, Format.CU_AD_FORMAT_UNSIGNED_INT8, 1)
        live.append((True, ok(driver.cuMipmappedArrayCreate(bytes1, levels)), mipmap_bytes(width, height, levels)))
    else:
        depth = depth if rng.integers(2) else 0
        live.append((False, create(width, height, depth, *float1), array_bytes(width, height, depth, 4)))
    assert base_bytes - free_bytes() == sum(taken for *_, taken in live)
for is_mipmap, handle, _ in live:
    ok(driver.cuMipmappedArrayDestroy(handle) if is_mipmap else driver.cuArrayDestroy(handle))
assert free_bytes() == base_bytes

# All memory is released, the last of it with the context.
for array in (picture, line_a, line_b):
    ok(driver.cuArrayDestroy(array))
ok(driver.cuMipmappedArrayDestroy(mipmap))
assert code(driver.cuMipmappedArrayDestroy(mipmap)) == "CUDA_ERROR_INVALID_HANDLE"
assert code(driver.cuArray3DGetDescriptor(level_one)) == "CUDA_ERROR_INVALID_HANDLE"
ok(driver.cuMemFree(pointer))
assert start_bytes - free_bytes() == 16 * 64
ok(driver.cuCtxDestroy(gpu.context))
gpu = Gpu()
assert free_bytes() == start_bytes
assert code(driver.cuArrayDestroy(drawing)) == "CUDA_ERROR_INVALID_HANDLE"
print("arrays right")
