/* Arrays and mipmapped arrays. A program knows their shape but not their addresses. */
#include "softgpu/driver/array/array.h"
#include "softgpu/abi/names.h"

#include <string.h>

/* Texels are stored in tiles of 64 bytes by 8 rows, as in NVIDIA's block-linear layout: rows and heights are rounded up
 * to whole tiles, and the device is charged for the rounded size. Within the memory, rows are contiguous. */
enum { TILE_BYTES = 64, TILE_ROWS = 8 };

enum {
    UNSUPPORTED_FLAGS = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_VIDEO_ENCODE_DECODE,
    VALID_FLAGS = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP |
                  CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_DEPTH_TEXTURE | CUDA_ARRAY3D_COLOR_ATTACHMENT |
                  UNSUPPORTED_FLAGS,
};

uint32_t sg_texel_bytes(CUarray_format format, unsigned channels)
{
    static const uint8_t fixed_channels[] = {1, 2, 4};
    uint32_t bytes = 0;
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        bytes = 1;
        break;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        bytes = 2;
        break;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        bytes = 4;
        break;
    default: /* normalised formats, whose names include the number of channels: 8 and 16 bits, unsigned and signed */
        if (format < CU_AD_FORMAT_UNORM_INT8X1 || format > CU_AD_FORMAT_SNORM_INT16X4 ||
            channels != fixed_channels[(format - CU_AD_FORMAT_UNORM_INT8X1) % 3])
            return 0;
        return channels * ((format - CU_AD_FORMAT_UNORM_INT8X1) / 3 % 2 ? 2 : 1);
    }
    return channels == 1 || channels == 2 || channels == 4 ? bytes * channels : 0;
}

/* Whether the shape is within the limits for its kind. The table holds the numbers of the device attributes with the
 * maximum width, height and depth. */
static int is_within(struct sg_device *device, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    static const struct {
        unsigned flags;
        int dimensions;
        uint8_t texture[3], surface[3];
    } kinds[] = {
        {0, 1, {21}, {55}},
        {0, 2, {22, 23}, {56, 57}},
        {0, 3, {24, 25, 26}, {58, 59, 60}},
        {CUDA_ARRAY3D_LAYERED, 1, {42, 0, 43}, {61, 0, 62}},
        {CUDA_ARRAY3D_LAYERED, 2, {27, 28, 29}, {63, 64, 65}},
        {CUDA_ARRAY3D_CUBEMAP, 2, {52, 52, 0}, {66, 66, 0}},
        {CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED, 2, {53, 53, 54}, {67, 67, 68}},
    };
    const size_t size[3] = {shape->Width, shape->Height, shape->Depth};
    unsigned flags = shape->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    int dimensions = !shape->Height ? 1 : !flags && shape->Depth ? 3 : 2;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (kinds[i].flags != flags || kinds[i].dimensions != dimensions)
            continue;
        const uint8_t *limits = shape->Flags & CUDA_ARRAY3D_SURFACE_LDST ? kinds[i].surface : kinds[i].texture;
        for (int axis = 0; axis < 3; axis++)
            if (limits[axis] && size[axis] > (size_t)sg_attribute(device, limits[axis]))
                return 0;
        return 1;
    }
    return 0;
}

static CUresult check(struct sg_device *device, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    int is_layered = (shape->Flags & CUDA_ARRAY3D_LAYERED) != 0, is_cube = (shape->Flags & CUDA_ARRAY3D_CUBEMAP) != 0;
    if (!shape->Width || (shape->Flags & ~(unsigned)VALID_FLAGS))
        return CUDA_ERROR_INVALID_VALUE;
    if (shape->Depth && !shape->Height && !is_layered)
        return CUDA_ERROR_INVALID_VALUE;
    if (is_layered && !shape->Depth)
        return CUDA_ERROR_INVALID_VALUE;
    if (is_cube && (shape->Width != shape->Height || !shape->Depth || shape->Depth % 6 ||
                    (!is_layered && shape->Depth != 6)))
        return CUDA_ERROR_INVALID_VALUE;
    if ((shape->Flags & CUDA_ARRAY3D_TEXTURE_GATHER) &&
        (!shape->Height || shape->Depth || shape->Width > (size_t)sg_attribute(device, 45) ||
         shape->Height > (size_t)sg_attribute(device, 46)))
        return CUDA_ERROR_INVALID_VALUE;
    if ((shape->Flags & UNSUPPORTED_FLAGS) || shape->Format == CU_AD_FORMAT_UNORM_INT_101010_2 ||
        (shape->Format >= CU_AD_FORMAT_BC1_UNORM && shape->Format <= CU_AD_FORMAT_YUV444_16bit_SemiPlanar))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!sg_texel_bytes(shape->Format, shape->NumChannels) || !is_within(device, shape))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static size_t at_least_one(size_t value)
{
    return value ? value : 1;
}

