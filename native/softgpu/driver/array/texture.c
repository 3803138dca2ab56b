/* Texture and surface objects. They are checked against their resource and stored. No kernel of this device samples
 * one. */
#include "softgpu/driver/array/array.h"

#include <string.h>

/* Numbers of the device attributes that limit a texture over linear memory. */
enum { ALIGNMENT = 14, PITCH_ALIGNMENT = 51, LINEAR_TEXELS = 69, PITCHED_WIDTH = 70, PITCHED_HEIGHT = 71, PITCH = 72 };

enum {
    FLAGS = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB |
            CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION | CU_TRSF_SEAMLESS_CUBEMAP,
    LAST_ADDRESS_MODE = 3,
    LAST_FILTER_MODE = 1,
    LAST_VIEW_FORMAT = 0x22,
    MAX_ANISOTROPY = 16,
};

static int is_linear(struct sg_device *device, const CUDA_RESOURCE_DESC *resource)
{
    uint64_t texel = sg_texel_bytes(resource->res.linear.format, resource->res.linear.numChannels);
    uint64_t bytes = resource->res.linear.sizeInBytes;
    return texel && bytes && resource->res.linear.devPtr % (uint64_t)sg_attribute(device, ALIGNMENT) == 0 &&
           bytes / texel <= (uint64_t)sg_attribute(device, LINEAR_TEXELS) &&
           sg_memory_allows(device, resource->res.linear.devPtr, bytes, 0);
}

static int is_pitched(struct sg_device *device, const CUDA_RESOURCE_DESC *resource)
{
    uint64_t texel = sg_texel_bytes(resource->res.pitch2D.format, resource->res.pitch2D.numChannels);
    uint64_t width = resource->res.pitch2D.width, height = resource->res.pitch2D.height;
    uint64_t pitch = resource->res.pitch2D.pitchInBytes;
    return texel && width && height && width <= (uint64_t)sg_attribute(device, PITCHED_WIDTH) &&
           height <= (uint64_t)sg_attribute(device, PITCHED_HEIGHT) && pitch <= (uint64_t)sg_attribute(device, PITCH) &&
           pitch >= width * texel && pitch % (uint64_t)sg_attribute(device, PITCH_ALIGNMENT) == 0 &&
           resource->res.pitch2D.devPtr % (uint64_t)sg_attribute(device, ALIGNMENT) == 0 &&
           sg_memory_allows(device, resource->res.pitch2D.devPtr, pitch * (height - 1) + width * texel, 0);
}

