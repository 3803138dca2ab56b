/* Detection of the image format, and functions shared by all formats. */
#include "softgpu/driver/internal.h"

#include "fat_binary.h"

#include <stdlib.h>
#include <string.h>

/* Upper limit of kernels; an image that exceeds it is corrupt. */
enum { KERNELS = 1 << 16, SPIN_LIMIT_NS = 2000000000 };

void sg_image_free(struct sg_image *image)
{
    free(image->kernels);
    sg_variables_free(image);
    sg_image_free_code(image);
    *image = (struct sg_image){0};
}

/* Code that this device cannot run has a documented cost: 10 us per block and 8 bytes of traffic per thread. */
void sg_kernel_default(struct sg_kernel *kernel)
{
    kernel->duration_param = kernel->duration_data = kernel->spin_counter = kernel->spin_value = -1;
    kernel->spin_limit_ns = SPIN_LIMIT_NS;
    kernel->entry = -1;
    kernel->block_ns = 10000;
    kernel->bytes_per_thread = 8;
    kernel->registers = 32;
    kernel->max_threads = 1024;
}

struct sg_kernel *sg_image_add(struct sg_image *image, const char *name, size_t length)
{
    if (!length || length >= SG_NAME_BYTES || image->count >= KERNELS)
        return NULL;
    if (image->count == image->capacity) {
        size_t more = image->capacity ? image->capacity * 2 : 4;
        struct sg_kernel *larger = realloc(image->kernels, more * sizeof *larger);
        if (!larger)
            return NULL;
        image->kernels = larger;
        image->capacity = more;
    }
    struct sg_kernel *kernel = &image->kernels[image->count++];
    memset(kernel, 0, sizeof *kernel);
    memcpy(kernel->name, name, length);
    sg_kernel_default(kernel);
    return kernel;
}

int sg_kernel_param(struct sg_kernel *kernel, uint32_t bytes, uint32_t alignment)
{
    uint32_t end = 0;
    if (kernel->param_count) {
        uint32_t last = kernel->param_count - 1;
        end = kernel->param_offset[last] + kernel->param_bytes[last];
    }
    if (kernel->param_count == SG_MAX_PARAMS || !alignment || bytes > SG_PARAM_LIMIT_BYTES)
        return -1;
    kernel->param_offset[kernel->param_count] = (end + alignment - 1) / alignment * alignment;
    kernel->param_bytes[kernel->param_count++] = bytes;
    return 0;
}

/* Whether the parameters are within the limits for such a kernel. */
static int fits(const struct sg_kernel *kernel)
{
    int is_builtin = kernel->builtin != SG_BUILTIN_NONE;
    uint64_t limit = is_builtin ? SG_PARAM_BYTES : SG_PARAM_LIMIT_BYTES;
    if (kernel->param_count > (is_builtin ? SG_BUILTIN_PARAMS : SG_MAX_PARAMS) ||
        kernel->duration_param >= (int)kernel->param_count || kernel->duration_data >= (int)kernel->param_count ||
        kernel->spin_counter >= (int)kernel->param_count || kernel->spin_value >= (int)kernel->param_count)
        return 0;
    for (uint32_t i = 0; i < kernel->param_count; i++)
        if ((uint64_t)kernel->param_offset[i] + kernel->param_bytes[i] > limit)
            return 0;
    return 1;
}

CUresult sg_image_read(const void *data, size_t bytes, struct sg_image *image)
{
    static const char text_head[] = "softgpu-image";
    const unsigned char *raw = data;
    CUresult result;
    *image = (struct sg_image){0};
    /* Without a size, the format determines the end. The first bytes of every format can be compared safely. */
    size_t head = bytes ? bytes : SIZE_MAX;
    if (head >= 4 && strncmp((const char *)raw, "\177ELF", 4) == 0)
        result = sg_image_elf(raw, bytes, image);
    else if (head >= 4 && memcmp(raw, ct_fatbin_magic, 4) == 0)
        result = sg_image_fatbin(raw, bytes, image);
    else if (head >= sizeof(struct ct_fatbin_wrapper) && memcmp(raw, ct_fatbin_wrapper_magic, 4) == 0 && !bytes) {
        struct ct_fatbin_wrapper wrapper;
        memcpy(&wrapper, raw, sizeof wrapper);
        result = wrapper.data && memcmp(wrapper.data, ct_fatbin_magic, 4) == 0 ? sg_image_fatbin(wrapper.data, 0, image)
                                                                      : CUDA_ERROR_INVALID_IMAGE;
    } else {
        const char *text = data;
        size_t length = bytes ? strnlen(text, bytes) : strlen(text);
        size_t skip = 0;
        while (skip < length && strchr(" \t\r\n", text[skip]))
            skip++;
        if (length - skip >= sizeof text_head - 1 && memcmp(text + skip, text_head, sizeof text_head - 1) == 0)
            result = sg_image_text(text, length, image);
        else
            result = sg_image_ptx(text, length, image);
    }
    for (size_t i = 0; result == CUDA_SUCCESS && i < image->count; i++)
        if (!fits(&image->kernels[i]))
            result = CUDA_ERROR_INVALID_IMAGE;
    if (result != CUDA_SUCCESS)
        sg_image_free(image);
    return result;
}
