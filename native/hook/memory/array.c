/* Arrays, whose size is computed from their shape because the driver does not report it. */
#include "hook/memory/memory.h"

/* Texels are stored in tiles of 64 bytes by 8 rows (NVIDIA's block-linear layout), so widths and heights are rounded up
 * to these. */
enum { TILE_BYTES = 64, TILE_ROWS = 8 };

/* Values of CUarray_format in cuda.h. */
enum { UINT8 = 1, INT32 = 0xa, HALF = 0x10, FLOAT = 0x20, NORM_FIRST = 0xc0, NORM_LAST = 0xcb, BC_FIRST = 0x91,
      BC_LAST = 0x9e };

/* Returns the size of a texel of this format. */
static uint64_t texel_bytes(int format, unsigned channels)
{
    static const uint8_t norm[] = {1, 2, 4, 2, 4, 8, 1, 2, 4, 2, 4, 8};
    if (format >= UINT8 && format <= INT32) /* 1, 2, 3 unsigned and 8, 9, 10 signed: 8, 16, 32 bits */
        return channels * (UINT64_C(1) << ((format & 7) - ((format & 8) == 0)));
    if (format >= NORM_FIRST && format <= NORM_LAST)
        return norm[format - NORM_FIRST];
    if (format >= BC_FIRST && format <= BC_LAST)
        return 1; /* 16 bytes for 4 x 4 texels at most */
    return channels * (format == HALF ? 2 : 4); /* an upper bound for formats with several planes */
}

static uint64_t at_least_one(uint64_t value)
{
    return value ? value : 1;
}

static uint64_t rounded_to(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Returns the size of one mipmap level. Nothing overflows within the limits of any device; the driver refuses larger
 * arrays. */
static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    enum { SIDE_MAX = 1 << 20, ROW_MAX = 1 << 28 };
    uint64_t rows = at_least_one(shape->Height), slices = at_least_one(shape->Depth);
    uint64_t texel = texel_bytes(shape->Format, shape->NumChannels & 7);
    if (shape->Width > ROW_MAX || rows > SIDE_MAX || slices > SIDE_MAX)
        return 0;
    if (rows > 1)
        rows = rounded_to(rows, TILE_ROWS);
    return rounded_to(shape->Width * texel, TILE_BYTES) * rows * slices;
}

/* Returns the size of an array with all its mipmap levels. */
static uint64_t array_bytes(CUDA_ARRAY3D_DESCRIPTOR shape, unsigned levels)
{
    const int is_flat = shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    uint64_t longest = shape.Width > shape.Height ? shape.Width : shape.Height, sum = 0;
    unsigned max = 1;
    if (shape.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0; /* its memory is mapped later, and counted where it is allocated */
    if (!is_flat && shape.Depth > longest)
        longest = shape.Depth;
    while (max < 32 && longest >> max)
        max++;
    levels = levels < 1 ? 1 : levels < max ? levels : max; /* as the driver clamps it */
    for (unsigned i = 0; i < levels; i++) {
        sum += level_bytes(&shape);
        shape.Width = at_least_one(shape.Width / 2);
        shape.Height = shape.Height ? at_least_one(shape.Height / 2) : 0;
        if (!is_flat)
            shape.Depth = shape.Depth ? at_least_one(shape.Depth / 2) : 0;
    }
    return ct_memory_rounded(sum);
}

static CUresult settle(struct ct_memory *memory, enum ct_held held, uint64_t bytes, const void *handle, CUresult result)
{
    ct_count_memory_call(0, result);
    const int is_created = result == CUDA_SUCCESS;
    const struct ct_holding holding = {.key = is_created ? *(const uintptr_t *)handle : 0, .bytes = bytes,
                                       .home = is_created ? ct_memory_home(memory) : 0, .held = (uint8_t)held,
                                       .kind = CT_LEDGER_ALLOCATED};
    return ct_memory_settle(memory, &holding, result);
}

/* The body shared by the three calls that create arrays. */
#define CREATE_ARRAY(symbol, held, array_size, handle, ...)                                                            \
    struct ct_memory *memory = ct_memory();                                                                            \
    struct ct_memory_wait wait = {0};                                                                                  \
    const uint64_t bytes = (array_size);                                                                               \
    CUresult result = ct_memory_reserve(memory, CT_LEDGER_ALLOCATED, bytes);                                           \
    if (result != CUDA_SUCCESS)                                                                                        \
        return result;                                                                                                 \
    do                                                                                                                 \
        result = CT_NEXT(symbol)(handle, __VA_ARGS__);                                                                 \
    while (ct_memory_should_retry(memory, &wait, bytes, result));                                                      \
    return settle(memory, held, bytes, handle, result)

CT_EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {0};
    if (descriptor)
        shape = (CUDA_ARRAY3D_DESCRIPTOR){descriptor->Width, descriptor->Height, 0, descriptor->Format,
            descriptor->NumChannels, 0};
    CREATE_ARRAY(cuArrayCreate_v2, CT_HELD_ARRAY, descriptor ? array_bytes(shape, 1) : 0, array, descriptor);
}

CT_EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    CREATE_ARRAY(cuArray3DCreate_v2, CT_HELD_ARRAY, shape ? array_bytes(*shape, 1) : 0, array, shape);
}

CT_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape,
                                          unsigned int levels)
{
    CREATE_ARRAY(cuMipmappedArrayCreate, CT_HELD_MIPMAP, shape ? array_bytes(*shape, levels) : 0, array, shape, levels);
}

#define DESTROY_ARRAY(symbol, type, holding_kind)                                                                      \
    CT_EXPORT CUresult symbol(type handle)                                                                             \
    {                                                                                                                  \
        CT_ON_DEVICE(ct_holding_device(holding_kind, (uintptr_t)handle));                                              \
        struct ct_memory *memory = ct_memory();                                                                        \
        struct ct_holding holding;                                                                                     \
        ct_memory_begin(memory);                                                                                       \
        int was_held = ct_holding_take(memory, holding_kind, (uintptr_t)handle, &holding);                             \
        CUresult result = CT_NEXT(symbol)(handle);                                                                     \
        ct_count_memory_call(1, result);                                                                               \
        return ct_memory_settle_free(memory, &holding, was_held, result);                                              \
    }

DESTROY_ARRAY(cuArrayDestroy, CUarray, CT_HELD_ARRAY)
DESTROY_ARRAY(cuMipmappedArrayDestroy, CUmipmappedArray, CT_HELD_MIPMAP)