/* Set the pitch and slice of the array and return its size in bytes. The checked limits rule out an overflow. */
static uint64_t lay_out(struct CUarray_st *array)
{
    const CUDA_ARRAY3D_DESCRIPTOR *shape = &array->shape;
    uint64_t rows = at_least_one(shape->Height);
    array->texel_bytes = sg_texel_bytes(shape->Format, shape->NumChannels);
    array->pitch = (shape->Width * array->texel_bytes + TILE_BYTES - 1) / TILE_BYTES * TILE_BYTES;
    if (rows > 1)
        rows = (rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    array->slice = array->pitch * rows;
    return array->slice * at_least_one(shape->Depth);
}

static struct CUarray_st *make(CUcontext context, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    struct CUarray_st *array = sg_new(SG_ARRAY);
    if (array) {
        array->context = sg_owner_context(context); /* the context that owns its memory */
        array->context_id = array->context->object.id;
        array->shape = *shape;
    }
    return array;
}

/* Allocate memory that no pointer of the program refers to. It is freed with the array. */
static CUresult allocate_backing(CUcontext context, uint64_t bytes, uint64_t *address)
{
    CUresult result = sg_memory_make(context, bytes, SG_MEMORY_DEVICE, 0, address);
    if (result == CUDA_SUCCESS)
        sg_memory_at(*address)->is_variable = 1;
    return result;
}

static CUresult create(CUarray *made, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    SG_ENTER(context);
    if (!made || !shape)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    result = check(context->device, shape);
    if (result != CUDA_SUCCESS)
        return sg_leave(result);
    struct CUarray_st *array = make(context, shape);
    if (!array)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    result = allocate_backing(context, lay_out(array), &array->address);
    if (result != CUDA_SUCCESS)
        sg_delete(SG_ARRAY, array);
    else
        *made = array;
    return sg_leave(result);
}

static CUresult counted(int name, CUresult result)
{
    return result == CUDA_ERROR_NOT_SUPPORTED ? (CUresult)sg_unsupported(name) : result;
}

API CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *flat)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {0};
    if (flat)
        shape = (CUDA_ARRAY3D_DESCRIPTOR){flat->Width, flat->Height, 0, flat->Format, flat->NumChannels, 0};
    return counted(SG_NAME_cuArrayCreate_v2, create(array, flat ? &shape : NULL));
}

API CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    return counted(SG_NAME_cuArray3DCreate_v2, create(array, shape));
}

static CUresult describe(CUarray array, CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    SG_ENTER(context);
    (void)context;
    if (!sg_alive(SG_ARRAY, array))
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    *shape = array->shape;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray array)
{
    return shape ? describe(array, shape) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *flat, CUarray array)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {0};
    CUresult result = flat ? describe(array, &shape) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *flat = (CUDA_ARRAY_DESCRIPTOR){shape.Width, shape.Height, shape.Format, shape.NumChannels};
    return result;
}

/* Wait for all contexts first, because copies in flight use the memory. */
API CUresult cuArrayDestroy(CUarray array)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sg_alive(SG_ARRAY, array) || array->mipmap)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    uint64_t id = array->object.id;
    result = sg_wait_all(array->context);
    if (!sg_alive(SG_ARRAY, array) || array->object.id != id)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE); /* another thread destroyed it */
    if (result == CUDA_SUCCESS) {
        sg_memory_drop(array->address);
        sg_delete(SG_ARRAY, array);
    }
    return sg_leave(result);
}

/* Memory requirements exist only for arrays with deferred mapping, sparse properties only for sparse arrays, and planes
 * only for multi-planar ones. This driver creates none of them, so every valid array fails with INVALID_VALUE. */
static CUresult refuse(enum sg_kind kind, const void *array)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    return sg_leave(sg_alive(kind, array) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
}

API CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUarray array, CUdevice device)
{
    (void)device;
    return requirements ? refuse(SG_ARRAY, array) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *properties, CUarray array)
{
    return properties ? refuse(SG_ARRAY, array) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuArrayGetPlane(CUarray *plane, CUarray array, unsigned int index)
{
    (void)index;
    return plane ? refuse(SG_ARRAY, array) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements,
                                                   CUmipmappedArray mipmap, CUdevice device)
{
    (void)device;
    return requirements ? refuse(SG_MIPMAP, mipmap) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *properties, CUmipmappedArray mipmap)
{
    return properties ? refuse(SG_MIPMAP, mipmap) : CUDA_ERROR_INVALID_VALUE;
}

static void end_mipmap(struct CUmipmappedArray_st *mipmap)
{
    for (uint32_t i = 0; i < mipmap->level_count; i++)
        if (mipmap->levels[i])
            sg_delete(SG_ARRAY, mipmap->levels[i]);
    sg_delete(SG_MIPMAP, mipmap);
}

/* Each level has half the size of the previous one; the number of layers and faces does not change. */
static CUresult make_levels(CUcontext context, struct CUmipmappedArray_st *mipmap, CUDA_ARRAY3D_DESCRIPTOR shape)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < mipmap->level_count; i++) {
        mipmap->levels[i] = make(context, &shape);
        if (!mipmap->levels[i])
            return CUDA_ERROR_OUT_OF_MEMORY;
        mipmap->levels[i]->mipmap = mipmap;
        mipmap->levels[i]->address = total; /* relative to the start until the memory is allocated */
        total += lay_out(mipmap->levels[i]);
        shape.Width = at_least_one(shape.Width / 2);
        shape.Height = shape.Height ? at_least_one(shape.Height / 2) : 0;
        if (!(shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
            shape.Depth = shape.Depth ? at_least_one(shape.Depth / 2) : 0;
    }
    CUresult result = allocate_backing(context, total, &mipmap->address);
    for (uint32_t i = 0; result == CUDA_SUCCESS && i < mipmap->level_count; i++)
        mipmap->levels[i]->address += mipmap->address;
    return result;
}

static CUresult create_mipmap(CUmipmappedArray *made, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    SG_ENTER(context);
    if (!made || !shape)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    result = check(context->device, shape);
    if (result != CUDA_SUCCESS)
        return sg_leave(result);
    size_t longest = shape->Width > shape->Height ? shape->Width : shape->Height;
    if (!(shape->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) && shape->Depth > longest)
        longest = shape->Depth;
    unsigned max_levels = 1;
    while (longest >> max_levels && max_levels < SG_LEVELS)
        max_levels++;
    struct CUmipmappedArray_st *mipmap = sg_new(SG_MIPMAP);
    if (!mipmap)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    mipmap->context = sg_owner_context(context);
    mipmap->context_id = mipmap->context->object.id;
    /* The driver clamps the number of levels in the same way. */
    mipmap->level_count = levels < 1 ? 1 : levels < max_levels ? levels : max_levels;
    result = make_levels(context, mipmap, *shape);
    if (result != CUDA_SUCCESS)
        end_mipmap(mipmap);
    else
        *made = mipmap;
    return sg_leave(result);
}

API CUresult cuMipmappedArrayCreate(CUmipmappedArray *made, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels)
{
    return counted(SG_NAME_cuMipmappedArrayCreate, create_mipmap(made, shape, levels));
}

API CUresult cuMipmappedArrayGetLevel(CUarray *level_array, CUmipmappedArray mipmap, unsigned int level)
{
    SG_ENTER(context);
    (void)context;
    if (!sg_alive(SG_MIPMAP, mipmap))
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!level_array || level >= mipmap->level_count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *level_array = mipmap->levels[level];
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sg_alive(SG_MIPMAP, mipmap))
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    uint64_t id = mipmap->object.id;
    result = sg_wait_all(mipmap->context);
    if (!sg_alive(SG_MIPMAP, mipmap) || mipmap->object.id != id)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (result == CUDA_SUCCESS) {
        sg_memory_drop(mipmap->address);
        end_mipmap(mipmap);
    }
    return sg_leave(result);
}

void sg_arrays_end(CUcontext context)
{
    uint64_t id = context->object.id;
    for (struct sg_sampler *one = sg_each(SG_SAMPLER, NULL); one; one = sg_each(SG_SAMPLER, one))
        if (one->context_id == id)
            sg_delete(SG_SAMPLER, one);
    for (CUmipmappedArray one = sg_each(SG_MIPMAP, NULL); one; one = sg_each(SG_MIPMAP, one))
        if (one->context_id == id)
            end_mipmap(one);
    for (CUarray one = sg_each(SG_ARRAY, NULL); one; one = sg_each(SG_ARRAY, one))
        if (one->context_id == id)
            sg_delete(SG_ARRAY, one);
}
