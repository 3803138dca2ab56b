/* Tensor maps, on devices that support them. The description is checked as in the driver and stored in a private
 * format. No kernel of this device reads one. */
#include "softgpu/driver/internal.h"
#include "softgpu/abi/names.h"

#include <string.h>

enum {
    MAX_DIMENSIONS = 5,
    MAX_BOX = 256,
    MAX_STEP = 8,
    INTERLEAVE_NONE = 0,
    INTERLEAVE_32B = 2,
    SWIZZLE_NONE = 0,
    SWIZZLE_32B = 1,
    LAST_SWIZZLE = 6,
    LAST_PROMOTION = 3,
    LAST_FILL = 1,
    PACKED_4_ALIGN8 = 13,
    LAST_TYPE = 15,
    HOPPER = 9,
};

/* The stored form of a description, with a magic number in front. */
struct encoded_map {
    uint32_t magic;
    uint8_t type, rank, interleave, swizzle;
    uint64_t address, dimensions[MAX_DIMENSIONS], strides[MAX_DIMENSIONS - 1];
};
_Static_assert(sizeof(struct encoded_map) <= sizeof(CUtensorMap), "the encoded description fits a tensor map");

enum { MAGIC = 0x746d6170 };

struct desc {
    int type, interleave, swizzle, promotion, fill;
    uint32_t rank;
    uint64_t address;
    const uint64_t *dimensions, *strides;
    const uint32_t *steps;
};

/* Return 0 for packed types, whose boxes have separate rules. */
static unsigned element_bytes(int type)
{
    static const uint8_t bytes[PACKED_4_ALIGN8] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    return type < PACKED_4_ALIGN8 ? bytes[type] : 0;
}

static int is_wide_packed(int type)
{
    return type > PACKED_4_ALIGN8;
}

static int is_plain(const struct desc *desc)
{
    if (desc->type < 0 || desc->type > LAST_TYPE || !desc->rank || desc->rank > MAX_DIMENSIONS ||
        desc->interleave < 0 || desc->interleave > INTERLEAVE_32B || desc->swizzle < 0 ||
        desc->swizzle > LAST_SWIZZLE || desc->promotion < 0 || desc->promotion > LAST_PROMOTION || desc->fill < 0 ||
        desc->fill > LAST_FILL || !desc->dimensions || !desc->steps || (desc->rank > 1 && !desc->strides))
        return 0;
    if (desc->interleave != INTERLEAVE_NONE && desc->rank < 3)
        return 0;
    return desc->interleave != INTERLEAVE_32B || desc->swizzle == SWIZZLE_32B;
}

static int is_tensor(const struct desc *desc)
{
    uint64_t unit = desc->interleave == INTERLEAVE_32B || is_wide_packed(desc->type) ? 32 : 16;
    if (!desc->address || desc->address % unit)
        return 0;
    for (uint32_t i = 0; i < desc->rank; i++)
        if (!desc->dimensions[i] || desc->dimensions[i] > UINT64_C(1) << 32 || !desc->steps[i] ||
            desc->steps[i] > MAX_STEP)
            return 0;
    for (uint32_t i = 0; i + 1 < desc->rank; i++)
        if (desc->strides[i] % unit || desc->strides[i] >= UINT64_C(1) << 40)
            return 0;
    if (is_wide_packed(desc->type) && desc->dimensions[0] % 128)
        return 0;
    return desc->type != PACKED_4_ALIGN8 || desc->dimensions[0] % 2 == 0;
}

static int is_box(const struct desc *desc, const uint32_t *box)
{
    static const uint16_t widest[LAST_SWIZZLE + 1] = {0, 32, 64, 128, 128, 128, 128};
    if (!box)
        return 0;
    for (uint32_t i = 0; i < desc->rank; i++)
        if (!box[i] || box[i] > MAX_BOX)
            return 0;
    if (is_wide_packed(desc->type))
        return box[0] == 128;
    if (desc->interleave != INTERLEAVE_NONE || desc->type == PACKED_4_ALIGN8)
        return 1;
    uint32_t row_bytes = box[0] * element_bytes(desc->type);
    return row_bytes % 16 == 0 && (desc->swizzle == SWIZZLE_NONE || row_bytes <= widest[desc->swizzle]);
}

static CUresult enter(void)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    return sg_leave(context->device->config.compute_major < HOPPER ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS);
}

static void encode(CUtensorMap *map, const struct desc *desc)
{
    struct encoded_map encoded = {.magic = MAGIC, .type = (uint8_t)desc->type, .rank = (uint8_t)desc->rank,
                              .interleave = (uint8_t)desc->interleave, .swizzle = (uint8_t)desc->swizzle,
                              .address = desc->address};
    memcpy(encoded.dimensions, desc->dimensions, desc->rank * sizeof *desc->dimensions);
    if (desc->rank > 1)
        memcpy(encoded.strides, desc->strides, (desc->rank - 1) * sizeof *desc->strides);
    memset(map, 0, sizeof *map);
    memcpy(map, &encoded, sizeof encoded);
}

API CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                    const cuuint64_t *dimensions, const cuuint64_t *strides, const cuuint32_t *box,
                                    const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                    CUtensorMapFloatOOBfill fill)
{
    struct desc desc = {type, interleave, swizzle, promotion, fill, rank, (uintptr_t)address, dimensions, strides,
                        steps};
    CUresult result = enter();
    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_NOT_SUPPORTED ? (CUresult)sg_unsupported(SG_NAME_cuTensorMapEncodeTiled) : result;
    if (!map || (uintptr_t)map % 64 || !is_plain(&desc) || !is_tensor(&desc) || !is_box(&desc, box))
        return CUDA_ERROR_INVALID_VALUE;
    encode(map, &desc);
    return CUDA_SUCCESS;
}

API CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                     const cuuint64_t *dimensions, const cuuint64_t *strides, const int *lower,
                                     const int *upper, cuuint32_t channels, cuuint32_t pixels,
                                     const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                     CUtensorMapFloatOOBfill fill)
{
    struct desc desc = {type, interleave, swizzle, promotion, fill, rank, (uintptr_t)address, dimensions, strides,
                        steps};
    CUresult result = enter();
    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_NOT_SUPPORTED ? (CUresult)sg_unsupported(SG_NAME_cuTensorMapEncodeIm2col) : result;
    if (!map || (uintptr_t)map % 64 || !lower || !upper || rank < 3 || channels > MAX_BOX || pixels > 1024 ||
        !is_plain(&desc) || !is_tensor(&desc))
        return CUDA_ERROR_INVALID_VALUE;
    encode(map, &desc);
    return CUDA_SUCCESS;
}

API CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address)
{
    struct encoded_map encoded;
    CUresult result = enter();
    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_NOT_SUPPORTED ? (CUresult)sg_unsupported(SG_NAME_cuTensorMapReplaceAddress)
                                                  : result;
    if (!map || (uintptr_t)map % 64 || !address || (uintptr_t)address % 16)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&encoded, map, sizeof encoded);
    if (encoded.magic != MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    encoded.address = (uintptr_t)address;
    memcpy(map, &encoded, sizeof encoded);
    return CUDA_SUCCESS;
}
