/* cuGetErrorName and cuGetErrorString. */
#include "softgpu/driver/internal.h"

struct text {
    int code;
    const char *name;
    const char *words;
};

static const struct text texts[] = {
#define ERROR(name, code, text) {code, #name, text},
#include "softgpu/abi/errors.def"
#undef ERROR
};

static const struct text *text_of(CUresult result)
{
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].code == (int)result)
            return &texts[i];
    return NULL;
}

API CUresult cuGetErrorName(CUresult result, const char **name)
{
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    const struct text *text = text_of(result);
    *name = text ? text->name : NULL;
    return text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGetErrorString(CUresult result, const char **words)
{
    if (!words)
        return CUDA_ERROR_INVALID_VALUE;
    const struct text *text = text_of(result);
    *words = text ? text->words : NULL;
    return text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
