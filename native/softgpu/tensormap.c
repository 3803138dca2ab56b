/* Tensor maps, on devices that have them: the description is checked as the driver's is and kept, in a form of our own.
 * No kernel here reads one. */
#include "softgpu/face.h"
#include "softgpu/names.h"

#include <string.h>

enum {
    MOST_DIMENSIONS = 5,
    MOST_BOX = 256,
    MOST_STEP = 8,
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

/* What is kept of a description: the numbers a program said, behind a word that says whose they are. */
struct kept {
    uint32_t mark;
    uint8_t type, rank, interleave, swizzle;
    uint64_t address, dimensions[MOST_DIMENSIONS], strides[MOST_DIMENSIONS - 1];
};
_Static_assert(sizeof(struct kept) <= sizeof(CUtensorMap), "a tensor map has room for what is kept of it");

enum { MARK = 0x746d6170 };

struct said {
    int type, interleave, swizzle, promotion, fill;
    uint32_t rank;
    uint64_t address;
    const uint64_t *dimensions, *strides;
    const uint32_t *steps;
};

/* Of the packed types: bytes of sixteen of them would be a whole number; for boxes they have rules of their own. */
static unsigned element_bytes(int type)
{
    static const uint8_t bytes[PACKED_4_ALIGN8] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    return type < PACKED_4_ALIGN8 ? bytes[type] : 0;
}

static int is_wide_packed(int type)
{
    return type > PACKED_4_ALIGN8;
}

static int is_plain(const struct said *said)
{
    if (said->type < 0 || said->type > LAST_TYPE || !said->rank || said->rank > MOST_DIMENSIONS ||
        said->interleave < 0 || said->interleave > INTERLEAVE_32B || said->swizzle < 0 ||
        said->swizzle > LAST_SWIZZLE || said->promotion < 0 || said->promotion > LAST_PROMOTION || said->fill < 0 ||
        said->fill > LAST_FILL || !said->dimensions || !said->steps || (said->rank > 1 && !said->strides))
        return 0;
    if (said->interleave != INTERLEAVE_NONE && said->rank < 3)
        return 0;
    return said->interleave != INTERLEAVE_32B || said->swizzle == SWIZZLE_32B;
}

static int is_tensor(const struct said *said)
{
    uint64_t unit = said->interleave == INTERLEAVE_32B || is_wide_packed(said->type) ? 32 : 16;
    if (!said->address || said->address % unit)
        return 0;
    for (uint32_t i = 0; i < said->rank; i++)
        if (!said->dimensions[i] || said->dimensions[i] > UINT64_C(1) << 32 || !said->steps[i] ||
            said->steps[i] > MOST_STEP)
            return 0;
    for (uint32_t i = 0; i + 1 < said->rank; i++)
        if (said->strides[i] % unit || said->strides[i] >= UINT64_C(1) << 40)
            return 0;
    if (is_wide_packed(said->type) && said->dimensions[0] % 128)
        return 0;
    return said->type != PACKED_4_ALIGN8 || said->dimensions[0] % 2 == 0;
}

static int is_box(const struct said *said, const uint32_t *box)
{
    static const uint16_t widest[LAST_SWIZZLE + 1] = {0, 32, 64, 128, 128, 128, 128};
    if (!box)
        return 0;
    for (uint32_t i = 0; i < said->rank; i++)
        if (!box[i] || box[i] > MOST_BOX)
            return 0;
    if (is_wide_packed(said->type))
        return box[0] == 128;
    if (said->interleave != INTERLEAVE_NONE || said->type == PACKED_4_ALIGN8)
        return 1;
    uint32_t row_bytes = box[0] * element_bytes(said->type);
    return row_bytes % 16 == 0 && (said->swizzle == SWIZZLE_NONE || row_bytes <= widest[said->swizzle]);
}

static CUresult enter(void)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    return sg_leave(context->device->config.compute_major < HOPPER ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS);
}

static void keep(CUtensorMap *map, const struct said *said)
{
    struct kept kept = {.mark = MARK, .type = (uint8_t)said->type, .rank = (uint8_t)said->rank,
                        .interleave = (uint8_t)said->interleave, .swizzle = (uint8_t)said->swizzle,
                        .address = said->address};
    memcpy(kept.dimensions, said->dimensions, said->rank * sizeof *said->dimensions);
    if (said->rank > 1)
        memcpy(kept.strides, said->strides, (said->rank - 1) * sizeof *said->strides);
    memset(map, 0, sizeof *map);
    memcpy(map, &kept, sizeof kept);
}

API CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                    const cuuint64_t *dimensions, const cuuint64_t *strides, const cuuint32_t *box,
                                    const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                    CUtensorMapFloatOOBfill fill)
{
    struct said said = {type, interleave, swizzle, promotion, fill, rank, (uintptr_t)address, dimensions, strides, steps};
    CUresult result = enter();
    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_NOT_SUPPORTED ? (CUresult)sg_unsupported(SG_NAME_cuTensorMapEncodeTiled) : result;
    if (!map || (uintptr_t)map % 64 || !is_plain(&said) || !is_tensor(&said) || !is_box(&said, box))
        return CUDA_ERROR_INVALID_VALUE;
    keep(map, &said);
    return CUDA_SUCCESS;
}

API CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                     const cuuint64_t *dimensions, const cuuint64_t *strides, const int *lower,
                                     const int *upper, cuuint32_t channels, cuuint32_t pixels,
                                     const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                     CUtensorMapFloatOOBfill fill)
{
    struct said said = {type, interleave, swizzle, promotion, fill, rank, (uintptr_t)address, dimensions, strides, steps};
    CUresult result = enter();
    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_NOT_SUPPORTED ? (CUresult)sg_unsupported(SG_NAME_cuTensorMapEncodeIm2col) : result;
    if (!map || (uintptr_t)map % 64 || !lower || !upper || rank < 3 || channels > MOST_BOX || pixels > 1024 ||
        !is_plain(&said) || !is_tensor(&said))
        return CUDA_ERROR_INVALID_VALUE;
    keep(map, &said);
    return CUDA_SUCCESS;
}

API CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address)
{
    struct kept kept;
    CUresult result = enter();
    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_NOT_SUPPORTED ? (CUresult)sg_unsupported(SG_NAME_cuTensorMapReplaceAddress) : result;
    if (!map || (uintptr_t)map % 64 || !address || (uintptr_t)address % 16)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&kept, map, sizeof kept);
    if (kept.mark != MARK)
        return CUDA_ERROR_INVALID_VALUE;
    kept.address = (uintptr_t)address;
    memcpy(map, &kept, sizeof kept);
    return CUDA_SUCCESS;
}