static CUresult check_resource(struct sg_device *device, const CUDA_RESOURCE_DESC *resource)
{
    int is_good = 0;
    if (resource->flags)
        return CUDA_ERROR_INVALID_VALUE;
    switch (resource->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        is_good = sg_alive(SG_ARRAY, resource->res.array.hArray);
        break;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        is_good = sg_alive(SG_MIPMAP, resource->res.mipmap.hMipmappedArray);
        break;
    case CU_RESOURCE_TYPE_LINEAR:
        is_good = is_linear(device, resource);
        break;
    case CU_RESOURCE_TYPE_PITCH2D:
        is_good = is_pitched(device, resource);
        break;
    default:
        break;
    }
    return is_good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_texture(const CUDA_TEXTURE_DESC *texture)
{
    for (int i = 0; i < 3; i++)
        if (texture->addressMode[i] < 0 || texture->addressMode[i] > LAST_ADDRESS_MODE)
            return CUDA_ERROR_INVALID_VALUE;
    if (texture->filterMode < 0 || texture->filterMode > LAST_FILTER_MODE || texture->mipmapFilterMode < 0 ||
        texture->mipmapFilterMode > LAST_FILTER_MODE || (texture->flags & ~(unsigned)FLAGS))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* A view must refer to an array or a mipmapped array and to existing levels of it. */
static CUresult check_view(const CUDA_RESOURCE_DESC *resource, const CUDA_RESOURCE_VIEW_DESC *view)
{
    uint32_t levels = 1;
    if (resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
        levels = resource->res.mipmap.hMipmappedArray->level_count;
    else if (resource->resType != CU_RESOURCE_TYPE_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    if (view->format < 0 || view->format > LAST_VIEW_FORMAT || view->firstMipmapLevel > view->lastMipmapLevel ||
        view->lastMipmapLevel >= levels || view->firstLayer > view->lastLayer)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static struct sg_sampler *make(CUcontext context, const CUDA_RESOURCE_DESC *resource, int is_surface)
{
    struct sg_sampler *sampler = sg_new(SG_SAMPLER);
    if (sampler) {
        sampler->context_id = sg_owner_context(context)->object.id;
        sampler->resource = *resource;
        sampler->is_surface = is_surface;
    }
    return sampler;
}

API CUresult cuTexObjectCreate(CUtexObject *object, const CUDA_RESOURCE_DESC *resource,
                               const CUDA_TEXTURE_DESC *texture, const CUDA_RESOURCE_VIEW_DESC *view)
{
    SG_ENTER(context);
    if (!object || !resource || !texture)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    result = check_resource(context->device, resource);
    if (result == CUDA_SUCCESS)
        result = check_texture(texture);
    if (result == CUDA_SUCCESS && view)
        result = check_view(resource, view);
    if (result != CUDA_SUCCESS)
        return sg_leave(result);
    struct sg_sampler *sampler = make(context, resource, 0);
    if (!sampler)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    sampler->texture = *texture;
    if (texture->maxAnisotropy > MAX_ANISOTROPY) /* the driver clamps it in the same way */
        sampler->texture.maxAnisotropy = MAX_ANISOTROPY;
    sampler->has_view = view != NULL;
    if (view)
        sampler->view = *view;
    *object = (uintptr_t)sampler;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuSurfObjectCreate(CUsurfObject *object, const CUDA_RESOURCE_DESC *resource)
{
    SG_ENTER(context);
    if (!object || !resource || resource->flags || resource->resType != CU_RESOURCE_TYPE_ARRAY ||
        !sg_alive(SG_ARRAY, resource->res.array.hArray) ||
        !(resource->res.array.hArray->shape.Flags & CUDA_ARRAY3D_SURFACE_LDST))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_sampler *sampler = make(context, resource, 1);
    if (!sampler)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *object = (uintptr_t)sampler;
    return sg_leave(CUDA_SUCCESS);
}

static CUresult enter_object(unsigned long long object, int is_surface, struct sg_sampler **sampler)
{
    SG_ENTER(context);
    (void)context;
    *sampler = (struct sg_sampler *)(uintptr_t)object;
    if (!sg_alive(SG_SAMPLER, *sampler) || (*sampler)->is_surface != is_surface)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

static CUresult destroy(unsigned long long object, int is_surface)
{
    struct sg_sampler *sampler;
    CUresult result = enter_object(object, is_surface, &sampler);
    if (result != CUDA_SUCCESS)
        return result;
    sg_delete(SG_SAMPLER, sampler);
    return sg_leave(CUDA_SUCCESS);
}

static CUresult get_resource(CUDA_RESOURCE_DESC *resource, unsigned long long object, int is_surface)
{
    struct sg_sampler *sampler;
    CUresult result = enter_object(object, is_surface, &sampler);
    if (result != CUDA_SUCCESS)
        return result;
    if (!resource)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *resource = sampler->resource;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuTexObjectDestroy(CUtexObject object)
{
    return destroy(object, 0);
}

API CUresult cuSurfObjectDestroy(CUsurfObject object)
{
    return destroy(object, 1);
}

API CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUtexObject object)
{
    return get_resource(resource, object, 0);
}

API CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUsurfObject object)
{
    return get_resource(resource, object, 1);
}

API CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *texture, CUtexObject object)
{
    struct sg_sampler *sampler;
    CUresult result = enter_object(object, 0, &sampler);
    if (result != CUDA_SUCCESS)
        return result;
    if (!texture)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *texture = sampler->texture;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *view, CUtexObject object)
{
    struct sg_sampler *sampler;
    CUresult result = enter_object(object, 0, &sampler);
    if (result != CUDA_SUCCESS)
        return result;
    if (!view || !sampler->has_view)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *view = sampler->view;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *texels, CUarray_format format, unsigned channels,
                                                CUdevice ordinal)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_device *device = sg_device_at(ordinal);
    if (!texels || !sg_texel_bytes(format, channels) || !device)
        return sg_leave(device ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE);
    *texels = (size_t)sg_attribute(device, LINEAR_TEXELS);
    return sg_leave(CUDA_SUCCESS);
}
